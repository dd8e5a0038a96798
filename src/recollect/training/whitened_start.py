"""The last layer as a whitening of the training images, before the first step: how instance search begins.

Which images it is learned from was never published; here it is one class-balanced draw of the training set, or the pairs
that the publishers of SfM-120k whiten with. Features
are stored as they are computed (``inference/vector_store.py``), so a run that is killed meanwhile goes on where it was; the
layer is a function of them and of the seed, and is part of the first checkpoint.
"""

from __future__ import annotations

import torch.distributed as dist

from recollect.config.schema import Config
from recollect.data import ClassBalancedSampler, ImageSet
from recollect.data.sources.revisited import SFM_NAME
from recollect.inference.whitening_sets import WhiteningSet
from recollect.training.build import Training


def whitening_images(config: Config, images: ImageSet) -> WhiteningSet | None:
    """What the whitening is learned from, as ``model.whitening`` says; None without it.

    Raises:
        ConfigError: there are fewer images than asked for.
    """
    if config.model.whitening is None:
        return None
    if config.model.whitening == SFM_NAME:
        return WhiteningSet.from_sfm(config.data.validation_root or config.data.root or ".")
    each = config.batch.samples_per_class
    size = max(config.model.whitening // each, 1) * each
    sampler = ClassBalancedSampler(images.labels, size, each, seed=config.run.seed, batches_per_epoch=1)
    sampler.set_epoch(0)
    return WhiteningSet(images.subset(next(iter(sampler))))


def whiten_last_layer(training: Training, chosen: WhiteningSet) -> None:
    """Set the last layer to a whitening of the ``chosen`` images. All processes end with the same numbers.

    Args:
        training: before its first step.
        chosen: see ``whitening_images``.

    Raises:
        InputError: too few pairs of one class for as many dimensions.
    """
    config, embedder, team = training.config, training.network.embedder, training.machine.team

    def learn() -> None:
        embedder.set_whitening(chosen.learn(embedder, config.run.seed))

    team.first_alone(learn)  # thousands of large images: hours on a CPU
    if team.size > 1 and embedder.head.linear is not None:
        for parameter in embedder.head.linear.parameters():
            dist.broadcast(parameter.data, src=0)
