"""Checkpoints: everything that the next step depends on, written atomically and restored exactly.

Weights, the loss's parameters and memory, the optimizer, the scaler of fp16, the position of the sampler in its epoch,
and the random states of every process. The schedule is a function of the step and is not stored. Only ``trainer.py``
uses this file; anything added to the loop's state must be added here, or resuming is no longer exact (tests/training).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from recollect.common.errors import DataError, in_one_line
from recollect.common.files import atomic_write
from recollect.inference.models import CHECKPOINT_FORMAT, CHECKPOINT_REMEDY, read_checkpoint
from recollect.step.randomness import random_state, set_random_state
from recollect.step.team import Team

_PARTS: dict[str, type] = {
    "progress": dict,
    "sampler": dict,
    "chunk": int,
    "model": dict,
    "loss": dict,
    "optimizer": dict,
    "scaler": dict,
    "random": list,
}


@dataclass
class Progress:
    """The progress of a training."""

    step: int = 0
    """Optimizer steps taken."""
    epoch: int = 0
    batch: int = 0
    """Batches of this epoch that are done."""
    seconds: float = 0.0
    """Time spent, over all resumptions."""
    best: dict[str, Any] = field(default_factory=dict)
    """``step``, ``value`` and ``tie`` of the best evaluation so far; empty without validation."""


@dataclass
class Trained:
    """The objects whose states make a checkpoint."""

    model: nn.Module
    loss: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    device: torch.device
    team: Team


def save_checkpoint(path: Path, trained: Trained, progress: Progress, sampler: dict[str, Any], chunk: int) -> None:
    """Write a checkpoint. Every process calls it, one writes."""
    states = _all_random_states(trained)
    if trained.team.rank == 0:
        content = {
            "format": CHECKPOINT_FORMAT,
            "progress": vars(progress),
            "sampler": sampler,
            "chunk": chunk,
            "model": trained.model.state_dict(),
            "loss": trained.loss.state_dict(),
            "optimizer": trained.optimizer.state_dict(),
            "scaler": trained.scaler.state_dict(),
            "random": states,
        }
        with atomic_write(path, size=_bytes_of(content)) as file:
            torch.save(content, file)
    trained.team.barrier()


def _bytes_of(value: Any) -> int:
    """Bytes of all tensors in nested values: the minimum size of their file."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return sum(map(_bytes_of, inner))


def load_checkpoint(path: Path, trained: Trained) -> tuple[Progress, dict[str, Any], int]:
    """Restore everything, or nothing; returns the progress, the sampler's state and the chunk size.

    Raises:
        DataError: the file is damaged, belongs to another training, or was written with another number of processes.
    """
    content = read_checkpoint(path)
    missing = [key for key in _PARTS if not isinstance(content.get(key), _PARTS[key])]
    if missing:
        raise DataError(f"{path}: incomplete checkpoint, {', '.join(missing)} is missing. {CHECKPOINT_REMEDY}")
    states = content["random"]
    if len(states) != trained.team.size:
        raise DataError(
            f"{path} was written by {len(states)} processes, but there are {trained.team.size} now: resume with the same "
            "number, so that the run continues exactly."
        )
    _refuse_other(path, "network", trained.model, content["model"])
    _refuse_other(path, "loss", trained.loss, content["loss"])
    try:
        progress = Progress(**content["progress"])
        mine = _random_states_for(trained.device, states[trained.team.rank])
        # Objects that check their state before they change come first; the modules were checked above.
        trained.optimizer.load_state_dict(content["optimizer"])
        trained.scaler.load_state_dict(content["scaler"])
        trained.model.load_state_dict(content["model"])
        trained.loss.load_state_dict(content["loss"])
        set_random_state(trained.device, mine)
    except Exception as error:
        raise DataError(
            f"{path}: not a checkpoint of this training ({type(error).__name__}: {in_one_line(error)}). {CHECKPOINT_REMEDY}"
        ) from error
    return progress, content["sampler"], content["chunk"]


def _refuse_other(path: Path, name: str, module: nn.Module, state: dict[str, Any]) -> None:
    """Check a module's weights before restoring: a module that refuses some of its weights has already loaded the others."""
    own = module.state_dict()
    other = [key for key in {**own, **state} if _form(own.get(key)) != _form(state.get(key))]
    if other:
        raise DataError(
            f"{path}: belongs to another {name}; {len(other)} of its entries are missing, unknown or of another shape, the "
            f"first is {other[0]!r}. {CHECKPOINT_REMEDY}"
        )


def _random_states_for(device: torch.device, states: list[Tensor]) -> list[Tensor]:
    own = random_state(device)
    if [(state.shape, state.dtype) for state in states[: len(own)]] != [(state.shape, state.dtype) for state in own]:
        raise ValueError(f"its random states are not of {device.type}")
    return [state.cpu() for state in states]


def _form(value: Any) -> Any:
    return value.shape if isinstance(value, Tensor) else type(value)


def save_best(path: Path, model: nn.Module, step: int, value: float) -> None:
    """Write the best weights so far."""
    with atomic_write(path) as file:
        torch.save({"format": CHECKPOINT_FORMAT, "step": step, "value": value, "model": model.state_dict()}, file)


def _all_random_states(trained: Trained) -> list[list[Tensor]]:
    mine = random_state(trained.device)
    if trained.team.size == 1:
        return [mine]
    states: list[Any] = [None] * trained.team.size
    dist.all_gather_object(states, mine, group=trained.team.group)
    return states
