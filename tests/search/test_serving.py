"""Starting and stopping the service as a process, its token and host names, and its description put to the test."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Self

import pytest

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")

from recollect.common.errors import ConfigError, DataError
from recollect.search import Index
from recollect.search.serving import allowed_hosts, check_address, find_token
from search.live_service import Client, running
from search.stores import fresh_address
from search.toy_model import ToyEncoder, make_photos, save_model


def test_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RECOLLECT_TOKEN", raising=False)
    made, new = find_token(None)
    assert new
    assert len(made) >= 32
    monkeypatch.setenv("RECOLLECT_TOKEN", "from-the-environment")
    assert find_token(None) == ("from-the-environment", False)
    file = tmp_path / "token"
    file.write_text("from-a-file-instead\n")
    assert find_token(file) == ("from-a-file-instead", False)
    file.write_text("short")
    with pytest.raises(ConfigError, match="16"):
        find_token(file)
    with pytest.raises(DataError, match="no such file"):
        find_token(tmp_path / "nothing")


def test_host_names() -> None:
    assert allowed_hosts("127.0.0.1", []) == {"localhost", "127.0.0.1", "[::1]"}
    assert "[fe80::1]" in (allowed_hosts("fe80::1", []) or ())
    assert allowed_hosts("0.0.0.0", []) is None
    assert allowed_hosts("0.0.0.0", ["Search.example"]) == {"localhost", "127.0.0.1", "[::1]", "search.example"}


class Served:
    """``recollect serve`` as a process of its own."""

    def __init__(self, address: str, *options: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.client = Client(free.getsockname()[1])
        command = [sys.executable, "-m", "recollect", "serve", address, "--port", str(self.client.port), *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        while self.process.poll() is None:
            with suppress(OSError):  # until it listens
                if self.client.get("/health").status == 200:
                    break
            time.sleep(0.1)
        return self

    def stop(self) -> tuple[str, str]:
        """What it printed, once it has stopped."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.communicate(timeout=600)

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.mark.slow
def test_the_command_serves_and_stops(tmp_path: Path) -> None:
    photos = make_photos(tmp_path / "photos")
    with Index.create(tmp_path / "x.index", save_model(tmp_path / "model")) as index:
        index.sync(photos)
    with Served(str(tmp_path / "x.index"), "--write") as served:
        answer = served.client.upload("/search", (photos / "class1" / "1.png").read_bytes(), k="3")
        assert answer.json()["results"][0]["id"] == "class1/1.png"
        out, err = served.stop()
    assert f"{served.client.address}/" in out
    assert re.search(r"token for writing is \S{20,}", err)
    assert "Traceback" not in err


@pytest.mark.slow
@pytest.mark.release
def test_processes_on_one_server_are_replicas(tmp_path: Path) -> None:
    photos = make_photos(tmp_path / "photos")
    paths = sorted(photos.rglob("*.png"))
    address = fresh_address("postgres", tmp_path)
    (tmp_path / "token").write_text("a-token-of-some-length")
    right = {"Authorization": "Bearer a-token-of-some-length"}
    with (
        Index.create(address, save_model(tmp_path / "old")) as index,
        Served(address, "--write", "--token-file", str(tmp_path / "token")) as one,
        Served(address) as two,
        ThreadPoolExecutor(8) as pool,
    ):
        index.sync(photos)
        clients = one.client, two.client
        assert one.client.upload("/items", paths[0].read_bytes(), right, id="added").status == 201
        assert two.client.get("/items/added").status == two.client.get("/thumbnails/added").status == 200

        def ask(number: int) -> bool:
            path = paths[1 + number % (len(paths) - 1)]
            answer = clients[number % 2].upload("/search", path.read_bytes(), k="1")
            return answer.status == 200 and answer.json()["results"][0]["id"] == path.relative_to(photos).as_posix()

        rebuilt = pool.submit(index.rebuild, save_model(tmp_path / "new", 1))
        asked = 0
        while not rebuilt.done() or asked < 80:  # while another process changes the model of both
            assert all(pool.map(ask, range(asked, asked + 40)))
            asked += 40
        assert rebuilt.result().embedded == len(paths)
        for client in clients:
            while client.get("/health").json()["generation"] != 2:  # within a second
                time.sleep(0.1)
        assert all(pool.map(ask, range(40)))
        assert "Traceback" not in one.stop()[1] + two.stop()[1]


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("schemathesis", path=str(Path(sys.executable).parent)) is None, reason="no schemathesis"
)
@pytest.mark.parametrize("token", ["a-token-of-some-length", None])
@pytest.mark.release
def test_no_request_that_fits_the_description_breaks_it(token: str | None, tmp_path: Path) -> None:
    photos = make_photos(tmp_path / "photos")
    program = Path(sys.executable).with_name("schemathesis")
    with Index.create(tmp_path / "x.index", ToyEncoder()) as index:
        index.sync(photos)
        with running(index, token=token, max_bytes=100_000) as client:
            checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
            words = f"run {client.address}/openapi.json --checks {checks} --max-examples 30 --seed 1 --no-color"
            options = ["--suppress-health-check", "all", "--header", "Authorization: Bearer a-token-of-some-length"]
            command = [program, *words.split(), *options]
            done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
            assert client.get("/health").status == 200
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def test_an_address_that_nobody_can_listen_on_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=r"cannot listen .*in use"):
            check_address("127.0.0.1", port)
    check_address("127.0.0.1", port)
    check_address("localhost", port)
    for host in ("'\\0'", "\0", "x" * 300, "203.0.113.1"):
        with pytest.raises(ConfigError, match="cannot listen"):
            check_address(host, port)
