"""The last layer as a whitening of the training images, before the first step: how instance search begins.

Which images it is learned from was never published; here it is one class-balanced draw of the training set. Features
are stored as they are computed (``inference/vector_store.py``), so a run that is killed meanwhile goes on where it was; the
layer is a function of them and of the seed, and is part of the first checkpoint.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from recollect.config.schema import Config
from recollect.data import ClassBalancedSampler, ImageSet
from recollect.data.transforms.longer_side import LongerSide
from recollect.inference.vector_store import stored_vectors, weights_digest
from recollect.models import Embedder, whitening_from_labels
from recollect.training.build import Training
from recollect.training.validation import images_at_once


def whitening_images(config: Config, images: ImageSet) -> ImageSet | None:
    """The training images that the whitening is learned from, as many as ``model.whitening`` says; None without it.

    Raises:
        ConfigError: there are fewer images than asked for.
    """
    if config.model.whitening is None:
        return None
    each = config.batch.samples_per_class
    size = max(config.model.whitening // each, 1) * each
    sampler = ClassBalancedSampler(images.labels, size, each, seed=config.run.seed, batches_per_epoch=1)
    sampler.set_epoch(0)
    return images.subset(next(iter(sampler)))


def whiten_last_layer(training: Training, chosen: ImageSet, folder: Path) -> None:
    """Set the last layer to a whitening of the ``chosen`` images. All processes end with the same numbers.

    Args:
        training: before its first step.
        chosen: see ``whitening_images``.
        folder: where features are kept while they are computed.

    Raises:
        InputError: too few pairs of one class for as many dimensions.
    """
    config, embedder, team = training.config, training.network.embedder, training.machine.team

    def learn() -> None:
        features = _features(embedder, chosen, folder / "features.npy")
        embedder.set_whitening(whitening_from_labels(features, torch.from_numpy(chosen.labels), seed=config.run.seed))

    team.first_alone(learn)  # thousands of large images: hours on a CPU
    if team.size > 1 and embedder.head.linear is not None:
        for parameter in embedder.head.linear.parameters():
            dist.broadcast(parameter.data, src=0)


def _features(embedder: Embedder, images: ImageSet, path: Path) -> Tensor:
    """What the last layer is given, N × D, as for the test."""
    preprocessing = embedder.preprocessing
    # Whole images are shrunk as the pipeline shrinks them; crops are the embedder's own business.
    read = LongerSide(preprocessing.max_side).read if preprocessing.resize is None else ImageSet.read

    def embed(part: range) -> Tensor:
        pictures = [partial(read, images, index) for index in part]
        at_once = images_at_once(preprocessing)  # not the chunk: it may differ when resumed, and rounding with it
        return embedder.embed(pictures, batch_size=at_once, before_head=True, progress=False)

    about = {"weights": weights_digest(embedder), "preprocessing": repr(preprocessing), "set": images.fingerprint}
    # Overwriting: they are the run's own, and of no use to it once images or weights are others.
    rows = stored_vectors(
        path, embed, len(images), embedder.feature_dim, about, overwrite=True, description="whitening"
    )
    return torch.tensor(rows)
