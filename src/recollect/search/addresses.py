"""Addresses of indexes: which store an address means.

- a path: a SQLite file;
- ``postgresql://user@host/database?index=name`` (extra ``postgres``);
- ``milvus://host:port/name`` (extra ``milvus``);
- ``package.module:Class://anything`` or ``file.py:Class://anything``: a store of your own, opened with
  ``Class.open(anything)``.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path
from typing import Any

from recollect.common.errors import ConfigError
from recollect.search.store_protocol import Store

SCHEMES = {
    "postgresql": "recollect.search.postgres_store:PostgresStore",
    "postgres": "recollect.search.postgres_store:PostgresStore",
    "milvus": "recollect.search.milvus_store:MilvusStore",
}
_FILE = "recollect.search.sqlite_store:SQLiteStore"
_REFERENCE = re.compile(r"(?P<place>[\w./\\-]+\.py|[A-Za-z_]\w+(?:\.\w+)*):(?P<name>[A-Za-z_]\w*)(?:://(?P<rest>.*))?")


def open_store(address: str | Path, *, create: bool = False) -> Store:
    """Open the store at an address.

    Args:
        address: see the top of this file.
        create: make an empty store where there is none.

    Raises:
        ConfigError: an address of no known kind. StoreError: there is no store there, or it cannot be opened.
    """
    text = str(address)
    scheme = text.split("://", 1)[0] if "://" in text else None
    if scheme in SCHEMES:
        return _class(SCHEMES[scheme]).open(text, create=create)
    reference = None if Path(text).exists() else _REFERENCE.fullmatch(text)
    if reference is not None:
        found = _class(f"{reference['place']}:{reference['name']}")
        return found.open(reference["rest"] or "", create=create)
    if scheme is not None:
        raise ConfigError(
            f"{text}: addresses begin with {', '.join(f'{name}://' for name in SCHEMES)}, or are paths of files, or name "
            "a store of your own as package.module:Class."
        )
    return _class(_FILE).open(text, create=create)


def is_index(address: str | Path) -> bool:
    """Whether an address is one of an index rather than of a run, a folder or an ``.npz`` of vectors."""
    text = str(address)
    if "://" in text:
        return True
    path = Path(text)
    if path.is_file():
        with path.open("rb") as file:
            return file.read(16) == b"SQLite format 3\0"
    return not path.exists() and _REFERENCE.fullmatch(text) is not None


def _class(reference: str) -> type[Store]:
    place, name = reference.rsplit(":", 1)
    try:
        module: Any = _module(place)
        found = getattr(module, name)
    except (ImportError, AttributeError, OSError, SyntaxError) as error:
        if place.startswith("recollect."):
            raise
        raise ConfigError(f"{reference}: there is no such store ({error}).") from error
    if not isinstance(found, type) or not hasattr(found, "open"):
        raise ConfigError(f"{reference} is not a store: it needs a class with the methods of recollect.search.Store.")
    return found


def _module(place: str) -> Any:
    if not place.endswith(".py"):
        return importlib.import_module(place)
    specification = importlib.util.spec_from_file_location(Path(place).stem, place)
    if specification is None or specification.loader is None:
        raise ImportError(f"{place} cannot be imported")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module
