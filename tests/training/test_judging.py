"""A network is measured in evaluation mode and left in the mode it was in."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn

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


class StochasticDepth(nn.Module):
    """A residual branch that is left out of half of the images while training."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        kept = torch.rand(len(x), 1) < 0.5 if self.training else 0.5
        return x + kept * self.branch(x)


@pytest.fixture(params=["dropout", "stochastic depth"])
def network(request: pytest.FixtureRequest) -> nn.Module:
    random = nn.Dropout(0.5) if request.param == "dropout" else StochasticDepth()
    return nn.Sequential(nn.Linear(6, 6), random, nn.Linear(6, 4))


@pytest.fixture
def watched() -> Watched:
    images = ImageSet(
        name="made", split="val", names=[str(k) for k in range(40)], labels=LABELS, class_names=[str(k) for k in range(10)],
        arrays=np.zeros((40, 2, 2, 3), np.uint8),
    )  # fmt: skip
    feed = FeatureBatches(ROWS, LABELS)
    return Watched("val", images, feed, at_once=16)


def in_evaluation_mode(network: nn.Module) -> Tensor:
    network.eval()
    with torch.no_grad():
        expected: Tensor = network(torch.from_numpy(FEATURES))
    network.train()
    return expected


def test_embeddings_are_those_of_evaluation_mode(network: nn.Module, watched: Watched) -> None:
    expected = in_evaluation_mode(network)
    vectors, places = embed(network, watched, CPU, None)
    assert torch.allclose(vectors, expected, atol=1e-6)
    assert places.tolist() == list(range(40))
    assert not torch.allclose(network(torch.from_numpy(FEATURES)), expected, atol=1e-2), "nothing is random here"


def test_a_measurement_repeats_itself(network: nn.Module, watched: Watched) -> None:
    network.train()
    assert evaluate_watched(network, watched, Processes(), CPU) == evaluate_watched(network, watched, Processes(), CPU)


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_is_restored(network: nn.Module, watched: Watched, training: bool) -> None:
    network.train(training)
    embed(network, watched, CPU, None)
    assert all(module.training is training for module in network.modules())


def test_the_mode_is_restored_after_an_error(network: nn.Module, watched: Watched) -> None:
    class Broken(FeatureBatches):
        def sequential(self, batch_size: int) -> Iterator[None]:  # type: ignore[override]
            raise OSError("the disk is gone")

    network.train()
    broken = Watched("val", watched.images, Broken(ROWS, LABELS))
    with pytest.raises(OSError, match="the disk"):
        embed(network, broken, CPU, None)
    assert all(module.training for module in network.modules())


def test_the_metric_that_selects() -> None:
    assert merit({"r@1": 0.5}, "r@1", 7) == (0.5, 0.0, 7)
    with pytest.raises(ConfigError, match=r"r@3.*r@1"):
        merit({"r@1": 0.5}, "r@3", 7)
