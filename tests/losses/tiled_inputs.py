"""Inputs of the losses that go tile by tile, and what is compared of their outputs."""

from __future__ import annotations

import torch
from torch import Tensor


def unit(count: int, dim: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(count, dim, dtype=torch.float64, generator=generator)
    return torch.nn.functional.normalize(vectors, dim=1)


def value_and_gradients(loss: Tensor, *inputs: Tensor) -> list[Tensor]:
    return [loss.detach(), *torch.autograd.grad(loss, inputs)]
