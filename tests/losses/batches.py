"""Batches for the tests of losses, a Hypothesis strategy for them, and the comparison of two losses with gradients."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize


def unit(count: int, dim: int, seed: int = 0) -> Tensor:
    """``count`` random vectors of length 1, in float64."""
    generator = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(count, dim, dtype=torch.float64, generator=generator), dim=1)


@dataclass
class Batch:
    embeddings: Tensor
    labels: Tensor
    has_ties: bool = False


@st.composite
def batches(draw: st.DrawFn, dim: int | None = None, max_classes: int = 4, max_size: int = 5) -> Batch:
    """Classes of unequal size (singletons too), shuffled, with arbitrary label values and separation."""
    sizes = draw(st.lists(st.integers(1, max_size), min_size=1, max_size=max_classes))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    dim = dim or draw(st.integers(2, 12))
    names = torch.randperm(1000, generator=generator)[: len(sizes)] - 500
    group = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    group = group[torch.randperm(len(group), generator=generator)]
    centres = torch.randn(len(sizes), dim, dtype=torch.float64, generator=generator)
    noise = draw(st.sampled_from([0.02, 0.3, 1.0, 5.0]))
    spread = torch.randn(len(group), dim, dtype=torch.float64, generator=generator)
    embeddings = normalize(centres[group] + noise * spread, dim=1)
    duplicate = len(group) > 1 and draw(st.booleans())
    if duplicate:  # exact ties
        embeddings[-1] = embeddings[0]
    return Batch(embeddings, names[group], duplicate)


def value_and_grads(loss, *tensors: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Run ``loss`` on fresh leaves of the floating tensors; its value and their gradients."""
    leaves = [t.detach().clone().requires_grad_() if t.is_floating_point() else t for t in tensors]
    value = loss(*leaves)
    inputs = [leaf for leaf in leaves if leaf.requires_grad]
    return value.detach(), list(torch.autograd.grad(value, inputs, allow_unused=True, materialize_grads=True))


def assert_same(fast, slow, tolerance: float = 1e-10) -> None:
    """Values and gradients agree."""
    torch.testing.assert_close(fast[0].double(), slow[0].double(), atol=tolerance, rtol=tolerance)
    for a, b in zip(fast[1], slow[1], strict=True):
        scale = max(1.0, float(b.abs().max()))
        torch.testing.assert_close(a.double(), b.double(), atol=tolerance * scale, rtol=0)
