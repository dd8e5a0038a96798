"""Locks between processes, using ``filelock``: on every system, released when a process ends for any reason.

They show whether the process that worked on a run or a trial is still running, if it shares this folder. A
lock's file is never removed: another process may be waiting on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from filelock import FileLock, Timeout

from recollect.common.errors import DataError
from recollect.common.files import make_parent
from recollect.common.refusals import refusal


class Lock:
    """A lock that is held until it is closed."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock

    def close(self) -> None:
        """Release it."""
        self._lock.release()

    def __enter__(self) -> Lock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def try_lock(path: Path | str, wait: float = 0) -> Lock | None:
    """The lock; None if another process holds it and does not release it within ``wait`` seconds (-1: forever).

    Raises:
        StorageError: the lock's file cannot be written.
    """
    path = Path(path)
    make_parent(path)
    # Not thread-local: any thread that has the object may release it.
    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(timeout=wait, poll_interval=0.05)
    except Timeout:
        return None
    except OSError as error:
        raise refusal(error, path) from error
    return Lock(lock)


@contextmanager
def exclusive(path: Path | str) -> Iterator[None]:
    """Allow only one process at a time inside the block; the others wait."""
    lock = try_lock(path, wait=-1)
    if lock is None:
        raise DataError(f"{path}: the lock could not be acquired.")
    with lock:
        yield


def is_free(path: Path | str) -> bool:
    """Whether a lock was acquired once and is no longer held by any process."""
    if not Path(path).exists():
        return False
    lock = try_lock(path)
    if lock is not None:
        lock.close()
    return lock is not None
