"""A network is measured in evaluation mode and left in the mode it was in."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from recollect.common.errors import ConfigError
from recollect.data import ImageSet
from recollect.inference.vectors import SetRows
from recollect.step.distributed import Processes
from recollect.training.batches import FeatureBatches
from recollect.training.judging import Watched, embed, evaluate_watched, merit

CPU = torch.device("cpu")
FEATURES = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
ROWS = SetRows(FEATURES, np.zeros((len(FEATURES), 16), np.uint8))
LABELS = np.arange(40) // 4


@pytest.fixture
def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, 4))


@pytest.fixture
def watched() -> Watched:
    images = ImageSet(
        name="made", split="val", names=[str(k) for k in range(40)], labels=LABELS, class_names=[str(k) for k in range(10)],
        arrays=np.zeros((40, 2, 2, 3), np.uint8),
    )  # fmt: skip
    feed = FeatureBatches(ROWS, LABELS)
    return Watched("val", images, feed, at_once=16)


def test_embeddings_are_those_of_evaluation_mode(network: nn.Module, watched: Watched) -> None:
    network.eval()
    with torch.no_grad():
        expected = network(torch.from_numpy(FEATURES))
    network.train()
    vectors, places = embed(network, watched, CPU, None)
    assert torch.allclose(vectors, expected, atol=1e-6)
    assert places.tolist() == list(range(40))
    assert not torch.allclose(network(torch.from_numpy(FEATURES)), expected, atol=1e-2), "nothing is random here"
    assert evaluate_watched(network, watched, Processes(), CPU) == evaluate_watched(network, watched, Processes(), CPU)
    assert all(module.training for module in network.modules()), "the mode is restored"


def test_the_metric_that_selects() -> None:
    assert merit({"r@1": 0.5}, "r@1", 7) == (0.5, 0.0, 7)
    assert merit({"r@1": 0.5, "map@r": 0.3}, "r@1", 3) > merit({"r@1": 0.5, "map@r": 0.2}, "r@1", 7), "among equals"
    with pytest.raises(ConfigError, match=r"r@3.*r@1"):
        merit({"r@1": 0.5}, "r@3", 7)
