"""How the last layer starts: as a whitening of training images, and perhaps trained alone before the rest.

Instance search learns the whitening from pairs (``inference/whitening_sets.py``): of one class-balanced draw of the training
set, since which images was never published, or of SfM-120k's lists. ``"all"`` takes every training image, by the covariance
within classes (``models/whitening.py``): a closed form that needs no step. Features are stored as they are computed
(``inference/vector_store.py``), so a run that is killed meanwhile goes on where it was; the layer is a function of them and
of the seed, and is part of the first checkpoint.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed as dist

from recollect.config.schema import Config
from recollect.data import ClassBalancedSampler, ImageSet
from recollect.data.sources.revisited import SFM_NAME
from recollect.inference.embedding_sets import head_inputs
from recollect.inference.features import part_rows
from recollect.inference.whitening_sets import WhiteningSet
from recollect.models import Embedder, whitening_from_classes
from recollect.training.build import Training
from recollect.training.head_training import HeadData, train_head


def whitening_images(config: Config, images: ImageSet) -> WhiteningSet | None:
    """What the last layer is learned from before the first step, as ``model.whitening`` says; None without it.

    Raises:
        ConfigError: there are fewer images than asked for.
    """
    wanted = config.model.whitening
    if wanted is None and not config.run.head_steps:
        return None
    if wanted == SFM_NAME:
        return WhiteningSet.from_sfm(config.data.validation_root or config.data.root or ".")
    if not isinstance(wanted, int):
        return WhiteningSet(images)
    each = config.batch.samples_per_class
    size = max(wanted // each, 1) * each
    sampler = ClassBalancedSampler(images.labels, size, each, seed=config.run.seed, batches_per_epoch=1)
    sampler.set_epoch(0)
    return WhiteningSet(images.subset(next(iter(sampler))))


def whiten_last_layer(training: Training, chosen: WhiteningSet) -> None:
    """Set the last layer to a whitening of the ``chosen`` images, then train it alone for ``run.head_steps``.

    All processes end with the same numbers.

    Args:
        training: before its first step.
        chosen: see ``whitening_images``.

    Raises:
        InputError: too few images of one class for as many dimensions.
    """
    embedder, team, train = training.network.embedder, training.machine.team, training.sets.train
    team.first_alone(lambda: start_last_layer(training.config, embedder, chosen, train))  # perhaps hours on a CPU
    if team.size > 1:
        for parameter in embedder.head.parameters():
            dist.broadcast(parameter.data, src=0)


def start_last_layer(config: Config, embedder: Embedder, chosen: WhiteningSet, train: ImageSet) -> None:
    """The work of ``whiten_last_layer`` on one process."""
    policy, frozen = config.data.on_bad_image, config.model.freeze
    if config.model.whitening == "all":
        features = head_inputs(embedder, train, frozen=frozen, on_bad_image=policy)
        readable = torch.isfinite(features[:, 0])
        labels = torch.from_numpy(train.labels)[readable]
        shrinkage = 0.1 if config.model.shrinkage == "auto" else config.model.shrinkage
        embedder.set_whitening(whitening_from_classes(features[readable], labels, shrinkage).as_layer())
    elif config.model.whitening is not None:
        embedder.set_whitening(chosen.learn(embedder, config.run.seed))
    if config.run.head_steps:
        found = part_rows(embedder, train, on_bad_image=policy)
        data = HeadData(torch.from_numpy(np.asarray(found.rows)), train.labels)
        rest = embedder.split("pooling")[1]
        lr = 1e-4 if config.optimizer.lr == "auto" else config.optimizer.lr
        train_head(rest, embedder.dim, data.of(np.isfinite(found.rows[:, 0])), config, lr, config.run.head_steps)
