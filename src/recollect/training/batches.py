"""Where a step's inputs come from: pixels through the pipeline, or cached features of a frozen part.

The loop and the evaluation see only ``Feed``; which one it is decides ``parts.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recollect.data import Pipeline
from recollect.data.transforms.longer_side import LongerSide
from recollect.inference.vector_store import Rows

Indices = NDArray[np.int64]


class Fed(NamedTuple):
    """Inputs of the network, their labels, and which images of the set they are.

    ``stream`` gives a list where images keep sizes of their own; ``sequential`` always gives a tensor.
    """

    inputs: Tensor | list[Tensor]
    labels: Tensor
    indices: Indices


class Feed(Protocol):
    """Gives batches of one image set."""

    def stream(self, batches: Iterable[Indices], epoch: int, first: int = 0) -> Iterator[Fed]:
        """Batches for training, in order; ``first`` is the number of the first within its epoch."""

    def sequential(self, batch_size: int) -> Iterator[Fed]:
        """Every image once, in order, for evaluation."""

    def example(self) -> tuple[Tensor, float]:
        """One input as large as any, with a first dimension of 1; and how much of that an input has on average."""

    def prepare(self) -> None:
        """Do now what takes long and is done once, before anything is written."""

    def close(self) -> None:
        """Let go of threads."""


_LOOKED_AT = 256  # images whose headers tell how large images are


class PixelFeed:
    """Images through a ``Pipeline``."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline

    def stream(self, batches: Iterable[Indices], epoch: int, first: int = 0) -> Iterator[Fed]:
        """See ``Feed``."""
        return (Fed(*batch) for batch in self.pipeline.stream(batches, epoch, first))

    def sequential(self, batch_size: int) -> Iterator[Fed]:
        """See ``Feed``."""
        return (Fed(*batch) for batch in self.pipeline.sequential(batch_size))

    def example(self) -> tuple[Tensor, float]:
        """See ``Feed``. Images that keep sizes of their own are judged by the headers of some of them."""
        transform, images = self.pipeline.transform, self.pipeline.images
        if not isinstance(transform, LongerSide):
            inputs = next(self.stream([np.zeros(1, np.int64)], 0)).inputs
            return inputs if isinstance(inputs, Tensor) else inputs[0][None], 1.0
        some = np.unique(np.linspace(0, len(images) - 1, _LOOKED_AT).astype(np.int64)).tolist()
        sizes = [size for index in some if (size := self.pipeline.size(index))]
        side = transform.imsize or max((max(size) for size in sizes), default=1)
        average = float(np.mean([height * width for height, width in sizes])) if sizes else side * side
        return torch.zeros(1, 3, side, side, dtype=torch.uint8), average / side**2

    def prepare(self) -> None:
        """See ``Feed``."""

    def close(self) -> None:
        """See ``Feed``."""
        self.pipeline.close()


class FeatureFeed:
    """Rows of an array of features.

    Args:
        compute: gives all of them; called when they are first needed, so that a plan need not wait for them.
        example: gives the first alone, 1 × ….
        labels: of the images.
    """

    def __init__(self, compute: Callable[[], Rows], example: Callable[[], Tensor], labels: Indices) -> None:
        self._compute, self._example, self.labels = compute, example, labels

    @cached_property
    def features(self) -> Rows:
        """All features."""
        return self._compute()

    def stream(self, batches: Iterable[Indices], epoch: int, first: int = 0) -> Iterator[Fed]:
        """See ``Feed``."""
        return (self._rows(indices) for indices in batches)

    def sequential(self, batch_size: int) -> Iterator[Fed]:
        """See ``Feed``."""
        count = len(self.labels)
        return (self._rows(np.arange(start, min(start + batch_size, count))) for start in range(0, count, batch_size))

    def example(self) -> tuple[Tensor, float]:
        """See ``Feed``."""
        return self._example(), 1.0

    def prepare(self) -> None:
        """See ``Feed``."""
        _ = self.features

    def close(self) -> None:
        """See ``Feed``."""

    def _rows(self, indices: Indices) -> Fed:
        return Fed(torch.from_numpy(self.features[indices]), torch.from_numpy(self.labels[indices]), indices)
