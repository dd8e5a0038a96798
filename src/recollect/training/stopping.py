"""Stops a training early: on a signal, or if the loss or the gradient is NaN or infinite.

SIGINT and SIGTERM stop it after the current step, so that a checkpoint can be written first.
"""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from recollect.step.team import Team
from recollect.training.callbacks import TrainingStoppedError

if TYPE_CHECKING:
    from recollect.training.batches import Fed
    from recollect.training.build import Training
    from recollect.training.checkpoint import Progress
    from recollect.training.run_folder import RunFolder


class StopRequest:
    """Whether this training was asked to stop, and by which signal."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def ask(self, number: int, frame: FrameType | None = None) -> None:
        """Record a signal; a second one ends the process at once, as by default."""
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


def stop_if_lost(
    training: Training, folder: RunFolder, progress: Progress, batch: Fed, loss: float, norm: float
) -> None:
    """Save the batch and stop, if the loss or the gradient norm is NaN or infinite, or the loss beyond ``run.loss_limit``.

    Raises:
        TrainingStoppedError: the message says where the batch is.
    """
    scaler, advice = training.trained.scaler, "Check its images, lower optimizer.lr, or set optimizer.clip."
    sound = math.isfinite(norm)
    if not sound and math.isfinite(loss) and scaler.is_enabled():
        # fp16 overflows occasionally: the scaler then skips the step and lowers its factor, starting at 65,536. If it
        # overflows even with a small factor, the factor is not the reason, and every step would be skipped forever.
        sound = scaler.get_scale() >= 1
        advice = "It overflows fp16 with any factor: lower optimizer.lr, or set run.precision to bf16 or fp32."
    if math.isfinite(loss) and abs(loss) <= training.config.run.loss_limit and sound:
        return
    images, step = training.sets.train, progress.step + 1
    path = folder.keep_batch(
        training.machine.team.rank,
        {"inputs": batch.inputs, "labels": batch.labels, "indices": torch.from_numpy(batch.indices)},
        {
            "step": step,
            "epoch": progress.epoch,
            "loss": str(loss),
            "gradient_norm": str(norm),
            "images": [images.names[index] for index in batch.indices.tolist()],
            "classes": [images.class_names[label] for label in batch.labels.tolist()],
        },
    )
    raise TrainingStoppedError(
        f"stopped at step {step}: the loss is {loss:g} and the gradient's norm {norm:g}. The batch is saved in {path}. {advice}"
    )
