"""Locks on files that the system lets go of when a process ends, however it ends.

They answer at once whether the process that worked on a run or a trial is still there, where it shares this folder.
Where the system has no such locks (Windows) every lock is free.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

if sys.platform != "win32":
    import fcntl


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Only one process at a time is inside the block."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        if sys.platform != "win32":
            fcntl.flock(file, fcntl.LOCK_EX)
        yield  # closing the file unlocks it


def try_lock(path: Path) -> IO[str] | None:
    """The lock, to be closed when done; None when another process has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a")
    try:
        if sys.platform != "win32":
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def is_free(path: Path) -> bool:
    """Whether a lock that was once taken is taken by nobody now."""
    if not path.exists():
        return False
    lock = try_lock(path)
    if lock is None:
        return False
    lock.close()
    return True
