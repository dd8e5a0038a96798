"""``recollect`` in a process that is killed (SIGKILL) in the middle of its work, at a place that is always the same.

    python killed.py PLACE COUNT ARGUMENTS…

PLACE is ``part`` (vectors being stored) or ``step`` (a training step); the process dies when one begins for the COUNT-th
time, what it computed since the last write being lost. Parts are of 16 images, so that a small set has several.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from recollect.inference import embedding_sets, features
from recollect.inference import vector_store as stored
from recollect.training.trainer import Trainer

for module in (embedding_sets, features):
    module.PART = 4 * 16  # of whole images a quarter


def deadly(call: Any, count: int) -> Any:
    calls = iter(range(1, count))

    def calling(*arguments: Any, **options: Any) -> Any:
        if next(calls, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments, **options)

    return calling


if __name__ == "__main__":
    place, count, *arguments = sys.argv[1:]
    if place == "part":
        stored.VectorStore.add = deadly(stored.VectorStore.add, int(count))  # type: ignore[method-assign]
    elif place == "step":
        Trainer._step = deadly(Trainer._step, int(count))  # type: ignore[method-assign]
    sys.argv = ["recollect", *arguments]
    from recollect.cli import main

    main()
