"""Everything that a training's next step depends on, written whole and read back exactly.

Weights, the loss's parameters and memory, the optimiser, the scaler of fp16, the sampler in the middle of its epoch,
and every process's random states. The schedule is a function of the step and needs no place here. ``trainer.py`` alone
uses this file; what is added to the loop's state must be added here, or resuming is no longer exact (tests/training).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from recollect.common.errors import DataError
from recollect.common.files import atomic_write
from recollect.training.distributed import Team
from recollect.training.randomness import random_state, set_random_state

FORMAT = 1


@dataclass
class Progress:
    """How far a training has come."""

    step: int = 0
    """Optimiser steps taken."""
    epoch: int = 0
    batch: int = 0
    """Batches of this epoch that were trained on."""
    seconds: float = 0.0
    """Time spent, over all resumptions."""
    best: dict[str, Any] = field(default_factory=dict)
    """``step`` and ``value`` of the best evaluation so far; empty without validation."""


@dataclass
class Trained:
    """The objects whose states make a checkpoint."""

    model: nn.Module
    loss: nn.Module
    optimiser: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    device: torch.device
    team: Team


def save_checkpoint(path: Path, trained: Trained, progress: Progress, sampler: dict[str, Any], chunk: int) -> None:
    """Write a checkpoint. Every process calls it, one writes."""
    states = _all_random_states(trained)
    if trained.team.rank == 0:
        content = {
            "format": FORMAT,
            "progress": vars(progress),
            "sampler": sampler,
            "chunk": chunk,
            "model": trained.model.state_dict(),
            "loss": trained.loss.state_dict(),
            "optimiser": trained.optimiser.state_dict(),
            "scaler": trained.scaler.state_dict(),
            "random": states,
        }
        with atomic_write(path) as file:
            torch.save(content, file)
    trained.team.barrier()


def load_checkpoint(path: Path, trained: Trained) -> tuple[Progress, dict[str, Any], int]:
    """Put everything back; returns the progress, the sampler's state and the chunk size.

    Raises:
        DataError: the file is damaged, or was written with another number of processes.
    """
    content = read_checkpoint(path)
    states = content["random"]
    if len(states) != trained.team.size:
        raise DataError(
            f"{path} was written by {len(states)} processes and there are {trained.team.size} now: resume with as "
            "many, so that the run goes on exactly."
        )
    trained.model.load_state_dict(content["model"])
    trained.loss.load_state_dict(content["loss"])
    trained.optimiser.load_state_dict(content["optimiser"])
    trained.scaler.load_state_dict(content["scaler"])
    set_random_state(trained.device, [state.cpu() for state in states[trained.team.rank]])
    return Progress(**content["progress"]), content["sampler"], int(content["chunk"])


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The content of a checkpoint, on the CPU; no code in the file is ever run."""
    try:
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise DataError(f"{path}: not a checkpoint that can be read ({type(error).__name__}: {error}).") from error
    if content.get("format") != FORMAT:
        raise DataError(f"{path}: checkpoint format {content.get('format')} is not {FORMAT}, the one known here.")
    return content


def save_best(path: Path, model: nn.Module, step: int, value: float) -> None:
    """Write the weights that are best so far."""
    with atomic_write(path) as file:
        torch.save({"format": FORMAT, "step": step, "value": value, "model": model.state_dict()}, file)


def _all_random_states(trained: Trained) -> list[list[Tensor]]:
    mine = random_state(trained.device)
    if trained.team.size == 1:
        return [mine]
    states: list[Any] = [None] * trained.team.size
    dist.all_gather_object(states, mine, group=trained.team.group)
    return states
