"""Embedding a set and measuring it during training, and the rule that picks the weights to keep.

Validation picks: by r@k of held-out classes, or by the mean average precision of queries with ground truth (SfM-120k).
The test set never does. Without validation the last weights are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from recollect.common.console import ProgressLine
from recollect.common.errors import ConfigError
from recollect.common.images import Preprocessing
from recollect.data import ImageSet, RevisitedBenchmark
from recollect.evaluation import evaluate, evaluate_revisited
from recollect.step.model_inputs import take_rows
from recollect.step.team import Team
from recollect.training.batches import Feed

FEW_QUERIES = 500
"""Below so many, chance moves r@1 by more than two points: 50 / √500."""
KS = (1, 2, 4, 8, 10, 16, 32, 100, 1000)
"""Every k that the paper's benchmarks report, and powers of two between."""


@dataclass(frozen=True)
class Watched:
    """A set that is measured on the way, and this process's part of it."""

    name: str
    images: ImageSet
    feed: Feed
    start: int = 0
    """Which image of the whole set is the first of ``feed``."""
    at_once: int = 128
    """Images in the network at once."""
    benchmark: RevisitedBenchmark | None = None
    """Queries and ground truth, if that is what the set is measured by; ``images`` is then its database."""


def images_at_once(preprocessing: Preprocessing) -> int:
    """As many as have the pixels of 128 images of 224, which any network that can be trained here can embed."""
    return max(1, min(128, 128 * 224**2 // preprocessing.size**2))


def embed(
    network: nn.Module, watched: Watched, device: torch.device, dtype: torch.dtype | None, quiet: bool | None = None
) -> tuple[Tensor, Tensor]:
    """This process's embeddings of a set, and which images they are of. The network is left in the mode it was in."""
    was_training = network.training
    network.eval()
    parts, places = [], []
    try:
        with (
            torch.no_grad(),
            torch.autocast(device.type, dtype=dtype, enabled=dtype is not None),
            ProgressLine(f"evaluating {watched.name}", len(watched.images), quiet=quiet, live=False) as line,
        ):
            for fed in watched.feed.sequential(watched.at_once):
                parts.append(network(take_rows(fed.inputs, slice(None), device)).float())
                places.append(fed.indices + watched.start)
                line.advance(len(fed.indices))
    finally:
        network.train(was_training)
    return torch.cat(parts), torch.from_numpy(np.concatenate(places)).to(device)


def measure(
    network: nn.Module, watched: Watched, team: Team, device: torch.device, dtype: torch.dtype | None = None
) -> dict[str, float]:
    """Metrics of a set as fractions, the same on every process."""
    whole = team.gather(*embed(network, watched, device, dtype, quiet=None if team.rank == 0 else True))
    shared = team.size > 1
    if watched.benchmark is not None:
        database = torch.empty_like(whole.embeddings)
        database[whole.labels] = whole.embeddings  # images of equal size were embedded together
        return _mean_average_precision(database, watched.benchmark, shared)
    labels = torch.from_numpy(watched.images.labels).to(device)[whole.labels]
    return evaluate(whole.embeddings, labels, ks=KS, metrics=("r@k", "map@r"), distributed=shared).metrics


def _mean_average_precision(database: Tensor, benchmark: RevisitedBenchmark, distributed: bool) -> dict[str, float]:
    """``map`` and ``mp@k`` of queries that are images of the database."""
    queries = database[torch.from_numpy(benchmark.query_rows).to(database.device)]
    truth = benchmark.ground_truth
    # Every positive of a validation query counts as easy.
    found = evaluate_revisited(
        queries, database, truth, setups=("easy",), device=database.device, distributed=distributed
    )
    return {name.removeprefix("easy/"): value for name, value in found.metrics.items()}


def merit(metrics: Mapping[str, float], select: str, step: int) -> tuple[float, float, int]:
    """What an evaluation is compared by: the metric that selects; among equals mAP@R, then the later step.

    r@1 of a few hundred queries has few values, and without a rule the least trained of equal weights would be kept.
    """
    return chosen_value(metrics, select), metrics.get("map@r", 0.0), step


def chosen_value(metrics: Mapping[str, float], name: str) -> float:
    """The metric that selects, or an error that lists those there are."""
    if name not in metrics:
        raise ConfigError(f"run.select {name!r} is not measured: choose one of {', '.join(metrics)}.")
    return metrics[name]
