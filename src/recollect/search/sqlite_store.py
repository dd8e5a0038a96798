"""An index in one SQLite file: the default store. One writer, many readers, nothing to install, safe against crashes.

SQLite keeps items and vectors; searching is ours (``loaded_vectors``): vectors are read into memory at the first search,
and every later search first applies the changes since then. A search runs in one read transaction, so its results are
consistent while another process writes. Tables: ``sqlite_schema``.
"""

from __future__ import annotations

import json
import re
import sqlite3
import threading
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.common.errors import InputError
from recollect.common.locks import Lock, try_lock
from recollect.search import sqlite_vectors
from recollect.search.graph import Graph
from recollect.search.loaded_vectors import LoadedVectors
from recollect.search.one_writer import OneWriter
from recollect.search.sqlite_checks import (
    DamagedIndexError,
    blob_checksum,
    check_generation,
    check_items,
    check_tables,
    row_checksum,
    seal,
)
from recollect.search.sqlite_schema import BLOCK, connect, spoken
from recollect.search.store_protocol import (
    Hit,
    Item,
    StoreError,
    Vectors,
    Where,
    checked_queries,
    checked_vectors,
    clean_where,
    in_order,
)

_COLUMNS = "slot, id, digest, source, stamp, metadata"


class SQLiteStore:
    """See ``recollect.search.store_protocol.Store`` for what the methods do."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.address = str(path)
        self._path, self._connection = path, connection
        self._lock = threading.RLock()  # one connection for all threads
        self._writer = OneWriter(self.address, self._try_lock, self._unlock)
        self._locked: Lock | None = None
        self._loaded: dict[int, LoadedVectors] = {}
        self._graphs: dict[int, Graph] = {}
        self._checked: set[int] = set()

    @classmethod
    def open(cls, address: str, *, create: bool = False) -> SQLiteStore:
        """Open the file ``address``."""
        path = Path(address)
        connection = connect(path, create)
        try:
            with spoken(path):
                check_tables(connection)
        except BaseException:
            connection.close()
            raise
        return cls(path, connection)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()
            self._loaded.clear()
            self._graphs.clear()

    def writing(self, wait: float = 0.0) -> AbstractContextManager[None]:
        """Become the only writer: lock a file next to the index; the system releases the lock when the process ends."""
        return self._writer.held(wait)

    def _try_lock(self) -> bool:
        path = self._path.resolve()  # another process may have come by another link
        with spoken(self._path):
            self._locked = try_lock(path.with_name(f".{path.name}.lock"))
        return self._locked is not None

    def _unlock(self) -> None:
        if self._locked is not None:
            self._locked.close()
            self._locked = None

    @contextmanager
    def _transaction(self, kind: str) -> Iterator[sqlite3.Connection]:
        """The block is one transaction: it writes atomically (``IMMEDIATE``), or reads one state (``DEFERRED``)."""
        with self._lock, spoken(self._path):
            self._connection.execute(f"BEGIN {kind}")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def read_document(self, key: str) -> dict[str, Any] | None:
        """A document."""
        with self._transaction("DEFERRED") as db:
            row = db.execute("SELECT value, checksum FROM documents WHERE key = ?", (key,)).fetchone()
            if row is not None and row_checksum(key, row[0]) != row[1]:
                raise DamagedIndexError(f"the document {key} does not match its checksum")
        return None if row is None else dict(json.loads(row[0]))

    def write_document(self, key: str, value: Mapping[str, Any] | None) -> None:
        """Replace a document."""
        with self._transaction("IMMEDIATE") as db:
            if value is None:
                db.execute("DELETE FROM documents WHERE key = ?", (key,))
            else:
                text = json.dumps(dict(value), allow_nan=False)
                db.execute("REPLACE INTO documents VALUES (?, ?, ?)", (key, text, row_checksum(key, text)))

    def generations(self) -> list[int]:
        """Numbers of the generations."""
        with self._transaction("DEFERRED") as db:
            return [row[0] for row in db.execute("SELECT generation FROM generations ORDER BY generation")]

    def create_generation(self, generation: int, dim: int, half: bool = False) -> None:
        """Create an empty generation."""
        with self._transaction("IMMEDIATE") as db:
            if db.execute("SELECT 1 FROM generations WHERE generation = ?", (generation,)).fetchone():
                raise InputError(f"{self._path}: generation {generation} already exists.")
            db.execute("INSERT INTO generations (generation, dim, half) VALUES (?, ?, ?)", (generation, dim, half))
            seal(db, generation)

    def drop_generation(self, generation: int) -> None:
        """Remove a generation."""
        with self._transaction("IMMEDIATE") as db:
            for table in ("items", "free", "graphs", "generations"):
                db.execute(f"DELETE FROM {table} WHERE generation = ?", (generation,))
            db.execute("DELETE FROM vectors WHERE number >> 32 = ?", (generation,))
            db.execute("DELETE FROM pictures WHERE digest NOT IN (SELECT digest FROM items)")
        self._loaded.pop(generation, None)
        self._graphs.pop(generation, None)
        self._checked.discard(generation)

    def put(self, generation: int, items: Sequence[Item]) -> None:
        """Add or replace items in one transaction."""
        with self._transaction("IMMEDIATE") as db:
            state = self._state(db, generation)
            vectors = checked_vectors(items, state["dim"])
            known = {
                row[0]: (row[1], row[2])
                for row in self._rows(db, generation, [i.id for i in items], "id, slot, digest")
            }
            missing = sum(item.id not in known for item in items)
            free = [row[0] for row in db.execute(
                "SELECT slot FROM free WHERE generation = ? ORDER BY slot LIMIT ?", (generation, missing))]  # fmt: skip
            new = iter([*free, *range(state["slots"], state["slots"] + missing - len(free))])
            slots = [known[item.id][0] if item.id in known else next(new) for item in items]
            change = state["changes"] + 1
            db.execute("UPDATE generations SET changes = ?, slots = max(slots, ?) WHERE generation = ?",
                       (change, max(slots, default=-1) + 1, generation))  # fmt: skip
            seal(db, generation)
            db.executemany("DELETE FROM free WHERE generation = ? AND slot = ?", [(generation, slot) for slot in free])
            db.executemany(
                "REPLACE INTO items VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [(*row, row_checksum(*row)) for row in (
                    (generation, slot, i.id, i.digest, i.source, i.stamp, _json(i.metadata), change, int(i.picture is not None))
                    for slot, i in zip(slots, items, strict=True))],
            )  # fmt: skip
            sqlite_vectors.write(db, generation, np.array(slots, np.int64), vectors, bool(state["half"]))
            pictures = [
                (item.digest, item.picture, blob_checksum(item.picture, item.digest))
                for item in items
                if item.picture is not None
            ]
            db.executemany("INSERT OR IGNORE INTO pictures VALUES (?, ?, ?)", pictures)
            _forget_pictures(db, {digest for _, digest in known.values()})

    def delete(self, generation: int, ids: Sequence[str]) -> int:
        """Remove items in one transaction; if most slots are free, the remaining items are compacted."""
        with self._transaction("IMMEDIATE") as db:
            state = self._state(db, generation)
            rows = list(self._rows(db, generation, ids, "slot, digest"))
            if not rows:
                return 0
            change = state["changes"] + 1
            db.execute("UPDATE generations SET changes = ? WHERE generation = ?", (change, generation))
            seal(db, generation)
            db.executemany(
                "DELETE FROM items WHERE generation = ? AND slot = ?", [(generation, row[0]) for row in rows]
            )
            db.executemany("REPLACE INTO free VALUES (?, ?, ?)", [(generation, row[0], change) for row in rows])
            _forget_pictures(db, {row[1] for row in rows})
            free = db.execute("SELECT count(*) FROM free WHERE generation = ?", (generation,)).fetchone()[0]
            if free > max(4 * BLOCK, state["slots"] - free):
                sqlite_vectors.compact(db, generation, state["dim"], bool(state["half"]))
        return len(rows)

    def get(self, generation: int, ids: Sequence[str], *, vectors: bool = False) -> dict[str, Item]:
        """Items by id."""
        with self._transaction("DEFERRED") as db:
            state = self._state(db, generation)
            rows = list(self._rows(db, generation, ids, _COLUMNS))
            if not vectors:
                return {row[1]: _item(row) for row in rows}
            found = sqlite_vectors.read(
                db, generation, np.array([row[0] for row in rows], np.int64), state["dim"], bool(state["half"])
            )
            return {row[1]: _item(row, vector) for row, vector in zip(rows, found, strict=True)}

    def picture(self, digest: str) -> bytes | None:
        """A picture by the digest of its bytes."""
        with self._transaction("DEFERRED") as db:
            row = db.execute("SELECT data, checksum FROM pictures WHERE digest = ?", (digest,)).fetchone()
            if row is not None and blob_checksum(row[0], digest) != row[1]:
                raise DamagedIndexError("a stored image does not match its checksum")
            if row is None and db.execute("SELECT 1 FROM items WHERE digest = ? AND picture", (digest,)).fetchone():
                raise DamagedIndexError("a stored image is missing")
        return None if row is None else bytes(row[0])

    def iterate(self, generation: int, *, vectors: bool = False) -> Iterator[Item]:
        """All items, a block at a time."""
        first = 0
        while True:
            with self._transaction("DEFERRED") as db:
                state = self._state(db, generation)
                if first >= state["slots"]:
                    return
                rows = db.execute(
                    f"SELECT {_COLUMNS} FROM items WHERE generation = ? AND slot >= ? AND slot < ?",
                    (generation, first, first + BLOCK),
                ).fetchall()
                found: Any = [None] * len(rows)
                if vectors and rows:
                    slots = np.array([row[0] for row in rows], np.int64)
                    found = sqlite_vectors.read(db, generation, slots, state["dim"], bool(state["half"]))
            for row, vector in zip(rows, found, strict=True):
                yield _item(row, vector)
            first += BLOCK

    def count(self, generation: int, where: Where | None = None) -> int:
        """Number of items."""
        condition, values = _condition(where)
        with self._transaction("DEFERRED") as db:
            self._state(db, generation)
            query = f"SELECT count(*) FROM {_items(where or ())} WHERE generation = ?{condition}"
            return int(db.execute(query, (generation, *values)).fetchone()[0])

    def values(self, generation: int, column: str, limit: int = 1000) -> dict[str, int]:
        """Most frequent values of a column."""
        with self._transaction("DEFERRED") as db:
            self._state(db, generation)
            rows = db.execute(
                f"SELECT {_field(column)} AS value, count(*) AS times FROM {_items([column])} WHERE generation = ? "
                "AND value IS NOT NULL GROUP BY value ORDER BY times DESC, value LIMIT ?",
                (generation, limit),
            )
            return dict(rows.fetchall())

    def search(
        self, generation: int, queries: Vectors, k: int, where: Where | None = None, approximate: bool = False
    ) -> list[list[Hit]]:
        """Exact search in memory; with ``approximate`` and no filter, by the graph if one was built."""
        with self._transaction("DEFERRED") as db:
            state = self._state(db, generation)
            rows = checked_queries(queries, state["dim"], k)
            loaded = sqlite_vectors.refreshed(db, generation, state, self._loaded.get(generation))
            self._loaded[generation] = loaded
            slots = None
            if condition := clean_where(where):
                sql, values = _condition(condition)
                wanted = db.execute(
                    f"SELECT slot FROM {_items(condition)} WHERE generation = ?{sql}", (generation, *values)
                ).fetchall()
                slots = np.array([row[0] for row in wanted], np.int64).reshape(-1)
            if approximate and slots is None and state["graph"] is not None:
                found, similarities = self._graph(db, generation, state, loaded).search(loaded, rows, k)
            else:
                found, similarities = loaded.search(rows, k, slots)
            return self._hits(db, generation, found, similarities)

    def _hits(
        self, db: sqlite3.Connection, generation: int, found: NDArray[np.int64], similarities: NDArray[np.float32]
    ) -> list[list[Hit]]:
        asked = json.dumps(np.unique(found).tolist())
        rows = db.execute(
            "SELECT slot, id, metadata FROM items WHERE generation = ? AND slot IN (SELECT value FROM json_each(?))",
            (generation, asked),
        )
        known = {slot: (name, json.loads(metadata)) for slot, name, metadata in rows}
        return [
            in_order([Hit(known[slot][0], value, known[slot][1]) for slot, value in zip(some, values, strict=True)])
            for some, values in zip(found.tolist(), similarities.tolist(), strict=True)
        ]

    def build_approximate(self, generation: int, settings: Mapping[str, int]) -> None:
        """Build an HNSW graph over the vectors in memory and keep it in the file."""
        with self._transaction("DEFERRED") as db:
            state = self._state(db, generation)
            loaded = sqlite_vectors.refreshed(db, generation, state, self._loaded.get(generation))
            self._loaded[generation] = loaded
            graph = Graph.build(loaded, settings)
        with self._transaction("IMMEDIATE") as db:
            if self._state(db, generation)["epoch"] != graph.epoch:
                raise StoreError(
                    f"{self._path}: the index was compacted while its graph was being built. Build it again."
                )
            sqlite_vectors.write_graph(db, generation, graph)
        self._graphs[generation] = graph

    def widen_approximate(self, generation: int, ef_search: int) -> None:
        """Change the graph's ``ef_search``."""
        with self._transaction("IMMEDIATE") as db:
            built = {**json.loads(self._state(db, generation)["graph"]), "ef_search": int(ef_search)}
            db.execute("UPDATE generations SET graph = ? WHERE generation = ?", (json.dumps(built), generation))
            seal(db, generation)

    def drop_approximate(self, generation: int) -> None:
        """Remove the graph."""
        with self._transaction("IMMEDIATE") as db:
            self._state(db, generation)
            db.execute("DELETE FROM graphs WHERE generation = ?", (generation,))
            db.execute("UPDATE generations SET graph = NULL WHERE generation = ?", (generation,))
            seal(db, generation)
        self._graphs.pop(generation, None)

    def _graph(self, db: sqlite3.Connection, generation: int, state: sqlite3.Row, loaded: LoadedVectors) -> Graph:
        built = json.loads(state["graph"])
        graph = self._graphs.get(generation)
        if graph is not None and graph.built == {**built, "ef_search": graph.built["ef_search"]}:
            graph.built = built  # the same links, another width of search
        else:
            with spoken(self._path):
                graph = Graph.restored(loaded, built, sqlite_vectors.read_graph(db, generation))
            self._graphs[generation] = graph
        if graph.seen != state["changes"]:
            changed = db.execute("SELECT slot FROM items WHERE generation = ? AND changed > ?", (generation, graph.at))
            graph.take_over(loaded, np.array([row[0] for row in changed], np.int64), state["changes"])
        return graph

    def _state(self, db: sqlite3.Connection, generation: int) -> sqlite3.Row:
        cursor = db.execute("SELECT * FROM generations WHERE generation = ?", (generation,))
        cursor.row_factory = sqlite3.Row
        row: sqlite3.Row | None = cursor.fetchone()
        if row is None:
            raise StoreError(f"{self._path}: there is no generation {generation}.")
        check_generation(db, generation)
        if generation not in self._checked:
            check_items(db, generation, row["slots"])
            self._checked.add(generation)
        return row

    def _rows(self, db: sqlite3.Connection, generation: int, ids: Sequence[str], columns: str) -> Iterator[Any]:
        # One JSON list instead of many parameters: their number is limited, and differs between builds of SQLite.
        listed = json.dumps(list(dict.fromkeys(ids)))
        query = f"SELECT {columns} FROM items WHERE generation = ? AND id IN (SELECT value FROM json_each(?))"
        return iter(db.execute(query, (generation, listed)).fetchall())


def _json(metadata: Mapping[str, str]) -> str:
    return json.dumps(dict(metadata), ensure_ascii=False)


def _item(row: Any, vector: NDArray[np.float32] | None = None) -> Item:
    _, name, digest, source, stamp, metadata = row
    return Item(name, vector, json.loads(metadata), digest, source, stamp)


def _items(columns: Container[str]) -> str:
    # Left to itself, SQLite reads all items of the generation: 35 times slower with one label of 100.
    return "items INDEXED BY items_label" if "label" in columns else "items"


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
        sql += f" AND {_field(column)} IN (SELECT value FROM json_each(?))"
        values.append(json.dumps(wanted))
    return sql, values


def _forget_pictures(db: sqlite3.Connection, digests: set[str]) -> None:
    db.execute(
        "DELETE FROM pictures WHERE digest IN (SELECT value FROM json_each(?)) "
        "AND NOT EXISTS (SELECT 1 FROM items WHERE items.digest = pictures.digest)",
        (json.dumps(sorted(digests)),),
    )
