"""Soft ranks of a query's positives, a loss on them, and its gradient, for one tile of queries.

The soft rank of x for query q is ``1 + Σ_z step(s_qz − s_qx)``. Every loss of this family is a function of the ranks of a
query's positives. For one tile this file

1. ranks: positives against positives and against negatives, block by block;
2. computes the loss and, by autograd on those few numbers, ∂loss/∂rank;
3. propagates that to the similarities.

Two prunings are exact up to rounding: a negative far below every positive adds 0 and has no slope; a positive that is
already behind ``rank_limit`` others has neither value nor slope in the loss (RS@k), so its rank is not completed.

The equation is in ``reference.py``; tests compare this file with it. Products and tiles are in ``tile_loop.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from recollect.losses.engine.comparison import StepSums
from recollect.losses.engine.layout import TileIndices
from recollect.losses.engine.steps import Step, hidden
from recollect.losses.engine.tile_loop import Term, TileFunction, TileRun

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
        """A quarter of the memory for blocks of steps."""
        room = min(_BLOCK_BYTES, run.memory // 4) if run.on_cpu else run.memory // 4
        block = run.queries.new_empty(max(1, room // run.item_bytes))
        return _RankedTile(self, block, run.layout.num_queries, run.wanted)


class _RankedTile:
    """Computes ``SoftRank`` on a tile."""

    def __init__(self, term: SoftRank, block: Tensor, num_queries: int, wanted: bool) -> None:
        self.term, self.block, self.num_queries, self.wanted = term, block, num_queries, wanted
        # Values below the floor would be lost in rounding.
        self.floor, self.scale = 1e-18 if block.dtype == torch.float32 else 1e-60, term.scale(block.dtype)

    def __call__(self, similarities: Tensor, tile: TileIndices) -> tuple[Tensor, Tensor]:
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
        value, weight_all, weight_positives = self._weigh(ranks)

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

    def _weigh(self, ranks: Ranks) -> tuple[Tensor, Tensor, Tensor]:
        """The tile's part of the loss, and its scaled derivative with respect to each kind of rank; 0 for padding."""
        leaves = (ranks.all.requires_grad_(), ranks.positives.requires_grad_())
        with torch.enable_grad():
            total = self.term.query_loss(ranks).sum()
        weights = []
        for slope in torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True):
            slope = slope / self.num_queries
            weights.append(torch.where(slope.abs() > self.floor, slope, 0.0) * ranks.mask * self.scale)
        return total.detach().double() / self.num_queries, weights[0], weights[1]
