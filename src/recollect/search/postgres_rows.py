"""The format of an index in PostgreSQL: address, filters, rows. Used by ``postgres_store``; it uses no connection."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import numpy as np
from numpy.typing import NDArray

from recollect.common.errors import ConfigError
from recollect.search.store_protocol import Item, Where, clean_where

_COLUMNS = "id, digest, source, stamp, metadata"


def parsed(address: str) -> tuple[str, str, str]:
    """Arguments for libpq, the index's name, and the address without its password."""
    parts = urlsplit(address)
    options = dict(parse_qsl(parts.query))
    name = options.pop("index", "recollect")
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,40}", name):
        raise ConfigError(f"index={name!r}: the name of an index may have at most 41 lower-case letters, digits and _.")
    shown = dict(parse_qsl(parts.query))
    if "password" in shown:
        shown["password"] = "..."
    place = parts.netloc
    if parts.password:
        place = place.replace(f":{parts.password}@", ":...@")
    # A socket's folder keeps its slashes, so that the address is readable.
    return (
        urlunsplit(parts._replace(query=urlencode(options, safe="/"))),
        name,
        urlunsplit(parts._replace(netloc=place, query=urlencode(shown, safe="/"))),
    )


def vector_type(half: bool) -> str:
    """The type of the column of vectors."""
    return "halfvec" if half else "vector"


def columns(vectors: bool) -> str:
    """The columns that ``item_of`` reads."""
    return f"{_COLUMNS}, vector::text" if vectors else _COLUMNS


def item_of(row: Sequence[Any]) -> Item:
    """An item from a row with these columns."""
    name, digest, source, stamp, metadata, *rest = row
    vector = np.fromstring(rest[0][1:-1], np.float32, sep=",") if rest else None
    return Item(name, vector, metadata, digest, source, stamp)


def row_of(item: Item, vector: NDArray[np.float32]) -> tuple[str, ...]:
    """The row of an item: the columns, then the vector."""
    metadata = json.dumps(dict(item.metadata), ensure_ascii=False)
    return item.id, item.digest, item.source, item.stamp, metadata, vector_text(vector)


def vector_text(row: NDArray[np.float32]) -> str:
    """A vector as text. Nine digits restore a float32 exactly."""
    return "[" + ",".join(f"{value:.9g}" for value in row.tolist()) + "]"


def condition_of(where: Where | None) -> tuple[str, list[Any]]:
    """The filter as the rest of a condition, with its values."""
    sql, values = "", []
    for column, wanted in clean_where(where).items():
        # Containment can use the index on metadata; several values become several documents, one of which must be contained.
        sql += " AND metadata @> ANY(%s::jsonb[])"
        values.append([json.dumps({column: value}, ensure_ascii=False) for value in wanted])
    return sql, values
