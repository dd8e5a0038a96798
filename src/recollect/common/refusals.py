"""Messages for errors of the system: a full disk, a read-only folder, a name too long, a file without read permission.

``files.py`` and ``reading.py`` turn every ``OSError`` into one of these; ``cli/last_net.py`` does so for those from
elsewhere. A message says what was being written or read, how much was needed, what is safe and how to continue.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from pathlib import Path

from recollect.common.errors import DataError


class StorageError(DataError):
    """A file that cannot be written: no space, no permission, a read-only or broken disk."""

    def with_advice(self, advice: str) -> StorageError:
        """The same error with one more sentence, e.g. how to resume a run."""
        return StorageError(f"{self} {advice}")


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_ELSEWHERE = "Choose another place"


def refusal(error: Exception, path: Path, *, needed: int = 0, existed: bool | None = False) -> StorageError:
    """The error for a failed write.

    Args:
        error: the system's error; a ``ValueError`` for a path with a null character.
        path: the file being written.
        needed: minimum number of bytes needed, if known.
        existed: whether there is an earlier file of that name, which is unchanged; None for a pipe or a device.
    """
    number = error.errno if isinstance(error, OSError) else None
    safe = f" The earlier {path.name} is unchanged." if existed else " No partial file was left behind."
    safe = "" if existed is None else safe
    again = " Free some space, then run the same command again." if number in _FULL else ""
    return StorageError(f"{path} cannot be written: {_reason(error, number, path, needed)}{safe}{again}")


def _reason(error: Exception, number: int | None, path: Path, needed: int) -> str:
    if number is None or not isinstance(error, OSError):
        return f"the name is not valid ({error})."
    if number == errno.ENOSPC:
        return f"the disk is full{_room(path, needed)}."
    if number == errno.EDQUOT:
        return f"the disk quota of this user is exceeded{_room(path, needed)}."
    if number == errno.EFBIG:
        return f"the file system or a limit of this process allows no file this large{_room(path, needed)}."
    if number == errno.EROFS:
        return f"the file system is mounted read-only. {_ELSEWHERE}, or mount it writable."
    if number in (errno.EACCES, errno.EPERM):
        return f"permission denied. {_ELSEWHERE}, or change the permissions of {error.filename or path.parent}."
    if number == errno.ENAMETOOLONG:
        return (
            f"the name is too long ({len(os.fsencode(path.name))} bytes; most systems allow 255). Choose a shorter one."
        )
    if number == errno.ENXIO:
        return "it is a pipe, and no process reads from it."
    if number == errno.EPIPE:
        return "the process that reads from it has ended."
    if number in (errno.EEXIST, errno.ENOTEMPTY):
        return f"it already exists. {_ELSEWHERE}."
    if number in (errno.ENOTDIR, errno.ELOOP, errno.ENOENT, errno.EISDIR):
        return f"the folder {path.parent} cannot be used ({error.strerror}). {_ELSEWHERE}."
    if number in (errno.EMFILE, errno.ENFILE):
        return "too many files are open. Raise the limit (ulimit -n)."
    if number == errno.EIO:
        return "the disk reports an error. Check the disk before you continue."
    return f"{error.strerror or error}."


def _room(path: Path, needed: int) -> str:
    """``": at least 12 MB are needed and 3 MB are free in runs"``, as far as known."""
    said = [f"at least {in_bytes(needed)} are needed"] if needed else []
    folder = next((folder for folder in path.absolute().parents if folder.is_dir()), None)
    if folder is not None:
        with contextlib.suppress(OSError):
            said.append(f"{in_bytes(shutil.disk_usage(folder).free)} are free in {folder}")
    return f": {' and '.join(said)}" if said else ""


def in_bytes(count: int) -> str:
    """A number of bytes with about three digits.

    Examples:
        >>> [in_bytes(count) for count in (12, 3_400, 5_600_000, 7_800_000_000)]
        ['12 bytes', '3.4 kB', '5.6 MB', '7.8 GB']
    """
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"


def unreadable(error: Exception, path: Path | str) -> str:
    """The message for a file that cannot be read."""
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.ENOENT:
        return f"{path}: no such file."
    if number == errno.ELOOP:
        return f"{path}: circular symbolic links. Remove them."
    if number in (errno.EACCES, errno.EPERM):
        return f"{path}: permission denied. Change its permissions, or run as a user with read permission."
    if number == errno.ENAMETOOLONG:
        return f"{path}: the name is too long for this system."
    if number == errno.EIO:
        return f"{path}: the disk reports an error while reading. Use a copy of the file."
    if number is None:
        return f"{str(path)!r} is not a valid file name ({error})."
    return f"{path} cannot be read ({getattr(error, 'strerror', None) or error})."
