"""All metrics, each a short function of ranks.

Letters: a query has R positives; ``ranks`` is q × P, the ranks of a few queries' positives in ascending order, 1 for
the top, +inf as padding; ``positives`` is their R. The j-th positive (j = 1 … R) is at rank r_j.

To add a metric: write the function, and add a line to ``METRICS`` that says which ranks it looks at. From outside, give
``evaluate`` a ``Metric``, the function itself, or a reference (``my.py:metric``, see ``common/plugins.py``). The streaming
pass stops counting beyond the depth that the requested metrics need, so the stated depth must be correct: a rank beyond it
may be any larger number.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from recollect.common import plugins
from recollect.common.errors import ConfigError, InputError
from recollect.evaluation.result import RESERVED
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
            raise InputError(
                f"metric {name!r}: compute is {self.compute!r}; it must be a function of (ranks, positives)."
            )
        if not name or not all(part.isidentifier() for part in name.replace("@", "_").split("-")) or name in RESERVED:
            raise InputError(
                f"a metric cannot be called {name!r}: use letters, digits, '_', '-' and '@', and none of the names "
                f"{', '.join(RESERVED)}; for example Metric(compute, name='last_rank')."
            )
        if self.depth not in ("k", "R", None):
            raise InputError(f"metric {name!r}: depth={self.depth!r}; choose 'k', 'R' or None.")
        if (self.depth == "k") != name.endswith("@k"):
            raise InputError(
                f"metric {name!r}: a name must end in '@k' if depth is 'k', and only then; rename it or change the depth."
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
        InputError: there is no such metric. ConfigError: a reference to nothing, or to something that is not a metric.
    """
    if name in METRICS:
        return METRICS[name]
    loaded = plugins.load("metric", name)
    if loaded is None:
        raise InputError(str(plugins.unknown("metric", name, METRICS)))
    if not isinstance(loaded.target, Metric) and not callable(loaded.target):
        raise ConfigError(
            f"metric {loaded.short!r} is a {type(loaded.target).__name__}: it must be a function of (ranks, positives) or "
            "a Metric."
        )
    return loaded.target if isinstance(loaded.target, Metric) else Metric(loaded.target)


def checked_metrics(metrics: Sequence[MetricLike] | None) -> list[Metric]:
    """The metrics to compute: those of the table in its order, then the others. None means all of the table."""
    if metrics is None:
        return list(METRICS.values())
    if not len(metrics):
        raise InputError(f"metrics: the list is empty; choose from {', '.join(METRICS)}.")
    asked = {metric for metric in metrics if isinstance(metric, str) and metric in METRICS}
    found = [find_metric(m) if isinstance(m, str) else m for m in metrics if m not in asked]
    others = [m if isinstance(m, Metric) else Metric(m) for m in found]
    names = [*(name for name in METRICS if name in asked), *(metric.name for metric in others)]
    taken = {metric.name for metric in others if names.count(metric.name) > 1 or metric.name in METRICS}
    if taken:
        raise InputError(
            f"metrics: the name {', '.join(sorted(taken))} is already in use; give your own metric another name."
        )
    return [*(METRICS[name] for name in METRICS if name in asked), *others]


TRACKED_KS = (1, 2, 4, 8, 10, 16, 32, 100, 1000)
"""Every k that the paper's benchmarks report, and powers of two in between; used during training and in reports."""


def default_ks(items: int) -> list[int]:
    """1, 10, 100 and 1000, as far as they are below the number of items: with a larger k every query has a hit."""
    return [k for k in (1, 10, 100, 1000) if k < items] or [1]


def checked_ks(ks: Sequence[int]) -> list[int]:
    """The ks in ascending order, without repetition."""
    try:
        sound = len(ks) > 0 and all(not isinstance(k, bool) and 1 <= operator.index(k) < 2**62 for k in ks)
    except TypeError:  # a single number, text, a fraction
        sound = False
    if not sound:
        raise InputError(f"ks={ks!r}: give a list of whole numbers, 1 or more, e.g. [1, 10]; k = 1 is the first place.")
    return sorted({int(k) for k in ks})


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
                found = metric.compute(tile.ranks, tile.positives, *([] if k is None else [k]))
            if not isinstance(found, Tensor) or found.shape != tile.positives.shape:
                shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
                raise InputError(
                    f"metric {name!r} returned {shape} for {len(tile.positives)} queries: it must return a tensor with "
                    "one value per query."
                )
            values[name] = found.double()
    return values


def columns(metrics: Sequence[Metric], ks: Sequence[int]) -> list[str]:
    """The names ``compute`` returns."""
    return [name for metric in metrics for name in metric.columns(ks)]


def _places(ranks: Tensor) -> Tensor:
    return torch.arange(1, ranks.shape[1] + 1, dtype=torch.float64, device=ranks.device)


def _total(values: Tensor) -> Tensor:
    """Row sums, added from left to right: how far a row is padded must not change even the last digit."""
    return values.cumsum(dim=1)[:, -1]
