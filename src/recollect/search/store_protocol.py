"""The interface of a store of vectors, which ``Index`` uses, and its types.

A store keeps *generations* of items. Every generation has vectors of one length, made by one model; one generation answers
searches while the next is being filled. A store does not know images or models: ``Index`` decides what goes in.
Implementations: ``sqlite_store`` (a file), ``postgres_store``, ``milvus_store``; ``addresses.open_store`` chooses one.
``tests/search/test_store_contract.py`` checks that all of them behave the same; you can add your own store there.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from recollect.common.errors import DataError, InputError, RecollectError

LONGEST_ID = 2048
"""Bytes of an id in UTF-8: the most that Milvus indexes; PostgreSQL takes 2,700."""

Vectors = NDArray[np.float32]
"""Vectors as rows."""

Where = Mapping[str, str | Sequence[str]]
"""A filter: for every column named, one value or several alternatives. Columns are combined with *and*."""


class StoreError(DataError):
    """A store that cannot be opened, read or written."""


class NoIndexError(StoreError):
    """An address where there is no index."""

    def __init__(self, address: str) -> None:
        quoted = shlex.quote(address)  # a shell takes the & of an address for its own
        super().__init__(f"{address}: there is no index. Create one with  recollect index {quoted} --model RUN FOLDER")


class IndexBusyError(RecollectError):
    """Another process is writing to the index."""


@dataclass(frozen=True, slots=True)
class Item:
    """One image of an index.

    Attributes:
        id: unique in its generation.
        vector: d values; None if an item is read without its vector.
        metadata: columns that users see and filter by: ``label``, ``name``, their own. Values are text.
        digest: SHA-256 of the image's bytes; equal images are embedded once.
        source: path of the file on this machine, or "" for an image that was passed in memory. Never shown to clients.
        stamp: size and time of that file when it was read; while they are the same, it is not read again.
        picture: bytes of an image that has no file; kept by its digest.
    """

    id: str
    vector: NDArray[np.float32] | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    digest: str = ""
    source: str = ""
    stamp: str = ""
    picture: bytes | None = None


@dataclass(frozen=True, slots=True)
class Hit:
    """One answer.

    Attributes:
        id: of the item.
        similarity: cosine similarity to the query.
        metadata: ``label``, ``name`` and columns of your own.
        verdict: ``"same"``, ``"similar"`` or ``"unknown"`` if the index is calibrated, otherwise None. ``Index`` adds it.
    """

    id: str
    similarity: float
    metadata: Mapping[str, str]
    verdict: str | None = None


@runtime_checkable
class Store(Protocol):
    """A store of vectors. Methods may be called from several threads; only the holder of ``writing`` changes anything.

    Attributes:
        address: its address without a password, for display.
    """

    address: str

    @classmethod
    def open(cls, address: str, *, create: bool = False) -> Store:
        """Open the store at ``address``; ``create`` creates an empty one if there is none.

        Raises:
            StoreError: there is no store, it cannot be reached, or it is something else.
        """
        ...

    def close(self) -> None:
        """Close files and connections."""
        ...

    def writing(self, wait: float = 0.0) -> AbstractContextManager[None]:
        """Be the only writer inside the block; the lock ends with the process, for any reason.

        Raises:
            IndexBusyError: another process is still writing after ``wait`` seconds.
        """
        ...

    def read_document(self, key: str) -> dict[str, Any] | None:
        """A small JSON document, e.g. the index's settings."""
        ...

    def write_document(self, key: str, value: Mapping[str, Any] | None) -> None:
        """Replace a document in one step; None removes it."""
        ...

    def generations(self) -> list[int]:
        """Numbers of the existing generations, in order."""
        ...

    def create_generation(self, generation: int, dim: int, half: bool = False) -> None:
        """Create an empty generation for vectors of ``dim`` values, stored in half precision if ``half``."""
        ...

    def drop_generation(self, generation: int) -> None:
        """Remove a generation and its content, if it exists."""
        ...

    def put(self, generation: int, items: Sequence[Item]) -> None:
        """Add items, replacing those with the same ids: all of them or, if anything fails, none."""
        ...

    def delete(self, generation: int, ids: Sequence[str]) -> int:
        """Remove items; returns how many existed."""
        ...

    def get(self, generation: int, ids: Sequence[str], *, vectors: bool = False) -> dict[str, Item]:
        """The items with these ids that exist, without pictures."""
        ...

    def picture(self, digest: str) -> bytes | None:
        """The bytes of an image that was stored with its picture."""
        ...

    def iterate(self, generation: int, *, vectors: bool = False) -> Iterator[Item]:
        """All items, in no particular order, in bounded memory."""
        ...

    def count(self, generation: int, where: Where | None = None) -> int:
        """The number of items."""
        ...

    def values(self, generation: int, column: str, limit: int = 1000) -> dict[str, int]:
        """The most frequent values of a metadata column with their counts."""
        ...

    def search(
        self,
        generation: int,
        queries: Vectors,
        k: int,
        where: Where | None = None,
        approximate: bool | None = None,
        candidates: int = 100,
    ) -> list[list[Hit]]:
        """For each of Q × d queries the ``k`` items with the largest dot product, best first, equal ones by id.

        Lists are full: as long as ``k``, or as long as there are items that pass ``where``.

        Args:
            generation, queries, k, where: what to search.
            approximate: use the store's approximate search; a list may then miss items. None lets the store decide.
            candidates: how many items approximate search compares exactly, per query.
        """
        ...

    def build_approximate(self, generation: int) -> None:
        """Build or rebuild the approximate index, if the store needs one."""
        ...

    def drop_approximate(self, generation: int) -> None:
        """Remove the approximate index, if there is one."""
        ...


def checked_text(text: str, what: str) -> str:
    """``text``, if stores can keep it: without zero characters and unpaired surrogates (from file names)."""
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise InputError(f"{what} cannot be stored: {shortened(text)!r}. Rename the file or column.")
    return text


def shortened(text: str) -> str:
    """A text for a message, which may come from a stranger."""
    return text if len(text) <= 80 else f"{text[:79]}…"


def checked_id(name: str) -> str:
    """``name``, if every store can keep it as an id.

    Raises:
        InputError: it is empty, too long or not text.
    """
    if not name or len(name.encode("utf-8", "replace")) > LONGEST_ID:
        raise InputError(f"an id must have 1 to {LONGEST_ID:,} bytes in UTF-8: {shortened(name)!r}.")
    return checked_text(name, "an id")


def as_text(value: object) -> str:
    """A metadata value as it is stored: text. True is ``"true"``, 3 is ``"3"``, 0.5 is ``"0.5"``."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return checked_text(value, "a metadata value")
    if isinstance(value, int | float | np.integer | np.floating):
        return str(value)
    raise InputError(f"metadata values must be text, numbers, True or False, not {type(value).__name__}: {value!r}.")


def clean_metadata(metadata: Mapping[str, object] | None) -> dict[str, str]:
    """Metadata as stored: text by column, without missing values.

    Raises:
        InputError: a value that is neither text nor a number, or a name that is not text.
    """
    kept: dict[str, str] = {}
    for name, value in (metadata or {}).items():
        if not isinstance(name, str) or not name:
            raise InputError(f"names of metadata columns must be text, not {name!r}.")
        if value is not None:
            kept[checked_text(name, "the name of a metadata column")] = as_text(value)
    return kept


def clean_where(where: Mapping[str, object] | None) -> dict[str, list[str]]:
    """A filter with a list of texts for every column.

    Examples:
        >>> clean_where({"label": "cat", "year": [2019, 2020]})
        {'label': ['cat'], 'year': ['2019', '2020']}
    """
    cleaned: dict[str, list[str]] = {}
    for name, wanted in (where or {}).items():
        if not isinstance(name, str) or not name:
            raise InputError(f"names of metadata columns in a filter must be text, not {name!r}.")
        several = wanted if isinstance(wanted, Sequence) and not isinstance(wanted, str) else [wanted]
        cleaned[checked_text(name, "the name of a metadata column")] = [as_text(value) for value in several]
    return cleaned


def checked_vectors(items: Sequence[Item], dim: int) -> NDArray[np.float32]:
    """The items' vectors as one N × dim array.

    Raises:
        InputError: an id is empty or occurs twice, or a vector is missing, of another length or not finite.
    """
    seen: set[str] = set()
    for item in items:
        if checked_id(item.id) in seen:
            raise InputError(f"the id {shortened(item.id)!r} occurs twice in one batch.")
        seen.add(item.id)
        if item.vector is None or item.vector.shape != (dim,):
            shape = None if item.vector is None else item.vector.shape
            raise InputError(f"{item.id}: its vector must have {dim} values, but the shape is {shape}.")
    vectors = np.empty((len(items), dim), np.float32)
    for row, item in enumerate(items):
        vectors[row] = item.vector
    if not np.isfinite(vectors).all():
        bad = items[int(np.flatnonzero(~np.isfinite(vectors).all(axis=1))[0])].id
        raise InputError(f"{bad}: a value of its vector is not finite (NaN or infinity).")
    return vectors


def checked_queries(queries: NDArray[np.float32], dim: int, k: int) -> NDArray[np.float32]:
    """Queries as Q × dim float32.

    Raises:
        InputError: a wrong shape, values that are not finite, or a ``k`` below 1.
    """
    if k < 1:
        raise InputError(f"k is {k}: it must be at least 1.")
    rows = np.ascontiguousarray(queries, np.float32)
    if rows.ndim != 2 or rows.shape[1] != dim:
        raise InputError(f"queries must have {dim} dimensions, but the shape is {rows.shape}.")
    if not np.isfinite(rows).all():
        raise InputError("queries: a value is not finite (NaN or infinity).")
    return rows


def in_order(hits: list[Hit]) -> list[Hit]:
    """Hits best first, equal similarities by id."""
    return sorted(hits, key=lambda hit: (-hit.similarity, hit.id))
