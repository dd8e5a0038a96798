"""Atomic writing of files, hashes, and paths that stay inside a root.

Everything recollect writes goes through ``atomic_write`` or a function built on it. A regular file is replaced in one
step; a symbolic link is followed and stays a link; a pipe or a character device is written to directly; a folder, a block
device or a socket is refused. Errors of the system (a full disk, a read-only file system, a name too long) become a
``StorageError`` (``refusals.py``). Reading is in ``reading.py``.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from recollect.common.reading import open_regular
from recollect.common.refusals import StorageError, refusal

if sys.platform != "win32":
    import fcntl

_PART = re.compile(r"\..+\.\d+-[0-9a-f]{8}\.part")
"""Names of temporary files and folders: ``.NAME.PID-RANDOM.part``."""
_PIPE_PATIENCE = 10.0
"""Seconds to wait for a process that reads from a pipe before giving up."""


# Whole files --------------------------------------------------------------------------------------------------------


@contextmanager
def atomic_write(path: Path | str, mode: str = "wb", *, size: int = 0, durable: bool = True) -> Iterator[IO[Any]]:
    """Open a temporary file next to ``path`` and rename it to ``path`` once everything is written and on disk.

    A crash leaves the old file or none, never half a file; after returning, the file survives a power cut. The folder is
    created if missing. Temporary files of dead processes are removed.

    Args:
        path: where to write.
        mode: ``"wb"``, or ``"w"`` for UTF-8 text.
        size: number of bytes needed, if known: too little space is then noticed before anything is written.
        durable: wait for the disk. False for a cache with checksums, where a power cut may lose an entry.

    Raises:
        StorageError: the file cannot be written; the message says what is safe and what to do.
    """
    path = Path(path)
    target = _target(path)
    if target is None:
        with _written_through(path, mode) as file:
            yield file
        return
    make_parent(target)
    with contextlib.suppress(OSError):
        remove_strays(target.parent)
    _refuse_too_large(target, size)
    part, file = _new_part(target)
    try:
        opened = _opened(file, mode)
        with opened:
            yield opened
            opened.flush()
            if durable:
                os.fsync(file.fileno())
            with contextlib.suppress(OSError):  # the permissions of the file that is replaced
                part.chmod(stat.S_IMODE(target.stat().st_mode))
        part.replace(target)
        _making.discard(part)
        if durable:
            flush_folder(target.parent)
    except BaseException as error:
        with contextlib.suppress(OSError, ValueError):
            file.close()
        _unmake(part)
        if (cause := _own_failure(error, file, part)) is not None:
            raise refusal(cause, path, needed=max(size, file.asked), existed=target.exists()) from error
        raise


class _Recorder(io.FileIO):
    """A file that remembers why it could not be written: libraries such as torch hide the reason."""

    failure: OSError | None = None
    asked = 0

    def write(self, content: Any) -> int:
        self.asked = max(self.asked, self.tell() + memoryview(content).nbytes)
        try:
            return super().write(content)
        except OSError as error:
            self.failure = error
            raise


def _opened(file: io.FileIO, mode: str) -> IO[Any]:
    buffered: Any = io.BufferedWriter(file)
    return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding="utf-8", newline="\n")


def _own_failure(error: BaseException, file: _Recorder, part: Path) -> OSError | None:
    """The system's error on writing ``part``, if that ended the block."""
    if not isinstance(error, Exception):
        return None
    if file.failure is not None:
        return file.failure
    ours = isinstance(error, OSError) and error.filename in (None, str(part)) and error.errno is not None
    return error if ours and not isinstance(error, StorageError) else None  # type: ignore[return-value]


def _target(path: Path) -> Path | None:
    """The regular file to replace, with links followed; None for a pipe or a device, which is written to directly."""
    try:
        kind = path.stat().st_mode
    except FileNotFoundError:
        kind = stat.S_IFREG
    except (OSError, ValueError) as error:
        raise refusal(error, path) from error
    if stat.S_ISFIFO(kind) or stat.S_ISCHR(kind):
        return None
    if stat.S_ISREG(kind):
        return Path(os.path.realpath(path)) if path.is_symlink() else path
    if stat.S_ISDIR(kind):
        raise StorageError(f"{path} cannot be written: it is a folder. Give the name of a file.")
    raise StorageError(f"{path} cannot be written: it is a block device or a socket. Give the name of a file.")


@contextmanager
def _written_through(path: Path, mode: str) -> Iterator[IO[Any]]:
    """Collect the output, then write it to the pipe or device at once; write nothing if the block fails."""
    with tempfile.TemporaryFile() as kept:
        file = kept if "b" in mode else io.TextIOWrapper(kept, encoding="utf-8", newline="\n")
        yield file
        file.flush()
        kept.seek(0)
        try:
            with os.fdopen(_open_pipe(path), "wb") as device:
                shutil.copyfileobj(kept, device)
        except OSError as error:
            raise refusal(error, path, existed=None) from error
        if file is not kept:
            file.detach()


def _open_pipe(path: Path) -> int:
    """Without ``O_NONBLOCK`` the call would wait forever for a process that reads the pipe."""
    end = time.monotonic() + _PIPE_PATIENCE
    while True:
        try:
            handle = os.open(path, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0))
        except OSError as error:
            if error.errno != errno.ENXIO or time.monotonic() > end:
                raise
            time.sleep(0.05)
            continue
        if hasattr(os, "set_blocking"):
            os.set_blocking(handle, True)
        return handle


def _refuse_too_large(target: Path, size: int) -> None:
    if size and shutil.disk_usage(target.parent).free < size:
        raise refusal(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), target, needed=size, existed=target.exists())


# Temporary files and folders ----------------------------------------------------------------------------------------


_making: set[Path] = set()
"""What this process is making, noted before it is made: a signal may come between any two steps."""


def remove_unfinished() -> None:
    """Remove what this process was making when it was stopped; for its last moment."""
    for part in list(_making):
        _unmake(part)


def _unmake(part: Path) -> None:
    if part.is_dir():
        shutil.rmtree(part, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
    _making.discard(part)


def _part_name(target: Path) -> Path:
    """A new name for what will become ``target``."""
    name = target.name
    while len(os.fsencode(name)) > 150:  # most file systems allow names of 255 bytes
        name = name[:-1]
    part = target.with_name(f".{name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    _making.add(part)
    return part


def _new_part(target: Path) -> tuple[Path, _Recorder]:
    """A new file next to ``target``, locked while it is open, so that it is not removed as a stray file."""
    while True:
        part = _part_name(target)
        try:
            os.lstat(target)  # so that a name that is too long is noticed before the work, not after it
        except FileNotFoundError:
            pass
        except OSError as error:
            raise refusal(error, target) from error
        try:
            handle = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        except OSError as error:
            raise refusal(error, target, existed=target.exists()) from error
        if _hold(handle, part):
            return part, _Recorder(handle, "r+")
        os.close(handle)


def _hold(handle: int, part: Path) -> bool:
    """Lock a temporary file or folder; False if it was removed before it was locked.

    Not a lock of ``locks.py``: it is on the file itself, so that no second file is left behind. On Windows an open file
    cannot be removed, which has the same effect.
    """
    if sys.platform == "win32":
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks: stray files are not removed there either
    return _is_same(handle, part)


def _is_same(handle: int, path: Path) -> bool:
    try:
        there = os.lstat(path)
    except OSError:
        return False
    here = os.fstat(handle)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


def remove_strays(folder: Path) -> list[str]:
    """Remove temporary files of dead processes; returns their names. Files of running processes are kept."""
    with os.scandir(folder) as entries:
        found = [entry.name for entry in entries if _PART.fullmatch(entry.name)]
    return [name for name in found if _remove_if_dead(folder / name)]


def _remove_if_dead(part: Path) -> bool:
    if sys.platform == "win32":
        with contextlib.suppress(OSError):
            part.unlink()
        return not part.exists()
    try:
        flags = os.O_RDONLY if part.is_dir() else os.O_RDWR
        handle = os.open(part, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_same(handle, part):
            return False
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            shutil.rmtree(part, ignore_errors=True)
        else:
            part.unlink()
        return True
    except OSError:
        return False
    finally:
        os.close(handle)


@contextmanager
def new_folder(path: Path | str) -> Iterator[Path]:
    """A folder that appears under its name, with all its content, when the block ends without an error.

    The block fills the folder it is given. An existing empty folder is replaced.

    Raises:
        StorageError: the folder cannot be written, or ``path`` exists by now.
    """
    path = Path(path)
    make_parent(path)
    with contextlib.suppress(OSError):
        remove_strays(path.parent)
    handle = None
    while handle is None:
        part = _part_name(path)
        try:
            part.mkdir()
        except OSError as error:
            raise refusal(error, path) from error
        if sys.platform == "win32":
            break
        handle = os.open(part, os.O_RDONLY)
        if not _hold(handle, part):
            os.close(handle)
            handle = None
    try:
        yield part
        flush_folder(part)
        try:
            if sys.platform == "win32" and path.is_dir():
                path.rmdir()
            part.rename(path)
        except OSError as error:
            raise refusal(error, path) from error
        _making.discard(part)
        flush_folder(path.parent)
    except BaseException:
        _unmake(part)
        raise
    finally:
        if handle is not None:
            os.close(handle)


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
    except (OSError, ValueError) as error:
        raise refusal(error, path) from error


def make_folder_for(path: Path | str) -> None:
    """Create the folder of the file ``path`` and check that it can be written to; call it before long work.

    Raises:
        StorageError: the folder cannot be created or written to.
    """
    path = Path(path)
    target = _target(path)
    if target is not None:
        make_parent(target)
        with contextlib.suppress(OSError):
            remove_strays(target.parent)
        part, file = _new_part(target)
        file.close()
        _unmake(part)


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
    write_text(path, re.sub("[\ud800-\udfff]", lambda found: f"\\u{ord(found[0]):04x}", text) + "\n")


def append_line(path: Path | str, line: str) -> None:
    """Append a complete line to a file, or nothing: a partial line is removed if there is no space.

    Raises:
        StorageError: the file cannot be written.
    """
    content = memoryview(f"{line}\n".encode())
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NONBLOCK", 0), 0o666)
        try:
            before, written = os.fstat(handle).st_size, 0
            try:
                while written < len(content):
                    written += os.write(handle, content[written:])
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(handle, before)
                raise
        finally:
            os.close(handle)
    except OSError as error:
        raise refusal(error, Path(path), needed=len(content), existed=True) from error


def sha256(path: Path | str) -> str:
    """The SHA-256 of a regular file's content, in hexadecimal.

    Raises:
        DataError: there is no such file, or it is a folder, a pipe or a device.
    """
    with os.fdopen(open_regular(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# Places -------------------------------------------------------------------------------------------------------------


def cache_folder() -> Path:
    """The cache folder: ``RECOLLECT_CACHE``, or the usual folder for caches of this system."""
    if chosen := os.environ.get("RECOLLECT_CACHE"):
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "recollect" / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "recollect"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "recollect"
