"""The service: an index over HTTP. Needs the extra ``serve``; ``serving.serve`` starts it.

Answers never contain a path of this machine: error messages that might are replaced by general ones and written to the log.
Everything that limits and counts requests is in ``guards``; decoding in ``decoder``; embedding and searching in ``batching``;
the shapes of answers and of request bodies, for the OpenAPI description, in ``service_schema``.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from fastapi.security import HTTPBearer
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException
from starlette.requests import ClientDisconnect

from recollect._version import __version__
from recollect.common.errors import ImageError, InputError, RecollectError
from recollect.common.text import printable
from recollect.search.batching import Batcher, Job
from recollect.search.decoder import Decoder
from recollect.search.guards import FIELDS, Guard
from recollect.search.index import Index
from recollect.search.served_images import Thumbnails
from recollect.search.service_metrics import ServiceMetrics
from recollect.search.service_schema import (
    ADD_BODY,
    COLUMNS,
    MOST,
    SEARCH_BODY,
    VALUES,
    FoundItems,
    Health,
    ItemAnswer,
    Problem,
    SearchResult,
)
from recollect.search.store_protocol import Hit, IndexBusyError, Item, checked_id, clean_metadata, clean_where

PAGE = Path(__file__).parent / "page"
_LOG = logging.getLogger("recollect.serve")
_EXAMPLES = 14


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
        on_ready: called when the model and the vectors are loaded, just before the first request.
    """
    limits = limits or Limits()
    metrics = ServiceMetrics()
    service = _Service(index, limits, metrics)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.decoder.start()
        await service.batcher.start()
        on_ready()
        yield
        await service.batcher.stop()
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
    for path, endpoint, options in _routes(service):
        app.add_api_route(path, endpoint, **options)
    for kind in (RecollectError, ClientDisconnect, Exception):
        app.add_exception_handler(kind, _problem)
    return Guard(app, metrics, limits.max_bytes, limits.hosts)


def _routes(service: _Service) -> list[tuple[str, Any, dict[str, Any]]]:
    """Path, endpoint and description of everything that is served."""

    def described(method: str, *refusals: int, **options: Any) -> dict[str, Any]:
        codes = {code: {"model": Problem} for code in (400, *refusals, 503)}
        return {
            "methods": [method],
            "response_model": None,
            **options,
            "responses": options.get("responses", {}) | codes,
        }

    hidden = {"methods": ["GET"], "include_in_schema": False, "response_model": None}
    picture = {200: {"content": {"image/jpeg": {}}}, 304: {"description": "Not modified"}}
    item, body = "/items/{item_id:any_text}", (401, 403, 404, 413, 415, 422)
    # Only described here; ``_check_writer`` checks it.
    token = HTTPBearer(scheme_name="token", description="The token of recollect serve --write.", auto_error=False)
    write, raw = {"dependencies": [Depends(token)]}, {"response_class": Response}
    added = {**write, "status_code": 201, "response_model": ItemAnswer, "openapi_extra": ADD_BODY}
    return [
        ("/", service.page, hidden),
        ("/page.{kind}", service.asset, hidden),
        ("/search", service.search, described("POST", *body, response_model=FoundItems, openapi_extra=SEARCH_BODY)),
        ("/items", service.add, described("POST", *body, **added)),
        (item, service.item, described("GET", 404, response_model=ItemAnswer)),
        (item, service.remove, described("DELETE", 401, 403, 404, **write, **raw, status_code=204)),
        ("/thumbnails/{item_id:any_text}", service.thumbnail, described("GET", 404, **raw, responses=picture)),
        ("/examples", service.examples, described("GET", response_model=list[ItemAnswer])),
        ("/labels", service.labels, described("GET", response_model=dict[str, int])),
        ("/health", service.health, described("GET", response_model=Health)),
        ("/metrics", service.metrics_text, described("GET", response_class=PlainTextResponse)),
    ]


class _AnyText(StringConvertor):
    """The rest of an address, also with line breaks, which ``path`` does not match: an id may be any file's name."""

    regex = r"[\s\S]*"

    def to_string(self, value: str) -> str:
        """As it is."""
        return value


register_url_convertor("any_text", _AnyText())


class _Service:
    """The endpoints."""

    def __init__(self, index: Index, limits: Limits, metrics: ServiceMetrics) -> None:
        self.index, self.limits, self.metrics = index, limits, metrics
        self.batcher = Batcher(index, metrics.batch)
        self.decoder = Decoder(limits.max_pixels, lambda: getattr(index.encoder, "at_least", None))
        self.writer = ThreadPoolExecutor(1)  # clients that write wait here, and not for the lock of the index
        self.thumbnails = Thumbnails(index)

    async def page(self) -> Any:
        """The web page."""
        return FileResponse(PAGE / "page.html", media_type="text/html; charset=utf-8")

    async def asset(self, kind: str) -> Any:
        """Its script, style and icon."""
        types = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8", "svg": "image/svg+xml"}
        if kind not in types:
            raise HTTPException(404, "there is no such page.")
        return FileResponse(PAGE / f"page.{kind}", media_type=types[kind])

    async def search(self, request: Request) -> FoundItems:
        """Find the images most similar to an uploaded one, or to one of the index."""
        present = partial(_present, request)
        async with self._fields(request, ("image", "id", "k", "where")) as fields:
            k, where = _count(fields.get("k", 10)), _where(fields.get("where"))
            if (image := self._image(fields)) is not None:
                async with self.decoder.decoded(image, present) as (_, pixels):
                    matches = await self.batcher.answer(Job(present, k, where, image=pixels))
            else:
                name = fields.get("id")
                if not isinstance(name, str) or not name:
                    raise HTTPException(422, "send an image, or the id of one in the index.")
                if name not in await run_in_threadpool(self.index.get, [name]):
                    raise HTTPException(404, "there is no image with this id.")
                matches = await self.batcher.answer(Job(present, k, where, name=name))
        return FoundItems(results=[_result(match) for match in matches])

    async def add(self, request: Request) -> ItemAnswer:
        """Add an image, or replace the one with the same id."""
        self._check_writer(request)
        async with self._fields(request, ("image", "id", "metadata")) as fields:
            image, name, about = (
                self._image(fields),
                fields.get("id"),
                _json(fields.get("metadata") or "{}", "metadata"),
            )
            if image is None or not isinstance(name, str):
                raise HTTPException(422, "send an image and an id.")
            if not isinstance(about, dict):
                raise HTTPException(422, "metadata must be an object of names and values.")
            name, metadata, present = checked_id(name), clean_metadata(about), partial(_present, request)
            async with self.decoder.decoded(image, present) as (content, pixels):
                vector, fingerprint = await self.batcher.answer(Job(present, 0, {}, image=pixels))
        await self._write(
            self.index.add_vectors, vector[None], [name], [metadata], pictures=[content], fingerprint=fingerprint
        )
        return _answer(Item(name, metadata=metadata))

    async def item(self, item_id: str) -> ItemAnswer:
        """One image of the index."""
        found = (await run_in_threadpool(self.index.get, [item_id])).get(item_id)
        if found is None:
            raise HTTPException(404, "there is no image with this id.")
        return _answer(found)

    async def remove(self, item_id: str, request: Request) -> Any:
        """Remove an image from the index."""
        self._check_writer(request)
        if not await self._write(self.index.remove, [item_id]):
            raise HTTPException(404, "there is no image with this id.")
        return Response(status_code=204)

    async def thumbnail(self, item_id: str, request: Request) -> Any:
        """A small copy of an image of the index."""
        found = await run_in_threadpool(self.thumbnails.get, item_id)
        if found is None:
            raise HTTPException(404, "there is no picture of this image.")
        content, digest = found
        headers = {"etag": f'"{digest}"', "cache-control": "private, no-cache"}
        if request.headers.get("if-none-match") == headers["etag"]:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type="image/jpeg", headers=headers)

    async def examples(self) -> list[ItemAnswer]:
        """Some images of the index, of different labels, to begin a search with."""
        return [_answer(item) for item in await run_in_threadpool(self.index.examples, _EXAMPLES)]

    async def labels(self) -> dict[str, int]:
        """The existing labels, with their numbers of images."""
        found: dict[str, int] = await run_in_threadpool(self.index.values, "label")
        return found

    async def health(self) -> Health:
        """The state of the service."""
        items = await run_in_threadpool(self.index.count)
        generation = self.index.generation
        near, thresholds = generation.approximate or {}, generation.calibration or {}
        return Health(
            status="ok",
            items=items,
            generation=generation.number,
            model=str(generation.model.get("name", "")),
            dim=generation.dim,
            recall=near.get("recall"),
            same=thresholds.get("same", {}).get("similarity"),
            similar=thresholds.get("similar", {}).get("similarity"),
            writable=self.limits.token is not None,
            version=__version__,
        )

    async def metrics_text(self) -> Any:
        """Counters for Prometheus."""
        items = await run_in_threadpool(self.index.count)
        return PlainTextResponse(
            self.metrics.text(items, self.index.generation.number, self.batcher.waiting),
            media_type="text/plain; version=0.0.4; charset=utf-8",
        )

    def _check_writer(self, request: Request) -> None:
        if self.limits.token is None:
            raise HTTPException(403, "this service only reads: it was started without --write.")
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not hmac.compare_digest(given.encode(), self.limits.token.encode()):
            raise HTTPException(401, "writing needs the token of this service.", {"WWW-Authenticate": "Bearer"})

    async def _write(self, change: Callable[..., Any], *values: Any, **options: Any) -> Any:
        work = partial(change, *values, **options, wait=10)  # for another process
        return await asyncio.get_running_loop().run_in_executor(self.writer, work)

    def _image(self, fields: Mapping[str, Any]) -> Any:
        """The uploaded file, if there is one."""
        upload = fields.get("image")
        if not isinstance(upload, UploadFile):
            return None
        if (upload.size or 0) > self.limits.max_bytes:
            raise HTTPException(413, f"the image is larger than {self.limits.max_bytes:,} bytes.")
        return upload.file

    @asynccontextmanager
    async def _fields(self, request: Request, known: tuple[str, ...]) -> AsyncIterator[Mapping[str, Any]]:
        """The fields of a form, or of JSON without ``image``. A field that would be ignored is refused."""
        if request.query_params:
            raise HTTPException(422, "send the fields in the body, not in the address.")
        kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
        if kind == "application/json":
            body = _json((await request.body()).decode("utf-8", "replace"), "the body")
            if not isinstance(body, dict):
                raise HTTPException(422, "the body is not a JSON object.")
            _check_names(body, known[1:])  # a picture needs a form
            yield body
            return
        if kind != "multipart/form-data":
            raise HTTPException(415, "send multipart/form-data with an image, or application/json with an id.")
        try:
            form = await request.form(max_files=1, max_fields=8, max_part_size=FIELDS)
        except (MultiPartException, UnicodeDecodeError, ValueError) as error:
            raise HTTPException(400, "this is not a readable form.") from error
        try:
            _check_names(form, known)
            yield form
        finally:
            await form.close()


async def _present(request: Request) -> None:
    if await request.is_disconnected():
        raise ClientDisconnect


async def _problem(_: Request, error: Exception) -> Any:
    """The response for an error. Only messages that cannot contain a path are passed on."""
    if isinstance(error, ImageError | ClientDisconnect):
        return JSONResponse({"detail": str(error)}, 400)
    if isinstance(error, InputError):
        return JSONResponse({"detail": str(error)}, 422)
    if isinstance(error, IndexBusyError):
        return JSONResponse({"detail": "the service is busy: try again in a moment."}, 503, {"Retry-After": "1"})
    _LOG.error("%s: %s", type(error).__name__, error)
    if isinstance(error, RecollectError):
        return JSONResponse({"detail": "the index cannot be used at the moment; see the log of the service."}, 503)
    return JSONResponse({"detail": "internal error; see the log of the service."}, 500)


def _check_names(fields: Iterable[str], known: Sequence[str]) -> None:
    for name in fields:
        if name not in known:
            raise HTTPException(422, f"there is no field {printable(name[:40])!r}; the fields are {', '.join(known)}.")


def _count(value: Any) -> int:
    try:
        number = int(value) if not isinstance(value, bool) else 0
    except (TypeError, ValueError, OverflowError):
        number = 0
    if not 1 <= number <= MOST or (isinstance(value, float) and value != number):
        raise HTTPException(422, f"k must be a whole number from 1 to {MOST}.")
    return number


def _where(value: Any) -> dict[str, list[str]]:
    found = _json(value, "where") if isinstance(value, str) and value else value
    if not found:
        return {}
    if not isinstance(found, dict):
        raise HTTPException(422, "where must be an object of names and values.")
    where = clean_where(found)
    if len(where) > COLUMNS or any(len(values) > VALUES for values in where.values()):
        raise HTTPException(422, f"where may have {COLUMNS} names, with {VALUES:,} values each.")
    return where


def _json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise HTTPException(422, f"{what} is not JSON.") from error


def _answer(item: Item | Hit) -> ItemAnswer:
    return ItemAnswer(id=item.id, metadata=dict(item.metadata), thumbnail=f"/thumbnails/{quote(item.id, safe='')}")


def _result(match: Hit) -> SearchResult:
    return SearchResult(**_answer(match).model_dump(), similarity=match.similarity, verdict=match.verdict)
