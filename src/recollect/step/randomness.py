"""Torch's random states: saved, restored, and shared between processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


def random_state(device: torch.device) -> list[Tensor]:
    """The states of the generators that a network on ``device`` draws from by default."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    elif device.type == "mps":
        states.append(torch.mps.get_rng_state())
    return states


def set_random_state(device: torch.device, states: list[Tensor]) -> None:
    """Restore what ``random_state`` returned."""
    torch.set_rng_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)
    elif device.type == "mps":
        torch.mps.set_rng_state(states[1])


@contextmanager
def shared_randomness(seed: int | None, device: torch.device) -> Iterator[None]:
    """The same random numbers on every process inside the block; each process's own stream continues after it."""
    if seed is None:
        yield
        return
    state = random_state(device)
    torch.manual_seed(seed)
    try:
        yield
    finally:
        set_random_state(device, state)
