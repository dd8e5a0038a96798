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
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from recollect.common.errors import InputError, MissingExtraError, require
from recollect.common.files import make_folder_for
from recollect.search.exact import nearest_unchecked
from recollect.search.stores.base import (
    IndexBusyError,
    Item,
    Match,
    NoIndexError,
    StoreError,
    Vectors,
    Where,
    checked_queries,
    checked_vectors,
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
_GATHER_BELOW = 0.25  # share of the rows below which copying them together is faster than multiplying with all
_EXACT_BELOW = 5000  # items that are compared exactly in any case: as fast as codes, and too few to learn codes from
_EXACT_FIRST = 50  # queries that are compared exactly in any case: a command may ask only one, and codes take longer
_TABLES = """
CREATE TABLE documents (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE generations (generation INTEGER PRIMARY KEY, dim INTEGER NOT NULL, half INTEGER NOT NULL,
    changes INTEGER NOT NULL);
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
_COLUMNS = ["number, id, digest, source, stamp, metadata, NULL", "number, id, digest, source, stamp, metadata, vector"]
_SENTENCES = {
    sqlite3.SQLITE_FULL: "the disk is full. Committed data is kept: free some space and run the command again.",
    sqlite3.SQLITE_READONLY: "it is read-only: change its permissions, or copy it to a folder that you can write to.",
    sqlite3.SQLITE_BUSY: "another process has been writing to it for a minute: try again when it is done.",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened: check that the folder exists and that you can write to it.",
    sqlite3.SQLITE_IOERR: "it cannot be read or written: check the disk and its free space. Committed data is kept.",
}
_LISTED = "(SELECT value FROM json_each(?))"  # one JSON list instead of many parameters, whose number is limited


class SQLiteStore:
    """See ``recollect.search.stores.base.Store`` for what the methods do."""

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
                raise IndexBusyError(self.address) from error
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
            dim, kind, change = self._state(db, generation)
            vectors = checked_vectors(items, dim).astype(kind)
            before = self._remove(db, generation, [item.id for item in items], change + 1)
            rows = (
                (generation, i.id, i.digest, i.source, i.stamp, json.dumps(dict(i.metadata)), vector.tobytes())
                for i, vector in zip(items, vectors, strict=True)
            )
            columns = "generation, id, digest, source, stamp, metadata, vector"
            db.executemany(f"INSERT INTO items ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
            pictures = [(item.digest, item.picture) for item in items if item.picture is not None]
            db.executemany("INSERT OR IGNORE INTO pictures VALUES (?, ?)", pictures)
            _forget_pictures(db, before)

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
        with self._transaction() as db:
            dim, kind, _ = self._state(db, generation)
            query = f"SELECT {_COLUMNS[vectors]} FROM items WHERE generation = ? AND id IN {_LISTED}"
            rows = db.execute(query, (generation, json.dumps(list(ids)))).fetchall()
            return {item.id: item for item in _items(rows, dim, kind)}

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
                dim, kind, _ = self._state(db, generation)
                query = (
                    f"SELECT {_COLUMNS[vectors]} FROM items NOT INDEXED WHERE number > ? AND generation = ? LIMIT 1024"
                )
                rows = db.execute(query, (last, generation)).fetchall()
                found = _items(rows, dim, kind)
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
    ) -> list[list[Match]]:
        """Compare with all vectors in memory, or with those whose codes are most similar."""
        with self._transaction() as db:
            dim, kind, change = self._state(db, generation)
            rows = checked_queries(queries, dim, k)
            matrix = self._matrix(db, generation, dim, kind, change)
            allowed = None
            if where:
                sql, values = _condition(where)
                query = f"SELECT number FROM {_table(where)} WHERE generation = ?{sql}"
                allowed = matrix.rows(db.execute(query, (generation, *values)))
            places, similarities = matrix.search(rows, k, allowed, approximate, max(candidates, k))
            numbers = matrix.numbers[places]
            query = f"SELECT number, id, metadata FROM items WHERE number IN {_LISTED}"
            known = {}
            for number, name, metadata in db.execute(query, (json.dumps(np.unique(numbers).tolist()),)):
                known[number] = name, json.loads(metadata)
        found = []
        for row, values in zip(numbers.tolist(), similarities.tolist(), strict=True):
            matches = []
            for number, similarity in zip(row, values, strict=True):
                name, metadata = known[number]
                matches.append(Match(name, similarity, metadata))
            found.append(in_order(matches))
        return found

    def build_approximate(self, generation: int) -> None:
        """Nothing to build: codes are made from the vectors in memory by the first search that uses them."""
        _faiss()

    def drop_approximate(self, generation: int) -> None:
        """Nothing to remove."""

    def _state(self, db: sqlite3.Connection, generation: int) -> tuple[int, Any, int]:
        """Length and type of the vectors, and the number of the last change."""
        row = db.execute("SELECT dim, half, changes FROM generations WHERE generation = ?", (generation,)).fetchone()
        if row is None:
            raise StoreError(f"{self._path}: there is no generation {generation}.")
        return row[0], np.dtype(np.float16 if row[1] else np.float32), row[2]

    def _matrix(self, db: sqlite3.Connection, generation: int, dim: int, kind: Any, change: int) -> _Matrix:
        """The vectors in memory, as they are in this transaction."""
        matrix = self._matrices.pop(generation, None)  # back at the end: after an error it is not up to date
        if matrix is None or matrix.change < change - _REMEMBERED:
            (count,) = db.execute("SELECT count(*) FROM items WHERE generation = ?", (generation,)).fetchone()
            matrix = _Matrix(dim, kind, count)
        elif matrix.change != change:
            gone = "SELECT number FROM removed WHERE generation = ? AND change > ? AND number <= ?"
            matrix.remove(db.execute(gone, (generation, matrix.change, matrix.last)))
        if matrix.change != change:
            query = "SELECT number, vector FROM items NOT INDEXED WHERE number > ? AND generation = ?"
            new = db.execute(query, (matrix.last, generation))
            while rows := new.fetchmany(4096):
                numbers, vectors = zip(*rows, strict=True)
                matrix.append(numbers, _vectors(vectors, dim, kind))
            matrix.change = change
        self._matrices[generation] = matrix
        return matrix


class _Matrix:
    """The vectors of a generation in memory, in the order in which they were written, and their codes.

    Rows are only added; those of removed items are skipped by searches until there are so many that the others are copied
    together.

    Attributes:
        change: the last change of the generation that is applied.
        numbers: ``items.number`` of each row, ascending. last: the highest one.
    """

    def __init__(self, dim: int, kind: Any, count: int) -> None:
        self.change = self.last = self._size = self._removed = self._asked = 0
        room = count + count // 4 + 1024  # so that a growing index is rarely copied; unused room costs nothing
        self._vectors, self.numbers, self._live = (
            np.empty((room, dim), kind),
            np.empty(room, np.int64),
            np.empty(room, bool),
        )
        self._codes: Any = None
        self._learned_from = 0  # rows

    def append(self, numbers: Sequence[int], vectors: NDArray[Any]) -> None:
        end = self._size + len(numbers)
        if end > len(self._live):
            # Again with room for a quarter more.
            for name in ("_vectors", "numbers", "_live"):
                old = getattr(self, name)
                new = np.empty((end + end // 4, *old.shape[1:]), old.dtype)
                new[: self._size] = old[: self._size]
                setattr(self, name, new)
        some = slice(self._size, end)
        self._vectors[some], self.numbers[some], self._live[some] = vectors, numbers, True
        self._size, self.last = end, numbers[-1]

    def rows(self, numbers: sqlite3.Cursor) -> NDArray[np.int64]:
        wanted = np.array(numbers.fetchall(), np.int64).reshape(-1)
        return np.searchsorted(self.numbers[: self._size], wanted)

    def remove(self, numbers: sqlite3.Cursor) -> None:
        gone = self.rows(numbers)
        self._live[gone] = False
        self._removed += len(gone)
        if self._removed > self._size // 2:
            kept = np.flatnonzero(self._live[: self._size])
            for array in (self._vectors, self.numbers, self._live):
                array[: len(kept)] = array[kept]
            self._size, self._removed, self._codes = len(kept), 0, None

    def search(
        self,
        queries: NDArray[np.float32],
        k: int,
        rows: NDArray[np.int64] | None,
        approximate: bool | None,
        candidates: int,
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Rows and similarities of the nearest items, Q × min(k, items).

        Args:
            queries: Q × dim.
            k: how many.
            rows: only these may be found; None for all items.
            approximate: compare only ``candidates``, chosen by their codes; None if the index is large and faiss there.
            candidates: how many.
        """
        items = self._size - self._removed if rows is None else len(rows)
        count = min(k, items)
        if count == 0:
            return np.zeros((len(queries), 0), np.int64), np.zeros((len(queries), 0), np.float32)
        vectors, allowed = self._vectors[: self._size], None
        if approximate is None:
            is_large = self._size - self._removed >= APPROXIMATE_FROM and vectors.shape[1] >= APPROXIMATE_DIM
            approximate = is_large and find_spec("faiss") is not None
        if rows is not None:
            if items < _GATHER_BELOW * self._size and (not approximate or items <= _EXACT_BELOW):
                found = nearest_unchecked(queries, vectors[rows], count)
                return rows[found.indices], found.similarities
            allowed = np.zeros(self._size, bool)
            allowed[rows] = True
        elif self._removed:
            allowed = self._live[: self._size]
        self._asked += len(queries)
        if not approximate or items <= max(_EXACT_BELOW, 4 * candidates) or self._asked <= _EXACT_FIRST:
            found = nearest_unchecked(queries, vectors, count, allowed=allowed)
            return found.indices, found.similarities
        # In the order of rows, which is that of equal similarities.
        near = np.sort(self._candidates(queries, candidates, allowed), axis=1)
        products = np.empty(near.shape, np.float32)
        for number, some in enumerate(near):
            products[number] = vectors[some].astype(np.float32, copy=False) @ queries[number]
        best = np.argsort(-products, axis=1, kind="stable")[:, :count]
        return np.take_along_axis(near, best, 1), np.take_along_axis(products, best, 1)

    def _candidates(
        self, queries: NDArray[np.float32], count: int, allowed: NDArray[np.bool_] | None
    ) -> NDArray[np.int64]:
        """Q × count rows with the most similar codes; codes are made where they are missing."""
        faiss, dim = _faiss(), self._vectors.shape[1]
        if self._codes is None or self._size > 2 * self._learned_from:
            # Four bits for two values, or for each of few values: at 200,000 × 64, recall@10 is 0.90 with two, 0.99 with one.
            parts = dim // 2 if dim >= 256 and dim % 2 == 0 else dim
            # In one list of all (IVF1): only in lists does faiss leave out rows, from version 1.9 on.
            self._codes = faiss.index_factory(dim, f"IVF1,PQ{parts}x4fs", faiss.METRIC_INNER_PRODUCT)
            self._codes.pq.cp.niter = 8  # a third of the time of 25; recall@10 is the same
            sample = np.linspace(0, self._size - 1, 4096).astype(np.int64)
            self._codes.train(self._vectors[sample].astype(np.float32))
            self._learned_from = self._size
        for start in range(self._codes.ntotal, self._size, 65536):
            end = min(start + 65536, self._size)
            self._codes.add(self._vectors[start:end].astype(np.float32, copy=False))
        bits = None if allowed is None else np.packbits(allowed, bitorder="little")
        options = {} if bits is None else {"sel": faiss.IDSelectorBitmap(bits)}
        # Its other name is used if faiss.contrib.torch_utils was imported, which replaces it by one without params.
        search = getattr(self._codes, "search_numpy", self._codes.search)
        rows: NDArray[np.int64] = search(queries, count, params=faiss.SearchParametersIVF(**options))[1]
        if allowed is not None and not allowed[rows].all():
            raise MissingExtraError(f"approximate search needs faiss 1.9 or later; this is {faiss.__version__}.")
        return rows


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
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if application != APPLICATION:
            if _is_empty(connection):
                raise NoIndexError(str(path))
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
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    return not tables and pages <= 1


@contextmanager
def _sentences(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into messages."""
    try:
        yield
    except sqlite3.ProgrammingError:
        raise  # the store was closed
    except sqlite3.Error as error:
        raise StoreError(f"{path}: {_SENTENCES.get(_code(error)) or _damaged(error)}") from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise StoreError(f"{path}: {_damaged(error)}") from error
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}.") from error


def _code(error: sqlite3.Error) -> int:
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF  # the primary code, without SQLite's details


def _damaged(why: object) -> str:
    reason = str(why).partition(" column ")[0]  # without the damaged text, which Python quotes
    return (
        f"not an index, or a damaged one ({reason}). Nothing was changed: restore the file from a copy, or index the images "
        "again into a new file."
    )


def _items(rows: list[Any], dim: int, kind: Any) -> list[Item]:
    vectors: Any = [None] * len(rows)
    if rows and rows[0][-1] is not None:
        vectors = _vectors([row[-1] for row in rows], dim, kind).astype(np.float32)
    return [
        Item(name, vector, json.loads(metadata), digest, source, stamp)
        for (_, name, digest, source, stamp, metadata, _), vector in zip(rows, vectors, strict=True)
    ]


def _vectors(blobs: Sequence[bytes], dim: int, kind: Any) -> NDArray[Any]:
    if set(map(type, blobs)) != {bytes} or set(map(len, blobs)) != {dim * kind.itemsize}:
        raise sqlite3.DatabaseError("a vector is of another length")
    return np.frombuffer(b"".join(blobs), kind).reshape(len(blobs), dim)


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


def _condition(where: Where | None) -> tuple[str, list[str]]:
    sql, values = "", []
    for column, wanted in (where or {}).items():
        sql += f" AND {_field(column)} IN {_LISTED}"
        values.append(json.dumps(wanted))
    return sql, values


def _forget_pictures(db: sqlite3.Connection, digests: list[str]) -> None:
    db.execute(
        f"DELETE FROM pictures WHERE digest IN {_LISTED} "
        "AND NOT EXISTS (SELECT 1 FROM items WHERE items.digest = pictures.digest)",
        (json.dumps(digests),),
    )
