"""The engine: soft ranks, a loss on them, and the gradient of the embeddings, one tile of queries at a time.

The soft rank of x for query q is ``1 + Σ_z step(s_qz − s_qx)``. Every loss of this family is a function of the ranks of a
query's positives. For one tile of queries the engine

1. multiplies: similarities of all references (rows) to the tile's queries (columns), mixed if SiMix is on;
2. ranks: positives against positives and against negatives, block by block;
3. asks the loss for its value and, by autograd on those few numbers, for ∂loss/∂rank;
4. spreads that over the similarities (``G``) and multiplies back: ``∂loss/∂E = (G + Gᵀ) E``.

Nothing of size M × M is ever held: a tile needs its own columns of S and G and nothing else.

Two facts prune exactly, to rounding: a negative far below every positive adds 0 and has no slope; a positive that is
already behind ``rank_limit`` others has neither value nor slope in the loss (RS@k), so its rank need not be finished.

The equation itself is in ``reference.py``; tests hold this file to it. Losses (``recall_at_k.py`` …) depend on
``soft_rank_loss`` and ``Ranks`` only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from recollect.losses.checks import check_scale
from recollect.losses.comparison import Comparison
from recollect.losses.layout import Layout, Tile
from recollect.losses.one_pass import (
    MEMORY,
    compute_dtype,
    gradient_wanted,
    same_set,
    save_gradients,
    scaled_gradients,
    zero_loss,
)
from recollect.losses.simix import Mixing
from recollect.losses.steps import Step, hidden

_BLOCK_BYTES = 4 * 2**20  # P × n × T blocks on a CPU: in the second-level caches, or nearly
_CPU_QUERIES, _GPU_QUERIES = 256, 16384  # columns a tile at most; with 256 a CPU's products are at full speed


@dataclass(frozen=True)
class Ranks:
    """Soft ranks of a tile: one column a query (T), one row a positive (P); rows beyond a query's positives are padding.

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


Gradients = tuple[Tensor, Tensor]
QueryLoss = Callable[[Ranks], Tensor]
"""Ranks of T queries to T losses, in differentiable PyTorch."""


@dataclass(frozen=True)
class Settings:
    """How to compute, apart from what: see ``soft_rank_loss``."""

    step: Step
    count_query: bool = False
    rank_limit: float | None = None
    memory: int = MEMORY
    prune: bool = True


def soft_rank_loss(
    query_loss: QueryLoss,
    embeddings: Tensor,
    labels: Tensor,
    ref_emb: Tensor | None,
    ref_labels: Tensor | None,
    settings: Settings,
    mixing: tuple[Mixing, Mixing] | None = None,
    share: tuple[int, int] = (0, 1),
) -> Tensor:
    """Mean of ``query_loss`` over all queries with a positive, differentiable in the embeddings.

    Args:
        query_loss: the loss of each query, from its ranks.
        embeddings: queries, M × d; also the references unless ``ref_emb`` is given.
        labels: M integers.
        ref_emb: references, N × d, or None (or ``embeddings`` itself): then each query is excluded from its own references.
        ref_labels: N integers, with ``ref_emb``.
        settings: step function, options and limits.
        mixing: SiMix of queries and of references; the same object twice when both are one set.
        share: ``(r, W)``: only the r-th of W shares of the queries; the W results add up to the whole loss.

    Returns:
        A scalar in float32, or float64 if the embeddings are.
    """
    same = same_set(embeddings, labels, ref_emb, ref_labels)
    layout = Layout.of(labels, None if same else ref_labels, mixing)
    if not layout.num_queries:
        return zero_loss(embeddings, ref_emb)
    references = embeddings if same or ref_emb is None else ref_emb
    check_scale(embeddings, references, settings.step.tau, compute_dtype(embeddings, references))
    wanted = gradient_wanted(embeddings, references)
    value: Tensor = _SoftRankLoss.apply(embeddings, references, wanted, query_loss, layout, settings, share)
    return value


class _SoftRankLoss(torch.autograd.Function):
    """Value and gradient in one pass; backward only scales what forward has found."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        embeddings: Tensor,
        references: Tensor,
        wanted: bool,
        query_loss: QueryLoss,
        layout: Layout,
        settings: Settings,
        share: tuple[int, int],
    ) -> Tensor:
        dtype, same = compute_dtype(embeddings, references), references is embeddings
        # Autocast would turn the products into half precision, where a step of tau = 0.01 drowns in rounding.
        with torch.autocast(embeddings.device.type, enabled=False):
            queries = embeddings.detach().to(dtype)
            engine = _Engine(queries, queries if same else references.detach().to(dtype), layout, settings)
            value, grads = engine.run(query_loss, share, wanted)
        if grads is not None:
            save_gradients(ctx, (embeddings, references), (grads[0], None if same else grads[1]))
        return value

    @staticmethod
    def backward(ctx: FunctionCtx, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        return (*scaled_gradients(ctx, grad_outputs[0]), None, None, None, None, None)


class _Engine:
    """One evaluation: the two sides, and the sums that tiles add to."""

    def __init__(self, queries: Tensor, references: Tensor, layout: Layout, settings: Settings) -> None:
        self.queries, self.references, self.settings = queries, references, settings
        self.layout = layout
        self.mixing = None if layout.mixing is None else layout.mixing[1].to(queries.device, queries.dtype)
        # ∂loss/∂rank is scaled by a power of two so that its products with tiny slopes stay clear of the subnormal
        # numbers (15 × slower); what is below the floor would vanish in rounding anyway.
        self.floor, self.scale = (1e-18, 2.0**60) if queries.dtype == torch.float32 else (1e-60, 2.0**200)
        on_cpu = queries.device.type == "cpu"
        room = min(_BLOCK_BYTES, settings.memory // 4) if on_cpu else settings.memory // 4
        self.block = queries.new_empty(max(1, room // queries.element_size()))
        columns = 2 * self.layout.num_references + 2 * len(references)  # S, G, and both before SiMix
        affordable = settings.memory // 2 // (columns * queries.element_size())
        self.width = max(1, min(affordable, _CPU_QUERIES if on_cpu else _GPU_QUERIES))

    def run(self, query_loss: QueryLoss, share: tuple[int, int], wanted: bool) -> tuple[Tensor, Gradients | None]:
        """The share's part of the loss and, if wanted, of the gradient of queries and references."""
        value = self.queries.new_zeros((), dtype=torch.float64)
        grads = None
        if wanted:
            of_queries = torch.zeros_like(self.queries)
            same = self.references is self.queries
            grads = (of_queries, of_queries if same else torch.zeros_like(self.references))
        for tile in self.layout.tiles(self.width, share):
            value += self._tile(tile.to(self.queries.device, self.queries.dtype), query_loss, grads)
        if grads is not None:
            self._unscale(grads)
        return (value / self.layout.num_queries).to(self.queries.dtype), grads

    def _tile(self, tile: Tile, query_loss: QueryLoss, grads: Gradients | None) -> Tensor:
        similarities = self._similarities(tile)
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
        similarities.scatter_(0, positions, -unseen)  # what is left in play are the negatives

        step, prune = self.settings.step, self.settings.prune
        among_positives = Comparison(step.positive, found, x, *bounds, self.block)
        to_negatives = Comparison(step, similarities, x, *bounds, self.block, prune)
        rank_positives = among_positives.sums(torch.full_like(x, 1 - step.positive.at_zero))
        limit = self.settings.rank_limit if prune else None
        rank_all = to_negatives.sums(rank_positives, limit)
        to_itself = None
        if self.settings.count_query and own is not None:
            to_itself = Comparison(step.positive, own, x, *bounds, self.block)
            rank_all = to_itself.sums(rank_all)

        one = torch.ones_like(x)
        rank_all, rank_positives = torch.where(mask, rank_all, one), torch.where(mask, rank_positives, one)
        ranks = Ranks(rank_all, rank_positives, mask.to(x.dtype), tile.count)
        if grads is None:
            return query_loss(ranks).sum()
        value, weight_all, weight_positives = self._weigh(query_loss, ranks)

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
        self._back(tile, gradient, grads)
        return value

    def _similarities(self, tile: Tile) -> Tensor:
        """S / tau: (mixed) references × the tile's queries."""
        queries = self.queries.index_select(0, tile.rows)
        similarities = torch.mm(self.references, queries.T / self.settings.step.tau)
        if tile.mixing is not None and self.mixing is not None:
            similarities = self.mixing.mix_rows(torch.mm(similarities, tile.mixing))
        return similarities

    def _back(self, tile: Tile, gradient: Tensor, grads: Gradients) -> None:
        """Add ``G Q`` to the references' gradient and ``Gᵀ R`` to the queries'."""
        if tile.mixing is not None and self.mixing is not None:
            gradient = self.mixing.unmix_rows(gradient, len(self.references))
            gradient = torch.mm(gradient, tile.mixing.T)
        of_queries, of_references = grads
        of_references.addmm_(gradient, self.queries.index_select(0, tile.rows))
        of_queries.index_add_(0, tile.rows, torch.mm(gradient.T, self.references))

    def _unscale(self, grads: Gradients) -> None:
        """Undo the scaling of weights and of similarities, once for all tiles; what would be subnormal becomes 0."""
        unit = 1 / (self.settings.step.tau * self.scale)
        for grad in grads[: 1 if grads[0] is grads[1] else 2]:
            torch.hardshrink(grad, 2 * torch.finfo(grad.dtype).tiny / unit, out=grad).mul_(unit)

    def _weigh(self, query_loss: QueryLoss, ranks: Ranks) -> tuple[Tensor, Tensor, Tensor]:
        """The tile's summed loss, and what one more rank of each kind would add to the mean, scaled; 0 for padding."""
        leaves = (ranks.all.requires_grad_(), ranks.positives.requires_grad_())
        with torch.enable_grad():
            total = query_loss(ranks).sum()
        weights = []
        for slope in torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True):
            slope = slope / self.layout.num_queries
            weights.append(torch.where(slope.abs() > self.floor, slope, 0.0) * ranks.mask * self.scale)
        return total.detach(), weights[0], weights[1]
