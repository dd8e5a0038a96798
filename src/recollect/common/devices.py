"""The device that a user names, or an error that says why it cannot be used; and timing of small work for plans."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from recollect.common.errors import ConfigError

if TYPE_CHECKING:
    import torch

SECONDS = 1.0
"""Short work is repeated for about this many seconds."""
clock: Callable[[], float] = time.perf_counter
"""The clock. A benchmark on a busy machine replaces it by ``time.process_time``."""


def usable_device(wanted: str, setting: str = "device", *, training: bool = False) -> torch.device:
    """The device called ``wanted``; ``"auto"`` is a GPU if there is one.

    Args:
        wanted: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``mps``, …
        setting: name of the user's setting, for the message.
        training: whether losses and metrics are computed there, not only embeddings.

    Raises:
        ConfigError: there is no such device here.
    """
    import torch

    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError as error:
        raise ConfigError(f"{setting} {wanted!r} is not a device: use auto, cpu or cuda.") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"{setting} is {wanted}, but torch finds no GPU: use cpu, or install a CUDA build of torch.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"{setting} is {wanted}, but there are {torch.cuda.device_count()} GPUs, counted from 0.")
    if device.type not in ("cpu", "cuda"):
        _try(device, setting, training)
    return device


def _try(device: torch.device, setting: str, training: bool) -> None:
    import torch

    try:
        torch.ones(1, device=device).item()  # "meta" has tensors without content
        if training:
            torch.ones(1, dtype=torch.float64, device=device)
    except TypeError as error:  # "mps"
        raise ConfigError(
            f"{setting} is {device}, which has no float64, and losses are summed in it: use auto, cpu or cuda."
        ) from error
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(f"{setting} is {device}, which cannot compute here: use auto, cpu or cuda.") from error


def seconds_of(work: Callable[[], object], wait: Callable[[], object] | None = None) -> float:
    """The median time of ``work`` in the current state of the machine, busy or not.

    The first call also allocates memory and fills caches and is not counted, unless it takes so long that one must do.

    Args:
        work: what to time.
        wait: waits until the device has finished.
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
