"""Confidence intervals and comparisons of two runs: resampling of per-query values.

Queries of one class share their positives, so their values move together and resampling single queries makes
intervals too narrow; ``by="class"`` (the default) draws whole classes. Everything here reads only
``Evaluation``s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from recollect.common.errors import InputError
from recollect.evaluation.result import Evaluation

Unit = Literal["class", "query"]


@dataclass(frozen=True)
class Interval:
    """A mean with its percentile bootstrap interval."""

    mean: float
    low: float
    high: float
    level: float


@dataclass(frozen=True)
class Comparison:
    """The difference ``second − first`` of a metric's means on the same queries.

    Attributes:
        p_value: two-sided: twice the share of resamples on the side of zero opposite to most, at least 1/resamples.
        compared_by: how both were checked to be of the same queries: by their ``ids``, or, if one of the two has none,
            by ``labels`` alone. Different images of the same classes would pass the check by labels.
    """

    difference: float
    low: float
    high: float
    level: float
    p_value: float
    compared_by: Literal["ids", "labels"] = "labels"


@dataclass(frozen=True)
class Changes:
    """Numbers of the queries whose value rose or fell from the first run to the second, largest change first."""

    better: NDArray[np.int64]
    worse: NDArray[np.int64]


def confidence_interval(
    result: Evaluation,
    metric: str,
    *,
    level: float = 0.95,
    resamples: int = 1000,
    by: Unit = "class",
    seed: int = 0,
) -> Interval:
    """Percentile bootstrap interval of the metric's mean, resampling classes (or queries).

    Examples:
        >>> from recollect.evaluation import evaluate
        >>> result = evaluate([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]], [0, 0, 1, 1], ks=[1])
        >>> confidence_interval(result, "r@1").low
        1.0
    """
    counted = result.positives > 0
    values = result.values(metric)[counted]
    means = _resampled_means(values, result.labels[counted], resamples, by, seed)
    low, high = _percentiles(means, level)
    return Interval(float(values.mean()), low, high, level)


def paired_bootstrap(
    first: Evaluation,
    second: Evaluation,
    metric: str,
    *,
    level: float = 0.95,
    resamples: int = 1000,
    by: Unit = "class",
    seed: int = 0,
) -> Comparison:
    """Resample the per-query differences of two runs on the same queries.

    Pairing removes what both runs have in common (hard queries are hard for both), so it detects far smaller
    differences than comparing two intervals.
    """
    compared_by = _check_same_queries(first, second)
    counted = first.positives > 0
    difference, labels = (second.values(metric) - first.values(metric))[counted], first.labels[counted]
    means = _resampled_means(difference, labels, resamples, by, seed)
    low, high = _percentiles(means, level)
    smaller_side = min(float((means <= 0).mean()), float((means >= 0).mean()))
    p_value = min(1.0, max(2 * smaller_side, 1 / resamples))
    return Comparison(float(difference.mean()), low, high, level, p_value, compared_by)


def changed_queries(first: Evaluation, second: Evaluation, metric: str = "r@1") -> Changes:
    """Which queries improved and which got worse. For metrics like ``first_rank`` a smaller value is better."""
    _check_same_queries(first, second)
    change = np.nan_to_num(second.values(metric) - first.values(metric))
    if metric in (*second.settings.get("lower_is_better", ()), "first_rank"):
        change = -change
    order = np.argsort(-np.abs(change), kind="stable")
    return Changes(better=order[change[order] > 0], worse=order[change[order] < 0])


def _check_same_queries(first: Evaluation, second: Evaluation) -> Literal["ids", "labels"]:
    """Raise an error if the results are of different queries; returns what they were compared by."""
    if len(first.labels) != len(second.labels) or not np.array_equal(first.labels, second.labels):
        raise InputError(
            f"the two results are of different queries (there are {len(first.labels)} and {len(second.labels)}, or their "
            "labels differ): evaluate both runs on the same set in the same order."
        )
    known = first.ids is not None and second.ids is not None
    if first.ids is not None and second.ids is not None and not np.array_equal(first.ids, second.ids):
        where = int(np.flatnonzero(first.ids != second.ids)[0])
        raise InputError(
            f"the two results are of different queries: number {where} is {first.ids[where]!s} in one and "
            f"{second.ids[where]!s} in the other; evaluate both runs on the same images in the same order."
        )
    if not np.array_equal(first.positives, second.positives):
        raise InputError(
            "the two results have different positives for the same queries: use the same gallery and junk."
        )
    return "ids" if known else "labels"


def _resampled_means(
    values: NDArray[np.float64], labels: NDArray[np.int64], resamples: int, by: Unit, seed: int
) -> NDArray[np.float64]:
    """The mean of each resample: classes or queries are drawn with replacement, each with all its values."""
    if resamples < 1:
        raise InputError(f"resamples={resamples}: give 1 or more; 1000 is usual.")
    sums: NDArray[np.float64]
    sizes: NDArray[np.float64]
    if by == "class":
        _, place = np.unique(labels, return_inverse=True)
        sums = np.asarray(np.bincount(place, weights=values), dtype=np.float64)
        sizes = np.bincount(place).astype(np.float64)
    elif by == "query":
        sums, sizes = values, np.ones(len(values))
    else:
        raise InputError(f"by={by!r} is unknown: choose 'class' or 'query'.")
    random = np.random.default_rng(seed)
    means = np.empty(resamples)
    for number in range(resamples):
        drawn = random.integers(0, len(sums), len(sums))
        means[number] = sums[drawn].sum() / sizes[drawn].sum()
    return means


def _percentiles(means: NDArray[np.float64], level: float) -> tuple[float, float]:
    if not 0 < level < 1:
        raise InputError(f"level={level}: give a fraction between 0 and 1, such as 0.95.")
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
