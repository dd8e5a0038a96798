"""Soft ranks of a query's positives, a loss on them, and its gradient, for one tile of queries.

The soft rank of x for query q is ``1 + Σ_z step(s_qz − s_qx)``. Every loss of this family is a function of the ranks of a
query's positives. For one tile this file

1. ranks: positives against positives and against negatives, block by block (``StepSums``: neither P × N × T values nor
   their slopes are ever stored; values are computed again for the slopes, which is cheaper than storing them);
2. computes the loss and, by autograd on those few numbers, ∂loss/∂rank;
3. propagates that to the similarities.

Two prunings are exact up to rounding: a negative far below every positive adds 0 and has no slope; a positive that is
already behind ``rank_limit`` others has neither value nor slope in the loss (RS@k), so its rank is not completed.

The equation is in ``tests/oracles/losses.py``. Products and tiles are in ``tile_loop.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from recollect.losses.engine.steps import Step, hidden, saturation
from recollect.losses.engine.tile_loop import Term, TileFunction, TileIndices, TileRun

_NEGLIGIBLE = 2.0**-40
"""A sum of weighted slopes below this is set to 0: products with SiMix's α and small coordinates could be subnormal.

Weights arrive scaled (``SoftRank``): this is 1e-30 of a loss in float32.
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


_BLOCK_BYTES = 4 * 2**20  # P × n × T blocks on a CPU: in the second-level caches, or nearly
_CPU_QUERIES, _GPU_QUERIES = 256, 16384  # columns of a tile at most; with 256 a CPU's products are at full speed


@dataclass(frozen=True)
class Ranks:
    """Soft ranks of a tile: one column per query (T), one row per positive (P); rows beyond a query's positives are padding.

    Args:
        all: rank among all references, P × T.
        positives: rank among the query's positives, P × T.
        mask: 1 where there is a positive, 0 for padding, P × T; multiply by it before summing over positives.
        count: number of positives of each query, at least 1, T.
    """

    all: Tensor
    positives: Tensor
    mask: Tensor
    count: Tensor


QueryLoss = Callable[[Ranks], Tensor]
"""Ranks of T queries to T losses, in differentiable PyTorch."""


class SoftRank(Term):
    """Mean of ``query_loss`` over all queries with a positive.

    Args:
        query_loss: the loss of each query, from its ranks.
        step: how "z is ahead of x" is smoothed.
        query: whether a query is excluded from its own list, ranked in it, or a positive of itself.
        rank_limit: a rank beyond which a positive no longer matters to ``query_loss``; None if every rank does.
        prune: leave out what cannot change the result beyond rounding.
    """

    def __init__(
        self,
        query_loss: QueryLoss,
        step: Step,
        query: Literal["excluded", "ranked", "positive"] = "excluded",
        rank_limit: float | None = None,
        prune: bool = True,
    ) -> None:
        self.query_loss, self.step, self.query = query_loss, step, query
        self.rank_limit, self.prune, self.tau = rank_limit if prune else None, prune, step.tau

    def scale(self, dtype: torch.dtype) -> float:
        """∂loss/∂rank is scaled so that its products with tiny slopes stay clear of the subnormal numbers (15 × slower)."""
        return 2.0**60 if dtype == torch.float32 else 2.0**200

    def width(self, run: TileRun) -> int:
        """Half of the memory for S, G, and both before SiMix."""
        columns = 2 * run.layout.num_references + 2 * len(run.references)
        affordable = run.memory // 2 // (columns * run.item_bytes)
        return max(1, min(affordable, _CPU_QUERIES if run.on_cpu else _GPU_QUERIES))

    def start(self, run: TileRun) -> TileFunction:
        """See ``RankedTile``."""
        return RankedTile(self, run)


class RankedTile:
    """Computes ``SoftRank`` on a tile, with a quarter of the memory for blocks of steps."""

    def __init__(self, term: SoftRank, run: TileRun) -> None:
        self.term, self.num_queries, self.wanted = term, run.layout.num_queries, run.wanted
        room = min(_BLOCK_BYTES, run.memory // 4) if run.on_cpu else run.memory // 4
        self.block = run.queries.new_empty(max(1, room // run.item_bytes))
        # Values below the floor would be lost in rounding.
        self.floor, self.scale = 1e-18 if self.block.dtype == torch.float32 else 1e-60, term.scale(self.block.dtype)

    def __call__(self, similarities: Tensor, tile: TileIndices) -> tuple[Tensor, Tensor]:
        """See ``TileFunction``."""
        unseen = hidden(similarities.dtype)

        # x are the positives of each query, best first; padding is last, and ahead of nothing.
        found = torch.where(tile.mask, similarities.gather(0, tile.positives), -unseen)
        found, order = torch.sort(found, dim=0, descending=True)
        mask, positions = tile.mask.gather(0, order), tile.positives.gather(0, order)
        x = torch.where(mask, found, unseen)
        bounds = x.amin(0), found.amax(0)
        own = None
        if tile.own is not None:
            own = similarities.gather(0, tile.own[None])
            similarities.scatter_(0, tile.own[None], -unseen)
        similarities.scatter_(0, positions, -unseen)  # the negatives remain

        step = self.term.step
        among_positives = StepSums(step.positive, found, x, *bounds, self.block)
        to_negatives = StepSums(step, similarities, x, *bounds, self.block, self.term.prune)
        rank_positives = among_positives.sums(torch.full_like(x, 1 - step.positive.at_zero))
        rank_all = to_negatives.sums(rank_positives, self.term.rank_limit)
        to_itself = None
        if self.term.query == "ranked" and own is not None:
            to_itself = StepSums(step.positive, own, x, *bounds, self.block)
            rank_all = to_itself.sums(rank_all)

        one = torch.ones_like(x)
        rank_all, rank_positives = torch.where(mask, rank_all, one), torch.where(mask, rank_positives, one)
        ranks = Ranks(rank_all, rank_positives, mask.to(x.dtype), tile.count)
        if not self.wanted:
            return self.term.query_loss(ranks).sum(dtype=torch.float64) / self.num_queries, similarities
        value, (weight_all, weight_positives) = self.weigh(
            lambda: self.term.query_loss(ranks), [rank_all, rank_positives], [ranks.mask] * 2
        )

        gradient = torch.empty_like(similarities)
        at_positives = to_negatives.slopes(weight_all, gradient)
        from_positives = torch.empty_like(x)
        at_positives += among_positives.slopes(weight_all + weight_positives, from_positives)
        at_positives += from_positives
        if to_itself is not None and own is not None and tile.own is not None:
            from_itself = torch.empty_like(own)
            at_positives += to_itself.slopes(weight_all, from_itself)
            gradient.scatter_add_(0, tile.own[None], from_itself)
        gradient.scatter_add_(0, positions, torch.where(mask, at_positives, 0.0))
        return value, gradient

    def weigh(
        self, loss: Callable[[], Tensor], ranks: Sequence[Tensor], masks: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """The tile's part of the loss, and its scaled derivative with respect to each kind of rank; 0 for padding."""
        leaves, weights = [each.requires_grad_() for each in ranks], []
        with torch.enable_grad():
            total = loss().sum()
        slopes = torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)
        for slope, mask in zip(slopes, masks, strict=True):
            slope = slope / self.num_queries
            weights.append(torch.where(slope.abs() > self.floor, slope, 0.0) * mask * self.scale)
        return total.detach().double() / self.num_queries, weights
