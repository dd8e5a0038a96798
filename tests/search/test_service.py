"""The service, over real sockets: answers, limits, what it refuses, many clients at once.

Also covers thumbnails, metrics, and what the service refuses.
"""

from __future__ import annotations

import io
import json
import os
import re
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")
pytest.importorskip("uvicorn", reason="the extra 'serve' is not installed")

from recollect.search import Index, service
from recollect.search.service import MAX_BATCH
from recollect.search.serving import allowed_hosts
from search.live_service import Client, running
from search.toy_model import ToyEncoder, make_photos

TOKEN = "a-token-of-some-length"
RIGHT = {"Authorization": f"Bearer {TOKEN}"}
SECRET = "machine_private_folder"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_photos(tmp_path_factory.mktemp(SECRET) / "photos", classes=5, each=8)


@pytest.fixture(scope="module")
def index(photos: Path) -> Iterator[Index]:
    with Index.create(photos.parent / "x.index", ToyEncoder()) as made:
        made.sync(photos)
        made.add([photos / "class0" / "0.png"], ["a/odd\nid?#%"], [{"label": "<script>alert(1)</script>"}])
        made.set_calibration({"same": {"similarity": 0.98}, "similar": {"similarity": 0.5}})
        yield made


@pytest.fixture(scope="module")
def client(index: Index) -> Iterator[Client]:
    with running(index, max_bytes=300_000, max_pixels=500_000, hosts=frozenset({"127.0.0.1"})) as opened:
        yield opened


def _png(colour: str = "red", size: int = 16) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (size, size), colour).save(buffer, "PNG")
    return buffer.getvalue()


def test_an_image_finds_its_neighbours(client: Client, index: Index, photos: Path) -> None:
    content = (photos / "class2" / "3.png").read_bytes()
    answer = client.upload("/search", content, k="5")
    assert answer.status == 200, answer.body
    results = answer.json()["results"]
    expected = index.search(content, 5)
    assert [row["id"] for row in results] == [match.id for match in expected]
    np.testing.assert_allclose([row["similarity"] for row in results], [m.similarity for m in expected], atol=1e-6)
    assert results[0] == {
        "id": "class2/3.png",
        "similarity": results[0]["similarity"],
        "verdict": "same",
        "metadata": {"name": "3.png", "label": "class2"},
        "thumbnail": "/thumbnails/class2%2F3.png",
    }
    where = json.dumps({"label": ["class0", "class1"]})
    filtered = client.upload("/search", content, k="30", where=where).json()["results"]
    assert len(filtered) == 16
    assert {row["metadata"]["label"] for row in filtered} == {"class0", "class1"}


def test_an_id_finds_its_neighbours(client: Client, index: Index) -> None:
    answer = client.post("/search", {"id": "class1/2.png", "k": 4, "where": {"label": "class1"}})
    assert [r["id"] for r in answer.json()["results"]] == [
        m.id for m in index.search_id("class1/2.png", 4, {"label": "class1"})
    ]
    assert client.post("/search", {"id": "nothing"}).status == 404
    odd = client.post("/search", {"id": "a/odd\nid?#%", "k": 1, "where": None})
    assert odd.json()["results"][0]["id"] == "class0/0.png"


def test_a_field_that_would_be_ignored_is_refused(client: Client) -> None:
    """A misspelt filter would otherwise be a search through everything."""
    for answer in (
        client.upload("/search", _png(), wher='{"label": "class1"}'),
        client.post("/search", {"id": "class1/2.png", "wher": {"label": "class1"}}),
    ):
        assert answer.status == 422
        assert answer.json()["detail"] == "wher: Extra inputs are not permitted"
    assert client.post("/search", {"image": "aGk=", "id": "class1/2.png"}).json()["detail"].startswith("image: Extra")
    for answer in (client.upload("/search?k=2", _png()), client.post("/search?top=2", {"id": "class1/2.png"})):
        assert answer.status == 422
        assert answer.json()["detail"] == "send the fields in the body, not in the address."


def test_items_and_thumbnails_of_indexed_images_only(client: Client, photos: Path) -> None:
    answer = client.get("/items/a%2Fodd%0Aid%3F%23%25")
    assert answer.json()["id"] == "a/odd\nid?#%"
    picture = client.get(answer.json()["thumbnail"])
    assert picture.headers["content-type"] == "image/jpeg"
    assert Image.open(io.BytesIO(picture.body)).size == (12, 12)
    again = client.get(answer.json()["thumbnail"], **{"If-None-Match": picture.headers["etag"]})
    assert (again.status, again.body) == (304, b"")
    Image.new("RGB", (12, 12)).save(photos / "not-indexed.png")
    for name in ("not-indexed.png", f"{photos}/not-indexed.png", "nothing", "/etc/passwd", "..%2F..%2Fetc%2Fpasswd"):
        assert client.get(f"/thumbnails/{name}").status == client.get(f"/items/{name}").status == 404


def test_a_file_that_took_anothers_place_is_not_shown(tmp_path: Path) -> None:
    photos = make_photos(tmp_path / "p", classes=1, each=2)
    with Index.create(tmp_path / "x", ToyEncoder()) as index:
        index.sync(photos)
        (photos / "class0" / "0.png").unlink()
        (photos / "class0" / "0.png").symlink_to("/etc/hostname")
        Image.new("RGB", (50, 50)).save(photos / "class0" / "1.png")
        with running(index) as client:
            assert client.get("/thumbnails/class0%2F0.png").status == 404
            assert client.get("/thumbnails/class0%2F1.png").status == 404


def test_what_the_service_tells_of_itself(client: Client) -> None:
    health = client.get("/health").json()
    assert (health["status"], health["items"], health["model"], health["same"]) == ("ok", 41, "toy 0", 0.98)
    assert health["writable"] is False
    assert client.get("/labels").json()["class3"] == 8
    client.upload("/search", _png())
    assert client.call("BREW", "/search").status == 405
    text = client.get("/metrics").body.decode()
    assert "BREW" not in text, "clients cannot add counters"
    assert 'recollect_requests_total{method="POST",route="/search",status="200"}' in text
    assert all(
        metric in text for metric in ("recollect_items 41", "recollect_search_seconds", "recollect_batch_queries")
    )
    described = client.get("/openapi.json").json()
    methods = {(path, kind): method for path, kinds in described["paths"].items() for kind, method in kinds.items()}
    assert len(methods) == 9
    writing = {("/items", "post"), ("/items/{item_id}", "delete")}
    assert {key for key, method in methods.items() if method.get("security") == [{"token": []}]} == writing
    assert b"Image search" in client.get("/").body
    pages = [client.get(path).status for path in ("/page.js", "/page.css", "/page.py", "/docs")]
    assert pages == [200, 200, 404, 404]


def test_every_answer_is_guarded_and_tells_no_path(client: Client, photos: Path) -> None:
    answers = [client.get(path) for path in ("/", "/health", "/nothing", "/items/class0%2F0.png")]
    for answer in (*answers, client.post("/search", {"id": "class0/1.png"}), client.upload("/search", b"junk")):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert SECRET.encode() not in answer.body
        assert SECRET not in str(answer.headers)
    assert client.get("/health", Host="evil.example").status == 400
    assert client.get("/health", Host="127.0.0.1:1234").status == 200


def test_hostile_uploads_are_refused(client: Client) -> None:
    svg = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
    for content, status in (
        (_png(size=800), 400),  # 640,000 pixels
        (_png()[:-30], 400),
        (b"", 400),
        (svg, 400),
        (os.urandom(5000), 400),
        (os.urandom(400_000), 413),
    ):
        answer = client.upload("/search", content)
        assert answer.status == status, (answer.status, answer.body)
        assert isinstance(answer.json()["detail"], str)
    for fields in ({"k": "0"}, {"k": "many"}, {"k": "1001"}, {"where": "{"}, {"where": "[1]"}, {"where": '{"a": {}}'}):
        assert client.upload("/search", _png(), **fields).status == 422
    for body in ({}, {"id": ""}, {"id": "class0/0.png", "k": 1.5}, {"id": ["x"]}, [1], None):
        assert client.post("/search", body).status == 422
    wide = client.upload("/search", _png(), where=json.dumps({f"column {number}": "x" for number in range(17)}))
    assert wide.json()["detail"] == "where: Value error, it may have 16 names, with 1,000 values each."
    assert client.post("/search", {"id": "class0/0.png", "where": {"label": ["x"] * 1001}}).status == 422
    form = "multipart/form-data; boundary=x"
    for kind, body, status in (
        ("text/plain", b"x", 415),
        ("application/json", b"\xff\xfe", 422),
        ("application/json", b"[" * 60_000, 422),
        ("application/json", b"[" * 70_000, 413),
        ("multipart/form-data", b"x", 400),
        (form, b"nothing like a form", 422),
        (form, b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n', 422),
    ):
        answer = client.call("POST", "/search", body, {"Content-Type": kind})
        assert answer.status in (status, 400), (kind, body[:30], answer.status, answer.body)
    assert client.upload("/search", _png(), id="", where="").status == 200  # and it goes on; empty fields are none
    assert client.upload("/search", None).status in (400, 422)  # by the version of the library that reads forms


@pytest.mark.parametrize("kind", ["multipart/form-data; boundary=x", "application/json"])
def test_a_body_over_the_limit_is_refused_announced_or_not(kind: str, client: Client) -> None:
    with socket.create_connection(("127.0.0.1", client.port), timeout=30) as raw:
        raw.sendall(
            f"POST /search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\n"
            "Transfer-Encoding: chunked\r\n\r\n".encode()
        )
        part = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'.ljust(1000, b"a")
        for _ in range(366 if "form" in kind else 66):  # not one more: closing with bytes unread may cost the answer
            raw.sendall(b"%x\r\n" % len(part) + part + b"\r\n")
            part = b"a" * 1000
        assert b" 413 " in raw.recv(4000).split(b"\r\n")[0]
    with socket.create_connection(("127.0.0.1", client.port), timeout=30) as raw:
        head = f"POST /search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\nContent-Length: 10000000000"
        raw.sendall(f"{head}\r\n\r\nabc".encode())
        assert b" 413 " in raw.recv(4000).split(b"\r\n")[0]


def test_only_hosts_that_were_allowed_are_answered(index: Index) -> None:
    with running(index, hosts=allowed_hosts("127.0.0.1", ["shop.example"])) as client:
        for host in ("[::1]", "[::1]:8000", "127.0.0.1:1", "LOCALHOST", "shop.example:80"):
            assert client.get("/health", Host=host).status == 200, host
        for host in ("[::1].evil.example", "[::1", "[::1]x", "localhost.evil.example", "localhost:1:2", "", "::1"):
            assert client.get("/health", Host=host).status == 400, host


def test_slow_clients_are_disconnected_and_do_not_keep_others_out(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MAX_CONNECTIONS", 5)
    monkeypatch.setattr(service, "_HEADER_SECONDS", 600.0)
    with running(index) as client, ExitStack() as stack:
        idle = []
        for number in range(20):
            idle.append(stack.enter_context(socket.create_connection(("127.0.0.1", client.port), timeout=60)))
            idle[-1].sendall(b"POST /search HTTP/1.1\r\nHost: x\r\n"[: 40 * (number % 2)])
        assert client.get("/health").status == 200
        for connection in idle[:10]:  # those that waited longest were closed
            with suppress(ConnectionResetError):
                assert connection.recv(1) == b""
        monkeypatch.setattr(service, "_HEADER_SECONDS", 0.1)
        with socket.create_connection(("127.0.0.1", client.port), timeout=60) as slow:
            slow.sendall(b"GET /health HTTP/1.1\r\nHost:")
            assert slow.recv(1) == b""


def test_writing_needs_to_be_allowed_and_a_token(client: Client, tmp_path: Path) -> None:
    assert client.upload("/items", _png(), id="x").status == 403
    assert client.call("DELETE", "/items/class0%2F0.png").status == 403
    with Index.create(tmp_path / "x", ToyEncoder()) as index, running(index, token=TOKEN) as writer:
        for wrong in ({}, {"Authorization": "Bearer x"}, {"Authorization": TOKEN}, {"Authorization": f"Basic {TOKEN}"}):
            answer = writer.upload("/items", _png(), wrong, id="x")
            assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
            assert writer.call("DELETE", "/items/x", headers=wrong).status == 401
        assert len(index) == 0
        made = writer.upload("/items", _png("blue"), RIGHT, id="my/blue", metadata='{"label": "sky", "price": 3}')
        assert made.status == 201, made.body
        assert made.json()["metadata"] == {"label": "sky", "price": "3"}
        writer.upload("/items", _png("red"), RIGHT, id="red")
        found = writer.upload("/search", _png("blue"), k="1").json()["results"]
        assert found[0]["id"] == "my/blue"
        assert writer.get(found[0]["thumbnail"]).status == 200
        for content, fields, status in (
            (b"junk", {"id": "x"}, 400),
            (_png(), {}, 422),
            (None, {"id": "x"}, 422),
            (_png(), {"id": "ä" * 1025}, 422),
            (_png(), {"id": "x", "metadata": '{"a": [1]}'}, 422),
        ):
            assert writer.upload("/items", content, RIGHT, **fields).status == status
        assert writer.call("DELETE", "/items/my%2Fblue", headers=RIGHT).status == 204
        assert writer.call("DELETE", "/items/my%2Fblue", headers=RIGHT).status == 404
        assert len(index) == 1
        index.store.drop_generation(1)  # an index that breaks is reported without its path
        answer = writer.upload("/search", _png())
        assert (answer.status, writer.get("/health").status) == (503, 503)
        assert str(tmp_path).encode() not in answer.body


class Gated(ToyEncoder):
    """Waits with the first image of a client until ``gate`` opens, and then fails where ``fault`` is among the images."""

    def __init__(self, fault: int = 0) -> None:
        super().__init__()
        self.entered, self.gate, self.fault, self.sizes = threading.Event(), threading.Event(), fault, []

    def embed(self, images: list, on_bad: object = None) -> np.ndarray:
        if images[0].shape != (64, 64, 3):  # not the one that warms up
            self.sizes.append(len(images))
            self.entered.set()
            assert self.gate.wait(600)
        if any(image.shape[0] == self.fault for image in images):
            raise RuntimeError("an image that the model cannot take")
        return super().embed(images, on_bad)


def _counted(client: Client, metric: str) -> int:
    found = re.search(rf"{re.escape(metric)} (\d+)", client.get("/metrics").body.decode())
    return int(found[1]) if found else 0


def test_queries_that_arrive_together_are_embedded_together(index: Index, photos: Path) -> None:
    model, content = Gated(), (photos / "class4" / "1.png").read_bytes()
    with Index.open(index.address, model) as opened, running(opened) as client, ThreadPoolExecutor(41) as pool:
        first = pool.submit(client.upload, "/search", content)
        assert model.entered.wait(600)
        others = [pool.submit(client.upload, "/search", content) for _ in range(40)]
        while _counted(client, "recollect_waiting_queries") < 40:
            time.sleep(0.01)
        model.gate.set()
        answers = [first, *others]
        assert all(answer.result().json()["results"][0]["id"] == "class4/1.png" for answer in answers)
    assert model.sizes == [1, MAX_BATCH, 40 - MAX_BATCH]


def test_a_query_that_fails_does_not_fail_those_that_arrived_with_it(index: Index) -> None:
    model = Gated(fault=13)
    with Index.open(index.address, model) as opened, running(opened) as client, ThreadPoolExecutor(8) as pool:
        first = pool.submit(client.upload, "/search", _png())
        assert model.entered.wait(600)
        others = [pool.submit(client.upload, "/search", _png(size=13 if n == 3 else 16)) for n in range(7)]
        while _counted(client, "recollect_waiting_queries") < 7:
            time.sleep(0.01)
        model.gate.set()
        assert [answer.result().status for answer in (first, *others)] == [200, 200, 200, 200, 500, 200, 200, 200]
    assert model.sizes[1] == 7


def test_queries_of_clients_that_left_are_not_embedded(index: Index) -> None:
    model = Gated()
    with Index.open(index.address, model) as opened, running(opened) as client, ThreadPoolExecutor(2) as pool:
        first = pool.submit(client.upload, "/search", _png())
        assert model.entered.wait(600)
        body = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n' + _png() + b"\r\n--x--\r\n"
        head = "POST /search HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=x\r\nContent-Length: "
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", client.port)) as leaver:
                leaver.sendall(f"{head}{len(body)}\r\n\r\n".encode() + body)
        last = pool.submit(client.upload, "/search", _png())
        while _counted(client, 'status="400"}') + _counted(client, "recollect_waiting_queries") < 6:
            time.sleep(0.01)
        model.gate.set()
        assert (first.result().status, last.result().status) == (200, 200)
    assert sum(model.sizes) == 2


def test_an_image_that_is_added_holds_the_lock_only_while_it_is_written(tmp_path: Path) -> None:
    """Otherwise a few clients that add images keep each other waiting until they are refused."""
    model = Gated()
    with Index.create(tmp_path / "x", model) as index, running(index, token=TOKEN) as client:
        with ThreadPoolExecutor(20) as pool:
            made = [pool.submit(client.upload, "/items", _png(size=20 + n), RIGHT, id=f"{n}") for n in range(20)]
            assert model.entered.wait(600)
            with index.store.writing(wait=0):
                pass
            model.gate.set()
            assert {answer.result().status for answer in made} == {201}
        assert len(index) == 20
        assert client.get("/thumbnails/7").status == 200
        assert index.picture("7") == _png(size=27)


def test_requests_under_way_are_answered_when_it_stops(index: Index, photos: Path) -> None:
    model = Gated()
    with Index.open(index.address, model) as opened, running(opened) as client, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.upload, "/search", (photos / "class4" / "1.png").read_bytes())
        assert model.entered.wait(600)
        client.server.should_exit = True
        with suppress(ConnectionRefusedError):
            while True:  # until it takes no more requests
                socket.create_connection(("127.0.0.1", client.port)).close()
        model.gate.set()
        assert answer.result().json()["results"][0]["id"] == "class4/1.png"


@pytest.mark.slow
def test_500_searches_from_50_clients(index: Index, client: Client, photos: Path) -> None:
    paths = sorted(photos.rglob("*.png"))
    expected = {path: [m.id for m in index.search(path, 5)] for path in paths}
    seconds: list[float] = []

    def ask(number: int) -> bool:
        path = paths[number % len(paths)]
        start = time.perf_counter()
        answer = client.upload("/search", path.read_bytes(), k="5")
        seconds.append(time.perf_counter() - start)
        return answer.status == 200 and [row["id"] for row in answer.json()["results"]] == expected[path]

    with ThreadPoolExecutor(50) as pool:
        right = list(pool.map(ask, range(500)))
    assert right.count(True) == 500
    percentiles = statistics.quantiles(seconds, n=100)
    print(f"500 searches from 50 clients: p50 {1000 * percentiles[49]:.0f} ms, p99 {1000 * percentiles[98]:.0f} ms")
