"""Requests and responses of the service, as in its OpenAPI description. Used by ``service``."""

from __future__ import annotations

from pydantic import BaseModel

from recollect.search.store_protocol import LONGEST_ID

MOST = 1000
"""Results of one query."""
COLUMNS, VALUES = 16, 1000
"""Of a filter: columns, and values of each."""


class SearchResult(BaseModel):
    """One image found."""

    id: str
    similarity: float
    verdict: str | None
    metadata: dict[str, str]
    thumbnail: str


class FoundItems(BaseModel):
    """The answer to a search, best first."""

    results: list[SearchResult]


class ItemAnswer(BaseModel):
    """One image of the index."""

    id: str
    metadata: dict[str, str]
    thumbnail: str


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


_QUERY = {
    "k": {"type": "integer", "minimum": 1, "maximum": MOST, "default": 10},
    "id": {"type": "string", "minLength": 1, "maxLength": LONGEST_ID},
}
_PAIRS = {
    "type": "object",
    "maxProperties": COLUMNS,
    "additionalProperties": {
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "maxItems": VALUES}]
    },
}
_IMAGE = {"type": "string", "format": "binary"}
SEARCH_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"type": "object", "required": ["id"], "properties": {**_QUERY, "where": _PAIRS}}
            },
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["image"],
                    "properties": {"image": _IMAGE, "k": _QUERY["k"], "where": {"type": "string"}},
                }
            },
        },
    }
}
ADD_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["image", "id"],
                    "properties": {"image": _IMAGE, "id": _QUERY["id"], "metadata": {"type": "string"}},
                }
            }
        },
    }
}
