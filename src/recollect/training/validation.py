"""Evaluation during training, and the rule that selects the weights to keep.

Weights are selected on validation images: by r@k of held-out classes, or by the mean average precision of queries with
ground truth (SfM-120k), never on the test set. Without validation the last weights are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from recollect.common import plugins
from recollect.common.console import ProgressLine
from recollect.common.errors import ConfigError
from recollect.data import ImageSet, RevisitedBenchmark
from recollect.evaluation.metrics import TRACKED_KS, Metric, find_metric
from recollect.inference.evaluate import measure_benchmark, measure_labelled
from recollect.inference.vectors import run_network
from recollect.step.team import Team
from recollect.training.batches import Feed


@dataclass(frozen=True)
class Watched:
    """A set that is evaluated during training, and this process's part of it."""

    name: str
    images: ImageSet
    feed: Feed
    start: int = 0
    """The number of the first image of ``feed`` in the whole set."""
    at_once: int = 128
    """Images in the network at once."""
    benchmark: RevisitedBenchmark | None = None
    """Queries and ground truth, if the set has them; ``images`` is then its database."""


def embed(
    network: nn.Module, watched: Watched, device: torch.device, dtype: torch.dtype | None, quiet: bool | None = None
) -> tuple[Tensor, Tensor]:
    """This process's embeddings of a set, and the numbers of the images. The network's mode is restored."""
    parts, places = [], []
    batches = ((fed.inputs, fed.indices + watched.start) for fed in watched.feed.sequential(watched.at_once))
    with ProgressLine(f"evaluating {watched.name}", len(watched.images), quiet=quiet, live=False) as line:
        for part, place in run_network(network, batches, device, dtype):
            parts.append(part)
            places.append(place)
            line.advance(len(place))
    return torch.cat(parts), torch.from_numpy(np.concatenate(places)).to(device)


def measure(
    network: nn.Module,
    watched: Watched,
    team: Team,
    device: torch.device,
    dtype: torch.dtype | None = None,
    select: str = "r@1",
) -> dict[str, float]:
    """Metrics of a set, r@k and mAP as fractions, the same on every process; ``select`` is among them if it can be."""
    whole = team.gather(*embed(network, watched, device, dtype, quiet=None if team.rank == 0 else True))
    shared = team.size > 1
    if watched.benchmark is not None:
        database = torch.empty_like(whole.embeddings)
        database[whole.labels] = whole.embeddings  # images of equal size were embedded together
        return measure_benchmark(database, watched.benchmark, distributed=shared)
    labels = torch.from_numpy(watched.images.labels).to(device)[whole.labels]
    own = own_metric(select)
    # Without those that cannot fail: a query finds at most all other images.
    ks = [k for k in TRACKED_KS if k < len(watched.images) - 1 or k == 1 or f"r@{k}" == select]
    return measure_labelled(whole.embeddings, labels, ks=ks, more=[] if own is None else [own], distributed=shared)


def merit(metrics: Mapping[str, float], select: str, step: int) -> tuple[float, float, int]:
    """The key for comparing evaluations: the selection metric; among equals mAP@R, then the later step.

    r@1 of a few hundred queries has few distinct values, and without a rule the earliest of equal weights would be kept. A
    custom metric for which lower is better is negated.
    """
    own = own_metric(select)
    sign = 1.0 if own is None or own.higher_is_better else -1.0
    return sign * chosen_value(metrics, column_of(select)), metrics.get("map@r", 0.0), step


def own_metric(select: str) -> Metric | None:
    """The custom metric that ``run.select`` names; None for those that are always computed."""
    return find_metric(select) if plugins.knows("metric", select) else None


def column_of(select: str) -> str:
    """The name of ``run.select`` among the metrics; for a metric at several k, that of the first k."""
    own = own_metric(select)
    return select if own is None else next(iter(own.columns(TRACKED_KS)))


def chosen_value(metrics: Mapping[str, float], name: str) -> float:
    """The value of the selection metric; raises an error that lists the available ones."""
    if name not in metrics:
        raise ConfigError(f"run.select {name!r} is not computed: choose one of {', '.join(metrics)}.")
    return metrics[name]
