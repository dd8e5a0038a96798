"""SIGINT and SIGTERM as a wish to stop after the present step, so that a checkpoint can be written first."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import torch
import torch.distributed as dist

from recollect.step.team import Team


class StopRequest:
    """Whether someone asked this training to stop, and how."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def ask(self, number: int, frame: FrameType | None = None) -> None:
        """Remember a signal; the second one ends the process at once, as it would have without us."""
        if self.signal is not None:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.signal = number

    def agreed(self, team: Team, device: torch.device) -> int | None:
        """The signal that any process received: all must stop after the same step."""
        if team.size == 1:
            return self.signal
        received = torch.tensor([self.signal or 0], device=device)
        dist.all_reduce(received, op=dist.ReduceOp.MAX, group=team.group)
        return int(received) or None


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Catch SIGINT and SIGTERM inside the block. Outside the main thread, where that is impossible, catch nothing."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    earlier = {number: signal.signal(number, request.ask) for number in numbers}
    try:
        yield request
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
