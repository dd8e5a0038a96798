"""SiMix: a batch enlarged by mixtures of its own images, without computing new embeddings.

For two images x, z of one class and a random α, the virtual example is ``v = α x + (1 − α) z``, labelled with that class and
not normalized again. Similarities are linear in the embedding, so every similarity of a virtual example is a mixture of
existing similarities: with the sparse mixing matrix A (one row per example, with its parents' α and 1 − α),
``S_mixed = A S Aᵀ``. The tile loop mixes tiles of similarities with ``mix_rows`` and returns their gradient
with ``unmix_rows``.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

MAX_PAIRS = 120
"""Default maximum number of pairs per class: all pairs of 16 images. A class of 1,000 images would give 499,500."""


@dataclass(frozen=True)
class Mixing:
    """The matrix A by its rows: originals first (weight 1 on themselves), then one row per virtual example.

    Args:
        first, second: for each row, the two parents' positions in the batch (for an original: itself, twice).
        alpha: for each row, the weight of the first parent; the second has 1 − α.
    """

    first: Tensor
    second: Tensor
    alpha: Tensor

    def __len__(self) -> int:
        return len(self.first)

    def to(self, device: torch.device, dtype: torch.dtype) -> Mixing:
        """The same matrix on the device and in the type of a computation."""
        first, second, alpha = move([self.first, self.second, self.alpha], device)
        return Mixing(first, second, alpha.to(dtype))

    def mix_rows(self, similarities: Tensor) -> Tensor:
        """``A S``: rows of similarities to the batch (M × T) become rows to the mixed batch."""
        mixed = similarities.index_select(0, self.first).mul_(self.alpha[:, None])
        return mixed.addcmul_(similarities.index_select(0, self.second), 1 - self.alpha[:, None])

    def unmix_rows(self, gradient: Tensor, count: int) -> Tensor:
        """``Aᵀ G``: the gradient of mixed rows, mapped back to the ``count`` rows of the batch."""
        rows = gradient.new_zeros(count, gradient.shape[1])
        share = gradient * self.alpha[:, None]
        rows.index_add_(0, self.first, share)
        return rows.index_add_(0, self.second, torch.sub(gradient, share, out=share))

    def columns(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The rows' parents (U), and for each row the places of its two among them and their weights (2 × rows)."""
        parents, place = torch.unique(torch.stack([self.first[rows], self.second[rows]]), return_inverse=True)
        return parents, place, torch.stack([self.alpha[rows], 1 - self.alpha[rows]])


def move(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Tensors of 64-bit numbers on a device, in one copy; on a GPU it does not wait for what was queued before."""
    if device.type == "cpu":
        return list(tensors)
    packed = torch.cat([tensor.flatten().view(torch.int64) for tensor in tensors])
    packed = (packed.pin_memory() if device.type == "cuda" else packed).to(device, non_blocking=True)
    parts = packed.split([tensor.numel() for tensor in tensors])
    return [part.view(tensor.dtype).view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


def draw_mixing(labels: Tensor, max_pairs: int | None = MAX_PAIRS, generator: torch.Generator | None = None) -> Mixing:
    """Draw the virtual examples of a batch: all pairs of each class, a random α ~ U(0, 1) each.

    Args:
        labels: M integers on the CPU; classes of any size. A class of one image gives no pair.
        max_pairs: maximum number of pairs per class, chosen at random; None for no limit.
        generator: makes the draw reproducible; PyTorch's global one otherwise.
    """
    first, second = _pairs(labels, max_pairs, generator)
    alpha = torch.rand(len(first), dtype=torch.float64, generator=generator)
    originals = torch.arange(len(labels))
    return Mixing(
        torch.cat([originals, first]), torch.cat([originals, second]), torch.cat([alpha.new_ones(len(labels)), alpha])
    )


def _pairs(labels: Tensor, max_pairs: int | None, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Positions of the two parents of every pair, classes of equal size handled together."""
    order = torch.argsort(labels, stable=True)
    sizes = torch.unique_consecutive(labels[order], return_counts=True)[1]
    starts = sizes.cumsum(0) - sizes
    firsts, seconds, bounded = [], [], 0
    for size in sizes[sizes > 1].unique().tolist():
        members = order[starts[sizes == size][:, None] + torch.arange(size)]  # classes of this size × size
        i, j = torch.triu_indices(size, size, offset=1)
        if max_pairs is not None and len(i) > max_pairs:
            bounded = max(bounded, size)
            chosen = torch.rand(len(members), len(i), generator=generator).topk(max_pairs, dim=1).indices
            i, j = i[chosen], j[chosen]
        else:
            i, j = i.expand(len(members), -1), j.expand(len(members), -1)
        firsts.append(members.gather(1, i).flatten())
        seconds.append(members.gather(1, j).flatten())
    if bounded:
        warnings.warn(
            f"SiMix: a class of {bounded} images has {bounded * (bounded - 1) // 2} pairs; {max_pairs} of them are drawn "
            "at random in each step (set max_pairs to change this; None for all).",
            stacklevel=2,
        )
    empty = torch.empty(0, dtype=torch.int64)
    return torch.cat([empty, *firsts]), torch.cat([empty, *seconds])
