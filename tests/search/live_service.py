"""A service on a port of this machine, and a client made of the standard library."""

from __future__ import annotations

import http.client
import json
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from recollect.search import Index


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Client:
    port: int
    server: Any = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def call(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        try:
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.call("GET", path, headers=headers)

    def post(self, path: str, value: Any) -> Answer:
        return self.call("POST", path, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def upload(self, path: str, image: bytes | None, headers: Mapping[str, str] | None = None, **fields: str) -> Answer:
        border = uuid.uuid4().hex
        parts = [
            f'--{border}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
            for name, value in fields.items()
        ]
        if image is not None:
            head = f'--{border}\r\nContent-Disposition: form-data; name="image"; filename="x.png"\r\n'
            parts.append(f"{head}Content-Type: image/png\r\n\r\n".encode() + image + b"\r\n")
        body = b"".join(parts) + f"--{border}--\r\n".encode()
        kind = {"Content-Type": f"multipart/form-data; boundary={border}"}
        return self.call("POST", path, body, {**kind, **(headers or {})})


@contextmanager
def running(index: Index, **limits: Any) -> Iterator[Client]:
    import uvicorn

    from recollect.search.service import Limits, create_app
    from recollect.search.serving import server_options

    settings = uvicorn.Config(create_app(index, Limits(**limits)), host="127.0.0.1", port=0, **server_options(30))
    server = uvicorn.Server(settings)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        if not thread.is_alive():
            raise RuntimeError("the service did not start")
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield Client(port, server)
    finally:
        server.should_exit = True
        thread.join(600)
