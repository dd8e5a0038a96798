"""Atomic writing of files and folders, hashes, and locks between processes.

Everything recollect writes goes through ``atomic_write`` or a function built on it. A file is replaced in one step; a
symbolic link is followed and stays a link. Errors of the system become a ``StorageError``. Reading is in ``reading.py``.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from recollect.common.errors import RecollectError, StorageError, causes, storage_error

# Whole files --------------------------------------------------------------------------------------------------------


@contextmanager
def atomic_write(path: Path | str, mode: str = "wb", *, durable: bool = True) -> Iterator[IO[Any]]:
    """Open a temporary file next to ``path`` and rename it to ``path`` once everything is written and on disk.

    A crash leaves the old file or none, never half a file; after returning, the file survives a power cut. The folder is
    created if missing.

    Args:
        path: where to write.
        mode: ``"wb"``, or ``"w"`` for UTF-8 text.
        durable: wait for the disk. False for a cache with checksums, where a power cut may lose an entry.

    Raises:
        StorageError: the file cannot be written; the message says what is safe and what to do.
    """
    path, target = Path(path), _target(path)
    part = _part(target)
    try:
        text = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
        with part.open(mode.replace("w", "x"), **text) as file:  # type: ignore[call-overload]
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
            with contextlib.suppress(OSError):  # the permissions of the file that is replaced
                part.chmod(stat.S_IMODE(target.stat().st_mode))
        part.replace(target)
        if durable:
            flush_folder(target.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        for cause in () if isinstance(error, RecollectError) or not isinstance(error, Exception) else causes(error):
            # Only errors of writing this file; torch raises one of its own after it.
            if isinstance(cause, OSError) and cause.errno is not None and cause.filename in (None, str(part)):
                raise storage_error(cause, path, existed=target.exists()) from error
        raise


def _target(path: Path | str) -> Path:
    """The file to replace, with links followed, in a folder that exists."""
    try:
        target = Path(os.path.realpath(path))
        make_parent(target)
        is_other = target.exists() and not target.is_file()
    except (OSError, ValueError) as error:
        raise storage_error(error, Path(path)) from error
    if is_other:
        raise StorageError(f"{path} cannot be written: it is a folder or a device. Give the name of a file.")
    return target


def _part(target: Path) -> Path:
    """A new name for what will become ``target``."""
    return target.with_name(f".{target.name[:40]}.{os.getpid()}-{secrets.token_hex(4)}.part")


def remove_strays(folder: Path) -> None:
    """Remove temporary files that a killed process left; for a folder that no other process writes to."""
    for part in folder.glob(".*.part"):
        with contextlib.suppress(OSError):
            part.unlink()


@contextmanager
def new_folder(path: Path | str) -> Iterator[Path]:
    """A folder that appears under its name, with all its content, when the block ends without an error.

    The block fills the folder it is given. An existing empty folder is replaced.

    Raises:
        StorageError: the folder cannot be written, or ``path`` exists by now.
    """
    path = Path(path)
    make_parent(path)
    part = _part(path)
    try:
        part.mkdir()
        yield part
        flush_folder(part)
        if sys.platform == "win32" and path.is_dir():
            path.rmdir()
        part.rename(path)
        flush_folder(path.parent)
    except BaseException as error:
        shutil.rmtree(part, ignore_errors=True)
        if isinstance(error, OSError) and error.filename == str(part):
            raise storage_error(error, path, existed=None) from error
        raise


def flush_folder(folder: Path) -> None:
    """Flush a folder's list of names to the disk: without it a power cut can undo a rename."""
    if sys.platform == "win32":
        return
    with contextlib.suppress(OSError):  # some network file systems cannot
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def make_parent(path: Path) -> None:
    """Create the folder of ``path``.

    Raises:
        StorageError: it cannot be created.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise StorageError(f"{path} cannot be written: {error.filename} is not a folder.") from error
    except (OSError, ValueError) as error:
        raise storage_error(error, path) from error


def make_folder_for(path: Path | str) -> None:
    """Create the folder of the file ``path`` and check that it can be written to; call it before long work.

    Raises:
        StorageError: the folder cannot be created or written to.
    """
    part = _part(_target(path))
    try:
        part.touch()
        part.unlink()
    except OSError as error:
        raise storage_error(error, Path(path), existed=Path(path).exists()) from error


# Text, JSON, lines --------------------------------------------------------------------------------------------------


def write_text(path: Path | str, text: str) -> None:
    """Write a text file atomically."""
    with atomic_write(path, "w") as file:
        file.write(text)


def write_json(path: Path | str, value: Any) -> None:
    """Write JSON atomically: indented, with keys in the given order; NaN is refused.

    Names of files that are not UTF-8 are written with escapes, and read as they were.
    """
    text = json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False)
    write_text(path, re.sub("[\ud800-\udfff]", lambda match: f"\\u{ord(match[0]):04x}", text) + "\n")


def append_line(path: Path | str, line: str) -> None:
    """Append a complete line to a file, or nothing: a partial line is removed if there is no space.

    Raises:
        StorageError: the file cannot be written.
    """
    content = f"{line}\n".encode()
    try:
        with Path(path).open("ab", buffering=0) as file:
            before = file.tell()
            try:
                while content:
                    content = content[file.write(content) :]
            except OSError:
                file.truncate(before)
                raise
    except OSError as error:
        raise storage_error(error, Path(path), existed=True) from error


def cache_folder() -> Path:
    """The cache folder: ``RECOLLECT_CACHE``, or the usual folder for caches of this system."""
    if folder := os.environ.get("RECOLLECT_CACHE"):
        return Path(folder).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "recollect" / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "recollect"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "recollect"


# Locks --------------------------------------------------------------------------------------------------------------


Lock = contextlib.ExitStack
"""A lock between processes that is held until it is closed, or until its process ends for any reason."""


def try_lock(path: Path | str, wait: float = 0) -> Lock | None:
    """The lock; None if another process holds it and does not release it within ``wait`` seconds (-1: forever).

    Raises:
        StorageError: the lock's file cannot be written.
    """
    from filelock import FileLock, Timeout  # takes a tenth of a second

    path = Path(path)
    make_parent(path)
    # Not thread-local: any thread that has the object may release it. The file is never removed: another process may be
    # waiting on it.
    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(timeout=wait, poll_interval=0.05)
    except Timeout:
        return None
    except OSError as error:
        raise storage_error(error, path) from error
    handle = Lock()
    handle.callback(lock.release)
    return handle


@contextmanager
def exclusive(path: Path | str) -> Iterator[None]:
    """Allow only one process at a time inside the block; the others wait."""
    with try_lock(path, wait=-1) or contextlib.nullcontext():
        yield


def is_free(path: Path | str) -> bool:
    """Whether a lock was acquired once and is no longer held by any process."""
    lock = try_lock(path) if Path(path).exists() else None
    with lock or contextlib.nullcontext():
        return lock is not None
