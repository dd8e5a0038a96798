"""The images of a step and their inputs: pixels from the pipeline, or stored features.

A sampler chooses the images; a ``Feed`` reads them. The loop and the evaluation use only ``Sampler`` and ``Feed``;
``make_sampler`` and ``make_feed`` create them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from recollect.common.errors import ConfigError, DataError
from recollect.common.images import BadImage
from recollect.config.schema import Config
from recollect.data import ClassBalancedSampler, ImageSet, Pipeline
from recollect.data.image_set import Indices
from recollect.data.transforms import make_augmentation
from recollect.inference.store import Rows
from recollect.inference.vectors import SetRows, first_feature, part_rows, seconds_of_rows
from recollect.models import Embedder


class Fed(NamedTuple):
    """Inputs of the network, their labels, and the numbers of the images.

    ``stream`` returns a list if images keep their own sizes; ``sequential`` always returns a tensor.
    """

    inputs: Tensor | list[Tensor]
    labels: Tensor
    indices: Indices


class Feed(Protocol):
    """Yields batches of one image set."""

    whole_images: bool
    """Whether inputs keep their own sizes."""

    def stream(self, batches: Iterable[Indices], epoch: int, first: int = 0) -> Iterator[Fed]:
        """Batches for training, in order; ``first`` is the number of the first within its epoch."""

    def sequential(self, batch_size: int) -> Iterator[Fed]:
        """Every image once, in order, for evaluation."""

    def example(self) -> tuple[Tensor, float]:
        """One input of the largest size, with a first dimension of 1; and the average size of an input relative to it."""

    def some(self, count: int, number: int = 0) -> Fed:
        """At most ``count`` inputs spread over the set, read now, for a plan; each ``number`` gives other inputs."""

    def prepare(self) -> None:
        """Do long work that is needed once, before anything is written."""

    def seconds_to_prepare(self) -> float:
        """How long ``prepare`` will take, measured on a few images."""

    @property
    def bad_images(self) -> list[BadImage]:
        """Images that could not be read so far and were skipped."""

    def close(self) -> None:
        """Stop the threads."""


_LOOKED_AT = 256  # images whose headers are read to find the average size


class PixelFeed:
    """Images through a ``Pipeline``."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.whole_images = pipeline.transform.size is None

    def stream(self, batches: Iterable[Indices], epoch: int, first: int = 0) -> Iterator[Fed]:
        """See ``Feed``."""
        return (Fed(*batch) for batch in self.pipeline.stream(batches, epoch, first))

    def sequential(self, batch_size: int) -> Iterator[Fed]:
        """See ``Feed``."""
        return (Fed(*batch) for batch in self.pipeline.sequential(batch_size))

    def example(self) -> tuple[Tensor, float]:
        """See ``Feed``. If images keep their own sizes, the headers of some of them are read."""
        transform, images = self.pipeline.transform, self.pipeline.images
        if transform.size is not None:
            inputs = next(self.stream([np.zeros(1, np.int64)], 0)).inputs
            return inputs if isinstance(inputs, Tensor) else inputs[0][None], 1.0
        some = np.unique(np.linspace(0, len(images) - 1, _LOOKED_AT).astype(np.int64)).tolist()
        sizes = [size for index in some if (size := self.pipeline.size(index))]
        side = transform.max_side or max((max(size) for size in sizes), default=1)
        average = float(np.mean([height * width for height, width in sizes])) if sizes else side * side
        return torch.zeros(1, 3, side, side, dtype=torch.uint8), average / side**2

    def some(self, count: int, number: int = 0) -> Fed:
        """See ``Feed``."""
        return Fed(*self.pipeline.load(_spread(len(self.pipeline.images), count, number), number=number))

    def prepare(self) -> None:
        """See ``Feed``."""

    def seconds_to_prepare(self) -> float:
        """See ``Feed``."""
        return 0.0

    @property
    def bad_images(self) -> list[BadImage]:
        """See ``Feed``."""
        return self.pipeline.bad_images

    def close(self) -> None:
        """See ``Feed``."""
        self.pipeline.close()


def _spread(total: int, count: int, number: int) -> Indices:
    count = min(count, total)
    indices: Indices = (np.arange(count) * (total // count) + number) % total
    return indices


class FeatureFeed:
    """Rows of an array of features.

    Rows of unreadable images are NaN. ``sequential`` leaves them out; in a batch each is replaced by another image of the
    class that is not in the batch, or left out if there is none.

    Args:
        compute: returns all features; called when they are first needed, so that a plan need not wait for them.
        example: returns the first one only, 1 × ….
        seconds: returns how long ``compute`` will take.
        labels: labels of the images.
        seed: seed for the choice of replacements.
        replaces: False leaves unreadable images out of every batch.
    """

    whole_images = False

    def __init__(
        self,
        compute: Callable[[], SetRows],
        example: Callable[[], Tensor],
        seconds: Callable[[], float],
        labels: Indices,
        seed: int = 0,
        replaces: bool = True,
    ) -> None:
        self._compute, self._example, self._seconds, self.labels = compute, example, seconds, labels
        self.seed, self.replaces = seed, replaces

    @cached_property
    def _found(self) -> SetRows:
        return self._compute()

    @property
    def features(self) -> Rows:
        """All features; NaN for images that were skipped."""
        return self._found.rows

    @property
    def bad_images(self) -> list[BadImage]:
        """See ``Feed``."""
        return self._found.skipped

    @cached_property
    def readable(self) -> NDArray[np.bool_]:
        """Which images have features."""
        found = np.ones(len(self.labels), bool)
        found[[bad.index for bad in self.bad_images]] = False
        return found

    def stream(self, batches: Iterable[Indices], epoch: int, first: int = 0) -> Iterator[Fed]:
        """See ``Feed``."""
        return (self._rows(self._replaced(indices, epoch, number)) for number, indices in enumerate(batches, first))

    def sequential(self, batch_size: int) -> Iterator[Fed]:
        """See ``Feed``."""
        places = np.flatnonzero(self.readable)
        return (self._rows(places[start : start + batch_size]) for start in range(0, len(places), batch_size))

    def _replaced(self, indices: Indices, epoch: int, number: int) -> Indices:
        if not self.bad_images or self.readable[indices].all():
            return indices
        chosen, kept = np.array(indices), self.readable[indices]
        for position in np.flatnonzero(~kept).tolist() if self.replaces else []:
            bad = int(chosen[position])
            others = np.flatnonzero((self.labels == self.labels[bad]) & self.readable)
            others = others[~np.isin(others, chosen)]
            if len(others):
                chosen[position] = np.random.default_rng([self.seed, epoch, number, bad]).choice(others)
                kept[position] = True
        if not kept.any():
            raise DataError("no image of a whole batch can be read: repair the images, or remove their classes.")
        return chosen[kept]

    def example(self) -> tuple[Tensor, float]:
        """See ``Feed``."""
        return self._first, 1.0

    @cached_property
    def _first(self) -> Tensor:
        return self._example()

    def some(self, count: int, number: int = 0) -> Fed:
        """See ``Feed``. The features may not be computed yet, so the first one is repeated."""
        indices = _spread(len(self.labels), count, number)
        rows = self._first.expand(len(indices), *self._first.shape[1:]).clone()
        return Fed(rows, torch.from_numpy(self.labels[indices]), indices)

    def prepare(self) -> None:
        """See ``Feed``.

        Raises:
            DataError: no image can be read.
        """
        if not self.readable.any():
            raise DataError(f"none of {len(self.labels):,} images can be read: {self.bad_images[0]}")

    def seconds_to_prepare(self) -> float:
        """See ``Feed``."""
        return self._seconds()

    def close(self) -> None:
        """See ``Feed``."""

    def _rows(self, indices: Indices) -> Fed:
        return Fed(torch.from_numpy(self.features[indices]), torch.from_numpy(self.labels[indices]), indices)


class WholeSet:
    """A sampler with one batch per epoch that contains every image; for training on cached features."""

    def __init__(self, labels: Indices) -> None:
        self._count, self._epoch = len(labels), 0

    def set_epoch(self, epoch: int) -> None:
        """All epochs are the same."""
        self._epoch = epoch

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Indices]:
        yield np.arange(self._count)

    def state_dict(self, consumed: int | None = None) -> dict[str, Any]:
        """The epoch to continue with."""
        return {"epoch": self._epoch + (1 if consumed else 0), "batch": 0, "images": self._count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where ``state_dict`` was taken."""
        if state.get("images") != self._count:
            raise ConfigError(
                f"the saved run had {state.get('images')} training images, but there are {self._count} now: restore them."
            )
        self._epoch = int(state["epoch"])


Sampler = ClassBalancedSampler | WholeSet


def make_sampler(config: Config, labels: Indices) -> Sampler:
    """Batches of images with these ``labels``."""
    batch = config.batch
    if batch.size == "all":
        return WholeSet(labels)
    if batch.size == "auto":
        raise ConfigError("batch.size is still 'auto', but batches need a number: set batch.size.")
    return ClassBalancedSampler(
        labels,
        batch.size,
        batch.samples_per_class,
        batch.policy,
        batch.small_classes,
        config.run.seed,
        batch.batches_per_epoch,
    )


def make_feed(
    config: Config, embedder: Embedder, images: ImageSet, *, frozen: nn.Module | None = None, training: bool
) -> Feed:
    """Batches of ``images``: augmented for training, plain for evaluation; features if there is a ``frozen`` part."""
    data = config.data
    if frozen is not None:
        upto, workers = config.model.freeze, data.workers

        policy = data.on_bad_image
        return FeatureFeed(
            partial(part_rows, embedder, images, upto, frozen=upto, workers=workers, on_bad_image=policy),
            partial(first_feature, embedder, frozen, images, on_bad_image=policy),
            partial(seconds_of_rows, embedder, frozen, images, upto, workers=workers, on_bad_image=policy),
            images.labels,
            config.run.seed,
            replaces=config.batch.size != "all",
        )
    transform = make_augmentation(
        data.augmentation if training else "none",
        embedder.preprocessing,
        scale=data.crop_scale,
        flip=data.flip,
        options=data.augmentation_options,
    )
    if transform.size is None and not embedder.takes_any_size:
        raise ConfigError(
            f"{config.model.init} takes images of one size only: set model.resize and data.augmentation=crop."
        )
    return PixelFeed(
        Pipeline(
            images,
            transform,
            workers=data.workers,
            prefetch_bytes=data.prefetch_mb << 20,
            cache=data.cache if training else "none",
            on_bad_image=data.on_bad_image,
            seed=config.run.seed,
            pin=embedder.device.type == "cuda" and torch.cuda.is_available(),
        )
    )
