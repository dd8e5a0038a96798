"""One writer at a time: the common part of ``Store.writing``.

A store provides its own lock between processes (a file, an advisory lock, a claim). Around it, ``OneWriter`` separates the
threads of this process, allows nested blocks, and waits.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from recollect.search.store_protocol import IndexBusyError

_ATTEMPTS = 3  # at least, however short the wait: a single refusal may come from another process that is only trying


class OneWriter:
    """The lock of one opened store.

    Args:
        address: address of the store, for the error.
        attempt: tries once to acquire the lock; returns whether it did.
        release: releases the lock.
        until: when other processes count as dead, if not at once.
    """

    def __init__(self, address: str, attempt: Callable[[], bool], release: Callable[[], None], until: str = "") -> None:
        self._address, self._attempt, self._release, self._until = address, attempt, release, until
        self._threads = threading.RLock()
        self._depth = 0

    @contextmanager
    def held(self, wait: float) -> Iterator[None]:
        """Be the only writer inside the block.

        Raises:
            IndexBusyError: another process is still writing after ``wait`` seconds.
        """
        end = time.monotonic() + wait
        if not self._threads.acquire(timeout=max(0.0, wait)):
            raise self._busy()
        try:
            if self._depth == 0:
                self._lock_out_others(end)
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self._release()
        finally:
            self._threads.release()

    def _lock_out_others(self, end: float) -> None:
        attempts = 0
        while not self._attempt():
            attempts += 1
            if time.monotonic() >= end and attempts >= _ATTEMPTS:
                raise self._busy()
            # A random time: two processes that block each other must not retry at the same moments.
            time.sleep(random.uniform(0.01, 0.1))

    def _busy(self) -> IndexBusyError:
        return IndexBusyError(
            f"{self._address}: another process is writing to this index{self._until}. Try again when it is done, or use "
            "--wait."
        )
