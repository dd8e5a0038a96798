"""Files that are either whole or not there: atomic writing, hashes, and paths kept inside a root."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from recollect.common.errors import DataError


@contextmanager
def atomic_write(path: Path | str, mode: str = "wb") -> Iterator[IO[Any]]:
    """Open a temporary file beside ``path`` and move it there once all is written and on disk.

    A crash leaves the old file or none, never half a file. The folder is made when missing.
    """
    path = Path(path)
    make_folder_for(path)
    encoding = None if "b" in mode else "utf-8"
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, mode, encoding=encoding) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes files private; a run folder is read by colleagues, so the usual mask applies.
        mask = os.umask(0)
        os.umask(mask)
        Path(temporary).chmod(0o666 & ~mask)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def make_folder_for(path: Path | str) -> None:
    """Make the folder that the file ``path`` is to lie in; worth a call before long work whose result goes there.

    Raises:
        DataError: it cannot be made.
    """
    parent = Path(path).parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{path} cannot be written: the folder {parent} cannot be made ({error.strerror}).") from error


def write_text(path: Path | str, text: str) -> None:
    """Write a text file atomically."""
    with atomic_write(path, "w") as file:
        file.write(text)


def write_json(path: Path | str, value: Any) -> None:
    """Write JSON atomically: indented, keys in the order given, not-a-number refused."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def read_json(path: Path | str) -> Any:
    """Read a JSON file, or say which file is not one."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file.") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not a JSON file ({error}).") from error


def sha256(path: Path | str) -> str:
    """The SHA-256 of a file's content, in hexadecimal."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def inside(root: Path | str, relative: str | Path, *, allow_outside: bool = False) -> Path:
    """``root / relative``, refused when it leaves ``root`` through ``..``, an absolute path or a symlink.

    Lists of paths come from elsewhere; following one out of the root would read whatever it names.
    """
    root = Path(root)
    path = root / relative
    if allow_outside:
        return path
    if not path.resolve().is_relative_to(root.resolve()):
        raise DataError(
            f"{relative}: leads outside the folder {root}. Move the file inside, or allow it with "
            "--allow-outside if you trust the list."
        )
    return path


def cache_folder() -> Path:
    """Where made things are kept: ``RECOLLECT_CACHE``, or the folder for caches that this system has."""
    if chosen := os.environ.get("RECOLLECT_CACHE"):
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "recollect" / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "recollect"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "recollect"
