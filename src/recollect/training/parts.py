"""A configuration made into the things that train: images, network, loss, sampler, feeds, optimizer.

The one place of this room that knows the neighbouring rooms' constructors. Everything is seeded here, so two processes,
or one process twice, make the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from recollect.common.errors import ConfigError
from recollect.config.schema import Config, DataConfig
from recollect.data import (
    ClassBalancedSampler,
    ImageSet,
    Pipeline,
    RevisitedBenchmark,
    class_disjoint_split,
    glyph_transform,
    load,
    load_revisited,
    test_transform,
    train_transform,
    whole_transform,
)
from recollect.inference.features import first_feature, part_rows
from recollect.inference.opening import make_embedder
from recollect.inference.vector_store import Rows
from recollect.models import Embedder
from recollect.training.batches import FeatureFeed, Feed, Indices, PixelFeed


@dataclass(frozen=True)
class Sets:
    """The images of a training. Test images are loaded only to be watched.

    ``benchmark`` is there when queries with ground truth validate; ``validation`` is then its database.
    """

    train: ImageSet
    validation: ImageSet | None = None
    test: ImageSet | None = None
    benchmark: RevisitedBenchmark | None = None


def load_sets(config: Config) -> Sets:
    """The image sets that ``config`` names; validation classes, if any, are taken out of the training classes."""
    data = config.data
    train = _load(data, data.train_split)
    validation = benchmark = None
    if data.validation == "sfm120k":
        benchmark = load_revisited("sfm120k", data.validation_root or data.root or ".")
        validation = benchmark.database
    elif data.validation != "none":
        train, validation = class_disjoint_split(train, data.validation, config.run.seed)
    test = _load(data, data.test_split) if config.run.watch_test else None
    return Sets(train, validation, test, benchmark)


def _load(data: DataConfig, split: str) -> ImageSet:
    return load(data.name, data.root, split, **data.options)


def make_loss(config: Config, num_classes: int, dim: int) -> nn.Module:
    """The loss, told the number of classes and the embedding's length if it asks; its random draws seeded."""
    from recollect.losses import create
    from recollect.losses.registry import describe

    options: dict[str, Any] = dict(config.loss.options)
    asked = {option.name for option in describe(config.loss.name).options}
    for name, value in (("num_classes", num_classes), ("dim", dim)):
        if name in asked and name not in options:
            options[name] = value
    torch.manual_seed(config.run.seed + 1)
    loss = create(config.loss.name, **options)
    if hasattr(loss, "generator"):
        # Its own, so that SiMix draws the same on every process and whatever the network draws.
        loss.generator = torch.Generator().manual_seed(config.run.seed)  # type: ignore[assignment]
    return loss


class WholeSet:
    """A sampler whose one batch an epoch is every image; for training on cached features."""

    def __init__(self, labels: Indices) -> None:
        self._count, self._epoch = len(labels), 0

    def set_epoch(self, epoch: int) -> None:
        """All epochs are alike."""
        self._epoch = epoch

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Indices]:
        yield np.arange(self._count)

    def state_dict(self, consumed: int | None = None) -> dict[str, Any]:
        """The epoch to go on with."""
        return {"epoch": self._epoch + (1 if consumed else 0), "batch": 0, "images": self._count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        if state.get("images") != self._count:
            raise ConfigError(f"the saved run had {state.get('images')} training images, and there are {self._count}.")
        self._epoch = int(state["epoch"])


Sampler = ClassBalancedSampler | WholeSet


def make_sampler(config: Config, images: ImageSet) -> Sampler:
    """Batches of ``images``."""
    batch = config.batch
    if batch.size == "all":
        return WholeSet(images.labels)
    if batch.size == "auto":
        raise ConfigError("batch.size 'auto' must be settled before batches can be made: set a number.")
    return ClassBalancedSampler(
        images.labels,
        batch.size,
        batch.samples_per_class,
        batch.policy,
        batch.small_classes,
        config.run.seed,
        batch.batches_per_epoch,
    )


@dataclass(frozen=True)
class Network:
    """What is trained, and how it is fed.

    Args:
        embedder: the whole, which is saved.
        trained: what the loop calls: the embedder, or what lies behind its frozen part.
        frozen: the frozen part, if any.
    """

    embedder: Embedder
    trained: nn.Module
    frozen: nn.Module | None = None


def make_network(config: Config, device: torch.device) -> Network:
    """The embedder on its device, cut where ``model.freeze`` says."""
    embedder = make_embedder(config.model, config.run.seed).to(device)
    upto = config.model.freeze
    if upto == "none":
        return Network(embedder, embedder)
    embedder.freeze(upto)
    frozen, rest = embedder.split(upto)
    return Network(embedder, rest, frozen)


def make_feed(config: Config, network: Network, images: ImageSet, *, training: bool) -> Feed:
    """Batches of ``images``: varied for training, plain for evaluation; features if a part of the network is frozen."""
    data, embedder = config.data, network.embedder
    if network.frozen is not None:
        frozen, upto = network.frozen, config.model.freeze

        def compute() -> Rows:
            return part_rows(embedder, images, upto, frozen=upto, workers=data.workers).rows

        return FeatureFeed(compute, partial(first_feature, embedder, frozen, images), images.labels)
    transform = test_transform(embedder.preprocessing)
    if training and data.augmentation == "crop":
        transform = train_transform(embedder.preprocessing, scale=data.crop_scale, flip=data.flip)
    elif training and data.augmentation == "glyph":
        transform = glyph_transform(embedder.preprocessing)
    elif training and data.augmentation == "whole":
        transform = whole_transform(embedder.preprocessing, flip=data.flip)
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
