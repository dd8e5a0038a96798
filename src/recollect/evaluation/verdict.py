"""Whether a training helped: confidence intervals, comparisons of two runs, and the verdict in one sentence.

Everything here reads only ``Evaluation``s. Intervals come from resampling of per-query values. Queries of one class share
their positives, so their values move together and resampling single queries makes intervals too narrow; ``by="class"`` (the
default) draws whole classes. ``verdict`` is built on ``paired_bootstrap``: the first metric that changed clearly decides;
values over classes (macro averages) are carried along for tables. ``Verdict.as_dict`` goes into a run's manifest,
``Verdict.sentence`` is shown to users.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from recollect.common.errors import DataError, InputError
from recollect.common.text import in_decimals, number_of
from recollect.evaluation.retrieval import Evaluation

Unit = Literal["class", "query"]


LEVEL = 0.95
"""Of every confidence interval that nobody asked to be another."""


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
    result: Evaluation, metric: str, *, level: float = LEVEL, resamples: int = 1000, by: Unit = "class", seed: int = 0
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
    _, low, high = _resampled_means(values, result.labels[counted], level, resamples, by, seed)
    return Interval(float(values.mean()), low, high, level)


def paired_bootstrap(
    first: Evaluation,
    second: Evaluation,
    metric: str,
    *,
    level: float = LEVEL,
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
    means, low, high = _resampled_means(difference, labels, level, resamples, by, seed)
    smaller_side = min(float((means <= 0).mean()), float((means >= 0).mean()))
    p_value = min(1.0, max(2 * smaller_side, 1 / resamples))
    return Comparison(float(difference.mean()), low, high, level, p_value, compared_by)


def changed_queries(first: Evaluation, second: Evaluation, metric: str = "r@1") -> Changes:
    """Which queries improved and which got worse. For metrics like ``first_rank`` a smaller value is better."""
    _check_same_queries(first, second)
    change = np.nan_to_num(second.values(metric) - first.values(metric))
    if _lower_is_better(second, metric):
        change = -change
    order = np.argsort(-np.abs(change), kind="stable")
    return Changes(better=order[change[order] > 0], worse=order[change[order] < 0])


def _lower_is_better(result: Evaluation, metric: str) -> bool:
    return metric in (*result.settings.get("lower_is_better", ()), "first_rank")


def _check_same_queries(first: Evaluation, second: Evaluation) -> Literal["ids", "labels"]:
    """Raise an error if the results are of different queries; returns what they were compared by."""
    if len(first.labels) != len(second.labels) or not np.array_equal(first.labels, second.labels):
        raise InputError(
            f"the two results are of different queries (there are {len(first.labels)} and {len(second.labels)}, or their "
            "labels differ): evaluate both runs on the same set in the same order."
        )
    ids = [result.ids for result in (first, second) if result.ids is not None]
    if len(ids) == 2 and not np.array_equal(ids[0], ids[1]):
        where = int(np.flatnonzero(ids[0] != ids[1])[0])
        raise InputError(
            f"the two results are of different queries: number {where} is {ids[0][where]!s} in one and "
            f"{ids[1][where]!s} in the other; evaluate both runs on the same images in the same order."
        )
    if not np.array_equal(first.positives, second.positives):
        raise InputError(
            "the two results have different positives for the same queries: use the same gallery and junk."
        )
    return "ids" if len(ids) == 2 else "labels"


def _resampled_means(
    values: NDArray[np.float64], labels: NDArray[np.int64], level: float, resamples: int, by: Unit, seed: int
) -> tuple[NDArray[np.float64], float, float]:
    """The mean of each resample and their interval: classes or queries are drawn with replacement, with all their values."""
    if resamples < 1 or not 0 < level < 1:
        raise InputError(f"resamples={resamples}, level={level}: give 1 or more and a fraction, such as 1000 and 0.95.")
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
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return means, float(low), float(high)


HELPED: Literal["helped"] = "helped"
UNCLEAR: Literal["no clear change"] = "no clear change"
WORSE: Literal["made it worse"] = "made it worse"
Judgement = Literal["helped", "no clear change", "made it worse"]

FEW_QUERIES = 500
"""With fewer queries, chance changes r@1 by more than two points (50 / √500): only large differences can be distinguished."""
_DISPLAY_NAMES = {"map@r": "mAP@R", "map": "mAP", "mrr": "MRR", "r_precision": "R-precision"}


@dataclass(frozen=True)
class MetricChange:
    """One metric before and after, as fractions.

    Attributes:
        metric: its name in ``Evaluation``.
        before, after: means over queries. macro_before, macro_after: means over classes.
        difference: after − before. low, high: its interval (bootstrap over classes).
        judgement: whether zero is outside the interval, and on which side.
    """

    metric: str
    before: float
    after: float
    difference: float
    low: float
    high: float
    judgement: Judgement
    macro_before: float
    macro_after: float

    def words(self, level: float = LEVEL, decided: bool = True) -> str:
        """For example ``mAP@R 37.0 → 41.9 (+4.9, 95 % CI 3.8 … 6.0)``.

        ``decided``: whether another metric decides, so that "no clear change" of this one is mentioned.
        """
        # A bound that would be shown as 0.0 gets a digit more: on which side of 0 it lies decides.
        ends = (100 * self.low, 100 * self.high)
        digits = 2 if any(0 < abs(end) < 0.05 for end in ends) else 1
        interval = f"{100 * level:.0f} % CI {' … '.join(in_decimals(end, digits) for end in ends)}"
        unclear = f": {UNCLEAR}" if decided and self.judgement == UNCLEAR else ""
        return f"{self.values()} ({in_decimals(100 * self.difference, 1, plus=True)}, {interval}{unclear})"

    def values(self) -> str:
        """Before and after, without the interval."""
        return f"{metric_name(self.metric)} {100 * self.before:.1f} → {100 * self.after:.1f}"


@dataclass(frozen=True)
class Verdict:
    """The comparison of two evaluations of the same queries.

    Attributes:
        judgement: ``"helped"``, ``"no clear change"`` or ``"made it worse"``.
        changes: per metric, the one that decides first.
        queries, classes: how many were compared.
        level: of the intervals.
        enough_classes: False if too few classes were compared to distinguish any difference from chance.
        subject: what was done in between, for sentences.

    Examples:
        >>> labels, ones = np.repeat(np.arange(10), 4), np.ones(40, np.int64)
        >>> before, after = (Evaluation({"r@1": np.full(40, value)}, labels, ones) for value in (0.5, 0.75))
        >>> result = verdict(before, after)
        >>> result.judgement
        'helped'
        >>> result.sentence()
        'r@1 50.0 → 75.0 (+25.0, 95 % CI 25.0 … 25.0): training helped. Only 40 queries of 10 classes.'
    """

    judgement: Judgement
    changes: tuple[MetricChange, ...]
    queries: int
    classes: int
    level: float = LEVEL
    enough_classes: bool = True
    subject: str = "training"

    def __getitem__(self, metric: str) -> MetricChange:
        for change in self.changes:
            if change.metric == metric:
                return change
        raise InputError(
            f"{metric!r} was not compared; available: {', '.join(change.metric for change in self.changes)}."
        )

    def sentence(self) -> str:
        """Values, their intervals and the judgement, in plain English."""
        ends = UNCLEAR if self.judgement == UNCLEAR else f"{self.subject} {self.outcome()}"
        return f"{self.numbers()}: {ends}. {self.caution()}".rstrip()

    def outcome(self) -> str:
        """The judgement, with the metric that decided if it is not the first one: "helped mAP@R" claims less than "helped"."""
        deciding = next((change for change in self.changes if change.judgement != UNCLEAR), None)
        if deciding is None or deciding is self.changes[0]:
            return self.judgement
        name = metric_name(deciding.metric)
        return f"helped {name}" if self.judgement == HELPED else f"made {name} worse"

    def numbers(self) -> str:
        """Values and their intervals; of too few classes there are none to trust."""
        if not self.enough_classes:
            return ", ".join(change.values() for change in self.changes)
        return ", ".join(change.words(self.level, self.judgement != UNCLEAR) for change in self.changes)

    def caution(self) -> str:
        """A warning if few queries or classes were compared; otherwise nothing."""
        if not self.enough_classes:
            few = number_of(self.classes, "test class is/test classes are")
            return f"{few} too few to distinguish a difference from chance."
        if self.queries < FEW_QUERIES:
            return f"Only {self.queries:,} queries of {number_of(self.classes, 'class')}."
        return ""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for a manifest."""
        return {**asdict(self), "changes": [asdict(change) for change in self.changes], "sentence": self.sentence()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Verdict:
        """The inverse of ``as_dict``.

        Raises:
            DataError: values that ``as_dict`` did not write.
        """
        try:
            changes = tuple(MetricChange(**_checked(MetricChange, change)) for change in values["changes"])
            if not changes:
                raise ValueError("no metric")
            return cls(changes=changes, **_checked(cls, {"subject": "training", **values}))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"not a verdict written by recollect ({error}).") from error


def verdict(
    before: Evaluation,
    after: Evaluation,
    metric: str = "r@1",
    *,
    more: Sequence[str] = ("map@r",),
    level: float = LEVEL,
    resamples: int = 1000,
    seed: int = 0,
) -> Verdict:
    """Compare ``after`` with ``before``, query by query.

    The first of ``metric`` and ``more`` whose interval leaves out zero decides. Whole classes are resampled, since queries
    of one class move together. Fewer than 6 classes decide nothing at 95 %: even if all of them changed in one direction,
    a sign test would not reach that level.

    Args:
        before, after: of the same queries, in the same order.
        metric: what is judged first.
        more: metrics to judge next and to show, if both evaluations have them.
        level: of the intervals.
        resamples, seed: of the bootstrap.

    Raises:
        InputError: evaluations of different queries, or without ``metric``.
    """
    after.values(metric)
    metrics = [metric, *(name for name in more if name in before.per_query and name in after.per_query)]
    classes = len(np.unique(before.labels[before.positives > 0]))
    enough = 2 * 0.5**classes < 1 - level
    changes = []
    for name in dict.fromkeys(metrics):
        change = paired_bootstrap(before, after, name, level=level, resamples=resamples, seed=seed)
        judgement: Judgement = UNCLEAR
        if enough and (change.low > 0 or change.high < 0):
            judgement = HELPED if (change.low > 0) != _lower_is_better(after, name) else WORSE
        values = (before.metrics[name], after.metrics[name], change.difference, change.low, change.high)
        changes.append(MetricChange(name, *values, judgement, before.macro[name], after.macro[name]))
    decided = next((change.judgement for change in changes if change.judgement != UNCLEAR), UNCLEAR)
    return Verdict(decided, tuple(changes), before.counted, classes, level, enough)


def metric_name(metric: str) -> str:
    """A metric's name for display: ``map@r`` is mAP@R."""
    return _DISPLAY_NAMES.get(metric, metric)


def _checked(kind: type[MetricChange | Verdict], values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of ``kind`` with a single value, of their types."""
    types: dict[Any, Callable[[Any], Any]] = {"float": float, "int": int, "bool": bool, "str": str, "Judgement": str}
    checked = {field.name: types[field.type](values[field.name]) for field in fields(kind) if field.type in types}
    numbers = [value for value in checked.values() if isinstance(value, float)]
    if checked["judgement"] not in get_args(Judgement) or not all(map(math.isfinite, numbers)):
        raise ValueError(f"judgement {checked['judgement']!r}")
    return checked
