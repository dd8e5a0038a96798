"""``recollect`` in a process that gets a signal in the middle of its work, at a place that is always the same.

    ended = run(["train", …], folder, signal_at("step", 11))

The process is a fork of the test's (``faults/trials.py``): it starts in milliseconds instead of importing torch for
seconds. No clock is involved, so a slow or busy machine changes nothing.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import torch

from faults.trials import Arm
from recollect.inference.store import VectorStore
from recollect.training.trainer import Trainer

PLACES: dict[str, tuple[Any, str]] = {"part": (VectorStore, "write"), "step": (Trainer, "_step")}


def signal_at(place: str, count: int, number: int = signal.SIGKILL) -> Arm:
    """The process gets a signal when a place is reached for the ``count``-th time.

    Args:
        place: ``part``, a part of vectors being stored, or ``step``, a training step. With SIGKILL, what was computed
            since the last write is lost.
        count: which time, from 1; 0 for never.
        number: of the signal.
    """

    def arm() -> None:
        torch.set_num_threads(1)  # threads of the test's process do not survive the fork
        owner, name = PLACES[place]
        call, calls = getattr(owner, name), iter(range(1, count + 1))

        def counting(*arguments: Any, **options: Any) -> Any:
            if next(calls, None) == count:
                os.kill(os.getpid(), number)
            return call(*arguments, **options)

        setattr(owner, name, counting)

    return arm
