"""What ``Index`` asks of a store of vectors: the interface and its types. ``open_store`` chooses a store by its address.

A store keeps *generations* of items. Every generation has vectors of one length, made by one model; one generation answers
searches while the next is being filled. A store does not know images or models: ``Index`` decides what goes in, and keeps
its own ``Settings`` in a document of the store. ``tests/search/test_store_contract.py`` checks that all stores behave the
same; you can add your own there. Addresses of indexes:

- a path: a SQLite file (``sqlite``), or an ``.npz`` of ``recollect embed``, which can only be searched (``vector_file``);
- ``postgresql://user@host/database?index=name`` (``postgres``; extra ``postgres``);
- ``milvus://host:port/name`` (``milvus``; extra ``milvus``);
- ``package.module:Class://anything`` or ``file.py:Class://anything``: your own store, opened with
  ``Class.open(anything)``;
- ``name://anything``, where an installed package has the entry point ``name`` in the group ``recollect.stores``: likewise.
"""

from __future__ import annotations

import importlib
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from recollect.common import plugins
from recollect.common.errors import DataError, InputError, RecollectError

if TYPE_CHECKING:
    from recollect.search.exact import Neighbours

SETTINGS_FORMAT = 2
LONGEST_ID = 2048
"""Bytes of an id in UTF-8: the most that Milvus indexes; PostgreSQL takes 2,700."""

Vectors = NDArray[np.float32]
"""Vectors as rows."""
Where = dict[str, list[str]]
"""A filter as stores take it, see ``clean_where``: for every column, its alternatives. Columns are combined with *and*."""


class StoreError(DataError):
    """A store that cannot be opened, read or written."""


class NoIndexError(StoreError):
    """An address where there is no index."""

    def __init__(self, address: str) -> None:
        quoted = shlex.quote(address)  # a shell takes the & of an address for its own
        super().__init__(f"{address}: there is no index. Create one with  recollect index {quoted} --model RUN FOLDER")


class IndexBusyError(RecollectError):
    """Another process is writing to the index."""

    def __init__(self, address: str, other: str = "process") -> None:
        super().__init__(
            f"{address}: another {other} is writing to this index. Try again when it is done, or use --wait."
        )


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
class Match:
    """One image that a search found.

    Attributes:
        id: of the item.
        similarity: cosine similarity to the query.
        metadata: ``label``, ``name`` and columns of your own.
        level: ``"same"``, ``"similar"`` or ``"unknown"`` if the index is calibrated, otherwise None. ``Index`` adds it.
    """

    id: str
    similarity: float
    metadata: Mapping[str, str]
    level: str | None = None


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

    def close(self) -> None:
        """Close files and connections."""

    def writing(self, wait: float = 0.0) -> AbstractContextManager[None]:
        """Be the only writer inside the block; the lock ends with the process, for any reason.

        Raises:
            IndexBusyError: another process is still writing after ``wait`` seconds.
        """

    def read_document(self, key: str) -> dict[str, Any] | None:
        """A small JSON document, e.g. the index's settings."""

    def write_document(self, key: str, value: Mapping[str, Any] | None) -> None:
        """Replace a document in one step; None removes it."""

    def generations(self) -> list[int]:
        """Numbers of the existing generations, in order."""

    def create_generation(self, generation: int, dim: int, half: bool = False) -> None:
        """Create a generation, which must not exist yet, for vectors of ``dim`` values, in half precision if ``half``."""

    def drop_generation(self, generation: int) -> None:
        """Remove a generation and its content, if it exists."""

    def put(self, generation: int, items: Sequence[Item]) -> None:
        """Add items, replacing those with the same ids: all of them or, if anything fails, none."""

    def delete(self, generation: int, ids: Sequence[str]) -> int:
        """Remove items; returns how many existed."""

    def get(self, generation: int, ids: Sequence[str], *, vectors: bool = False) -> dict[str, Item]:
        """The items with these ids that exist, without pictures."""

    def picture(self, digest: str) -> bytes | None:
        """The bytes of an image that was stored with its picture."""

    def iterate(self, generation: int, *, vectors: bool = False) -> Iterator[Item]:
        """All items, in no particular order, in bounded memory."""

    def count(self, generation: int, where: Where | None = None) -> int:
        """The number of items."""

    def values(self, generation: int, column: str, limit: int = 1000) -> dict[str, int]:
        """The most frequent values of a metadata column with their counts, among the first 20,000 items."""
        items = islice(self.iterate(generation), 20_000)
        counts = Counter(item.metadata[column] for item in items if column in item.metadata)
        return dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:limit])

    def search(
        self,
        generation: int,
        queries: Vectors,
        k: int,
        where: Where | None = None,
        approximate: bool | None = None,
        candidates: int = 100,
    ) -> list[list[Match]]:
        """For each of Q × d queries the ``k`` items with the largest dot product, best first, equal ones by id.

        Lists are full: as long as ``k``, or as long as there are items that pass ``where``.

        Args:
            generation, queries, k, where: what to search.
            approximate: use the store's approximate search; a list may then miss items. None lets the store decide.
            candidates: how many items approximate search compares exactly, per query.
        """

    def build_approximate(self, generation: int) -> None:
        """Build or rebuild the approximate index, if the store needs one."""

    def drop_approximate(self, generation: int) -> None:
        """Remove the approximate index, if there is one."""


@dataclass(frozen=True)
class Generation:
    """One generation of vectors.

    Attributes:
        number: in the store.
        model: the model of the vectors: ``model``, ``weights``, ``name``, ``fingerprint``, ``dim`` (of the model).
        dim: length of the stored vectors. half: whether they are stored in half precision.
        approximate: candidates and measured recall of approximate search; False for exact search; None if neither was
            asked for, which leaves it to the store.
        calibration: thresholds for *same* and *similar* (see ``thresholds``).
    """

    number: int
    model: dict[str, Any]
    dim: int
    half: bool = False
    approximate: dict[str, Any] | Literal[False] | None = None
    calibration: dict[str, Any] | None = None

    @property
    def identity(self) -> tuple[object, ...]:
        """What makes its vectors what they are."""
        return self.number, self.model["fingerprint"], self.dim, self.half


@dataclass(frozen=True)
class Settings:
    """The state of an index: which generation answers, and which is being filled.

    One document of the store. Every store writes it atomically, so switching generations is atomic too.
    """

    current: Generation
    building: Generation | None = None
    format: int = SETTINGS_FORMAT

    @classmethod
    def read(cls, store: Store) -> Settings | None:
        """The settings of the index in ``store``; None if it has none yet.

        Raises:
            StoreError: they are not valid.
        """
        document = store.read_document("settings")
        if document is None:
            return None
        if document.get("format") != SETTINGS_FORMAT:
            raise StoreError(
                f"{store.address}: an index of format {document.get('format')}, and this version of recollect reads format "
                f"{SETTINGS_FORMAT}: index the images again with  recollect index NEW_INDEX FOLDER --model RUN"
            )
        try:
            building = document["building"]
            return cls(Generation(**document["current"]), None if building is None else Generation(**building))
        except (KeyError, TypeError) as error:
            raise StoreError(
                f"{store.address}: the settings of the index are not valid ({error}). Restore it from a copy."
            ) from error


def check_text(text: str, what: str) -> str:
    """``text``, if stores can keep it: without zero characters and unpaired surrogates (from file names)."""
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise InputError(f"{what} cannot be stored: {text[:80]!r}. Rename the file or column.")
    return text


def check_ids(names: Sequence[str]) -> None:
    """Refuse ids that a store cannot keep.

    Raises:
        InputError: one is empty, too long or not text, or occurs twice.
    """
    for name in names:
        if not name or len(name.encode("utf-8", "replace")) > LONGEST_ID:
            raise InputError(f"an id must have 1 to {LONGEST_ID:,} bytes in UTF-8: {name[:80]!r}.")
        check_text(name, "an id")
    if len(set(names)) < len(names):
        (name, _), *_ = Counter(names).most_common(1)
        raise InputError(f"the id {name[:80]!r} occurs twice: give one id per image, each different.")


def as_text(value: object) -> str:
    """A metadata value as it is stored: text. True is ``"true"``, 3 is ``"3"``, 0.5 is ``"0.5"``."""
    if isinstance(value, str):
        return check_text(value, "a metadata value")
    if isinstance(value, int | float | np.integer | np.floating):
        return str(value).lower()  # True
    raise InputError(f"metadata values must be text, numbers, True or False, not {type(value).__name__}: {value!r}.")


def _column(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise InputError(f"names of metadata columns must be text, not {name!r}.")
    return check_text(name, "the name of a metadata column")


def clean_metadata(metadata: Mapping[str, object] | None) -> dict[str, str]:
    """Metadata as stored: text by column, without missing values.

    Raises:
        InputError: a value that is neither text nor a number, or a name that is not text.
    """
    return {_column(name): as_text(value) for name, value in (metadata or {}).items() if value is not None}


def clean_where(where: Mapping[str, object] | None) -> Where:
    """A filter with a list of texts for every column.

    Examples:
        >>> clean_where({"label": "cat", "year": [2019, 2020]})
        {'label': ['cat'], 'year': ['2019', '2020']}
    """
    lists = {name: value if isinstance(value, list | tuple) else [value] for name, value in (where or {}).items()}
    return {_column(name): list(map(as_text, values)) for name, values in lists.items()}


def check_vectors(items: Sequence[Item], dim: int) -> Vectors:
    """The items' vectors as one N × dim array.

    Raises:
        InputError: an id is empty or occurs twice, or a vector is missing, of another length or not finite.
    """
    check_ids([item.id for item in items])
    vectors = np.empty((len(items), dim), np.float32)
    for row, item in enumerate(items):
        shape = None if item.vector is None else item.vector.shape
        if shape != (dim,):
            raise InputError(f"{item.id}: its vector must have {dim} values, but the shape is {shape}.")
        vectors[row] = item.vector
        if not np.isfinite(vectors[row]).all():
            raise InputError(f"{item.id}: a value of its vector is not finite (NaN or infinity).")
    return vectors


def in_order(matches: Iterable[Match]) -> list[Match]:
    """Matches best first, equal similarities by id."""
    return sorted(matches, key=lambda match: (-match.similarity, match.id))


def matches_of(neighbours: Neighbours, describe: Callable[[int], tuple[str, Mapping[str, str]]]) -> list[list[Match]]:
    """The matches of each query; ``describe`` gives the id and the metadata of an index of ``neighbours``."""
    return [
        in_order(
            Match(name, value, metadata) for (name, metadata), value in zip(map(describe, row), values, strict=True)
        )
        for row, values in zip(neighbours.indices.tolist(), neighbours.similarities.tolist(), strict=True)
    ]


_STORES = {"postgresql": "postgres.PostgresStore", "postgres": "postgres.PostgresStore", "milvus": "milvus.MilvusStore"}


def open_store(address: str | Path, *, create: bool = False) -> Store:
    """Open the store at an address.

    Args:
        address: see the top of this file.
        create: create an empty store if there is none.

    Raises:
        ConfigError: an unknown kind of address. StoreError: there is no store there, or it cannot be opened.
    """
    text = str(address)
    kind, sign, rest = text.partition("://")
    is_path = Path(text).exists() or not (sign or plugins.is_reference(kind))
    if is_path or kind in _STORES:
        file = "vector_file.VectorFile" if text.endswith(".npz") else "sqlite.SQLiteStore"
        module, name = (file if is_path else _STORES[kind]).split(".")
        store: type[Store] = getattr(importlib.import_module(f"recollect.search.stores.{module}"), name)
        return store.open(text, create=create)
    plugin = plugins.load("store", kind)
    if plugin is None:  # without the rest, which may contain a password
        raise plugins.unknown("store", kind, _STORES)
    with plugins.errors_as_config(f"store {plugin.short!r}"):
        return cast("type[Store]", plugin.target).open(rest, create=create)


def is_index(address: str | Path) -> bool:
    """Whether an address belongs to an index rather than to a run, a folder or an ``.npz`` of vectors."""
    text = str(address)
    path = Path(text)
    if "://" not in text and path.is_file():
        with path.open("rb") as file:
            return file.read(16) == b"SQLite format 3\0"
    return "://" in text or (plugins.is_reference(text) and not path.exists())
