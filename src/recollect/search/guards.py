"""What the service takes from strangers: connections, hosts, sizes; and the headers and counting of every answer."""

from __future__ import annotations

import asyncio
import re
import time

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from recollect.search.service_metrics import ServiceMetrics

FIELDS = 64 * 1024
"""Bytes of a JSON body, and of a text field of a form."""
CONNECTIONS = 200
"""Open at once. Beyond it, one that waits for its client is closed for every new one."""
_HEADER_SECONDS = 20.0

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


class Connection(H11Protocol):
    """A connection of uvicorn that others can displace while it waits for its client.

    Otherwise clients that connect and send nothing would use up the files that this process may open.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Make room, and limit the time until the first request."""
        super().connection_made(transport)
        self.made = self.loop.time()
        self.loop.call_later(_HEADER_SECONDS, lambda: transport.close() if self.cycle is None else None)
        if len(self.connections) > CONNECTIONS:
            waiting = [other for other in self.connections if isinstance(other, Connection) and other.is_waiting()]
            if waiting:
                min(waiting, key=lambda other: other.made).transport.close()

    def is_waiting(self) -> bool:
        """Whether the client has to send something first."""
        request = self.cycle
        return not self.transport.is_closing() and (
            request is None
            or request.response_complete
            or request.more_body  # the last: an upload that is not complete
        )


class Guard:
    """An ASGI application around another.

    Args:
        app: the application.
        metrics: counts every request.
        max_bytes: limit of an uploaded image. Larger bodies are refused as soon as they are announced or received.
        hosts: values of the Host header that are served, without ports; None for any. This stops DNS
            rebinding: a foreign page whose name resolves to this machine sends its own name.
    """

    def __init__(self, app: ASGIApp, metrics: ServiceMetrics, max_bytes: int, hosts: frozenset[str] | None) -> None:
        self._app, self._metrics, self._max_bytes, self._hosts = app, metrics, max_bytes, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status, headers, taken = time.perf_counter(), 500, dict(scope["headers"]), 0
        is_form = headers.get(b"content-type", b"").lower().startswith(b"multipart/")
        limit = FIELDS + (self._max_bytes if is_form else 0)
        too_large = f"the body is larger than {limit:,} bytes."

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > limit:
                raise HTTPException(413, too_large, {"connection": "close"})
            return message

        async def guarded_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                given = {name.lower() for name, _ in message.get("headers", [])}
                more = [(n.encode(), v.encode()) for n, v in HEADERS.items() if n.encode() not in given]
                message = {**message, "headers": [*message.get("headers", []), *more]}
            await send(message)

        app = self._app
        if self._hosts is not None and _host(headers) not in self._hosts:
            detail = "this service does not answer to that host name (see --allow-host)."
            app = JSONResponse({"detail": detail}, 400, {"connection": "close"})
        elif (size := int(headers.get(b"content-length", 0))) > limit:  # the server has checked that it is a number
            # Closing may cost the client the answer: up to the size of an upload, the server reads on and forgets.
            app = JSONResponse({"detail": too_large}, 413, {"connection": "close"} if size > self._max_bytes else None)
        try:
            await app(scope, counted, guarded_send)
        finally:
            route = scope.get("route")
            self._metrics.request(scope["method"], getattr(route, "path", "other"), status, time.perf_counter() - start)


def _host(headers: dict[bytes, bytes]) -> str:
    """The Host header without its port; "" for one that is none."""
    text = headers.get(b"host", b"").decode("latin-1").lower()
    found = re.fullmatch(r"(\[[0-9a-f:.]*\]|[^][:]*)(:\d*)?", text)
    return found[1] if found else ""
