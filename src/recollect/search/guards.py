"""ASGI middleware around the service: limits, hosts, headers, counting."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from recollect.search.service_metrics import ServiceMetrics

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


class _TooLargeError(Exception):
    """The request is larger than the limit."""


class Guard:
    """An ASGI application around another.

    Args:
        app: the application.
        metrics: counts every request.
        max_bytes: limit of a request's body. Larger ones are refused as soon as they are announced or received.
        hosts: values of the Host header that are served, without ports; None for any. This stops DNS
            rebinding: a foreign page whose name resolves to this machine sends its own name.
    """

    def __init__(self, app: App, metrics: ServiceMetrics, max_bytes: int, hosts: frozenset[str] | None) -> None:
        self._app, self._metrics, self._max_bytes, self._hosts = app, metrics, max_bytes, hosts

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status, headers = time.perf_counter(), 500, dict(scope["headers"])

        async def guarded_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                given = {name.lower() for name, _ in message.get("headers", [])}
                more = [(n.encode(), v.encode()) for n, v in HEADERS.items() if n.encode() not in given]
                message = {**message, "headers": [*message.get("headers", []), *more]}
            await send(message)

        try:
            if self._hosts is not None and _host(headers) not in self._hosts:
                await _refuse(guarded_send, 400, "this service does not answer to that host name (see --allow-host).")
            elif _announced(headers) > self._max_bytes:
                await _refuse(guarded_send, 413, f"the body is larger than {self._max_bytes:,} bytes.")
            else:
                await self._served(scope, receive, guarded_send)
        finally:
            route = scope.get("route")
            self._metrics.request(scope["method"], getattr(route, "path", "other"), status, time.perf_counter() - start)

    async def _served(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        taken, begun = 0, False

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self._max_bytes:
                raise _TooLargeError
            return message

        async def noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, counted, noted)
        except _TooLargeError:
            if begun:
                raise
            await _refuse(send, 413, f"the body is larger than {self._max_bytes:,} bytes.")


def _host(headers: dict[bytes, bytes]) -> str:
    text = headers.get(b"host", b"").decode("latin-1").lower()
    if text.startswith("["):
        return text.split("]")[0] + "]"
    return text.rsplit(":", 1)[0] if ":" in text else text


def _announced(headers: dict[bytes, bytes]) -> int:
    try:
        return int(headers.get(b"content-length", b"0"))
    except ValueError:
        return 0


async def _refuse(send: Send, status: int, detail: str) -> None:
    body = json.dumps({"detail": detail}).encode()
    # The rest of the body is not read, so the connection cannot be used for another request.
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
