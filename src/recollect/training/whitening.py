"""The last layer as a whitening of the training images, before the first step: how instance search begins.

Which images it is learned from was never published; here it is one class-balanced draw of the training set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from PIL import Image

from recollect.data import ClassBalancedSampler, ImageSet
from recollect.models import whitening_from_labels
from recollect.training.session import Session


def whiten_last_layer(session: Session, say: Callable[[str], None]) -> None:
    """Set the last layer as ``model.whitening`` says; nothing without it. All processes end with the same numbers.

    Raises:
        ConfigError: there are fewer images than asked for.
        InputError: too few pairs of one class for as many dimensions.
    """
    config, embedder = session.config, session.network.embedder
    if config.model.whitening is None:
        return
    if session.team.rank == 0:
        each, images = config.batch.samples_per_class, session.sets.train
        size = max(config.model.whitening // each, 1) * each
        sampler = ClassBalancedSampler(images.labels, size, each, seed=config.run.seed, batches_per_epoch=1)
        sampler.set_epoch(0)
        chosen = images.subset(next(iter(sampler)))
        say(f"whitening  the last layer starts from {len(chosen):,} training images")
        features = embedder.embed(_Pictures(chosen), batch_size=session.chunk, before_head=True)
        embedder.set_whitening(whitening_from_labels(features, torch.from_numpy(chosen.labels), seed=config.run.seed))
    if session.team.size > 1 and embedder.head.linear is not None:
        for parameter in embedder.head.linear.parameters():
            dist.broadcast(parameter.data, src=0)


class _Pictures:
    """Images read when they are reached; the length feeds the progress line."""

    def __init__(self, images: ImageSet) -> None:
        self._images = images

    def __len__(self) -> int:
        return len(self._images)

    def __iter__(self) -> Iterator[Image.Image]:
        return (self._images.read(index) for index in range(len(self._images)))
