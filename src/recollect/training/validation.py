"""Embedding a set and measuring it during training, and the rule that picks the weights to keep.

Validation classes pick; the test set never does. Without validation classes the last weights are kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from recollect.common.errors import ConfigError
from recollect.data import ImageSet
from recollect.evaluation import evaluate
from recollect.training.distributed import Team
from recollect.training.feeds import Feed

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


def embed(
    network: nn.Module, watched: Watched, device: torch.device, dtype: torch.dtype | None
) -> tuple[Tensor, Tensor]:
    """This process's embeddings and labels of a set, on the device. The network is left in the mode it was in."""
    was_training = network.training
    network.eval()
    parts, places = [], []
    try:
        with torch.no_grad(), torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
            for fed in watched.feed.sequential(128):
                parts.append(network(fed.inputs.to(device)).float())
                places.append(fed.indices + watched.start)
    finally:
        network.train(was_training)
    labels = torch.from_numpy(watched.images.labels[np.concatenate(places)]).to(device)
    return torch.cat(parts), labels


def measure(
    network: nn.Module, watched: Watched, team: Team, device: torch.device, dtype: torch.dtype | None = None
) -> dict[str, float]:
    """Metrics of a set as fractions, the same on every process."""
    embeddings, labels = embed(network, watched, device, dtype)
    whole = team.gather(embeddings, labels)
    result = evaluate(whole.embeddings, whole.labels, ks=KS, metrics=("r@k", "map@r"), distributed=team.size > 1)
    return result.metrics


def chosen_value(metrics: dict[str, float], name: str) -> float:
    """The metric that selects, or an error that lists those there are."""
    if name not in metrics:
        raise ConfigError(f"run.select {name!r} is not measured: choose one of {', '.join(metrics)}.")
    return metrics[name]
