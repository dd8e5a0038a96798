"""Everything that a training's next step depends on, written whole and read back exactly.

Weights, the loss's parameters and memory, the optimizer, the scaler of fp16, the sampler in the middle of its epoch,
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

from recollect.common.errors import DataError, in_one_line
from recollect.common.files import atomic_write
from recollect.inference.run_files import CHECKPOINT_FORMAT, CHECKPOINT_REMEDY, read_checkpoint
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
    """How far a training has come."""

    step: int = 0
    """Optimizer steps taken."""
    epoch: int = 0
    batch: int = 0
    """Batches of this epoch that were trained on."""
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
    """Bytes of all tensors in nested values: what a file of them needs at least."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return sum(map(_bytes_of, inner))


def load_checkpoint(path: Path, trained: Trained) -> tuple[Progress, dict[str, Any], int]:
    """Put everything back, or nothing; returns the progress, the sampler's state and the chunk size.

    Raises:
        DataError: the file is damaged, of another training, or was written with another number of processes.
    """
    content = read_checkpoint(path)
    if "optimiser" in content:  # the key's former spelling
        content["optimizer"] = content.pop("optimiser")
    missing = [key for key in _PARTS if not isinstance(content.get(key), _PARTS[key])]
    if missing:
        raise DataError(f"{path}: not a whole checkpoint, it lacks {', '.join(missing)}. {CHECKPOINT_REMEDY}")
    states = content["random"]
    if len(states) != trained.team.size:
        raise DataError(
            f"{path} was written by {len(states)} processes and there are {trained.team.size} now: resume with as "
            "many, so that the run goes on exactly."
        )
    _refuse_other(path, "network", trained.model, content["model"])
    _refuse_other(path, "loss", trained.loss, content["loss"])
    try:
        progress = Progress(**content["progress"])
        mine = _random_states_for(trained.device, states[trained.team.rank])
        # What checks itself before it changes anything comes first; the modules were checked above.
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
    """Before anything is restored: a module that refuses some of its weights has already taken the others."""
    own = module.state_dict()
    other = [key for key in {**own, **state} if _form(own.get(key)) != _form(state.get(key))]
    if other:
        raise DataError(
            f"{path}: of another {name}; {len(other)} of its entries are missing, unknown or of another shape, the "
            f"first {other[0]!r}. {CHECKPOINT_REMEDY}"
        )


def _random_states_for(device: torch.device, states: list[Tensor]) -> list[Tensor]:
    own = random_state(device)
    if [(state.shape, state.dtype) for state in states[: len(own)]] != [(state.shape, state.dtype) for state in own]:
        raise ValueError(f"its random states are not of {device.type}")
    return [state.cpu() for state in states]


def _form(value: Any) -> Any:
    return value.shape if isinstance(value, Tensor) else type(value)


def save_best(path: Path, model: nn.Module, step: int, value: float) -> None:
    """Write the weights that are best so far."""
    with atomic_write(path) as file:
        torch.save({"format": CHECKPOINT_FORMAT, "step": step, "value": value, "model": model.state_dict()}, file)


def _all_random_states(trained: Trained) -> list[list[Tensor]]:
    mine = random_state(trained.device)
    if trained.team.size == 1:
        return [mine]
    states: list[Any] = [None] * trained.team.size
    dist.all_gather_object(states, mine, group=trained.team.group)
    return states
