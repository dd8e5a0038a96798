"""Starts the service: tokens, host names, the server. Used by ``recollect serve``."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np

from recollect.common.errors import ConfigError, require
from recollect.common.reading import read_text
from recollect.search.index import Index

logger = logging.getLogger(__name__)
TOKEN = "RECOLLECT_TOKEN"
_LOCAL = ("localhost", "127.0.0.1", "[::1]")
_EVERYWHERE = ("0.0.0.0", "::", "")


def find_token(file: Path | None) -> tuple[str, bool]:
    """The token of writers, and whether it was generated: from a file, the environment, or random.

    Raises:
        DataError: the file cannot be read. ConfigError: the token is shorter than 16 characters.
    """
    if file is not None:
        token = read_text(file).strip()
    elif (token := os.environ.get(TOKEN, "").strip()) == "":
        return secrets.token_urlsafe(24), True
    if len(token) < 16 or not token.isascii() or not token.isprintable():
        raise ConfigError("the token is too short: use at least 16 printable ASCII characters.")
    return token, False


def allowed_hosts(host: str, more: list[str]) -> frozenset[str] | None:
    """The host names that a service at ``host`` accepts; None for any, if it listens everywhere and no name was given."""
    if host in _EVERYWHERE and not more:
        return None
    own = () if host in _EVERYWHERE else (f"[{host}]" if ":" in host else host,)
    return frozenset(name.lower() for name in (*_LOCAL, *own, *more))


def check_address(host: str, port: int) -> None:
    """Refuse a host that this machine does not have, and a port that is in use or not allowed.

    Raises:
        ConfigError: the service cannot listen there.
    """

    async def listen() -> None:  # as uvicorn does
        server = await asyncio.get_running_loop().create_server(asyncio.Protocol, host, port)
        server.close()

    try:
        asyncio.run(listen())
    except (OSError, ValueError) as error:  # ValueError: not a name at all
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"cannot listen on {host!r}, port {port}: {reason}. Choose another --host or --port."
        ) from error


def server_options(grace: int) -> dict[str, Any]:
    """Options of uvicorn that keep strangers from exhausting this process: its files, its memory, its log."""
    from recollect.search.service import Connection

    with suppress(ImportError, OSError, ValueError):  # the usual limit on open files is 256 on some systems
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if 0 <= soft < 4096:  # -1 is no limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (4096 if hard < 0 else min(hard, 4096), hard))
    return {
        "http": Connection,
        "backlog": 128,
        "limit_concurrency": 512,  # requests under way; more are refused, since their answers would come too late
        "h11_max_incomplete_event_size": 64 * 1024,
        "timeout_graceful_shutdown": grace,
        "log_level": "error",  # not a line for every request that is not HTTP
        "access_log": False,
        "server_header": False,
    }


def serve(
    index: Index | str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    write: bool = False,
    token_file: str | Path | None = None,
    hosts: Sequence[str] = (),
    max_bytes: int = 20_000_000,
    max_pixels: int = 50_000_000,
    grace: int = 30,
    model: str | None = None,
    **opening: Any,
) -> None:
    """Serve an index until the process is stopped; running requests are answered first.

    Args:
        index: the index to serve: an open index, or its address.
        host, port: where to listen.
        write: allow clients with the token to add and remove images.
        token_file: file with the token; without it the environment's ``RECOLLECT_TOKEN``, or a new one, which is logged.
        hosts: further host names to accept.
        max_bytes, max_pixels: limits of an uploaded image.
        grace: seconds for running requests when the service is stopped.
        model: for an address: the new folder of the model, if it moved.
        opening: for an address: ``weights``, ``device`` for the model.

    Raises:
        ConfigError: the service cannot listen there, or the token is missing or too short.
        MissingExtraError: the extra ``serve`` is not installed.

    Example:
        It returns only when the process is stopped::

            recollect.serve("shop.index", port=8080)
    """
    # Before the model is loaded, and with a message; uvicorn would end the process with code 3.
    check_address(host, port)
    uvicorn: Any = require("uvicorn", "serve", "recollect serve")
    for module in ("fastapi", "python_multipart", "prometheus_client"):
        require(module, "serve", "recollect serve")
    from recollect.search.service import Limits, create_app

    token, is_new = find_token(None if token_file is None else Path(token_file)) if write else (None, False)
    with nullcontext(index) if isinstance(index, Index) else Index.open(index, model, **opening) as opened:
        if is_new:
            logger.warning(f"the token for writing is {token}")
        logger.info(f"{opened.address}: {len(opened):,} images; loading the model and the vectors")
        # So that the first query is as fast as the others. An error here is a sentence; in the server, a traceback.
        rows = opened.encoder.embed([np.full((64, 64, 3), 127, np.uint8)])
        opened.search_vectors(np.nan_to_num(rows), 1)
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
        limits = Limits(token, max_bytes, max_pixels, allowed_hosts(host, list(hosts)))
        app = create_app(opened, limits, lambda: logger.info(f"ready at {address} (Ctrl-C stops)"))
        uvicorn.run(app, host=host, port=port, **server_options(grace))
