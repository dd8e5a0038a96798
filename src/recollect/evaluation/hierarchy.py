"""Labels with a second, coarser level (SOP's twelve kinds of product, iNaturalist's super-classes): graded metrics.

An item is at level 2 if it has the query's label, at level 1 if it only has its coarse label, and at level 0 otherwise.
``h_ap`` and ``ndcg`` are those of HAPPIER (Ramzi et al., "Hierarchical Average Precision Training for Pertinent Image
Retrieval", 2022), over the whole ranking and without the query itself:

    rel(l)    = (l / 2) / |items at level l|                  their α = 1
    H-rank(k) = Σ over j at or ahead of k of min(rel(j), rel(k))
    H-AP      = Σ_k H-rank(k) / rank(k)  /  Σ_k rel(k)        over the items k of level 1 and 2
                ``h_ap_released``: HAPPIER's code counts the query among the items of level 2
    NDCG      = Σ_k (2^level(k) − 1) / log2(1 + rank(k))  /  the same for the best ranking possible

The streaming pass ranks everything with the query's coarse label; the items of level 2 among them have the ranks that
every other metric reads. One pass gives all metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recollect.common.errors import InputError
from recollect.evaluation.inputs import Ints, as_labels, to_tensor
from recollect.evaluation.tiles import RankTile

_ENTRIES = 1 << 20
"""Ranks to split at a time: a dozen temporaries of this size, independent of the size of a super-class."""


@dataclass(frozen=True)
class GradedRanks:
    """Ranks of a few queries' items of level 2 (``fine``) and of level 1, in ascending order.

    Attributes:
        fine: [q × P] True where the item is of level 2. present: [q × P] False for padding.
        ranks: [q × P] the item's rank, 1 for the top; any number for padding.
        same: [q × P] number of items of its own level up to and including it.
        other: [q × P] items of the other of the two levels ahead of it.
        numbers: [q × 2] how many items of level 1 and of level 2 the query has.
    """

    fine: Tensor
    present: Tensor
    ranks: Tensor
    same: Tensor
    other: Tensor
    numbers: Tensor


def hierarchical_average_precision(graded: GradedRanks, released: bool = False) -> Tensor:
    """H-AP of each query; ``released``: the relevance of level 2 is shared with the query itself, which is not ranked."""
    levels = torch.tensor([0.5, 1.0], dtype=torch.float64, device=graded.ranks.device)
    sharing = graded.numbers + torch.tensor([0, int(released)], device=graded.ranks.device)
    relevance = torch.where(graded.numbers > 0, levels / sharing.clamp_min(1), 0.0)
    own = torch.where(graded.fine, relevance[:, 1:], relevance[:, :1])
    h_rank = own * graded.same + relevance.amin(dim=1, keepdim=True) * graded.other
    return _total(h_rank / graded.ranks, graded) / (relevance * graded.numbers).sum(dim=1)


def normalized_discounted_gain(graded: GradedRanks) -> Tensor:
    """NDCG of each query, with gains 3 (level 2) and 1 (level 1)."""
    gain = torch.where(graded.fine, 3.0, 1.0).double()
    found = _total(gain / torch.log2(1 + graded.ranks), graded)
    place = torch.arange(1, graded.ranks.shape[1] + 1, dtype=torch.float64, device=graded.ranks.device)
    ideal_gain = torch.where(place <= graded.numbers[:, 1:], 3.0, 1.0).double()
    return found / _total(ideal_gain / torch.log2(1 + place), graded)


GRADED: dict[str, Callable[[GradedRanks], Tensor]] = {
    "h_ap": hierarchical_average_precision,
    "h_ap_released": partial(hierarchical_average_precision, released=True),
    "ndcg": normalized_discounted_gain,
}
"""Metrics that need coarse labels."""


class Hierarchy:
    """The labels of queries and gallery, fine and coarse, checked to be a hierarchy.

    Args:
        labels: of the queries. gallery_labels: of the gallery, None when the queries are the gallery.
        coarse_labels: of the queries. gallery_coarse_labels: of the gallery.
        distractors: how many items without labels follow the gallery.

    Raises:
        InputError: lengths that do not match, or a label with two coarse labels.
    """

    def __init__(
        self,
        labels: Any,
        gallery_labels: Any | None,
        coarse_labels: Any,
        gallery_coarse_labels: Any | None,
        distractors: int = 0,
    ) -> None:
        if (gallery_labels is None) != (gallery_coarse_labels is None):
            raise InputError("with a separate gallery, pass both gallery_labels and gallery_coarse_labels.")
        self.coarse = as_labels(coarse_labels, "coarse_labels")
        self.gallery_coarse = (
            None if gallery_coarse_labels is None else as_labels(gallery_coarse_labels, "gallery_coarse_labels")
        )
        fine = [as_labels(labels, "labels")]
        coarse = [self.coarse]
        if gallery_labels is not None and self.gallery_coarse is not None:
            fine.append(as_labels(gallery_labels, "gallery_labels"))
            coarse.append(self.gallery_coarse)
        for ours, theirs in zip(fine, coarse, strict=True):
            if len(ours) != len(theirs):
                raise InputError(f"{len(ours)} labels but {len(theirs)} coarse labels: give one of each per vector.")
        names, codes = np.unique(np.concatenate(fine), return_inverse=True)
        kinds, kind = np.unique(np.concatenate(coarse), return_inverse=True)
        pairs = np.unique(np.stack([codes, kind]), axis=1)
        twice = np.flatnonzero(np.bincount(pairs[0]) > 1)
        if twice.size:
            both = kinds[pairs[1, pairs[0] == twice[0]]].tolist()
            raise InputError(
                f"coarse_labels: label {names[twice[0]]!r} has the coarse labels {both[0]!r} and {both[1]!r}; every "
                "class must belong to one coarse class."
            )
        number = len(fine[0])
        self._queries: Ints = codes[:number].astype(np.int64)
        items = self._queries if gallery_labels is None else codes[number:].astype(np.int64)
        self._items: Ints = np.concatenate([items, np.full(distractors, -1)])

    def split(self, tile: RankTile, tie_sign: int) -> Iterator[tuple[GradedRanks, RankTile]]:
        """Ranks of all items with the query's coarse label → those of both levels, and those of the label alone.

        A few queries at a time, without those that have no positive of their own label.
        """
        queries = to_tensor(self._queries, tile.ranks.device)[tile.queries]
        items = to_tensor(self._items, tile.ranks.device)
        for rows in torch.arange(len(queries), device=queries.device).split(max(1, _ENTRIES // tile.ranks.shape[1])):
            present = tile.items[rows] >= 0
            fine = (items[tile.items[rows].clamp_min(0)] == queries[rows].unsqueeze(1)) & present
            kept = fine.any(dim=1)
            if bool(kept.any()):
                graded = _graded(tile, rows[kept], fine[kept], present[kept], tie_sign)
                yield graded, _of_label(tile, rows[kept], graded)


def _graded(tile: RankTile, rows: Tensor, fine: Tensor, present: Tensor, tie_sign: int) -> GradedRanks:
    """Interleave two levels: like a negative, an item of level 1 that ties with one of level 2 is ahead (or behind)."""
    similarities, width = tile.similarities[rows], tile.ranks.shape[1]
    coarse = present & ~fine
    threshold = similarities + tie_sign * tile.tolerance[rows].unsqueeze(1)
    negatives = tile.ranks[rows] - torch.arange(1, width + 1, device=rows.device)
    # Ascending, with −∞ in front for items of the other level.
    of_coarse = torch.where(coarse, similarities, -torch.inf).sort(dim=1).values
    of_fine = torch.where(fine, threshold, -torch.inf).sort(dim=1).values
    coarse_ahead = width - torch.searchsorted(of_coarse, threshold, right=True)
    fine_ahead = width - torch.searchsorted(of_fine, similarities, right=False)
    same = torch.where(fine, fine.cumsum(dim=1), coarse.cumsum(dim=1))
    other = torch.where(fine, coarse_ahead, fine_ahead)
    return GradedRanks(
        fine, present, same + other + negatives, same, other, torch.stack([coarse.sum(dim=1), fine.sum(dim=1)], dim=1)
    )


def _of_label(tile: RankTile, rows: Tensor, graded: GradedRanks) -> RankTile:
    """The ranks of level 2 alone, as the pass without a hierarchy gives them."""
    number = graded.numbers[:, 1]
    ranks, order = torch.where(graded.fine, graded.ranks, torch.inf).sort(dim=1, stable=True)
    order = order[:, : int(number.max())]
    items = tile.items[rows].gather(1, order)
    items.masked_fill_(torch.arange(order.shape[1], device=rows.device) >= number.unsqueeze(1), -1)
    return RankTile(
        tile.queries[rows],
        number,
        ranks[:, : order.shape[1]].contiguous(),
        items,
        tile.similarities[rows].gather(1, order),
        tile.tolerance[rows],
    )


def _total(values: Tensor, graded: GradedRanks) -> Tensor:
    """Row sums from left to right, without padding: how far a row is padded must not change even the last digit."""
    return torch.where(graded.present, values, 0.0).cumsum(dim=1)[:, -1]
