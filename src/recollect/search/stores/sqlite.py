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
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from recollect.common.errors import MissingExtraError, require
from recollect.common.files import make_folder_for
from recollect.search.exact import Neighbours, check_queries, nearest_unchecked
from recollect.search.stores.base import (
    IndexBusyError,
    Item,
    Match,
    NoIndexError,
    Store,
    StoreError,
    Vectors,
    Where,
    check_vectors,
    matches_of,
)

FORMAT = 4
APPLICATION = 0x7265636F  # "reco": distinguishes an index from other SQLite files
APPROXIMATE_FROM = 200_000
"""Items from which codes are searched unless exact search was asked for: there, an exact query takes 17 ms (512 values)."""
APPROXIMATE_DIM = 128
"""Shorter vectors are searched exactly unless codes were asked for: they are read fast, and their codes are less accurate."""

_PAGE = 32768  # bytes: fifteen vectors of 512 values
_REMEMBERED = 4096  # changes for which removed items are listed; a reader that is further behind reads everything
_GATHER_BELOW = 0.25  # share of the rows below which copying them together is faster than multiplying with all
_EXACT_BELOW = 5000  # items that are compared exactly in any case: as fast as codes, and too few to learn codes from
_EXACT_FIRST = 50  # queries that are compared exactly in any case: a command may ask only one, and codes take longer
_TABLES = """
CREATE TABLE IF NOT EXISTS documents (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS generations (generation INTEGER PRIMARY KEY, dim INTEGER NOT NULL, half INTEGER NOT NULL,
    changes INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS items (
    number INTEGER PRIMARY KEY AUTOINCREMENT,           -- never used again: a reader asks for higher numbers than it knows
    generation INTEGER NOT NULL, id TEXT NOT NULL, digest TEXT NOT NULL, source TEXT NOT NULL, stamp TEXT NOT NULL,
    metadata TEXT NOT NULL, label TEXT AS (json_extract(metadata, '$.label')),  -- what most filters ask for
    vector BLOB NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS items_id ON items (generation, id);
CREATE INDEX IF NOT EXISTS items_digest ON items (digest);
CREATE INDEX IF NOT EXISTS items_label ON items (generation, label);
CREATE TABLE IF NOT EXISTS removed (generation INTEGER, change INTEGER, number INTEGER,
    PRIMARY KEY (generation, change, number)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS pictures (digest TEXT PRIMARY KEY, data BLOB NOT NULL);
"""
_MESSAGES = {
    sqlite3.SQLITE_FULL: "the disk is full. Committed data is kept: free some space and run the command again.",
    sqlite3.SQLITE_READONLY: "it is read-only: change its permissions, or copy it to a folder that you can write to.",
    sqlite3.SQLITE_BUSY: "another process has been writing to it for a minute: try again when it is done.",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened: check that the folder exists and that you can write to it.",
    sqlite3.SQLITE_IOERR: "it cannot be read or written: check the disk and its free space. Committed data is kept.",
}
_LISTED = "(SELECT value FROM json_each(?))"  # one JSON list instead of many parameters, whose number is limited


class SQLiteStore(Store):
    """See ``Store`` for what the methods do."""

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
        real = path.resolve()
        uri, reading = real.as_uri(), f"{real.as_uri()}?mode=ro"
        with _translate_errors(path):
            if not real.exists() or (os.access(real, os.W_OK) and os.access(real.parent, os.W_OK)):
                return cls(path, _connect(path, uri, create))
            try:
                return cls(path, _connect(path, reading))
            except sqlite3.OperationalError as error:
                # A copy that expects a log, but was made without it: the files for reading one cannot be created here.
                refused = _code(error) in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
                if not refused or Path(f"{real}-wal").exists():
                    raise
                return cls(path, _connect(path, f"{reading}&immutable=1"))

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
        with _translate_errors(self._path):
            try:
                self._writer.acquire(timeout=wait, poll_interval=0.05)
            except Timeout as error:
                raise IndexBusyError(self.address) from error
        try:
            yield
        finally:
            self._writer.release()

    @contextmanager
    def _transaction(self, *, write: bool = False) -> Iterator[sqlite3.Connection]:
        """The block sees one state of the file; with ``write`` it changes the file as a whole or not at all."""
        with self._lock, _translate_errors(self._path):
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
            (report,) = db.execute("PRAGMA integrity_check(1)").fetchone()
        if report != "ok":
            raise StoreError(f"{self._path}: {_damaged(' '.join(str(report).split()))}")
        for item in (item for number in self.generations() for item in self.iterate(number, vectors=True)):
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
            db.execute("DELETE FROM documents WHERE key = ?", (key,))
            if value is not None:
                db.execute("INSERT INTO documents VALUES (?, ?)", (key, json.dumps(dict(value), allow_nan=False)))

    def generations(self) -> list[int]:
        """Numbers of the generations."""
        with self._transaction() as db:
            return [row[0] for row in db.execute("SELECT generation FROM generations ORDER BY generation")]

    def create_generation(self, generation: int, dim: int, half: bool = False) -> None:
        """Create an empty generation."""
        with self._transaction(write=True) as db:
            # Changes are counted from a time, so that nobody takes it for an earlier generation of that number.
            db.execute("INSERT INTO generations VALUES (?, ?, ?, ?)", (generation, dim, half, time.time_ns()))

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
            dim, dtype, change = self._state(db, generation)
            vectors = check_vectors(items, dim).astype(dtype)
            replaced = self._remove(db, generation, [item.id for item in items], change + 1)
            rows = (
                (generation, i.id, i.digest, i.source, i.stamp, json.dumps(dict(i.metadata)), vector.tobytes())
                for i, vector in zip(items, vectors, strict=True)
            )
            columns = "generation, id, digest, source, stamp, metadata, vector"
            db.executemany(f"INSERT INTO items ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
            pictures = [(item.digest, item.picture) for item in items if item.picture is not None]
            db.executemany("INSERT OR IGNORE INTO pictures VALUES (?, ?)", pictures)
            _forget_pictures(db, replaced)

    def delete(self, generation: int, ids: Sequence[str]) -> int:
        """Remove items in one transaction."""
        with self._transaction(write=True) as db:
            digests = self._remove(db, generation, ids, self._state(db, generation)[2] + 1)
            _forget_pictures(db, digests)
            return len(digests)

    def _remove(self, db: sqlite3.Connection, generation: int, ids: Sequence[str], change: int) -> list[str]:
        """Begin a change by removing items, for readers to follow; the digests of those that existed."""
        db.execute("UPDATE generations SET changes = ? WHERE generation = ?", (change, generation))
        query = f"SELECT number, digest FROM items WHERE generation = ? AND id IN {_LISTED}"
        rows = db.execute(query, (generation, json.dumps(list(ids)))).fetchall()
        db.executemany("DELETE FROM items WHERE number = ?", [(number,) for number, _ in rows])
        db.executemany("INSERT INTO removed VALUES (?, ?, ?)", [(generation, change, number) for number, _ in rows])
        db.execute("DELETE FROM removed WHERE generation = ? AND change <= ?", (generation, change - _REMEMBERED))
        return [digest for _, digest in rows]

    def get(self, generation: int, ids: Sequence[str], *, vectors: bool = False) -> dict[str, Item]:
        """Items by id."""
        rows = self._items(
            generation, f"items WHERE generation = ? AND id IN {_LISTED}", [json.dumps(list(ids))], vectors
        )
        return {item.id: item for _, item in rows}

    def picture(self, digest: str) -> bytes | None:
        """A picture by the digest of its bytes."""
        with self._transaction() as db:
            row = db.execute("SELECT data FROM pictures WHERE digest = ?", (digest,)).fetchone()
        return None if row is None else bytes(row[0])

    def iterate(self, generation: int, *, vectors: bool = False) -> Iterator[Item]:
        """All items, a thousand at a time."""
        rows: list[tuple[int, Item]] = [(0, Item(""))]
        while rows:
            page = "items NOT INDEXED WHERE generation = ? AND number > ? LIMIT 1024"
            rows = self._items(generation, page, [rows[-1][0]], vectors)
            for _, item in rows:
                yield item

    def _items(self, generation: int, source: str, values: Sequence[object], vectors: bool) -> list[tuple[int, Item]]:
        """Items with their numbers."""
        with self._transaction() as db:
            dim, dtype, _ = self._state(db, generation)
            columns = f"number, id, digest, source, stamp, metadata, {'vector' if vectors else 'NULL'}"
            rows = db.execute(f"SELECT {columns} FROM {source}", (generation, *values)).fetchall()
            floats: Any = [None] * len(rows)
            if vectors:
                floats = _vectors([row[-1] for row in rows], dim, dtype).astype(np.float32)
            return [
                (number, Item(name, vector, json.loads(metadata), digest, source, stamp))
                for (number, name, digest, source, stamp, metadata, _), vector in zip(rows, floats, strict=True)
            ]

    def count(self, generation: int, where: Where | None = None) -> int:
        """Number of items."""
        with self._transaction() as db:
            self._state(db, generation)
            source, values = _filtered(generation, where)
            return int(db.execute(f"SELECT count(*) FROM {source}", values).fetchone()[0])

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
    ) -> list[list[Match]]:
        """Compare with all vectors in memory, or with those whose codes are most similar."""
        with self._transaction() as db:
            matrix = self._matrix(db, generation)
            rows = check_queries(queries, matrix.dim, k)
            allowed = None
            if where:
                source, values = _filtered(generation, where)
                allowed = matrix.rows(db.execute(f"SELECT number FROM {source}", values))
            neighbours = matrix.search(rows, k, allowed, approximate, max(candidates, k))
            numbers = matrix.numbers[neighbours.indices]
            query = f"SELECT number, id, metadata FROM items WHERE number IN {_LISTED}"
            items = {
                number: (name, json.loads(metadata))
                for number, name, metadata in db.execute(query, (json.dumps(np.unique(numbers).tolist()),))
            }
        return matches_of(Neighbours(numbers, neighbours.similarities), items.__getitem__)

    def build_approximate(self, generation: int) -> None:
        """Nothing to build: codes are made from the vectors in memory by the first search that uses them."""
        _faiss()

    def _state(self, db: sqlite3.Connection, generation: int) -> tuple[int, Any, int]:
        """Length and type of the vectors, and the number of the last change."""
        row = db.execute("SELECT dim, half, changes FROM generations WHERE generation = ?", (generation,)).fetchone()
        if row is None:
            raise StoreError(f"{self._path}: there is no generation {generation}.")
        return row[0], np.dtype(np.float16 if row[1] else np.float32), row[2]

    def _matrix(self, db: sqlite3.Connection, generation: int) -> _Matrix:
        """The vectors in memory, as they are in this transaction."""
        dim, dtype, change = self._state(db, generation)
        matrix = self._matrices.pop(generation, None)  # back at the end: after an error it is not up to date
        if matrix is None or matrix.change < change - _REMEMBERED:
            (count,) = db.execute("SELECT count(*) FROM items WHERE generation = ?", (generation,)).fetchone()
            matrix = _Matrix(dim, dtype, count)
        elif matrix.change != change:
            query = "SELECT number FROM removed WHERE generation = ? AND change > ? AND number <= ?"
            matrix.remove(db.execute(query, (generation, matrix.change, matrix.last)))
        if matrix.change != change:
            query = "SELECT number, vector FROM items NOT INDEXED WHERE number > ? AND generation = ?"
            new = db.execute(query, (matrix.last, generation))
            while rows := new.fetchmany(4096):
                numbers, vectors = zip(*rows, strict=True)
                matrix.append(numbers, _vectors(vectors, dim, dtype))
            matrix.change = change
        self._matrices[generation] = matrix
        return matrix


class _Matrix:
    """The vectors of a generation in memory, in the order in which they were written, and their codes.

    Rows are only added; those of removed items are skipped by searches until there are so many that the others are copied
    together.

    Attributes:
        dim: length of the vectors.
        change: the last change of the generation that is applied.
        numbers: ``items.number`` of each row, ascending. last: the highest one.
    """

    def __init__(self, dim: int, dtype: Any, count: int) -> None:
        self.dim = dim
        self.change = self.last = self._size = self._removed = self._queries = 0
        room = count + count // 4 + 1024  # so that a growing index is rarely copied; unused room costs nothing
        self._vectors, self.numbers = np.empty((room, dim), dtype), np.empty(room, np.int64)
        self._live = np.empty(room, bool)
        self._codes: Any = None
        self._training_size = 0  # rows when the codes were trained

    def append(self, numbers: Sequence[int], vectors: NDArray[Any]) -> None:
        end = self._size + len(numbers)
        if end > len(self._live):
            # Again with room for a quarter more.
            for name in ("_vectors", "numbers", "_live"):
                old = getattr(self, name)
                new = np.empty((end + end // 4, *old.shape[1:]), old.dtype)
                new[: self._size] = old[: self._size]
                setattr(self, name, new)
        rows = slice(self._size, end)
        self._vectors[rows], self.numbers[rows], self._live[rows] = vectors, numbers, True
        self._size, self.last = end, numbers[-1]

    def rows(self, numbers: Iterable[tuple[int]]) -> NDArray[np.int64]:
        return np.searchsorted(self.numbers[: self._size], np.array(list(numbers), np.int64).reshape(-1))

    def remove(self, numbers: Iterable[tuple[int]]) -> None:
        rows = self.rows(numbers)
        self._live[rows] = False
        self._removed += len(rows)
        if self._removed > self._size // 2:
            live = np.flatnonzero(self._live[: self._size])
            for array in (self._vectors, self.numbers, self._live):
                array[: len(live)] = array[live]
            self._size, self._removed, self._codes = len(live), 0, None

    def search(
        self, queries: Vectors, k: int, rows: NDArray[np.int64] | None, approximate: bool | None, candidates: int
    ) -> Neighbours:
        """Rows and similarities of the nearest items, Q × min(k, items).

        Args:
            queries: Q × dim.
            k: how many.
            rows: search only among these; None for all items.
            approximate: compare only ``candidates``, selected by their codes; None if the index is large and faiss there.
            candidates: how many.
        """
        items = self._size - self._removed if rows is None else len(rows)
        count = min(k, items)
        vectors, allowed = self._vectors[: self._size], None
        if approximate is None:
            is_large = self._size - self._removed >= APPROXIMATE_FROM and self.dim >= APPROXIMATE_DIM
            approximate = is_large and find_spec("faiss") is not None
        if rows is not None:
            if items < _GATHER_BELOW * self._size and (not approximate or items <= _EXACT_BELOW):
                exact = nearest_unchecked(queries, vectors[rows], count)
                return Neighbours(rows[exact.indices], exact.similarities)
            allowed = np.zeros(self._size, bool)
            allowed[rows] = True
        elif self._removed:
            allowed = self._live[: self._size]
        self._queries += len(queries)
        if not approximate or items <= max(_EXACT_BELOW, 4 * candidates) or self._queries <= _EXACT_FIRST:
            return nearest_unchecked(queries, vectors, count, allowed=allowed)
        # In the order of rows, which is that of equal similarities.
        near = np.sort(self._candidates(queries, candidates, allowed), axis=1)
        products = np.empty(near.shape, np.float32)
        for number, places in enumerate(near):
            products[number] = vectors[places].astype(np.float32, copy=False) @ queries[number]
        best = np.argsort(-products, axis=1, kind="stable")[:, :count]
        return Neighbours(np.take_along_axis(near, best, 1), np.take_along_axis(products, best, 1))

    def _candidates(self, queries: Vectors, count: int, allowed: NDArray[np.bool_] | None) -> NDArray[np.int64]:
        """Q × count rows with the most similar codes; codes are made where they are missing."""
        faiss, dim = _faiss(), self.dim
        if self._codes is None or self._size > 2 * self._training_size:
            # Four bits for two values, or for each of few values: at 200,000 × 64, recall@10 is 0.90 with two, 0.99 with one.
            parts = dim // 2 if dim >= 256 and dim % 2 == 0 else dim
            # In one list of all (IVF1): only in lists does faiss leave out rows, from version 1.9 on.
            self._codes = faiss.index_factory(dim, f"IVF1,PQ{parts}x4fs", faiss.METRIC_INNER_PRODUCT)
            self._codes.pq.cp.niter = 8  # a third of the time of 25; recall@10 is the same
            sample = np.linspace(0, self._size - 1, 4096).astype(np.int64)
            self._codes.train(self._vectors[sample].astype(np.float32))
            self._training_size = self._size
        for start in range(self._codes.ntotal, self._size, 65536):
            end = min(start + 65536, self._size)
            self._codes.add(self._vectors[start:end].astype(np.float32, copy=False))
        options = {}
        if allowed is not None:
            options["sel"] = faiss.IDSelectorBitmap(np.packbits(allowed, bitorder="little"))
        # Its other name is used if faiss.contrib.torch_utils was imported, which replaces it by one without params.
        search = getattr(self._codes, "search_numpy", self._codes.search)
        rows: NDArray[np.int64] = search(queries, count, params=faiss.SearchParametersIVF(**options))[1]
        if allowed is not None and not allowed[rows].all():
            raise MissingExtraError(f"approximate search needs faiss 1.9 or later; this is {faiss.__version__}.")
        return rows


def _faiss() -> Any:
    return require("faiss", "index", "approximate search in a file")


def _connect(path: Path, uri: str, create: bool = False) -> sqlite3.Connection:
    connection = sqlite3.connect(uri, uri=True, timeout=60, isolation_level=None, check_same_thread=False)
    try:
        # By the tables, not the file's size: a process that died while creating the index leaves a few bytes. More than one
        # page without tables is a damaged index, which must not be filled anew.
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        if not tables and pages <= 1:
            if not create:
                raise NoIndexError(str(path))
            connection.executescript(
                f"PRAGMA page_size = {_PAGE}; BEGIN IMMEDIATE; {_TABLES} PRAGMA application_id = {APPLICATION}; "
                f"PRAGMA user_version = {FORMAT}; COMMIT"
            )
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
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


@contextmanager
def _translate_errors(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into messages."""
    try:
        yield
    except sqlite3.ProgrammingError:
        raise  # the store was closed
    except (sqlite3.Error, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise StoreError(f"{path}: {_MESSAGES.get(_code(error)) or _damaged(error)}") from error
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}.") from error


def _code(error: Exception) -> int:
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF  # the primary code, without SQLite's details


def _damaged(reason: object) -> str:
    return (
        # Without the damaged text, which Python quotes.
        f"not an index, or a damaged one ({str(reason).partition(' column ')[0]}). Nothing was changed: restore the file "
        "from a copy, or index the images again into a new file."
    )


def _vectors(blobs: Sequence[bytes], dim: int, dtype: Any) -> NDArray[Any]:
    if set(map(type, blobs)) - {bytes} or set(map(len, blobs)) - {dim * dtype.itemsize}:
        raise sqlite3.DatabaseError("a vector is of another length")
    return np.frombuffer(b"".join(blobs), dtype).reshape(len(blobs), dim)


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


def _filtered(generation: int, where: Where | None) -> tuple[str, list[object]]:
    """The items that pass a filter, as table and condition, with the values of its parameters."""
    conditions = where or {}
    sql = "".join(f" AND {_field(column)} IN {_LISTED}" for column in conditions)
    values = [generation, *(json.dumps(alternatives) for alternatives in conditions.values())]
    return f"{_table(conditions)} WHERE generation = ?{sql}", values


def _forget_pictures(db: sqlite3.Connection, digests: list[str]) -> None:
    db.execute(
        f"DELETE FROM pictures WHERE digest IN {_LISTED} "
        "AND NOT EXISTS (SELECT 1 FROM items WHERE items.digest = pictures.digest)",
        (json.dumps(digests),),
    )
