"""Starting and stopping the service as a process, its token and host names, and its description put to the test."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")

from recollect.common.errors import ConfigError
from recollect.models import Embedder
from recollect.search import Index
from recollect.search.serving import allowed_hosts, find_token, refuse_address
from search.live_service import Client, running
from search.toy_model import ToyEncoder, make_photos


def test_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RECOLLECT_TOKEN", raising=False)
    made, new = find_token(None)
    assert new
    assert len(made) >= 32
    assert find_token(None)[0] != made
    monkeypatch.setenv("RECOLLECT_TOKEN", "from-the-environment")
    assert find_token(None) == ("from-the-environment", False)
    file = tmp_path / "token"
    file.write_text("from-a-file-instead\n")
    assert find_token(file) == ("from-a-file-instead", False)
    file.write_text("short")
    with pytest.raises(ConfigError, match="16"):
        find_token(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        find_token(tmp_path / "nothing")
    if sys.platform != "win32":
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(ConfigError, match="pipe"):  # and not waited for
            find_token(tmp_path / "pipe")


def test_host_names() -> None:
    assert allowed_hosts("127.0.0.1", []) == {"localhost", "127.0.0.1", "[::1]"}
    assert "[fe80::1]" in (allowed_hosts("fe80::1", []) or ())
    assert allowed_hosts("0.0.0.0", []) is None
    assert allowed_hosts("0.0.0.0", ["Search.example"]) == {"localhost", "127.0.0.1", "[::1]", "search.example"}


@pytest.mark.slow
def test_the_command_serves_and_stops(tmp_path: Path) -> None:
    photos = make_photos(tmp_path / "photos")
    torch.manual_seed(0)
    Embedder.create("tiny", size=16, dim=8).save(tmp_path / "model")
    with Index.create(tmp_path / "x.index", str(tmp_path / "model")) as index:
        index.sync(photos)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "recollect", "serve", str(tmp_path / "x.index"), "--port", str(port), "--write"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        client = Client(port)
        for _ in range(600):
            try:
                if client.get("/health").status == 200:
                    break
            except OSError:
                time.sleep(0.1)
        answer = client.upload("/search", (photos / "class1" / "1.png").read_bytes(), k="3")
        assert answer.json()["results"][0]["id"] == "class1/1.png"
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert f"http://127.0.0.1:{port}/" in out
    assert re.search(r"token for writing is \S{20,}", err)
    assert "Traceback" not in err


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("schemathesis", path=str(Path(sys.executable).parent)) is None, reason="no schemathesis"
)
@pytest.mark.parametrize("token", ["a-token-of-some-length", None])
def test_no_request_that_fits_the_description_breaks_it(token: str | None, tmp_path: Path) -> None:
    photos = make_photos(tmp_path / "photos")
    program = Path(sys.executable).with_name("schemathesis")
    with Index.create(tmp_path / "x.index", ToyEncoder()) as index:
        index.sync(photos)
        with running(index, token=token, max_bytes=100_000) as client:
            done = subprocess.run(
                [program, "run", f"{client.address}/openapi.json", "--checks",
                 "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance",
                 "--max-examples", "30", "--seed", "1", "--header", "Authorization: Bearer a-token-of-some-length",
                 "--suppress-health-check", "all", "--no-color"],
                capture_output=True, text=True, check=False, cwd=tmp_path,
            )  # fmt: skip
            assert client.get("/health").status == 200
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def test_an_address_that_nobody_can_listen_on_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=r"cannot listen .*in use"):
            refuse_address("127.0.0.1", port)
    refuse_address("127.0.0.1", port)
    refuse_address("localhost", port)
    for host in ("'\\0'", "\0", "x" * 300, "203.0.113.1"):
        with pytest.raises(ConfigError, match="cannot listen"):
            refuse_address(host, port)
