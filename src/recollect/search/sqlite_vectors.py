"""Vectors in blocks of a SQLite table: writing, reading, applying changes, compacting. Used by ``sqlite_store``.

A block ends with a CRC-32 of its number and vectors, which is compared whenever it is read (see ``sqlite_checks``).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.search.graph import Graph, damaged_graph
from recollect.search.loaded_vectors import LoadedVectors
from recollect.search.sqlite_checks import DamagedIndexError, blob_checksum, move_item, seal
from recollect.search.sqlite_schema import BLOCK

_PART = 64 << 20  # bytes of a graph in one row
_CHECKSUM = 4  # bytes


def write(
    db: sqlite3.Connection, generation: int, slots: NDArray[np.int64], vectors: NDArray[np.float32], half: bool
) -> None:
    """Write vectors to their slots: whole blocks at once, single ones in place."""
    rows = vectors.astype(_type(half))
    size = rows.shape[1] * rows.itemsize
    order = np.argsort(slots, kind="stable")
    for block in np.unique(slots // BLOCK).tolist():
        here = order[slots[order] // BLOCK == block]
        places = slots[here] - block * BLOCK
        number = _number(generation, block)
        if len(here) == BLOCK:
            data = rows[here].tobytes()
            db.execute("REPLACE INTO vectors VALUES (?, ?)", (number, data + _checksum(number, data)))
            continue
        empty = bytes(BLOCK * size)
        db.execute("INSERT OR IGNORE INTO vectors VALUES (?, ?)", (number, empty + _checksum(number, empty)))
        with db.blobopen("vectors", "data", number) as blob:
            _refuse_damaged(number, blob.read())  # otherwise the new checksum would hide the damage
            for run in np.split(np.arange(len(here)), np.flatnonzero(np.diff(places) != 1) + 1):
                blob.seek(int(places[run[0]]) * size)
                blob.write(rows[here[run]].tobytes())
            blob.seek(0)
            checksum = _checksum(number, blob.read(BLOCK * size))
            blob.write(checksum)


def read(
    db: sqlite3.Connection, generation: int, slots: NDArray[np.int64], dim: int, half: bool
) -> NDArray[np.float32]:
    """The vectors of some slots."""
    found = np.empty((len(slots), dim), np.float32)
    for block in np.unique(slots // BLOCK).tolist():
        here = np.flatnonzero(slots // BLOCK == block)
        found[here] = _block(db, generation, block, dim, half)[slots[here] - block * BLOCK]
    return found


def refreshed(db: sqlite3.Connection, generation: int, state: Any, loaded: LoadedVectors | None) -> LoadedVectors:
    """The vectors in memory, updated to the state of this transaction; all are read if there are none yet."""
    dim, half = state["dim"], bool(state["half"])
    if loaded is None or loaded.epoch != state["epoch"]:
        loaded = LoadedVectors(dim, half, state["epoch"], state["changes"])
        loaded.reserve(state["slots"])
        blocks = 0
        for block, rows in _blocks(db, generation, dim, half):
            blocks += 1
            end = min((block + 1) * BLOCK, loaded.size)
            loaded.matrix[block * BLOCK : end] = rows[: end - block * BLOCK]
        if blocks != -(-state["slots"] // BLOCK):
            raise DamagedIndexError(f"it has {blocks} blocks of vectors for {state['slots']} slots")
        live = db.execute("SELECT slot FROM items WHERE generation = ?", (generation,))
        loaded.live[np.fromiter((row[0] for row in live), np.int64)] = True
    elif loaded.changes != state["changes"]:
        loaded.reserve(state["slots"])
        since = (generation, loaded.changes)
        gone = db.execute("SELECT slot FROM free WHERE generation = ? AND changed > ?", since)
        loaded.live[np.fromiter((row[0] for row in gone), np.int64)] = False
        came = db.execute("SELECT slot FROM items WHERE generation = ? AND changed > ?", since)
        slots = np.fromiter((row[0] for row in came), np.int64)
        loaded.matrix[slots] = read(db, generation, slots, dim, half)
        loaded.live[slots] = True
        loaded.changes = state["changes"]
    return loaded


def compact(db: sqlite3.Connection, generation: int, dim: int, half: bool) -> None:
    """Move items into free slots until there are none left; readers then read everything again (``epoch``)."""
    slots = np.fromiter(
        (row[0] for row in db.execute("SELECT slot FROM items WHERE generation = ? ORDER BY slot", (generation,))),
        np.int64,
    )
    for start in range(0, len(slots), BLOCK):
        some = slots[start : start + BLOCK]
        new = np.arange(start, start + len(some))
        # In order, so the slot an item moves to is free: it is below its own, and lower items have already moved.
        write(db, generation, new, read(db, generation, some, dim, half), half)
        for to, old in zip(new.tolist(), some.tolist(), strict=True):
            if to != old:
                move_item(db, generation, old, to)
    last = _number(generation, -(-len(slots) // BLOCK))
    db.execute("DELETE FROM vectors WHERE number >= ? AND number < ?", (last, _number(generation + 1, 0)))
    db.execute("DELETE FROM free WHERE generation = ?", (generation,))
    db.execute("DELETE FROM graphs WHERE generation = ?", (generation,))
    db.execute(
        "UPDATE generations SET epoch = epoch + 1, slots = ?, graph = NULL WHERE generation = ?",
        (len(slots), generation),
    )
    seal(db, generation)


def write_graph(db: sqlite3.Connection, generation: int, graph: Graph) -> None:
    """Store a graph, replacing an earlier one."""
    db.execute("DELETE FROM graphs WHERE generation = ?", (generation,))
    for name, array in graph.arrays().items():
        data = array.tobytes()
        for part, start in enumerate(range(0, max(1, len(data)), _PART)):
            some = data[start : start + _PART]
            checksum = blob_checksum(some, generation, name, part)
            db.execute("INSERT INTO graphs VALUES (?, ?, ?, ?, ?)", (generation, name, part, some, checksum))
    db.execute("UPDATE generations SET graph = ? WHERE generation = ?", (json.dumps(graph.built), generation))
    seal(db, generation)


def read_graph(db: sqlite3.Connection, generation: int) -> dict[str, bytes]:
    """The arrays of a graph."""
    found: dict[str, list[bytes]] = {}
    query = "SELECT name, part, data, checksum FROM graphs WHERE generation = ? ORDER BY name, part"
    for name, part, data, checksum in db.execute(query, (generation,)):
        if blob_checksum(data, generation, name, part) != checksum:
            raise damaged_graph()
        found.setdefault(name, []).append(data)
    return {name: b"".join(parts) for name, parts in found.items()}


def _blocks(db: sqlite3.Connection, generation: int, dim: int, half: bool) -> Iterator[tuple[int, NDArray[Any]]]:
    limits = (_number(generation, 0), _number(generation + 1, 0))
    for number, data in db.execute("SELECT number, data FROM vectors WHERE number >= ? AND number < ?", limits):
        yield number & 0xFFFFFFFF, _rows(number, data, dim, half)


def _block(db: sqlite3.Connection, generation: int, block: int, dim: int, half: bool) -> NDArray[Any]:
    number = _number(generation, block)
    row = db.execute("SELECT data FROM vectors WHERE number = ?", (number,)).fetchone()
    if row is None:
        raise DamagedIndexError(f"block {block} of the vectors is missing")
    return _rows(number, row[0], dim, half)


def _rows(number: int, data: bytes, dim: int, half: bool) -> NDArray[Any]:
    kind = np.dtype(_type(half))
    if not isinstance(data, bytes) or len(data) != BLOCK * dim * kind.itemsize + _CHECKSUM:
        raise DamagedIndexError("a block of vectors is not as long as its vectors")
    _refuse_damaged(number, data)
    return np.frombuffer(data, kind, BLOCK * dim).reshape(BLOCK, dim)


def _checksum(number: int, vectors: bytes | memoryview) -> bytes:
    return blob_checksum(vectors, number).to_bytes(_CHECKSUM, "little")


def _refuse_damaged(number: int, data: bytes) -> None:
    if _checksum(number, memoryview(data)[:-_CHECKSUM]) != data[-_CHECKSUM:]:
        raise DamagedIndexError("a block of vectors does not match its checksum")


def _type(half: bool) -> type[np.floating[Any]]:
    return np.float16 if half else np.float32


def _number(generation: int, block: int) -> int:
    return generation << 32 | block
