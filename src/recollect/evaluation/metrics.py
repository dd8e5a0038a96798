"""All metrics, each a short function of ranks; and those of labels with a second, coarser level.

Letters: a query has R positives; ``ranks`` is q × P, the ranks of a few queries' positives in ascending order, 1 for
the top, +inf as padding; ``positives`` is their R. The j-th positive (j = 1 … R) is at rank r_j.

To add a metric: write the function, and add a line to ``METRICS`` that says which ranks it looks at. From outside, give
``evaluate`` a ``Metric``, the function itself, or a reference (``my.py:metric``, see ``common/plugins.py``). The streaming
pass stops counting beyond the depth that the requested metrics need, so the stated depth must be correct: a rank beyond it
may be any larger number.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from recollect.common import plugins
from recollect.common.errors import InputError
from recollect.evaluation.inputs import Ints, as_labels, to_tensor
from recollect.evaluation.tiles import Limits, RankTile

RESERVED = ("labels", "positives", "settings", "ids")
"""Arrays of a file of per-query results that are not metrics."""

_NEVER = 1 << 40  # more negatives than any gallery has


def r_at_k(ranks: Tensor, positives: Tensor, k: int) -> Tensor:
    """1 if at least one positive is among the first k, else 0: the retrieval benchmarks' "recall@k"."""
    return (ranks[:, 0] <= k).double()


def recall_at_k(ranks: Tensor, positives: Tensor, k: int) -> Tensor:
    """The share of the positives that are among the first k: recall in the sense of statistics. Not ``r@k``."""
    return (ranks <= k).sum(dim=1) / positives.double()


def average_precision(ranks: Tensor, positives: Tensor) -> Tensor:
    """The mean over the positives of the precision at each one's rank, 1/R Σ_j j / r_j."""
    return _total(_places(ranks) / ranks) / positives


def average_precision_at_r(ranks: Tensor, positives: Tensor) -> Tensor:
    """1/R Σ_j j / r_j over the positives with r_j ≤ R: average precision cut at R; positives beyond it count 0."""
    inside = ranks <= positives.unsqueeze(1)
    return _total(_places(ranks) / ranks * inside) / positives


def r_precision(ranks: Tensor, positives: Tensor) -> Tensor:
    """The share of positives among the first R."""
    return (ranks <= positives.unsqueeze(1)).sum(dim=1) / positives.double()


def reciprocal_rank(ranks: Tensor, positives: Tensor) -> Tensor:
    """1 / r_1."""
    return 1.0 / ranks[:, 0]


def first_rank(ranks: Tensor, positives: Tensor) -> Tensor:
    """r_1, the rank of the first positive."""
    return ranks[:, 0].clone()


@dataclass(frozen=True)
class Metric:
    """A metric and the ranks it needs.

    Attributes:
        compute: (ranks, positives) → one value per query; with a third argument k if ``depth`` is ``"k"``. ``ranks`` is
            q × P, float64, ascending, 1 for the top, +inf after a query's last positive; ``positives`` is q.
        depth: ranks beyond this one do not matter: ``"k"`` (the largest requested k), ``"R"``, or None (all matter).
        first_only: whether the metric uses only the rank of the best positive.
        name: name of the results. With a depth of ``"k"`` it ends in ``@k``, which becomes ``@1``, ``@10``, ….
        higher_is_better: False for a metric such as ``first_rank``, where lower is better.

    Raises:
        InputError: an invalid name or depth.

    Examples:
        >>> from recollect.evaluation import evaluate
        >>> last = Metric(lambda ranks, positives: ranks.gather(1, positives.unsqueeze(1) - 1)[:, 0], name="last_rank")
        >>> evaluate([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]], [0, 0, 1, 1], metrics=[last]).metrics
        {'last_rank': 1.0}
    """

    compute: Callable[..., Tensor]
    depth: Literal["k", "R"] | None = None
    first_only: bool = False
    name: str = ""
    higher_is_better: bool = True

    def __post_init__(self) -> None:
        name = self.name or getattr(self.compute, "__name__", "")
        object.__setattr__(self, "name", name)
        if not callable(self.compute):
            raise InputError(f"metric {self.compute!r}: give a function of (ranks, positives).")
        if not name or not all(part.isidentifier() for part in name.replace("@", "_").split("-")) or name in RESERVED:
            raise InputError(
                f"a metric cannot be called {name!r}: use letters, digits, '_', '-' and '@', and none of the names "
                f"{', '.join(RESERVED)}; for example Metric(compute, name='last_rank')."
            )
        if self.depth not in ("k", "R", None) or (self.depth == "k") != name.endswith("@k"):
            raise InputError(
                f"metric {name!r}: depth={self.depth!r}; choose 'k', 'R' or None, and a name that ends in '@k' for 'k' only."
            )

    def columns(self, ks: Sequence[int]) -> dict[str, int | None]:
        """The names of its results, each with its k if it has one."""
        return {self.name.removesuffix("k") + str(k): k for k in ks} if self.depth == "k" else {self.name: None}


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(r_at_k, "k", first_only=True, name="r@k"),
        Metric(recall_at_k, "k", name="recall@k"),
        Metric(average_precision, name="map"),
        Metric(average_precision_at_r, "R", name="map@r"),
        Metric(r_precision, "R"),
        Metric(reciprocal_rank, first_only=True, name="mrr"),
        Metric(first_rank, first_only=True, higher_is_better=False),
    )
}

MetricLike: TypeAlias = "str | Metric | Callable[..., Tensor]"
"""A metric by name or reference, as an object, or as a function of (ranks, positives)."""


def find_metric(name: str) -> Metric:
    """The metric called ``name``: from the table, from an installed package, or given by a reference.

    Raises:
        InputError: there is no such metric, or it is not a function. ConfigError: a reference to nothing.
    """
    if name in METRICS:
        return METRICS[name]
    loaded = plugins.load("metric", name)
    if loaded is None:
        raise InputError(str(plugins.unknown("metric", name, METRICS)))
    return loaded.target if isinstance(loaded.target, Metric) else Metric(loaded.target)


def checked_metrics(metrics: Sequence[MetricLike] | None) -> list[Metric]:
    """The metrics to compute: those of the table in its order, then the others. None means all of the table."""
    if metrics is None:
        return list(METRICS.values())
    given = [find_metric(m) if isinstance(m, str) else m if isinstance(m, Metric) else Metric(m) for m in metrics]
    others = [metric for metric in given if METRICS.get(metric.name) is not metric]
    names = [metric.name for metric in others]
    if twice := {name for name in names if names.count(name) > 1 or name in METRICS}:
        raise InputError(
            f"metrics: the name {', '.join(sorted(twice))} is already in use; give your own metric another name."
        )
    return [*(metric for metric in METRICS.values() if metric in given), *others]


TRACKED_KS = (1, 2, 4, 8, 10, 16, 32, 100, 1000)
"""Every k that the paper's benchmarks report, and powers of two in between; used during training and in reports."""


def default_ks(items: int) -> list[int]:
    """1, 10, 100 and 1000, as far as they are below the number of items: with a larger k every query has a hit."""
    return [k for k in (1, 10, 100, 1000) if k < items] or [1]


def checked_ks(ks: Sequence[int]) -> list[int]:
    """The ks in ascending order, without repetition."""
    try:
        checked = sorted({operator.index(k) for k in ks})
    except TypeError:  # a single number, text, a fraction
        checked = []
    if not checked or checked[0] < 1:
        raise InputError(f"ks={ks!r}: give a list of whole numbers, 1 or more, e.g. [1, 10]; k = 1 is the first place.")
    return checked


def limits_for(metrics: Sequence[Metric], ks: Sequence[int]) -> Limits:
    """The number of negatives above the j-th positive from which the given metrics no longer depend on its rank.

    A positive with j − 1 better ones and n negatives above is at rank j + n, so depth D is passed when n ≥ D − j + 1.
    """

    def limits(positives: Tensor, width: int) -> Tensor:
        place = torch.arange(1, width + 1, device=positives.device).unsqueeze(0)
        result = torch.zeros(len(positives), width, dtype=torch.int64, device=positives.device)
        for metric in metrics:
            if metric.depth is None:
                needed = torch.full_like(result, _NEVER)
            else:
                depth = positives.unsqueeze(1) if metric.depth == "R" else torch.full_like(place, max(ks))
                needed = (depth - place + 1).clamp_min(0).expand_as(result)
            if metric.first_only:
                needed = needed * (place == 1)
            result = torch.maximum(result, needed)
        return result

    return limits


def compute(tile: RankTile, metrics: Sequence[Metric], ks: Sequence[int]) -> dict[str, Tensor]:
    """The requested metrics of a tile's queries: ``r@1``, ``recall@10``, ``map``, … → one value per query."""
    values: dict[str, Tensor] = {}
    for metric in metrics:
        for name, k in metric.columns(ks).items():
            with (
                plugins.errors_as_config(f"metric {name!r}")
                if METRICS.get(metric.name) is not metric
                else nullcontext()
            ):
                column = metric.compute(tile.ranks, tile.positives, *([] if k is None else [k]))
            if not isinstance(column, Tensor) or column.shape != tile.positives.shape:
                shape = tuple(column.shape) if isinstance(column, Tensor) else type(column).__name__
                raise InputError(
                    f"metric {name!r} returned {shape} for {len(tile.positives)} queries: it must return a tensor with "
                    "one value per query."
                )
            values[name] = column.double()
    return values


def columns(metrics: Sequence[Metric], ks: Sequence[int]) -> list[str]:
    """The names ``compute`` returns."""
    return [name for metric in metrics for name in metric.columns(ks)]


def _places(ranks: Tensor) -> Tensor:
    return torch.arange(1, ranks.shape[1] + 1, dtype=torch.float64, device=ranks.device)


def _total(values: Tensor) -> Tensor:
    """Row sums, added from left to right: how far a row is padded must not change even the last digit."""
    return values.cumsum(dim=1)[:, -1]


# Labels with a second, coarser level (SOP's twelve kinds of product, iNaturalist's super-classes): graded metrics.
#
# An item is at level 2 if it has the query's label, at level 1 if it only has its coarse label, and at level 0 otherwise.
# ``h_ap`` and ``ndcg`` are those of HAPPIER (Ramzi et al., "Hierarchical Average Precision Training for Pertinent Image
# Retrieval", 2022), over the whole ranking and without the query itself:
#
#     rel(l)    = (l / 2) / |items at level l|                  their α = 1
#     H-rank(k) = Σ over j at or ahead of k of min(rel(j), rel(k))
#     H-AP      = Σ_k H-rank(k) / rank(k)  /  Σ_k rel(k)        over the items k of level 1 and 2
#                 ``h_ap_released``: HAPPIER's code counts the query among the items of level 2
#     NDCG      = Σ_k (2^level(k) − 1) / log2(1 + rank(k))  /  the same for the best ranking possible
#
# The streaming pass ranks everything with the query's coarse label; the items of level 2 among them have the ranks that
# every other metric reads. One pass gives all metrics.

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
    return _total(torch.where(graded.present, h_rank / graded.ranks, 0.0)) / (relevance * graded.numbers).sum(dim=1)


def normalized_discounted_gain(graded: GradedRanks) -> Tensor:
    """NDCG of each query, with gains 3 (level 2) and 1 (level 1)."""
    gain = torch.where(graded.fine, 3.0, 1.0).double()
    gains = _total(torch.where(graded.present, gain / torch.log2(1 + graded.ranks), 0.0))
    place = _places(graded.ranks)
    ideal_gain = torch.where(place <= graded.numbers[:, 1:], 3.0, 1.0).double()
    return gains / _total(torch.where(graded.present, ideal_gain / torch.log2(1 + place), 0.0))


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
        self.coarse, self.gallery_coarse = as_labels(coarse_labels, "coarse_labels"), None
        fine, coarse = [as_labels(labels, "labels")], [self.coarse]
        if gallery_labels is not None:
            self.gallery_coarse = as_labels(gallery_coarse_labels, "gallery_coarse_labels")
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

    def split(self, tile: RankTile, tie_sign: int) -> Iterator[tuple[RankTile, GradedRanks | None]]:
        """Ranks of all items with the query's coarse label → those of the label alone, and those of both levels.

        A few queries at a time, without those that have no positive of their own label.
        """
        queries = to_tensor(self._queries, tile.ranks.device)[tile.queries]
        items = to_tensor(self._items, tile.ranks.device)
        for rows in torch.arange(len(queries), device=queries.device).split(max(1, _ENTRIES // tile.ranks.shape[1])):
            present = tile.items[rows] >= 0
            fine = (items[tile.items[rows].clamp_min(0)] == queries[rows].unsqueeze(1)) & present
            with_positive = fine.any(dim=1)
            if bool(with_positive.any()):
                graded = _graded(tile, rows[with_positive], fine[with_positive], present[with_positive], tie_sign)
                yield _of_label(tile, rows[with_positive], graded), graded


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
