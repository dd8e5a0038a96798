"""Sums of a step over many rows: "how many z are ahead of each x", and the slopes of that, block by block.

``z`` is N × T and ``x`` is P × T, one column per query. Neither P × N × T values nor their slopes are ever stored: both
sums go over blocks of rows of z that fit a cache (CPU) or a budget (GPU). Values are computed again for the slopes, which
is cheaper than storing them. Only ``soft_rank.py`` uses this file.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recollect.losses.engine.steps import Step, saturation

_NEGLIGIBLE = 2.0**-40
"""A sum of weighted slopes below this is set to 0: products with SiMix's α and small coordinates could be subnormal.

Weights arrive scaled (``soft_rank.py``): this is 1e-30 of a loss in float32.
"""


class StepSums:
    """All rows of ``z`` against all ``x``.

    Args:
        step: the step function.
        z: similarities, N × T, in units of tau; overwritten.
        x: similarities of the positives, P × T, descending in each column; padding is above everything.
        lowest, highest: bounds of the true x of each column, T.
        block: a work buffer; its size sets the block.
        prune: leave out columns in which every z is saturated below every x.
    """

    def __init__(
        self, step: Step, z: Tensor, x: Tensor, lowest: Tensor, highest: Tensor, block: Tensor, prune: bool = False
    ) -> None:
        self.shape, self.slots, self.block = z.shape, len(x), block
        self.columns: Tensor | None = None  # which columns are compared at all; None for every one
        # Only on a CPU: on a GPU, checking whether anything is left would stall the queue for longer than it saves.
        if prune and z.device.type == "cpu":
            active = z.amax(0) > lowest - saturation(z.dtype)
            if 2 * int(active.sum()) < len(active):
                self.columns = active.nonzero()[:, 0]
                z, x = z[:, self.columns], x[:, self.columns]
                lowest, highest = lowest[self.columns], highest[self.columns]
        self.width = z.shape[1]
        self.bound = step.bind(z, x, lowest, highest) if self.width else None

    def sums(self, start: Tensor, limit: float | None = None) -> Tensor:
        """``start + Σ_z step(z − x)``, P × T.

        With a ``limit``, the sum for the last x stops growing once it is beyond the limit in every column: its value is
        then a lower bound that is itself beyond the limit.
        """
        if self.bound is None:
            return start
        total = start.clone() if self.columns is None else start[:, self.columns]
        slots, row = self.slots, 0
        while slots and row < self.shape[0]:
            rows, block = self._block(row, slots)
            total[:slots] += self.bound.rise(rows, slots, block).sum(1)
            if limit is not None and total.device.type == "cpu":
                slots = _leading(total[:slots].amin(1) <= limit)
            row = rows.stop
        return total if self.columns is None else start.index_copy(1, self.columns, total)

    def slopes(self, weights: Tensor, out: Tensor) -> Tensor:
        """Spread ``weights`` = ∂loss/∂rank (P × T): write Σ_x w·step′ to ``out`` (N × T), return −Σ_z w·step′ (P × T)."""
        at_x = torch.zeros_like(weights)
        if self.bound is None:
            out.zero_()
            return at_x
        if self.columns is not None:
            weights = weights[:, self.columns]
        # x are sorted, so those behind the last one with a weight do not matter to the loss.
        slots = _leading((weights != 0).any(1)) if weights.device.type == "cpu" else len(weights)
        weights = weights[:slots]
        at_z = out if self.columns is None else out.new_empty(self.shape[0], self.width)
        if not slots:
            at_z.zero_()
        here, row = torch.zeros_like(weights), 0
        while slots and row < self.shape[0]:
            rows, block = self._block(row, slots)
            slope = self.bound.slope(rows, weights, block)
            torch.sum(slope, 0, out=at_z[rows])
            torch.hardshrink(at_z[rows], _NEGLIGIBLE, out=at_z[rows])
            here -= slope.sum(1)
            row = rows.stop
        here = torch.hardshrink(here, _NEGLIGIBLE)
        if self.columns is None:
            at_x[:slots] = here
        else:
            out.zero_().index_copy_(1, self.columns, at_z)
            at_x[:slots] = at_x[:slots].index_copy(1, self.columns, here)
        return at_x

    def _block(self, row: int, slots: int) -> tuple[slice, Tensor]:
        """The next rows from ``row`` on, and a view of the work buffer of shape slots × rows × columns for them."""
        count = max(1, self.block.numel() // (slots * self.width))
        count = min(count, self.shape[0] - row)
        size = count * slots * self.width
        buffer = self.block[:size] if size <= self.block.numel() else self.block.new_empty(size)
        return slice(row, row + count), buffer.view(slots, count, self.width)


def _leading(wanted: Tensor) -> int:
    """One more than the last requested position."""
    places = wanted.nonzero()
    return int(places[-1]) + 1 if len(places) else 0
