"""An index in one SQLite file: the default store. One writer, many readers, nothing to install, safe against crashes.

The file has one row per image, with its vector. Searching is ours: the vectors of a generation are read into a matrix at the
first search, and every later search first applies the changes since then. A search runs in one read transaction, so its
results are consistent while another process writes. Change the tables only together with ``FORMAT``.

A writer uses SQLite's write-ahead log, so that readers do not wait for it. Reading a log needs files beside the index, which
a reader without write permission cannot create; the last to close therefore puts the file back to a state without a log.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from recollect.common.errors import InputError
from recollect.common.files import make_folder_for
from recollect.common.imports import require
from recollect.search.exact_search import nearest_unchecked
from recollect.search.store_protocol import (
    Hit,
    IndexBusyError,
    Item,
    NoIndexError,
    StoreError,
    Vectors,
    Where,
    checked_queries,
    checked_vectors,
    clean_where,
    in_order,
)

FORMAT = 4
APPLICATION = 0x7265636F  # "reco": distinguishes an index from other SQLite files
APPROXIMATE_FROM = 200_000
"""Items from which codes are searched unless exact search was asked for: there, an exact query takes 17 ms (512 values)."""
APPROXIMATE_DIM = 128
"""Shorter vectors are searched exactly unless codes were asked for: they are read fast, and their codes are less accurate."""

_PAGE = 32768  # bytes: fifteen vectors of 512 values
_REMEMBERED = 4096  # changes for which removed items are listed; a reader that is further behind reads everything
_GATHER_BELOW = (
    0.25  # with a smaller share of the rows allowed, copying them together is faster than multiplying with all
)
_EXACT_BELOW = 5000  # items that are compared exactly in any case: as fast as codes, and too few to learn codes from
_TABLES = """
CREATE TABLE documents (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE generations (generation INTEGER PRIMARY KEY, dim INTEGER NOT NULL, half INTEGER NOT NULL,
    changes INTEGER NOT NULL DEFAULT 0);
CREATE TABLE items (
    number INTEGER PRIMARY KEY AUTOINCREMENT,           -- never used again: a reader asks for higher numbers than it knows
    generation INTEGER NOT NULL, id TEXT NOT NULL, digest TEXT NOT NULL, source TEXT NOT NULL, stamp TEXT NOT NULL,
    metadata TEXT NOT NULL, label TEXT AS (json_extract(metadata, '$.label')),  -- what most filters ask for
    vector BLOB NOT NULL
);
CREATE UNIQUE INDEX items_id ON items (generation, id);
CREATE INDEX items_digest ON items (digest);
CREATE INDEX items_label ON items (generation, label);
CREATE TABLE removed (generation INTEGER, change INTEGER, number INTEGER, PRIMARY KEY (generation, change, number))
    WITHOUT ROWID;
CREATE TABLE pictures (digest TEXT PRIMARY KEY, data BLOB NOT NULL);
"""
_COLUMNS = "number, id, digest, source, stamp, metadata"
_LISTED = "(SELECT value FROM json_each(?))"  # one JSON list instead of many parameters, whose number is limited


class SQLiteStore:
    """See ``recollect.search.store_protocol.Store`` for what the methods do."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.address = str(path)
        self._path, self._connection = path, connection
        self._lock = threading.RLock()  # one connection for all threads
        real = path.resolve()  # another process may have come by another link
        self._writer = FileLock(real.with_name(f".{real.name}.lock"))
        self._matrices: dict[int, _Matrix] = {}

    @classmethod
    def open(cls, address: str, *, create: bool = False) -> SQLiteStore:
        """Open the file ``address``."""
        path = Path(address)
        if path.is_dir():
            raise StoreError(f"{path} is a folder, but an index is a file: choose another name.")
        if not path.exists():
            if not create:
                raise NoIndexError(address)
            make_folder_for(path)
        with _sentences(path):
            return cls(path, _connect(path, create))

    def close(self) -> None:
        """Close the file; without a log beside it, unless another process still uses that."""
        with self._lock:
            self._matrices.clear()
            with suppress(sqlite3.Error):
                self._connection.execute("PRAGMA busy_timeout = 0")
                self._connection.execute("PRAGMA journal_mode = DELETE")
            self._connection.close()

    @contextmanager
    def writing(self, wait: float = 0.0) -> Iterator[None]:
        """Become the only writer: lock a file beside the index; the system releases the lock when the process ends."""
        with _sentences(self._path):
            try:
                self._writer.acquire(timeout=wait, poll_interval=0.05)
            except Timeout as error:
                raise IndexBusyError(
                    f"{self.address}: another process is writing to this index. Try again when it is done, or use --wait."
                ) from error
        try:
            yield
        finally:
            self._writer.release()

    @contextmanager
    def _transaction(self, *, write: bool = False) -> Iterator[sqlite3.Connection]:
        """The block sees one state of the file; with ``write`` it changes the file as a whole or not at all."""
        with self._lock, _sentences(self._path):
            if write:
                self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def check(self) -> None:
        """Read the whole file.

        Raises:
            StoreError: it is damaged.
        """
        with self._transaction() as db:
            (found,) = db.execute("PRAGMA integrity_check(1)").fetchone()
            if found != "ok":
                raise StoreError(f"{self._path}: {_damaged(' '.join(str(found).split()))}")
        for generation in self.generations():
            for item in self.iterate(generation, vectors=True):
                if item.vector is None or not np.isfinite(item.vector).all():
                    raise StoreError(f"{self._path}: {_damaged(f'the vector of {item.id} is not finite')}")

    def read_document(self, key: str) -> dict[str, Any] | None:
        """A document."""
        with self._transaction() as db:
            row = db.execute("SELECT value FROM documents WHERE key = ?", (key,)).fetchone()
            return None if row is None else dict(json.loads(row[0]))

    def write_document(self, key: str, value: Mapping[str, Any] | None) -> None:
        """Replace a document."""
        with self._transaction(write=True) as db:
            if value is None:
                db.execute("DELETE FROM documents WHERE key = ?", (key,))
            else:
                db.execute("REPLACE INTO documents VALUES (?, ?)", (key, json.dumps(dict(value), allow_nan=False)))

    def generations(self) -> list[int]:
        """Numbers of the generations."""
        with self._transaction() as db:
            return [row[0] for row in db.execute("SELECT generation FROM generations ORDER BY generation")]

    def create_generation(self, generation: int, dim: int, half: bool = False) -> None:
        """Create an empty generation."""
        with self._transaction(write=True) as db:
            if db.execute("SELECT 1 FROM generations WHERE generation = ?", (generation,)).fetchone():
                raise InputError(f"{self._path}: generation {generation} already exists.")
            db.execute("INSERT INTO generations (generation, dim, half) VALUES (?, ?, ?)", (generation, dim, half))

    def drop_generation(self, generation: int) -> None:
        """Remove a generation."""
        with self._transaction(write=True) as db:
            for table in ("items", "removed", "generations"):
                db.execute(f"DELETE FROM {table} WHERE generation = ?", (generation,))
            db.execute("DELETE FROM pictures WHERE digest NOT IN (SELECT digest FROM items)")
        self._matrices.pop(generation, None)

    def put(self, generation: int, items: Sequence[Item]) -> None:
        """Add or replace items in one transaction."""
        with self._transaction(write=True) as db:
            dim, half, changes = self._state(db, generation)
            vectors = checked_vectors(items, dim).astype(np.float16 if half else np.float32)
            before = self._remove(db, generation, [item.id for item in items], changes + 1)
            db.executemany(
                "INSERT INTO items (generation, id, digest, source, stamp, metadata, vector) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    (generation, i.id, i.digest, i.source, i.stamp, _json(i.metadata), vector.tobytes())
                    for i, vector in zip(items, vectors, strict=True)
                ),
            )
            pictures = [(item.digest, item.picture) for item in items if item.picture is not None]
            db.executemany("INSERT OR IGNORE INTO pictures VALUES (?, ?)", pictures)
            _forget_pictures(db, before)

    def delete(self, generation: int, ids: Sequence[str]) -> int:
        """Remove items in one transaction."""
        with self._transaction(write=True) as db:
            changes = self._state(db, generation)[2]
            digests = self._remove(db, generation, ids, changes + 1)
            _forget_pictures(db, digests)
            return len(digests)

    def _remove(self, db: sqlite3.Connection, generation: int, ids: Sequence[str], change: int) -> list[str]:
        """Begin a change by removing items, for readers to follow; the digests of those that existed."""
        db.execute("UPDATE generations SET changes = ? WHERE generation = ?", (change, generation))
        rows = db.execute(
            f"SELECT number, digest FROM items WHERE generation = ? AND id IN {_LISTED}",
            (generation, json.dumps(list(ids))),
        ).fetchall()
        if rows:
            db.executemany("DELETE FROM items WHERE number = ?", [(number,) for number, _ in rows])
            db.executemany("INSERT INTO removed VALUES (?, ?, ?)", [(generation, change, number) for number, _ in rows])
            db.execute("DELETE FROM removed WHERE generation = ? AND change <= ?", (generation, change - _REMEMBERED))
        return [digest for _, digest in rows]

    def get(self, generation: int, ids: Sequence[str], *, vectors: bool = False) -> dict[str, Item]:
        """Items by id."""
        with self._transaction() as db:
            dim, half, _ = self._state(db, generation)
            query = f"SELECT {_columns(vectors)} FROM items WHERE generation = ? AND id IN {_LISTED}"
            rows = db.execute(query, (generation, json.dumps(list(ids)))).fetchall()
            return {item.id: item for item in _items(rows, dim, half, vectors)}

    def picture(self, digest: str) -> bytes | None:
        """A picture by the digest of its bytes."""
        with self._transaction() as db:
            row = db.execute("SELECT data FROM pictures WHERE digest = ?", (digest,)).fetchone()
        return None if row is None else bytes(row[0])

    def iterate(self, generation: int, *, vectors: bool = False) -> Iterator[Item]:
        """All items, a thousand at a time."""
        last = 0
        while True:
            with self._transaction() as db:
                dim, half, _ = self._state(db, generation)
                query = (
                    f"SELECT {_columns(vectors)} FROM items NOT INDEXED WHERE number > ? AND generation = ? LIMIT 1024"
                )
                rows = db.execute(query, (last, generation)).fetchall()
                found = _items(rows, dim, half, vectors)
            if not rows:
                return
            yield from found
            last = rows[-1][0]

    def count(self, generation: int, where: Where | None = None) -> int:
        """Number of items."""
        condition, values = _condition(where)
        with self._transaction() as db:
            self._state(db, generation)
            query = f"SELECT count(*) FROM {_table(where or ())} WHERE generation = ?{condition}"
            return int(db.execute(query, (generation, *values)).fetchone()[0])

    def values(self, generation: int, column: str, limit: int = 1000) -> dict[str, int]:
        """Most frequent values of a column."""
        with self._transaction() as db:
            self._state(db, generation)
            rows = db.execute(
                f"SELECT {_field(column)} AS value, count(*) AS times FROM {_table([column])} WHERE generation = ? "
                "AND value IS NOT NULL GROUP BY value ORDER BY times DESC, value LIMIT ?",
                (generation, limit),
            )
            return dict(rows.fetchall())

    def search(
        self,
        generation: int,
        queries: Vectors,
        k: int,
        where: Where | None = None,
        approximate: bool | None = None,
        candidates: int = 100,
    ) -> list[list[Hit]]:
        """Compare with all vectors in memory, or with those whose codes are most similar."""
        with self._transaction() as db:
            dim, half, changes = self._state(db, generation)
            rows = checked_queries(queries, dim, k)
            matrix = self._matrix(db, generation, dim, half, changes)
            allowed = None
            if condition := clean_where(where):
                sql, values = _condition(condition)
                query = f"SELECT number FROM {_table(condition)} WHERE generation = ?{sql}"
                allowed = matrix.rows(db.execute(query, (generation, *values)))
            coded = matrix.is_large() if approximate is None else approximate
            places, similarities = matrix.search(rows, k, allowed, max(candidates, k) if coded else None)
            numbers = matrix.numbers[places]
            query = f"SELECT number, id, metadata FROM items WHERE number IN {_LISTED}"
            known = {
                number: (name, json.loads(metadata))
                for number, name, metadata in db.execute(query, (json.dumps(np.unique(numbers).tolist()),))
            }
            return [
                in_order([Hit(known[n][0], value, known[n][1]) for n, value in zip(some, values, strict=True)])
                for some, values in zip(numbers.tolist(), similarities.tolist(), strict=True)
            ]

    def build_approximate(self, generation: int) -> None:
        """Nothing to build: codes are made from the vectors in memory by the first search that uses them."""
        _faiss()

    def drop_approximate(self, generation: int) -> None:
        """Nothing to remove."""

    def _state(self, db: sqlite3.Connection, generation: int) -> tuple[int, bool, int]:
        row = db.execute("SELECT dim, half, changes FROM generations WHERE generation = ?", (generation,)).fetchone()
        if row is None:
            raise StoreError(f"{self._path}: there is no generation {generation}.")
        return row[0], bool(row[1]), row[2]

    def _matrix(self, db: sqlite3.Connection, generation: int, dim: int, half: bool, changes: int) -> _Matrix:
        """The vectors in memory, as they are in this transaction."""
        matrix = self._matrices.pop(
            generation, None
        )  # and back in the end: an error leaves none that is half up to date
        if matrix is None or matrix.changes < changes - _REMEMBERED:
            (count,) = db.execute("SELECT count(*) FROM items WHERE generation = ?", (generation,)).fetchone()
            matrix = _Matrix(dim, half, count)
        if matrix.changes != changes:
            since = (generation, matrix.changes)
            matrix.remove(db.execute("SELECT number FROM removed WHERE generation = ? AND change > ?", since))
            new = db.execute(
                "SELECT number, vector FROM items NOT INDEXED WHERE number > ? AND generation = ?",
                (matrix.last, generation),
            )
            while rows := new.fetchmany(4096):
                matrix.append([number for number, _ in rows], _vectors([data for _, data in rows], dim, half))
            matrix.changes = changes
        self._matrices[generation] = matrix
        return matrix


class _Matrix:
    """The vectors of a generation in memory, in the order in which they were written, and their codes.

    Rows are only added; those of removed items are skipped by searches until there are so many that the others are copied
    together.

    Attributes:
        changes: the last change of the generation that is applied.
        numbers: ``items.number`` of each row, ascending.
        last: the highest number.
    """

    def __init__(self, dim: int, half: bool, count: int) -> None:
        self.changes, self.last = -1, 0
        self._vectors: NDArray[Any] = np.empty((0, dim), np.float16 if half else np.float32)
        self.numbers = np.empty(0, np.int64)
        self._live = np.empty(0, bool)
        self._size = self._removed = 0
        self._codes: Any = None
        self._coded = 0  # rows that the codes were learned from
        self._reserve(count)

    def _reserve(self, size: int) -> None:
        """Room for ``size`` rows and a quarter more, so that a growing index is rarely copied; unused room costs nothing."""
        room = size + size // 4 + 1024
        for name in ("_vectors", "numbers", "_live"):
            old = getattr(self, name)
            new = np.empty((room, *old.shape[1:]), old.dtype)
            new[: self._size] = old[: self._size]
            setattr(self, name, new)

    def append(self, numbers: list[int], vectors: NDArray[Any]) -> None:
        end = self._size + len(numbers)
        if end > len(self._live):
            self._reserve(end)
        new = slice(self._size, end)
        self._vectors[new], self.numbers[new], self._live[new] = vectors, numbers, True
        self._size, self.last = end, numbers[-1]

    def rows(self, numbers: Iterable[tuple[int]]) -> NDArray[np.int64]:
        wanted = np.fromiter((row[0] for row in numbers), np.int64)
        return np.searchsorted(self.numbers[: self._size], wanted)

    def remove(self, numbers: Iterable[tuple[int]]) -> None:
        known = [row for row in numbers if row[0] <= self.last]  # others came and went since the last search
        gone = self.rows(known)
        self._live[gone] = False
        self._removed += len(gone)
        if self._removed > self._size // 2:
            kept = np.flatnonzero(self._live[: self._size])
            for array in (self._vectors, self.numbers, self._live):
                array[: len(kept)] = array[kept]
            self._size, self._removed, self._codes = len(kept), 0, None

    def is_large(self) -> bool:
        """Whether codes are searched unless something else was asked for."""
        if self._size - self._removed < APPROXIMATE_FROM or self._vectors.shape[1] < APPROXIMATE_DIM:
            return False
        return find_spec("faiss") is not None

    def search(
        self, queries: NDArray[np.float32], k: int, rows: NDArray[np.int64] | None, candidates: int | None
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Rows and similarities of the nearest items, Q × min(k, items).

        Args:
            queries: Q × dim.
            k: how many.
            rows: only these may be found; None for all items.
            candidates: compare only so many, chosen by their codes; None for all.
        """
        items = self._size - self._removed if rows is None else len(rows)
        count = min(k, items)
        if count == 0:
            return np.zeros((len(queries), 0), np.int64), np.zeros((len(queries), 0), np.float32)
        vectors, allowed = self._vectors[: self._size], None
        if rows is not None:
            if items < _GATHER_BELOW * self._size and (candidates is None or items <= _EXACT_BELOW):
                found = nearest_unchecked(queries, vectors[rows], count)
                return rows[found.indices], found.similarities
            allowed = np.zeros(self._size, bool)
            allowed[rows] = True
        elif self._removed:
            allowed = self._live[: self._size]
        if candidates is not None and items > max(_EXACT_BELOW, candidates):
            return self._search_codes(queries, count, allowed, candidates)
        found = nearest_unchecked(queries, vectors, count, allowed=allowed)
        return found.indices, found.similarities

    def _search_codes(
        self, queries: NDArray[np.float32], count: int, allowed: NDArray[np.bool_] | None, candidates: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        faiss = _faiss()
        codes = self._up_to_date_codes(faiss)
        bits = np.packbits(np.ones(0, bool) if allowed is None else allowed, bitorder="little")
        options = {} if allowed is None else {"sel": faiss.IDSelectorBitmap(bits)}
        # Its other name is used if faiss.contrib.torch_utils was imported, which replaces it by one without params.
        search = getattr(codes, "search_numpy", codes.search)
        _, near = search(queries, candidates, params=faiss.SearchParametersIVF(**options))
        near.sort(axis=1)  # equal similarities in the order of the rows, as in exact search
        vectors = self._vectors[near].astype(np.float32, copy=False)
        values = np.einsum("qcd,qd->qc", vectors, queries)
        best = np.argsort(-values, axis=1, kind="stable")[:, :count]
        return np.take_along_axis(near, best, 1), np.take_along_axis(values, best, 1)

    def _up_to_date_codes(self, faiss: Any) -> Any:
        """Codes of all rows; learned again when there are twice as many."""
        dim = self._vectors.shape[1]
        if self._codes is None or self._size > 2 * self._coded:
            # Four bits for every two values, or for one where there are few: 200,000 × 64 need them for a recall of 0.99.
            parts = dim // 2 if dim >= 256 and dim % 2 == 0 else dim
            # A list of all (IVF1), because faiss takes filters only there.
            self._codes = faiss.index_factory(dim, f"IVF1,PQ{parts}x4fs", faiss.METRIC_INNER_PRODUCT)
            sample = np.linspace(0, self._size - 1, 4096).astype(np.int64)
            self._codes.train(self._vectors[sample].astype(np.float32))
            self._coded = self._size
        for start in range(self._codes.ntotal, self._size, 65536):
            end = min(start + 65536, self._size)
            self._codes.add(self._vectors[start:end].astype(np.float32, copy=False))
        return self._codes


def _faiss() -> Any:
    return require("faiss", "index", "approximate search in a file")


def _connect(path: Path, create: bool) -> sqlite3.Connection:
    address = path.resolve().as_uri()
    if not path.exists() or (os.access(path, os.W_OK) and os.access(path.resolve().parent, os.W_OK)):
        return _prepared(path, address, create)
    try:
        return _prepared(path, f"{address}?mode=ro", False)
    except sqlite3.OperationalError as error:
        # A copy that expects a log, but was made without it: the files for reading one cannot be created here.
        refused = _code(error) in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
        if not refused or Path(f"{path.resolve()}-wal").exists():
            raise
        return _prepared(path, f"{address}?mode=ro&immutable=1", False)


def _prepared(path: Path, address: str, create: bool) -> sqlite3.Connection:
    connection = sqlite3.connect(address, uri=True, timeout=60, isolation_level=None, check_same_thread=False)
    try:
        if create and _is_empty(connection):
            connection.execute(f"PRAGMA page_size = {_PAGE}")
            connection.execute("BEGIN IMMEDIATE")
            if _is_empty(connection):  # else another process was first
                for statement in _TABLES.split(";\n"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {APPLICATION}")
                connection.execute(f"PRAGMA user_version = {FORMAT}")
            connection.execute("COMMIT")
        if _is_empty(connection):
            raise NoIndexError(str(path))
        application, version = (
            connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
        )
        if application != APPLICATION:
            raise StoreError(f"{path} is a SQLite file, but not an index of recollect: choose another name.")
        if version != FORMAT:
            raise StoreError(
                f"{path}: an index of format {version}, and this version of recollect reads format {FORMAT}: index the images "
                "again with  recollect index NEW_INDEX FOLDER --model RUN"
            )
        # Every commit is on disk when it returns: even a power cut loses only what was not reported as done.
        connection.execute("PRAGMA synchronous = FULL")
    except BaseException:
        connection.close()
        raise
    return connection


def _is_empty(connection: sqlite3.Connection) -> bool:
    # By the tables, not the file's size: a process that died while creating the index leaves a few bytes. More than one
    # page without tables is a damaged index, which must not be filled anew.
    (tables,), (pages,) = (
        connection.execute(query).fetchone() for query in ("SELECT count(*) FROM sqlite_master", "PRAGMA page_count")
    )
    return not tables and pages <= 1


@contextmanager
def _sentences(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into messages."""
    try:
        yield
    except sqlite3.Error as error:
        raise StoreError(f"{path}: {_sentence(error)}") from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise StoreError(f"{path}: {_damaged(str(error))}") from error
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}.") from error


def _code(error: sqlite3.Error) -> int:
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF  # the primary code, without SQLite's details


def _sentence(error: sqlite3.Error) -> str:
    code = _code(error)
    if code == sqlite3.SQLITE_FULL:
        return "the disk is full. Committed data is kept: free some space and run the command again."
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return "it is read-only: change its permissions, or copy it to a folder that you can write to."
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return "another process has been writing to it for a minute: try again when it is done."
    if code == sqlite3.SQLITE_CANTOPEN:
        return "it cannot be opened: check that the folder exists and that you can write to it."
    if code == sqlite3.SQLITE_IOERR:
        return f"it cannot be read or written ({error}): check the disk and its free space. Committed data is kept."
    if str(error).startswith("Could not decode"):  # by Python, which quotes the text
        return _damaged("a text is not UTF-8")
    return _damaged(str(error))


def _damaged(why: str) -> str:
    return (
        f"not an index, or a damaged one ({why}). Nothing was changed: restore the file from a copy, or index the images "
        "again into a new file."
    )


def _columns(vectors: bool) -> str:
    return f"{_COLUMNS}, vector" if vectors else _COLUMNS


def _items(rows: list[Any], dim: int, half: bool, vectors: bool) -> list[Item]:
    found: Any = (
        _vectors([row[-1] for row in rows], dim, half).astype(np.float32, copy=False) if vectors else [None] * len(rows)
    )
    return [
        Item(name, vector, json.loads(metadata), digest, source, stamp)
        for (_, name, digest, source, stamp, metadata, *_), vector in zip(rows, found, strict=True)
    ]


def _vectors(blobs: list[bytes], dim: int, half: bool) -> NDArray[Any]:
    kind = np.dtype(np.float16 if half else np.float32)
    if any(type(blob) is not bytes or len(blob) != dim * kind.itemsize for blob in blobs):
        raise sqlite3.DatabaseError("a vector is of another length")
    return np.frombuffer(bytearray().join(blobs), kind).reshape(len(blobs), dim)  # not bytes: torch warns of those


def _json(metadata: Mapping[str, str]) -> str:
    return json.dumps(dict(metadata), ensure_ascii=False)


def _table(columns: Collection[str]) -> str:
    # Left to itself, SQLite finds all items of the generation by an index first: several times slower.
    if "label" in columns:
        return "items INDEXED BY items_label"
    return "items NOT INDEXED" if columns else "items"


def _field(column: str) -> str:
    """The expression for a metadata column."""
    if column == "label":
        return column  # a column of the table, with an index
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", column):
        return f"json_extract(metadata, '$.\"{column}\"')"
    # SQLite's paths cannot name every key (quotes, for one), but keys can be compared.
    name = column.replace("'", "''")
    return f"(SELECT value FROM json_each(metadata) WHERE key = '{name}')"


def _condition(where: Mapping[str, Any] | None) -> tuple[str, list[str]]:
    sql, values = "", []
    for column, wanted in clean_where(where).items():
        sql += f" AND {_field(column)} IN {_LISTED}"
        values.append(json.dumps(wanted))
    return sql, values


def _forget_pictures(db: sqlite3.Connection, digests: list[str]) -> None:
    db.execute(
        f"DELETE FROM pictures WHERE digest IN {_LISTED} "
        "AND NOT EXISTS (SELECT 1 FROM items WHERE items.digest = pictures.digest)",
        (json.dumps(digests),),
    )
