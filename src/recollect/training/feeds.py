"""Where a step's inputs come from: pixels through the pipeline, or cached features of a frozen part.

The loop and the evaluation see only ``Feed``; which one it is decides ``parts.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recollect.data import Pipeline
from recollect.training.features import Features

Indices = NDArray[np.int64]


class Fed(NamedTuple):
    """Inputs of the network, their labels, and which images of the set they are."""

    inputs: Tensor
    labels: Tensor
    indices: Indices


class Feed(Protocol):
    """Gives batches of one image set."""

    def stream(self, batches: Iterable[Indices], epoch: int) -> Iterator[Fed]:
        """Batches for training, in order."""

    def sequential(self, batch_size: int) -> Iterator[Fed]:
        """Every image once, in order, for evaluation."""

    def close(self) -> None:
        """Let go of threads."""


class PixelFeed:
    """Images through a ``Pipeline``."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline

    def stream(self, batches: Iterable[Indices], epoch: int) -> Iterator[Fed]:
        """See ``Feed``."""
        return (Fed(*batch) for batch in self.pipeline.stream(batches, epoch))

    def sequential(self, batch_size: int) -> Iterator[Fed]:
        """See ``Feed``."""
        return (Fed(*batch) for batch in self.pipeline.sequential(batch_size))

    def close(self) -> None:
        """See ``Feed``."""
        self.pipeline.close()


class FeatureFeed:
    """Rows of an array of features."""

    def __init__(self, features: Features, labels: Indices) -> None:
        self.features, self.labels = features, labels

    def stream(self, batches: Iterable[Indices], epoch: int) -> Iterator[Fed]:
        """See ``Feed``."""
        return (self._rows(indices) for indices in batches)

    def sequential(self, batch_size: int) -> Iterator[Fed]:
        """See ``Feed``."""
        count = len(self.labels)
        return (self._rows(np.arange(start, min(start + batch_size, count))) for start in range(0, count, batch_size))

    def close(self) -> None:
        """See ``Feed``."""

    def _rows(self, indices: Indices) -> Fed:
        return Fed(torch.from_numpy(self.features[indices]), torch.from_numpy(self.labels[indices]), indices)
