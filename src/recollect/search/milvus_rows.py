"""The format of an index in Milvus: address, filter expressions, rows, and exact search over rows that are read.

Used by ``milvus_store``; this file uses no connection.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import numpy as np
from numpy.typing import NDArray

from recollect.common.errors import ConfigError
from recollect.search.exact_search import nearest_unchecked
from recollect.search.store_protocol import Hit, Item, Where, clean_where, in_order

_PART = 45_000  # bytes of a picture in one row: 60,000 characters in base64, of the 65,535 that Milvus keeps
_AT_ONCE = 8192  # items compared at a time


def parsed(address: str) -> tuple[dict[str, Any], str, str, str]:
    """Arguments of the client, the index's name, the address without its password, the consistency of reads."""
    usual = "give an index in Milvus as milvus://host:19530/name, with letters, digits and _."
    try:
        parts = urlsplit(address)
        port = parts.port or 19530
    except ValueError as error:
        raise ConfigError(f"not an address: {error}; {usual}") from error
    shown = address.replace(f":{parts.password}@", ":...@") if parts.password else address
    options = dict(parse_qsl(parts.query))
    name = parts.path.strip("/")
    if not parts.hostname or not re.fullmatch(r"[A-Za-z_]\w{0,200}", name):
        raise ConfigError(f"{shown}: {usual}")
    consistency = options.pop("consistency", "Strong")
    if consistency not in ("Strong", "Bounded", "Session", "Eventually"):
        raise ConfigError(f"consistency={consistency}: choose Strong, Bounded, Session or Eventually.")
    scheme = "https" if options.pop("secure", "0") in ("1", "true") else "http"
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    arguments = {"uri": f"{scheme}://{host}:{port}"}
    if parts.username:
        arguments["token"] = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    if "db" in options:
        arguments["db_name"] = options.pop("db")
    if options:
        raise ConfigError(f"{shown}: unknown option {', '.join(options)}; the options are db, secure and consistency.")
    return arguments, name, shown, consistency


_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r"})  # not JSON's: servers differ on \u0007


def quoted(value: str | Sequence[str]) -> str:
    """A text or a list of them in an expression."""
    if not isinstance(value, str):
        return f"[{', '.join(map(quoted, value))}]"
    return f'"{value.translate(_ESCAPES)}"'


def encoded(metadata: Mapping[str, str]) -> dict[str, str]:
    """Metadata with keys that an expression can name: unusual ones in hexadecimal."""
    return {_key(name): value for name, value in metadata.items()}


def decoded(metadata: Mapping[str, str]) -> dict[str, str]:
    """Metadata as it was before ``encoded``."""
    return {
        bytes.fromhex(name[2:]).decode() if name.startswith("0x") else name: value for name, value in metadata.items()
    }


def _key(column: str) -> str:
    return column if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", column) else f"0x{column.encode().hex()}"


def condition_of(where: Where | None) -> str | None:
    """The filter as an expression; None if nothing can match."""
    parts = []
    for column, wanted in clean_where(where).items():
        if not wanted:
            return None
        field = f"metadata[{quoted(_key(column))}]"
        parts.append("(" + " or ".join(f"{field} == {quoted(value)}" for value in wanted) + ")")
    return " and ".join(parts) or 'id >= ""'


def picture_rows(digest: str, picture: bytes) -> Iterator[dict[str, Any]]:
    """A picture as rows among the documents."""
    for number, start in enumerate(range(0, max(1, len(picture)), _PART)):
        text = base64.b64encode(picture[start : start + _PART]).decode()
        yield {"key": f"picture:{digest}:{number}", "value": text, "vector": [0.0, 0.0]}


def item_of(row: Mapping[str, Any]) -> Item:
    """An item from a row of its collection."""
    vector = None
    if "vector" in row:
        value = row["vector"]
        if isinstance(value, list) and value and isinstance(value[0], bytes):
            value = np.frombuffer(value[0], np.float16)
        elif isinstance(value, bytes):
            value = np.frombuffer(value, np.float16)
        vector = np.asarray(value, np.float32)
    return Item(row["id"], vector, decoded(row["metadata"]), row["digest"], row["source"], row["stamp"])


def brief(error: Exception) -> str:
    """Milvus's message, in one line."""
    return " ".join(str(getattr(error, "message", "") or error).split())[:300].rstrip(".")


def search_by_reading(
    items: Iterable[Item], queries: NDArray[np.float32], k: int, where: Where | None
) -> list[list[Hit]]:
    """Exact search over items with vectors, in bounded memory: with an HNSW index, Milvus itself cannot search exactly."""
    wanted, best = clean_where(where), [list[Hit]() for _ in queries]
    passing = (item for item in items if all(item.metadata.get(name) in values for name, values in wanted.items()))
    while some := list(islice(passing, _AT_ONCE)):
        rows = np.stack([item.vector for item in some if item.vector is not None])
        found = nearest_unchecked(queries, rows, min(k, len(some)))
        for place, (numbers, values) in enumerate(
            zip(found.indices.tolist(), found.similarities.tolist(), strict=True)
        ):
            hits = [Hit(some[n].id, value, some[n].metadata) for n, value in zip(numbers, values, strict=True)]
            best[place] = in_order(best[place] + hits)[:k]
    return best
