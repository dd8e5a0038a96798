"""How long a small piece of work takes, for plans that are made by doing a little of what will be done."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

SECONDS = 1.0
"""Short work is repeated for about so long."""
clock: Callable[[], float] = time.perf_counter
"""Tells the time. A benchmark on a busy machine puts ``time.process_time`` in its place."""


def seconds_of(work: Callable[[], object], wait: Callable[[], object] | None = None) -> float:
    """The median time of ``work`` as the machine is now, busy or not.

    The first call pays for memory and caches and is not counted, unless it takes so long that once must do.

    Args:
        work: what to time.
        wait: waits until a device has done it.
    """
    taken: list[float] = []
    while len(taken) < 3 or (len(taken) < 9 and sum(taken) < SECONDS):
        start = clock()
        work()
        if wait is not None:
            wait()
        taken.append(clock() - start)
        if sum(taken) > 4 * SECONDS:
            break
    return statistics.median(taken[1:] or taken)
