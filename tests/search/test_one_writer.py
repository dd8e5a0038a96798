"""One writer at a time, whatever a store's lock between processes is made of."""

from __future__ import annotations

import threading

import pytest

from recollect.search import IndexBusyError
from recollect.search.one_writer import OneWriter


class Elsewhere:
    """A lock that another process holds for some attempts."""

    def __init__(self, refusals: int) -> None:
        self.refusals, self.held, self.released = refusals, 0, 0

    def attempt(self) -> bool:
        self.refusals -= 1
        self.held += self.refusals < 0
        return self.refusals < 0

    def release(self) -> None:
        self.released += 1


def test_a_block_inside_a_block_takes_the_lock_once() -> None:
    lock = Elsewhere(0)
    writer = OneWriter("shop", lock.attempt, lock.release)
    with writer.held(0), writer.held(0):
        assert (lock.held, lock.released) == (1, 0)
    assert (lock.held, lock.released) == (1, 1)
    with pytest.raises(KeyError), writer.held(0):
        raise KeyError
    assert (lock.held, lock.released) == (2, 2)


def test_it_is_tried_again_before_it_is_refused() -> None:
    lock = Elsewhere(2)  # without waiting: another process that only tries must not count as a writer
    with OneWriter("shop", lock.attempt, lock.release).held(0):
        assert lock.held == 1
    lock = Elsewhere(10**9)
    with pytest.raises(IndexBusyError, match="shop: another process is writing to this index, or was"):
        OneWriter("shop", lock.attempt, lock.release, ", or was").held(0.05).__enter__()
    assert (lock.held, lock.released) == (0, 0)


def test_threads_take_turns() -> None:
    lock = Elsewhere(0)
    writer = OneWriter("shop", lock.attempt, lock.release)
    refused: list[IndexBusyError] = []

    def other() -> None:
        try:
            with writer.held(0):
                pass
        except IndexBusyError as error:
            refused.append(error)

    with writer.held(0):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert len(refused) == 1
    other()
    assert len(refused) == 1
    assert lock.held == lock.released == 2
