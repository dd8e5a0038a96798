"""Hierarchical average precision: a rank loss for labels with a second, coarser level.

An item is *fine* if it has the query's label, *coarse* if it only has its coarser label. The tile loop runs on the coarser
labels, so that a tile's positives are the items of both levels; labels split them here. For each item x of a level the
loss gets its soft rank among all items, its rank within its own level, and how many of the other level are ahead:

    all(x) = same(x) + other(x) + Σ_{z of neither level} step(s_qz − s_qx)

An item that is at least as relevant as x is compared by the step between positives, any other by the step itself, as in
``soft_rank.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from recollect.common.errors import ConfigError, InputError
from recollect.common.text import check_number
from recollect.losses.checks import TEMPERATURES
from recollect.losses.engine.simix import Mixing
from recollect.losses.engine.soft_rank import RankedTile, SoftRank, StepSums
from recollect.losses.engine.steps import Step, hidden
from recollect.losses.engine.tile_loop import Pairing, Term, TileFunction, TileIndices, TileRun
from recollect.losses.rank_loss import RankOptions, TiledLoss
from recollect.losses.recall_at_k import make_step


@dataclass(frozen=True)
class LevelRanks:
    """Soft ranks of the items of one level: one column per query (T), one row per item (P); a column ends in padding.

    Args:
        all: rank among all references, P × T.
        same: rank within the level, P × T.
        other: how many items of the other level are ahead, P × T.
        mask: 1 where there is an item, 0 for padding, P × T; multiply by it before summing over items.
        count: number of items of each query, T; 0 where the level is empty.
    """

    all: Tensor
    same: Tensor
    other: Tensor
    mask: Tensor
    count: Tensor


GradedLoss = Callable[[LevelRanks, LevelRanks], Tensor]
"""Ranks of the coarse and of the fine level of T queries to T losses, in differentiable PyTorch."""


class GradedRank(SoftRank):
    """Mean of ``graded_loss`` over all queries with an item of either level.

    Args:
        graded_loss: the loss of each query, from its ranks.
        step: how "z is ahead of x" is smoothed.
        labels, ref_labels: fine labels of queries and references; the tile loop has the coarser ones.
        prune: leave out what cannot change the result beyond rounding.
    """

    def __init__(
        self, graded_loss: GradedLoss, step: Step, labels: Tensor, ref_labels: Tensor, prune: bool = True
    ) -> None:
        super().__init__(lambda ranks: ranks.all.sum(0), step, "excluded", None, prune)
        self.graded_loss, self.labels, self.ref_labels = graded_loss, labels, ref_labels

    def width(self, run: TileRun) -> int:
        """As for plain ranks, with a second copy of the negatives, because each level is compared with them."""
        return max(1, super().width(run) * 2 // 3)

    def start(self, run: TileRun) -> TileFunction:
        """Labels of the (mixed) queries and references, and the work buffer."""
        labels, ref_labels = self.labels.detach().cpu(), self.ref_labels.detach().cpu()
        if run.layout.mixing is not None:
            labels, ref_labels = labels[run.layout.mixing[0].first], ref_labels[run.layout.mixing[1].first]
        device = run.queries.device
        return _GradedTile(self, run, labels.to(device), ref_labels.to(device))


class _GradedTile(RankedTile):
    """Computes ``GradedRank`` on a tile."""

    def __init__(self, term: GradedRank, run: TileRun, labels: Tensor, ref_labels: Tensor) -> None:
        super().__init__(term, run)
        self.graded_loss, self.labels, self.ref_labels = term.graded_loss, labels, ref_labels

    def __call__(self, similarities: Tensor, tile: TileIndices) -> tuple[Tensor, Tensor]:
        unseen = hidden(similarities.dtype)
        fine = (self.ref_labels[tile.positives] == self.labels[tile.queries]) & tile.mask
        items = similarities.gather(0, tile.positives)
        levels = [_Level(items, tile.positives, mask, unseen) for mask in (tile.mask & ~fine, fine)]
        if tile.own is not None:
            similarities.scatter_(0, tile.own[None], -unseen)
        similarities.scatter_(0, tile.positives, -unseen)  # the items of neither level remain

        step, block, prune = self.term.step, self.block, self.term.prune
        negatives = [similarities.clone(), similarities]
        ranks, sums = [], []
        for number, level in enumerate(levels):
            other = levels[1 - number]
            # For coarse items (number 0) fine ones are more relevant; for fine items coarse ones are less relevant.
            among = StepSums(step.positive, level.items.clone(), level.x, *level.bounds, block)
            across_step = step.positive if number == 0 else step
            across = StepSums(across_step, other.items.clone(), level.x, *level.bounds, block)
            below = StepSums(step, negatives[number], level.x, *level.bounds, block, prune)
            same = among.sums(torch.full_like(level.x, 1 - step.positive.at_zero))
            ahead = across.sums(torch.zeros_like(level.x))
            ranks.append(level.ranks(below.sums(same + ahead), same, ahead))
            sums.append((among, across, below))
        if not self.wanted:
            return self.graded_loss(*ranks).sum(dtype=torch.float64) / self.num_queries, similarities
        leaves = [leaf for level in ranks for leaf in (level.all, level.same, level.other)]
        value, slopes = self.weigh(
            lambda: self.graded_loss(*ranks), leaves, [level.mask for level in ranks for _ in range(3)]
        )
        weights = [slopes[:3], slopes[3:]]

        gradient = torch.zeros_like(similarities)
        at_items = [torch.zeros_like(level.x) for level in levels]
        for number, ((among, across, below), (w_all, w_same, w_other)) in enumerate(zip(sums, weights, strict=True)):
            from_negatives = torch.empty_like(similarities)
            at_items[number] += below.slopes(w_all, from_negatives)
            gradient += from_negatives
            for compared, weight, there in ((among, w_all + w_same, number), (across, w_all + w_other, 1 - number)):
                from_items = torch.empty_like(levels[there].x)
                at_items[number] += compared.slopes(weight, from_items)
                at_items[there] += from_items
        for level, here in zip(levels, at_items, strict=True):
            gradient.scatter_add_(0, level.positions, torch.where(level.mask, here, 0.0))
        return value, gradient


class _Level:
    """The items of one level, best first; padding is last in ``items``, and ahead of everything in ``x``."""

    def __init__(self, items: Tensor, positions: Tensor, mask: Tensor, unseen: float) -> None:
        slots = max(1, int(mask.sum(0).max()))
        items, order = torch.sort(torch.where(mask, items, -unseen), dim=0, descending=True)
        self.items, order = items[:slots].contiguous(), order[:slots]
        self.mask, self.positions = mask.gather(0, order), positions.gather(0, order)
        self.x = torch.where(self.mask, self.items, unseen)
        self.count = mask.sum(0).to(items.dtype)
        # An empty level has no bound; any number below the padding works.
        is_filled = self.count > 0
        self.bounds = torch.where(is_filled, self.x.amin(0), 0.0), torch.where(is_filled, self.items.amax(0), 0.0)

    def ranks(self, everything: Tensor, same: Tensor, other: Tensor) -> LevelRanks:
        """Ranks, with 1 and 0 as padding."""
        one, none = torch.ones_like(self.x), torch.zeros_like(self.x)
        return LevelRanks(
            torch.where(self.mask, everything, one),
            torch.where(self.mask, same, one),
            torch.where(self.mask, other, none),
            self.mask.to(self.x.dtype),
            self.count,
        )


class HierarchicalAP(TiledLoss):
    """Hierarchical AP with smooth steps, after HAPPIER (Ramzi et al., 2022): graded relevance instead of yes or no.

    An item with the query's label is at level 2, one that only has its coarser label at level 1, any other at level 0.
    With ``rel(l) = (l / 2)^alpha / |items at level l|`` and sums over the items x of level 1 and 2:

    ``loss = 1 − mean_q Σ_x Hrank(q, x) / rank(q, x) / Σ_x rel(x)``,
    ``Hrank(q, x) = rel(x) + Σ_z min(rel(x), rel(z)) · step(s_qz − s_qx)``.

    It is the metric ``h_ap`` of the evaluation, made differentiable. HAPPIER itself bounds the two ranks by different
    steps and adds a loss with class vectors; that is not part of this loss.

    Args:
        coarse: for each label 0, 1, …, its coarser label. By default, training uses the coarse labels of the images.
        alpha: how fast relevance falls with the level; larger gives the coarser level less weight.
        tau: temperature of the step on similarities.
        step: ``"sigmoid"``, or ``"asymmetric"``: ROADMAP's, with items at least as relevant compared by the true step.
        **options: see ``recollect.losses.rank_loss.RankOptions``. SiMix mixes images of one label.

    Raises:
        ConfigError: (a ``ValueError``) for a value out of range.

    Example:
        >>> import torch
        >>> loss = HierarchicalAP(coarse=[0, 0, 1])
        >>> embeddings = torch.nn.functional.normalize(torch.randn(6, 16), dim=1).requires_grad_()
        >>> loss(embeddings, torch.tensor([0, 0, 1, 1, 2, 2])).backward()
    """

    options_type = RankOptions

    def __init__(
        self,
        coarse: Sequence[int],
        alpha: float = 1.0,
        tau: float = 0.01,
        step: Literal["sigmoid", "asymmetric"] | Step = "sigmoid",
        **options: Any,
    ) -> None:
        rank_options = RankOptions(**options)
        super().__init__(rank_options)
        whole = isinstance(coarse, list | tuple) and all(type(number) is int for number in coarse)
        if not whole or not coarse or min(coarse) < 0:
            raise ConfigError("coarse must be a list of whole numbers (0 or more): the coarser label of each label.")
        self.alpha = check_number("alpha", alpha, 0, 100)
        self.step = make_step(step, check_number("tau", tau, *TEMPERATURES))
        self.prune = rank_options.prune
        self.register_buffer("coarse", torch.tensor(coarse), persistent=False)

    coarse: Tensor
    _fine: tuple[Tensor, Tensor]

    def of_pairing(self, pairing: Pairing, share: tuple[int, int] = (0, 1)) -> Tensor:
        """The loss of queries against references, already checked; the tile loop gets the coarser labels."""
        self._fine = pairing.labels, pairing.ref_labels
        labels, ref_labels = (self._coarser(labels) for labels in self._fine)
        return super().of_pairing(replace(pairing, labels=labels, ref_labels=ref_labels), share)

    def term(self) -> Term:
        """Ranks of two levels, and the loss on them."""
        return GradedRank(self.graded_loss, self.step, *self._fine, prune=self.prune)

    def graded_loss(self, coarse: LevelRanks, fine: LevelRanks) -> Tensor:
        """``1 − H-AP``, T."""
        grades = (0.5**self.alpha, 1.0)
        relevances = [grade / level.count.clamp(min=1) for grade, level in zip(grades, (coarse, fine), strict=True)]
        least = torch.minimum(*relevances)
        total, best = torch.zeros_like(least), torch.zeros_like(least)
        for grade, relevance, level in zip(grades, relevances, (coarse, fine), strict=True):
            h_rank = relevance * level.same + least * level.other
            total = total + (h_rank / level.all * level.mask).sum(0)
            best = best + grade * (level.count > 0).to(best.dtype)
        return 1 - total / best

    def _mix(self, labels: Tensor, ref_labels: Tensor | None) -> tuple[Mixing, Mixing]:
        """Only images with the same fine label are mixed."""
        return super()._mix(self._fine[0], None if ref_labels is None else self._fine[1])

    def _coarser(self, labels: Tensor) -> Tensor:
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < len(self.coarse):
            raise InputError(
                f"the labels range from {int(labels.min())} to {int(labels.max())}, but coarse has {len(self.coarse)} entries: "
                "it needs one for each label, starting with label 0."
            )
        return self.coarse.to(labels.device)[labels.long()]

    def extra_repr(self) -> str:
        """What ``print(loss)`` shows."""
        return f"{len(self.coarse)} labels, alpha={self.alpha}, simix={self.simix}, step={self.step}"
