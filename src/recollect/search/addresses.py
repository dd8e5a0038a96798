"""Addresses of indexes, and the stores they belong to.

- a path: a SQLite file;
- ``postgresql://user@host/database?index=name`` (extra ``postgres``);
- ``milvus://host:port/name`` (extra ``milvus``);
- ``package.module:Class://anything`` or ``file.py:Class://anything``: your own store, opened with
  ``Class.open(anything)``;
- ``name://anything``, where an installed package has the entry point ``name`` in the group ``recollect.stores``: likewise.
"""

from __future__ import annotations

from pathlib import Path

from recollect.common import plugins
from recollect.common.errors import ConfigError
from recollect.common.text import did_you_mean
from recollect.search.sqlite_store import SQLiteStore
from recollect.search.store_protocol import Store

SCHEMES = {
    "postgresql": "recollect.search.postgres_store:PostgresStore",
    "postgres": "recollect.search.postgres_store:PostgresStore",
    "milvus": "recollect.search.milvus_store:MilvusStore",
}


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
    if sign and kind in SCHEMES:
        return _class(plugins.load_reference(SCHEMES[kind], "store")).open(text, create=create)
    if _is_reference(text):
        return _class(plugins.load_reference(kind, "store")).open(rest, create=create)
    if sign and (added := plugins.load("store", kind)) is not None:
        return _class(added).open(rest, create=create)
    if sign:  # without the rest, which may contain a password
        known = [*SCHEMES, *plugins.installed("store")]
        raise ConfigError(
            f"there is no store {kind!r}.{did_you_mean(kind, known)} Addresses begin with "
            f"{', '.join(f'{name}://' for name in known)}, or are paths of files, or name your own store as "
            "package.module:Class://…"
        )
    return SQLiteStore.open(text, create=create)


def is_index(address: str | Path) -> bool:
    """Whether an address belongs to an index rather than to a run, a folder or an ``.npz`` of vectors."""
    text = str(address)
    path = Path(text)
    if "://" not in text and path.is_file():
        with path.open("rb") as file:
            return file.read(16) == b"SQLite format 3\0"
    return "://" in text or _is_reference(text)


def _is_reference(text: str) -> bool:
    return plugins.is_reference(text.partition("://")[0]) and not Path(text).exists()


def _class(loaded: plugins.Loaded) -> type[Store]:
    found = loaded.target
    if not isinstance(found, type) or not hasattr(found, "open"):
        raise ConfigError(
            f"{loaded.reference} is not a store: it needs a class with the methods of recollect.search.Store."
        )
    return found
