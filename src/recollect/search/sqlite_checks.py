"""Checks of an index file. SQLite has no checksums of its own and believes a flipped bit; nothing damaged is believed here.

Every row carries a CRC-32 of its values and its key (vectors: of a block). When a file is opened, its tables are compared
with those that recollect creates, and SQLite compares the items with their indexes, so that no item is overlooked. When a
generation is first used, all its items are compared with their checksums and every slot is accounted for. Pictures, graphs
and vectors are compared when they are read. Used by ``sqlite_store`` and ``sqlite_vectors``.
"""

from __future__ import annotations

import functools
import sqlite3
import zlib

import numpy as np

from recollect.search.sqlite_schema import TABLES

_CACHE = 256 << 10  # KiB at most; with SQLite's usual 2 MB, looking up 200,000 items takes 3 times as long
_GENERATION = "generation, dim, half, epoch, changes, slots, graph"
_ITEM = "generation, slot, id, digest, source, stamp, metadata, changed, picture"


class DamagedIndexError(sqlite3.DatabaseError):
    """The file differs from what was written."""

    sqlite_errorcode = sqlite3.SQLITE_CORRUPT


def row_checksum(*values: object) -> int:
    """CRC-32 of the values of a row. No text in an index contains the separator."""
    return zlib.crc32(("%s\0" * len(values) % values).encode())  # half the time of joining strings


def blob_checksum(data: bytes | memoryview, *key: object) -> int:
    """CRC-32 of bytes and of the key they belong to: bytes found under another key are damage too."""
    if not isinstance(data, bytes | memoryview):  # a flipped bit turns a blob into a number or a text
        raise DamagedIndexError("a blob is of another type")
    return zlib.crc32(data, row_checksum(*key))


def check_tables(db: sqlite3.Connection) -> None:
    """Refuse a file with other tables, or with items that an index of SQLite would not find."""
    if _schema(db) != _expected_schema():
        raise DamagedIndexError("its tables are not those of an index")
    (before,) = db.execute("PRAGMA cache_size").fetchone()
    db.execute(f"PRAGMA cache_size = -{_CACHE}")
    (found,) = db.execute("PRAGMA integrity_check(items)").fetchone()
    db.execute(f"PRAGMA cache_size = {before}")
    db.execute("PRAGMA shrink_memory")
    if found != "ok":
        raise DamagedIndexError(" ".join(str(found).split()))


def _schema(db: sqlite3.Connection) -> list[tuple[str, ...]]:
    return db.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name").fetchall()


@functools.cache
def _expected_schema() -> list[tuple[str, ...]]:
    db = sqlite3.connect(":memory:")
    try:
        db.executescript(TABLES)
        return _schema(db)
    finally:
        db.close()


def seal(db: sqlite3.Connection, generation: int) -> None:
    """Write the checksum of a generation's row, after every change of it."""
    row = db.execute(f"SELECT {_GENERATION} FROM generations WHERE generation = ?", (generation,)).fetchone()
    db.execute("UPDATE generations SET checksum = ? WHERE generation = ?", (row_checksum(*row), generation))


def check_generation(db: sqlite3.Connection, generation: int) -> None:
    """Refuse a generation's row that differs from what was written. Cheap: before every use."""
    query = f"SELECT checksum, {_GENERATION} FROM generations WHERE generation = ?"
    expected, *row = db.execute(query, (generation,)).fetchone()
    if row_checksum(*row) != expected:
        raise DamagedIndexError(f"generation {generation} does not match its checksum")


def move_item(db: sqlite3.Connection, generation: int, old: int, new: int) -> None:
    """Give an item another slot."""
    query = f"SELECT {_ITEM} FROM items WHERE generation = ? AND slot = ?"
    row = db.execute(query, (generation, old)).fetchone()
    checksum = row_checksum(generation, new, *row[2:])
    db.execute("UPDATE items SET slot = ?, checksum = ? WHERE generation = ? AND slot = ?",
               (new, checksum, generation, old))  # fmt: skip


def check_items(db: sqlite3.Connection, generation: int, slots: int) -> None:
    """Refuse items that differ from what was written, and slots that are neither free nor an item's, or both."""
    used = []
    for row in db.execute(f"SELECT checksum, {_ITEM} FROM items NOT INDEXED WHERE generation = ?", (generation,)):
        if row_checksum(*row[1:]) != row[0]:
            raise DamagedIndexError("an item does not match its checksum")
        used.append(row[2])
    used += [row[0] for row in db.execute("SELECT slot FROM free WHERE generation = ?", (generation,))]
    if not np.array_equal(np.sort(np.array(used, np.int64)), np.arange(slots)):
        raise DamagedIndexError(f"its {len(used):,} items and free slots are not the {slots:,} that were written")
