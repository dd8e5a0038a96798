"""Every metric, each one short function of ranks.

Letters: a query has R positives; ``ranks`` is q × P, the ranks of a few queries' positives in ascending order, 1 for
the top, +inf as padding; ``positives`` is their R. The j-th positive (j = 1 … R) is at rank r_j.

To add a metric: write the function, and add a line to ``METRICS`` that says which ranks it looks at. The streaming
pass stops counting where no asked metric looks, so that line must be true: a rank beyond the depth given may arrive
as any larger number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from recollect.common.errors import InputError
from recollect.evaluation.tiles import Limits, RankTile

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
    """1/R Σ_j j / r_j over the positives with r_j ≤ R: average precision cut at R, missing ones count 0."""
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
    """A metric and what it looks at.

    Attributes:
        compute: (ranks, positives) → one value a query; with a third argument k if ``depth`` is ``"k"``.
        depth: ranks beyond this one do not matter: ``"k"`` (the largest k asked for), ``"R"``, or None (all matter).
        first_only: whether only the best positive's rank is looked at.
    """

    compute: Callable[..., Tensor]
    depth: Literal["k", "R"] | None
    first_only: bool = False


METRICS: dict[str, Metric] = {
    "r@k": Metric(r_at_k, "k", first_only=True),
    "recall@k": Metric(recall_at_k, "k"),
    "map": Metric(average_precision, None),
    "map@r": Metric(average_precision_at_r, "R"),
    "r_precision": Metric(r_precision, "R"),
    "mrr": Metric(reciprocal_rank, None, first_only=True),
    "first_rank": Metric(first_rank, None, first_only=True),
}


def checked_metrics(metrics: Sequence[str] | None) -> list[str]:
    """The names to compute, in the table's order; all of them for None."""
    asked = list(METRICS) if metrics is None else list(metrics)
    unknown = [name for name in asked if name not in METRICS]
    if unknown or not asked:
        raise InputError(f"metrics: {unknown or 'nothing'} asked for; choose from {', '.join(METRICS)}.")
    return [name for name in METRICS if name in asked]


def checked_ks(ks: Sequence[int]) -> list[int]:
    """The ks in ascending order, without repetition."""
    bad = [k for k in ks if isinstance(k, bool) or int(k) != k or k < 1]
    if bad or not len(ks):
        raise InputError(f"ks={list(ks)}: whole numbers from 1 on expected; a first place is k = 1.")
    return sorted({int(k) for k in ks})


def limits_for(metrics: Sequence[str], ks: Sequence[int]) -> Limits:
    """How many negatives above the j-th positive put it beyond what the given metrics look at.

    A positive with j − 1 better ones and n negatives above is at rank j + n, so depth D is passed when n ≥ D − j + 1.
    """
    asked = [METRICS[name] for name in metrics]

    def limits(positives: Tensor, width: int) -> Tensor:
        place = torch.arange(1, width + 1, device=positives.device).unsqueeze(0)
        result = torch.zeros(len(positives), width, dtype=torch.int64, device=positives.device)
        for metric in asked:
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


def compute(tile: RankTile, metrics: Sequence[str], ks: Sequence[int]) -> dict[str, Tensor]:
    """The asked metrics of a tile's queries: ``r@1``, ``recall@10``, ``map``, … → one value a query."""
    values: dict[str, Tensor] = {}
    for name in metrics:
        metric = METRICS[name]
        if metric.depth == "k":
            for k in ks:
                values[name.replace("@k", f"@{k}")] = metric.compute(tile.ranks, tile.positives, k)
        else:
            values[name] = metric.compute(tile.ranks, tile.positives)
    return values


def columns(metrics: Sequence[str], ks: Sequence[int]) -> list[str]:
    """The names ``compute`` returns."""
    names = []
    for name in metrics:
        names += [name.replace("@k", f"@{k}") for k in ks] if METRICS[name].depth == "k" else [name]
    return names


def _places(ranks: Tensor) -> Tensor:
    return torch.arange(1, ranks.shape[1] + 1, dtype=torch.float64, device=ranks.device)


def _total(values: Tensor) -> Tensor:
    """Row sums, added from left to right: how far a row is padded must not change even the last digit."""
    return values.cumsum(dim=1)[:, -1]
