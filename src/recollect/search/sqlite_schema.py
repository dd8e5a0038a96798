"""Tables of an index in a SQLite file, how such a file is opened, and messages for SQLite's errors.

Vectors are stored in blocks of ``BLOCK`` slots, so that a million of them are read in seconds and writing one touches a
single page. Every change of a generation gets a number (``changes``): a reader that has seen number 7 requests higher
numbers. Change the tables only together with ``FORMAT``.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from recollect.common.files import make_folder_for
from recollect.search.store_protocol import NoIndexError, StoreError

FORMAT = 3
APPLICATION = 0x7265636F  # "reco": distinguishes an index from other SQLite files
BLOCK = 256
"""Slots in a block."""

_PAGE = 16384  # bytes; with SQLite's usual 4096, vectors are written 3 times and read 10 times slower

TABLES = """
CREATE TABLE documents (key TEXT PRIMARY KEY, value TEXT NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE generations (
    generation INTEGER PRIMARY KEY, dim INTEGER NOT NULL, half INTEGER NOT NULL,
    epoch INTEGER NOT NULL DEFAULT 0,      -- raised when slots are renumbered
    changes INTEGER NOT NULL DEFAULT 0,
    slots INTEGER NOT NULL DEFAULT 0,      -- in use, free ones among them included
    graph TEXT,                            -- settings of the approximate index and the change it was built at
    checksum INTEGER NOT NULL DEFAULT 0    -- all checksums: see sqlite_checks
);
CREATE TABLE items (
    generation INTEGER NOT NULL, slot INTEGER NOT NULL, id TEXT NOT NULL, digest TEXT NOT NULL, source TEXT NOT NULL,
    stamp TEXT NOT NULL, metadata TEXT NOT NULL, changed INTEGER NOT NULL,
    picture INTEGER NOT NULL,              -- whether its bytes are in pictures
    checksum INTEGER NOT NULL,
    label TEXT AS (json_extract(metadata, '$.label')),  -- what most filters ask for
    PRIMARY KEY (generation, slot)
) WITHOUT ROWID;
CREATE UNIQUE INDEX items_id ON items (generation, id);
CREATE INDEX items_changed ON items (generation, changed);
CREATE INDEX items_digest ON items (digest);
CREATE INDEX items_label ON items (generation, label);
CREATE TABLE free (
    generation INTEGER NOT NULL, slot INTEGER NOT NULL, changed INTEGER NOT NULL, PRIMARY KEY (generation, slot)
) WITHOUT ROWID;
CREATE TABLE vectors (
    number INTEGER PRIMARY KEY,            -- generation << 32 | block
    data BLOB NOT NULL                     -- the vectors of BLOCK slots and their CRC-32
);
CREATE TABLE graphs (generation INTEGER NOT NULL, name TEXT NOT NULL, part INTEGER NOT NULL, data BLOB NOT NULL,
    checksum INTEGER NOT NULL, PRIMARY KEY (generation, name, part));
CREATE TABLE pictures (digest TEXT PRIMARY KEY, data BLOB NOT NULL, checksum INTEGER NOT NULL);
"""


def connect(path: Path, create: bool) -> sqlite3.Connection:
    """Open the index in the file ``path``; ``create`` creates an empty one if there is none.

    Raises:
        StoreError: no such file, another kind of file, or it cannot be opened.
    """
    if not path.exists() and not create:
        raise NoIndexError(str(path))
    if path.is_dir():
        raise StoreError(f"{path} is a folder, but an index is a file: choose another name.")
    if not path.exists():
        make_folder_for(path)
    with spoken(path):
        connection = sqlite3.connect(_uri(path), uri=True, timeout=60, isolation_level=None, check_same_thread=False)
        try:
            _prepare(connection, path, create)
        except BaseException:
            connection.close()
            raise
        return connection


def _uri(path: Path) -> str:
    address = path.resolve().as_uri()
    if not path.exists() or (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        return address
    # Readers of a write-ahead log share a file next to the index. If it cannot be created, and no other process can be
    # writing, the file is opened as immutable.
    wal = path.with_name(path.name + "-wal")
    return f"{address}?mode=ro" + ("" if wal.exists() else "&immutable=1")


def _prepare(connection: sqlite3.Connection, path: Path, create: bool) -> None:
    if create and _is_empty(connection):
        connection.execute(f"PRAGMA page_size = {_PAGE}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("BEGIN IMMEDIATE")
        try:
            if _is_empty(connection):  # else another process was first
                for statement in TABLES.split(";\n"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {APPLICATION}")
                connection.execute(f"PRAGMA user_version = {FORMAT}")
            connection.execute("COMMIT")
        except BaseException:
            connection.rollback()
            raise
    if _is_empty(connection):
        raise NoIndexError(str(path))
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    if application != APPLICATION:
        raise StoreError(f"{path} is a SQLite file, but not an index of recollect: choose another name.")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version != FORMAT:
        raise StoreError(
            f"{path}: an index of format {version}; this version of recollect reads format {FORMAT}. Index the images again "
            "into a new file."
        )
    # Every commit is on disk when it returns: even a power cut loses only what was not reported as done.
    connection.execute("PRAGMA synchronous = FULL")


def _is_empty(connection: sqlite3.Connection) -> bool:
    # By the tables, not the file's size: a process that died while creating the index leaves a few bytes. More than one
    # page without tables is a damaged index, which must not be filled anew.
    (tables,), (pages,) = (
        connection.execute(query).fetchone() for query in ("SELECT count(*) FROM sqlite_master", "PRAGMA page_count")
    )
    return not tables and pages <= 1


@contextmanager
def spoken(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into messages."""
    try:
        yield
    except sqlite3.Error as error:
        raise StoreError(f"{path}: {_sentence(error)}") from error
    except UnicodeDecodeError as error:  # raised by Python where SQLite's message quotes damaged text
        raise StoreError(f"{path}: {_damaged('a text is not UTF-8')}") from error
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}.") from error


def _sentence(error: sqlite3.Error) -> str:
    code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF  # the primary code, without SQLite's details
    if code == sqlite3.SQLITE_FULL:
        return "the disk is full. Committed data is kept: free some space and run the command again."
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return "it is read-only: change its permissions, or copy it to a folder that you can write to."
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return _damaged(str(error))
    if not code and str(error).startswith("Could not decode"):  # by Python, which quotes the text
        return _damaged("a text is not UTF-8")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return "another process has been writing to it for a minute: try again when it is done."
    if code == sqlite3.SQLITE_CANTOPEN:
        return "it cannot be opened: check that the folder exists and that you can write to it."
    if code == sqlite3.SQLITE_IOERR:
        return f"it cannot be read or written ({error}): check the disk and its free space. Committed data is kept."
    return f"SQLite says: {error}."


def _damaged(why: str) -> str:
    return (
        f"not an index, or a damaged one ({why}). Nothing was changed: restore the file from a copy, or index the images "
        "again into a new file."
    )
