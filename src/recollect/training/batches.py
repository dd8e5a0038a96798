"""The batches of a training: a sampler chooses the images of a step, a source reads them.

``make_sampler`` and ``make_source`` create both. A source is the pipeline, which decodes and augments images, or
``FeatureBatches``, the stored features of a frozen part of the network.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from recollect.common.errors import ConfigError, DataError
from recollect.config.schema import Config
from recollect.data import ClassBalancedSampler, ImageSet, Pipeline, RevisitedBenchmark
from recollect.data.image_set import Indices
from recollect.data.pipeline import Batch
from recollect.data.transforms import make_augmentation
from recollect.inference.vectors import SetRows, first_feature, part_rows
from recollect.models import Embedder

_HEADERS = 256  # images whose headers are read to find the average size


class FeatureBatches:
    """Batches of stored features, with the methods of ``Pipeline`` that a training uses.

    Rows of unreadable images are NaN. ``sequential`` leaves them out; in a batch each is replaced by another image of the
    class that is not in the batch, or left out if there is none.

    Args:
        features: the rows of all images.
        labels: labels of the images.
        seed: seed for the choice of replacements.
        replaces: False leaves unreadable images out of every batch.

    Raises:
        DataError: no image could be read.
    """

    def __init__(self, features: SetRows, labels: Indices, seed: int = 0, replaces: bool = True) -> None:
        self.rows, self.bad_images, self.labels = features.rows, features.skipped, labels
        self.seed, self.replaces = seed, replaces
        self.readable = np.ones(len(labels), bool)
        self.readable[[bad.index for bad in self.bad_images]] = False
        if not self.readable.any():
            raise DataError(f"none of {len(labels):,} images can be read: {self.bad_images[0]}")

    def stream(self, batches: Iterable[Indices], epoch: int = 0, first: int = 0) -> Generator[Batch]:
        """Batches for training, in order; ``first`` is the number of the first within its epoch."""
        return (self._batch(self._replaced(indices, epoch, number)) for number, indices in enumerate(batches, first))

    def sequential(self, batch_size: int) -> Iterator[Batch]:
        """Every image once, in order, for evaluation."""
        places = np.flatnonzero(self.readable)
        return (self._batch(places[start : start + batch_size]) for start in range(0, len(places), batch_size))

    def close(self) -> None:
        """Nothing to close."""

    def _replaced(self, indices: Indices, epoch: int, number: int) -> Indices:
        if self.readable[indices].all():
            return indices
        places, readable = np.array(indices), self.readable[indices]
        for position in np.flatnonzero(~readable).tolist() if self.replaces else []:
            bad = int(places[position])
            others = np.flatnonzero((self.labels == self.labels[bad]) & self.readable)
            others = others[~np.isin(others, places)]
            if len(others):
                places[position] = np.random.default_rng([self.seed, epoch, number, bad]).choice(others)
                readable[position] = True
        if not readable.any():
            raise DataError("no image of a whole batch can be read: repair the images, or remove their classes.")
        return places[readable]

    def _batch(self, indices: Indices) -> Batch:
        return Batch(torch.from_numpy(self.rows[indices]), torch.from_numpy(self.labels[indices]), indices)


BatchSource = Pipeline | FeatureBatches


def make_source(
    config: Config, embedder: Embedder, images: ImageSet, *, frozen: nn.Module | None = None, training: bool
) -> BatchSource:
    """Batches of ``images``: augmented for training, plain for evaluation; features if there is a ``frozen`` part.

    Features that are not stored yet are computed, which may take hours.
    """
    data = config.data
    if frozen is not None:
        upto, policy = config.model.freeze, data.on_bad_image
        features = part_rows(embedder, images, upto, frozen=upto, workers=data.workers, on_bad_image=policy)
        return FeatureBatches(features, images.labels, config.run.seed, replaces=config.batch.size != "all")
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
    return Pipeline(
        images,
        transform,
        workers=data.workers,
        prefetch_bytes=None if data.prefetch_mb is None else data.prefetch_mb << 20,
        cache=data.cache if training else "none",
        cache_size=data.cache_size if training else None,
        worker_type=data.worker_type,
        on_bad_image=data.on_bad_image,
        seed=config.run.seed,
        pin=embedder.device.type == "cuda" and torch.cuda.is_available(),
    )


def largest_input(
    config: Config, embedder: Embedder, images: ImageSet, frozen: nn.Module | None = None
) -> tuple[Tensor, float]:
    """One input of the largest size, with a first dimension of 1; and the average size of an input relative to it.

    If images keep their own sizes, the headers of some of them are read.
    """
    if frozen is not None:
        return first_feature(embedder, frozen, images, on_bad_image=config.data.on_bad_image), 1.0
    with make_source(config, embedder, images, training=True) as pipeline:  # type: ignore[union-attr]
        transform = pipeline.transform
        if transform.size is not None:
            inputs = pipeline.load(np.zeros(1, np.int64)).images
            return inputs if isinstance(inputs, Tensor) else inputs[0][None], 1.0
        some = np.unique(np.linspace(0, len(images) - 1, _HEADERS).astype(np.int64)).tolist()
        sizes = [size for index in some if (size := pipeline.size(index))]
        side = transform.max_side or max((max(size) for size in sizes), default=1)
        average = float(np.mean([height * width for height, width in sizes])) if sizes else side * side
        return torch.zeros(1, 3, side, side, dtype=torch.uint8), average / side**2


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
    """Batches of images with these ``labels``, at the beginning of the first epoch."""
    batch = config.batch
    if not isinstance(batch.size, int):  # "all": "auto" was chosen before
        return WholeSet(labels)
    sampler = ClassBalancedSampler(
        labels,
        batch.size,
        batch.samples_per_class,
        batch.policy,
        batch.small_classes,
        config.run.seed,
        batch.batches_per_epoch,
    )
    sampler.set_epoch(0)
    return sampler


def number_of_steps(config: Config, sampler: Sampler) -> int:
    """Steps of a training. Exact for the paper's policy, whose epochs have equal length; approximate otherwise."""
    return len(sampler) * config.run.epochs if isinstance(config.run.epochs, int) else config.run.steps or 0


@dataclass(frozen=True)
class Watched:
    """A set that is evaluated during training, and this process's part of it."""

    name: str
    images: ImageSet
    source: BatchSource
    start: int = 0
    """The number of the first image of ``source`` in the whole set."""
    at_once: int = 128
    """Images in the network at once."""
    benchmark: RevisitedBenchmark | None = None
    """Queries and ground truth, if the set has them; ``images`` is then its database."""
