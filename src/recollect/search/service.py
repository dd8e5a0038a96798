"""The service: an index over HTTP. Needs the extra ``serve``; ``serving.serve`` starts it.

Answers never contain a path of this machine: error messages that might are replaced by general ones and written to the log.
The parts, from the outside: ``Connection`` and ``Guard`` limit what strangers may send, ``_Service`` has the endpoints, and
``Batcher`` embeds and searches. Uploads are decoded by ``encoder.Decoder``.
"""

from __future__ import annotations

import asyncio
import hmac
import io
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import numpy as np
import prometheus_client
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from fastapi.security import HTTPBearer
from numpy.typing import NDArray
from PIL import Image
from pydantic import BaseModel, BeforeValidator, Field, ValidationError
from pydantic_core import from_json
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.datastructures import Headers, MutableHeaders, UploadFile
from starlette.formparsers import MultiPartException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from recollect._version import __version__
from recollect.common.errors import ImageError, InputError, RecollectError
from recollect.common.images import read_image
from recollect.search.encoder import Decoder
from recollect.search.index import Index, OtherModelError
from recollect.search.stores import NEIGHBOURS
from recollect.search.stores.base import (
    LONGEST_ID,
    IndexBusyError,
    Item,
    Match,
    Where,
    check_ids,
    clean_metadata,
    clean_where,
)
from recollect.search.sync import stamp_of

PAGE = Path(__file__).parent / "page"
THUMBNAIL = 256
"""Longer side of a thumbnail in pixels."""
MAX_FIELD_BYTES = 64 * 1024
"""Bytes of a JSON body, and of a text field of a form."""
MAX_CONNECTIONS = 200
"""Open at once. Beyond it, one that waits for its client is closed for every new one."""
MAX_BATCH = 32
"""Queries in one batch."""
MAX_RESULTS = 1000
"""Results of one query."""
MAX_COLUMNS, MAX_VALUES = 16, 1000
"""Columns of a filter, and values per column."""
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
_HEADER_SECONDS = 20.0
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_LOG = logging.getLogger("recollect.serve")
_EXAMPLES = 14


# Requests and responses, as the OpenAPI description has them.


class ItemAnswer(BaseModel):
    """One image of the index."""

    id: str
    metadata: dict[str, str]
    thumbnail: str


class SearchResult(ItemAnswer):
    """One image found."""

    similarity: float
    verdict: str | None


class FoundItems(BaseModel):
    """The answer to a search, best first."""

    results: list[SearchResult]


class Problem(BaseModel):
    """Why a request was refused."""

    detail: str


class Health(BaseModel):
    """The state of the service."""

    status: str
    items: int
    generation: int
    model: str
    dim: int
    recall: float | None
    same: float | None
    similar: float | None
    writable: bool
    version: str


# Python checks pairs up to the first mistake; pydantic would collect tens of thousands, for a second.


def _object(value: Any) -> dict[str, Any]:
    """A JSON object, which is text in a form; empty where nothing is given."""
    pairs = from_json(value) if value and isinstance(value, str) else value or {}
    if not isinstance(pairs, dict):
        raise InputError("it must be an object of names and values.")
    return pairs


def _where(value: Any) -> Where:
    pairs = _object(value)
    if len(pairs) > MAX_COLUMNS or any(isinstance(some, list) and len(some) > MAX_VALUES for some in pairs.values()):
        raise InputError(f"it may have {MAX_COLUMNS} names, with {MAX_VALUES:,} values each.")
    return clean_where(pairs)


class SearchRequest(BaseModel, extra="forbid"):
    """The fields of a search besides an image: in a form, or in JSON with an id."""

    id: Annotated[str, Field(max_length=LONGEST_ID)] | None = None
    k: Annotated[int, Field(ge=1, le=MAX_RESULTS)] = NEIGHBOURS
    where: Annotated[Where, BeforeValidator(_where)] = {}


class AddRequest(BaseModel, extra="forbid"):
    """The fields of an image to add."""

    id: Annotated[str, Field(min_length=1, max_length=LONGEST_ID)]
    metadata: Annotated[dict[str, str], BeforeValidator(lambda value: clean_metadata(_object(value)))] = {}


def _body(model: type[BaseModel], *kinds: str) -> dict[str, Any]:
    """The description of a body. Forms have an image besides."""
    content = {}
    for kind in kinds:
        schema = model.model_json_schema()
        if kind == _FORM:
            schema["properties"]["image"] = {"type": "string", "format": "binary"}
        schema["required"] = [*schema.get("required", []), "image" if kind == _FORM else "id"]
        content[kind] = {"schema": schema}
    return {"requestBody": {"required": True, "content": content}}


_JSON, _FORM = "application/json", "multipart/form-data"


@dataclass(frozen=True)
class Limits:
    """Limits of the service.

    Attributes:
        token: the token for writing; None for a service that only reads.
        max_bytes: of an uploaded image. max_pixels: likewise.
        hosts: names the service answers to; None for any.
    """

    token: str | None = None
    max_bytes: int = 20_000_000
    max_pixels: int = 50_000_000
    hosts: frozenset[str] | None = None


def create_app(index: Index, limits: Limits | None = None, on_ready: Callable[[], None] = lambda: None) -> Any:
    """The application, for any ASGI server.

    Args:
        index: the index to serve.
        limits: limits of requests, and who may write.
        on_ready: called just before the first request.
    """
    limits = limits or Limits()
    metrics = Metrics()
    service = _Service(index, limits, metrics)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.decoder.start()
        answering = asyncio.create_task(service.batcher.run())
        on_ready()
        yield
        await service.batcher.queue.join()  # the waiting queries are answered
        answering.cancel()
        service.decoder.stop()

    app = FastAPI(
        title="recollect",
        version=__version__,
        summary="Image search",
        lifespan=lifespan,
        docs_url=None,  # the usual pages load scripts from other sites
        redoc_url=None,
        redirect_slashes=False,
    )
    _add_routes(app, service)
    for kind in (RecollectError, ValidationError, ClientDisconnect, Exception):
        app.add_exception_handler(kind, _problem)
    if limits.hosts is not None:
        # Against DNS rebinding: a foreign page whose name resolves to this machine sends its own name.
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=sorted(limits.hosts), www_redirect=False)
    return Guard(app, metrics, limits.max_bytes)


def _add_routes(app: FastAPI, service: _Service) -> None:
    """Everything that is served, with its description."""

    def add(method: str, path: str, endpoint: Any, *refusals: int, **options: Any) -> None:
        described = options.pop("responses", {}) | {code: {"model": Problem} for code in (400, *refusals, 503)}
        app.add_api_route(path, endpoint, methods=[method], responses=described, **options)

    item, body = "/items/{item_id:any_text}", (401, 403, 404, 413, 415, 422)
    picture = {200: {"content": {"image/jpeg": {}}}, 304: {"description": "Not modified"}}
    # Only described here; ``_check_writer`` checks it.
    token = HTTPBearer(scheme_name="token", description="The token of recollect serve --write.", auto_error=False)
    write: dict[str, Any] = {"dependencies": [Depends(token)]}
    add("GET", "/", service.page, include_in_schema=False)
    add("GET", "/page.{kind}", service.page, include_in_schema=False)
    add("POST", "/search", service.search, *body, openapi_extra=_body(SearchRequest, _JSON, _FORM))
    add("POST", "/items", service.add, *body, status_code=201, openapi_extra=_body(AddRequest, _FORM), **write)
    add("GET", item, service.item, 404)
    add("DELETE", item, service.remove, 401, 403, 404, status_code=204, response_class=Response, **write)
    add("GET", "/thumbnails/{item_id:any_text}", service.thumbnail, 404, response_class=Response, responses=picture)
    add("GET", "/examples", service.examples)
    add("GET", "/labels", service.labels)
    add("GET", "/health", service.health)
    add("GET", "/metrics", service.metrics_text, response_class=PlainTextResponse)


class Metrics:
    """Counters of one service, for Prometheus."""

    def __init__(self) -> None:
        prometheus_client.disable_created_metrics()  # a time beside every counter, which nobody asked for
        self.registry = prometheus_client.CollectorRegistry()
        counter = partial(prometheus_client.Counter, registry=self.registry)
        histogram = partial(prometheus_client.Histogram, registry=self.registry)
        edges = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
        self.requests = counter("recollect_requests", "Requests answered.", ["method", "route", "status"])
        self.seconds = histogram("recollect_search_seconds", "Time to answer a search.", buckets=edges)
        self.batches = histogram("recollect_batch_queries", "Queries embedded together.", buckets=(1, 2, 4, 8, 16, 32))

    def gauge(self, name: str, meaning: str, value: Callable[[], float]) -> None:
        """Add a value that is asked for whenever the counters are read."""
        prometheus_client.Gauge(name, meaning, registry=self.registry).set_function(value)


class Connection(H11Protocol):
    """A connection of uvicorn that others can displace while it waits for its client.

    Otherwise clients that connect and send nothing would use up the files that this process may open.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Make room, and limit the time until the first request."""
        super().connection_made(transport)
        self.start = self.loop.time()
        self.loop.call_later(_HEADER_SECONDS, lambda: transport.close() if self.cycle is None else None)
        if len(self.connections) > MAX_CONNECTIONS:
            waiting = [other for other in self.connections if other.is_waiting()]
            if waiting:
                min(waiting, key=lambda other: other.start).transport.close()

    def is_waiting(self) -> bool:
        """Whether the client has to send something first."""
        request = self.cycle  # ``more_body``: an upload that is not complete
        waits = request is None or request.response_complete or request.more_body
        return waits and not self.transport.is_closing()


class Guard:
    """An ASGI application around another.

    Args:
        app: the application.
        metrics: counts every request.
        max_bytes: limit of an uploaded image. Larger bodies are refused as soon as they are announced or received.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, max_bytes: int) -> None:
        self._app, self._metrics, self._max_bytes = app, metrics, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status, size, request = time.perf_counter(), 500, 0, Headers(scope=scope)
        is_form = request.get("content-type", "").lower().startswith("multipart/")
        limit = MAX_FIELD_BYTES + (self._max_bytes if is_form else 0)
        too_large = f"the body is larger than {limit:,} bytes."

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > limit:
                raise HTTPException(413, too_large, {"connection": "close"})
            return message

        async def guarded_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status, message = message["status"], {"headers": [], **message}
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        app, length = self._app, int(request.get("content-length", 0))  # the server has checked that it is a number
        if length > limit:
            # Closing may cost the client the answer: up to the size of an upload, the server reads on and forgets.
            app = JSONResponse(
                {"detail": too_large}, 413, {"connection": "close"} if length > self._max_bytes else None
            )
        try:
            await app(scope, counted, guarded_send)
        finally:
            # By routes, not by paths, and usual methods: a client could send any number of them.
            route = getattr(scope.get("route"), "path", "other")
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self._metrics.requests.labels(method, route, status).inc()
            if route == "/search":
                self._metrics.seconds.observe(time.perf_counter() - start)


class _AnyText(StringConvertor):
    """The rest of an address, also with line breaks, which ``path`` does not match: an id may be any file's name."""

    regex = r"[\s\S]*"


register_url_convertor("any_text", _AnyText())


class _Service:
    """The endpoints."""

    def __init__(self, index: Index, limits: Limits, metrics: Metrics) -> None:
        self.index, self.limits, self.metrics = index, limits, metrics
        self.batcher = Batcher(index, metrics.batches.observe)
        self.decoder = Decoder(limits.max_pixels, lambda: getattr(index.encoder, "at_least", None))
        self.writer = ThreadPoolExecutor(1)  # clients that write wait here, and not for the lock of the index
        self._thumbnail = lru_cache(2000)(self._shrunk)  # 20 MB
        metrics.gauge("recollect_items", "Images in the index.", index.count)
        metrics.gauge("recollect_generation", "Generation of the index that answers.", lambda: index.generation.number)
        metrics.gauge("recollect_waiting_queries", "Queries that wait to be embedded.", self.batcher.queue.qsize)

    async def page(self, kind: str = "html") -> Response:
        """The web page, its script, style and icon."""
        types = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
        if kind not in types:
            raise HTTPException(404, "there is no such page.")
        return FileResponse(PAGE / f"page.{kind}", media_type=types[kind])

    async def search(self, request: Request) -> FoundItems:
        """Find the images most similar to an uploaded one, or to one of the index."""
        present = partial(_present, request)
        async with self._fields(request, SearchRequest) as (image, fields):
            options = {"present": present, "k": fields.k, "where": fields.where}
            if image is not None:
                async with self.decoder.decoded(image, present) as (_, pixels):
                    matches = await self.batcher.answer(Job(**options, image=pixels))
            elif fields.id:
                await run_in_threadpool(self._get_item, fields.id)
                matches = await self.batcher.answer(Job(**options, name=fields.id))
            else:
                raise HTTPException(422, "send an image, or the id of one in the index.")
        rows = [SearchResult(**_answer(m), similarity=m.similarity, verdict=m.level) for m in matches]
        return FoundItems(results=rows)

    async def add(self, request: Request) -> ItemAnswer:
        """Add an image, or replace the one with the same id."""
        self._check_writer(request)
        async with self._fields(request, AddRequest) as (image, fields):
            if image is None:
                raise HTTPException(422, "send an image and an id.")
            check_ids([fields.id])
            present = partial(_present, request)
            async with self.decoder.decoded(image, present) as (content, pixels):
                vector, fingerprint = await self.batcher.answer(Job(present, 0, {}, image=pixels))
        origin = {"pictures": [content], "fingerprint": fingerprint}
        await self._write(self.index.add_vectors, vector[None], [fields.id], [fields.metadata], **origin)
        return ItemAnswer(**_answer(Item(fields.id, metadata=fields.metadata)))

    def item(self, item_id: str) -> ItemAnswer:
        """One image of the index."""
        return ItemAnswer(**_answer(self._get_item(item_id)))

    def _get_item(self, name: str) -> Item:
        item = self.index.get([name]).get(name)
        if item is None:
            raise HTTPException(404, "there is no image with this id.")
        return item

    async def remove(self, item_id: str, request: Request) -> Response:
        """Remove an image from the index."""
        self._check_writer(request)
        if not await self._write(self.index.remove, [item_id]):
            raise HTTPException(404, "there is no image with this id.")
        return Response(status_code=204)

    def thumbnail(self, item_id: str, request: Request) -> Response:
        """A small copy of an image of the index."""
        item = self._get_item(item_id)
        try:
            content = self._thumbnail(item.digest, item.source, item.stamp)
        except (RecollectError, OSError) as error:
            raise HTTPException(404, "there is no picture of this image.") from error
        headers = {"etag": f'"{item.digest}"', "cache-control": "private, no-cache"}
        if request.headers.get("if-none-match") == headers["etag"]:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type="image/jpeg", headers=headers)

    def _shrunk(self, digest: str, source: str, stamp: str) -> bytes:
        """The thumbnail of an item as JPEG."""
        picture = Path(source) if source else self.index.store.picture(digest)
        if picture is None or (source and stamp_of(Path(source)) != stamp):
            raise FileNotFoundError  # a file that replaced an indexed one must not be shown
        image, buffer = read_image(picture), io.BytesIO()
        image.thumbnail((THUMBNAIL, THUMBNAIL), Image.Resampling.LANCZOS)
        image.save(buffer, "JPEG", quality=85)
        return buffer.getvalue()

    def examples(self) -> list[ItemAnswer]:
        """Some images of the index, of different labels, to begin a search with."""
        return [ItemAnswer(**_answer(item)) for item in self.index.examples(_EXAMPLES)]

    def labels(self) -> dict[str, int]:
        """The existing labels, with their numbers of images."""
        return self.index.values("label")

    def health(self) -> Health:
        """The state of the service."""
        generation = self.index.generation
        approximate, thresholds = generation.approximate or {}, generation.calibration or {}
        return Health(
            status="ok",
            items=len(self.index),
            generation=generation.number,
            model=str(generation.model.get("name", "")),
            dim=generation.dim,
            recall=approximate.get("recall"),
            same=thresholds.get("same", {}).get("similarity"),
            similar=thresholds.get("similar", {}).get("similarity"),
            writable=self.limits.token is not None,
            version=__version__,
        )

    def metrics_text(self) -> Response:
        """Counters for Prometheus."""
        text = prometheus_client.generate_latest(self.metrics.registry)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    def _check_writer(self, request: Request) -> None:
        if self.limits.token is None:
            raise HTTPException(403, "this service only reads: it was started without --write.")
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not hmac.compare_digest(token.encode(), self.limits.token.encode()):
            raise HTTPException(401, "writing needs the token of this service.", {"WWW-Authenticate": "Bearer"})

    async def _write(self, change: Callable[..., Any], *values: Any, **options: Any) -> Any:
        work = partial(change, *values, **options, wait=10)  # for another process
        return await asyncio.get_running_loop().run_in_executor(self.writer, work)

    @asynccontextmanager
    async def _fields(self, request: Request, model: type[BaseModel]) -> AsyncIterator[tuple[Any, Any]]:
        """The uploaded file, if there is one, and the other fields of a form or of JSON."""
        if request.query_params:
            raise HTTPException(422, "send the fields in the body, not in the address.")
        kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
        if kind == _JSON:
            yield None, model.model_validate_json(await request.body())
            return
        if kind != _FORM:
            raise HTTPException(415, "send multipart/form-data with an image, or application/json with an id.")
        try:
            form = await request.form(max_files=1, max_fields=8, max_part_size=MAX_FIELD_BYTES)
        except (MultiPartException, UnicodeDecodeError, ValueError) as error:
            raise HTTPException(400, "this is not a readable form.") from error
        try:
            fields = dict(form)
            upload = fields.pop("image", None)
            image = upload if isinstance(upload, UploadFile) else None
            if image is not None and (image.size or 0) > self.limits.max_bytes:
                raise HTTPException(413, f"the image is larger than {self.limits.max_bytes:,} bytes.")
            yield image and image.file, model.model_validate(fields)
        finally:
            await form.close()


async def _present(request: Request) -> None:
    if await request.is_disconnected():
        raise ClientDisconnect


async def _problem(_: Request, error: Exception) -> Any:
    """The response for an error. Only messages that cannot contain a path are passed on."""
    if isinstance(error, ImageError | InputError | ClientDisconnect):
        return JSONResponse({"detail": str(error)}, 422 if isinstance(error, InputError) else 400)
    if isinstance(error, ValidationError):
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        words = [f"{'.'.join(map(str, problem['loc']))[:80]}: {problem['msg'][:200]}" for problem in problems[:3]]
        return JSONResponse({"detail": "; ".join(words)}, 422)
    if isinstance(error, IndexBusyError):
        return JSONResponse({"detail": "the service is busy: try again in a moment."}, 503, {"Retry-After": "1"})
    _LOG.error("%s: %s", type(error).__name__, error)
    if isinstance(error, RecollectError):
        return JSONResponse({"detail": "the index cannot be used at the moment; see the log of the service."}, 503)
    return JSONResponse({"detail": "internal error; see the log of the service."}, 500)


def _answer(item: Item | Match) -> dict[str, Any]:
    return {"id": item.id, "metadata": item.metadata, "thumbnail": f"/thumbnails/{quote(item.id, safe='')}"}


@dataclass
class Job:
    """One query: an image, or an id of the index. ``present`` raises an error if its client has left; ``k`` 0 asks
    for the vector of the image only."""

    present: Callable[[], Awaitable[None]]
    k: int
    where: Where
    image: NDArray[np.uint8] | None = None
    name: str | None = None
    answer: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Batcher:
    """Answers queries of an index, one batch after the other: a model takes little longer for eight images than for one.

    Queries are never delayed on purpose. While a batch is in the model, new queries are collected; they form the next batch.
    Images to be added to the index are embedded with them.

    Args:
        index: the index to search.
        observe: called with the size of every batch.

    Attributes:
        queue: queries that wait for the batch before them.
    """

    def __init__(self, index: Index, observe: Callable[[int], None] = lambda size: None) -> None:
        self._index, self._observe = index, observe
        self.queue: asyncio.Queue[Job] = asyncio.Queue()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="search")

    async def answer(self, job: Job) -> Any:
        """The matches of one query; with ``k`` 0, its vector and the fingerprint of the model.

        Raises:
            ImageError, InputError: this query is not valid.
        """
        self.queue.put_nowait(job)  # the server limits how many wait
        return await job.answer

    async def run(self) -> None:
        """Answer queries until this task is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            jobs: list[Job] = []
            while not jobs or (len(jobs) < MAX_BATCH and not self.queue.empty()):
                job = await self.queue.get()
                try:
                    await job.present()
                    jobs.append(job)
                except Exception as error:
                    self._finish(job, error)
            self._observe(len(jobs))
            answers = await loop.run_in_executor(self._worker, self._answers, jobs)
            for job, answer in zip(jobs, answers, strict=True):
                self._finish(job, answer)

    def _finish(self, job: Job, answer: Any) -> None:
        if not job.answer.done():  # it is cancelled where the service stops before the answer
            (job.answer.set_exception if isinstance(answer, Exception) else job.answer.set_result)(answer)
        self.queue.task_done()

    def _answers(self, jobs: list[Job]) -> list[Any]:
        """An answer or an error for every job."""
        for _ in range(3):
            try:
                return self._attempt(jobs)
            except OtherModelError as error:  # the index was rebuilt between embedding and searching
                failure: Exception = error
            except Exception as error:  # after any error every client gets an answer and the service continues
                failure = error
                break
        # One by one, so that only those at fault fail.
        return [failure] if len(jobs) == 1 else [self._answers([job])[0] for job in jobs]

    def _attempt(self, jobs: list[Job]) -> list[Any]:
        answers: dict[int, Any] = {}
        images = [place for place, job in enumerate(jobs) if job.image is not None]
        if images:
            encoder = self._index.encoder
            rows = encoder.embed([jobs[place].image for place in images])
            groups: dict[str, list[int]] = {}
            for number, place in enumerate(images):
                key = json.dumps([jobs[place].k, jobs[place].where], sort_keys=True)
                groups.setdefault(key, []).append(number)
            for numbers in groups.values():
                job = jobs[images[numbers[0]]]
                results: Any = [(rows[number], encoder.fingerprint) for number in numbers]
                if job.k:
                    results = self._index.search_vectors(
                        rows[numbers], job.k, job.where, fingerprint=encoder.fingerprint
                    )
                answers |= {images[number]: result for number, result in zip(numbers, results, strict=True)}
        for place, job in enumerate(jobs):
            if job.name is not None:
                answers[place] = self._index.search_id(job.name, job.k, job.where)
        return [answers[place] for place in range(len(jobs))]
