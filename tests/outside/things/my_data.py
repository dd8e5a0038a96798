"""A data set of one's own: coloured squares, one class per colour."""

import numpy as np

from recollect import ImageSet


def squares(split: str, *, classes: int = 6, per_class: int = 8) -> ImageSet:
    """Noisy squares, one class per colour; other colours in training than in the test."""
    random = np.random.default_rng(0 if split == "train" else 1)
    colours = random.integers(40, 216, (classes, 3))
    labels = np.repeat(np.arange(classes), per_class)
    noise = random.integers(-25, 26, (len(labels), 48, 48, 3))
    pixels = (colours[labels][:, None, None] + noise).astype(np.uint8)
    names = [f"{split}-{number}" for number in range(len(labels))]
    return ImageSet("squares", names, labels, [f"{split}-{c}" for c in range(classes)], arrays=pixels, split=split)
