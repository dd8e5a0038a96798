"""Splits by class: validation inside the training classes, and k folds of them.

Retrieval is tested on classes never seen, so validation must be on unseen classes too. Test classes have no part in any
of this. Tuning and training call it; it needs nothing but an ``ImageSet``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from recollect.common.errors import ConfigError, InputError
from recollect.data.image_set import ImageSet

T = TypeVar("T")

MODES = ("paper", "random")


def first_half(items: Sequence[T]) -> tuple[Sequence[T], Sequence[T]]:
    """The first half of ``items``, the larger one when their number is odd, and the rest."""
    middle = (len(items) + 1) // 2
    return items[:middle], items[middle:]


def class_disjoint_split(images: ImageSet, mode: str = "paper", seed: int = 0) -> tuple[ImageSet, ImageSet]:
    """Split training images into a part that trains and one that validates, without a class in both.

    Args:
        images: a training set.
        mode: ``"paper"``: the first half of the classes, in their order, trains and the second validates;
            ``"random"``: a random half does.
        seed: chooses the random half; ``"paper"`` takes no notice of it.

    Returns:
        The training part (split ``"train"``) and the validation part (split ``"val"``).

    Example:
        >>> pixels = np.zeros((4, 1, 1), np.uint8)
        >>> images = ImageSet("demo", list("abcd"), [0, 1, 2, 3], list("wxyz"), arrays=pixels)
        >>> [list(part.class_names) for part in class_disjoint_split(images)]
        [['w', 'x'], ['y', 'z']]
    """
    if mode not in MODES:
        raise ConfigError(f"split mode {mode!r} is unknown: choose one of {', '.join(MODES)}.")
    classes = _classes(images, at_least=2)
    if mode == "random":
        classes = np.random.default_rng(seed).permutation(classes)
    training, validation = first_half(classes.tolist())
    return images.of_classes(training, "train"), images.of_classes(validation, "val")


def class_folds(images: ImageSet, folds: int, seed: int | None = 0) -> list[tuple[ImageSet, ImageSet]]:
    """k pairs of training and validation parts: every class validates in exactly one of them.

    Args:
        images: a training set.
        folds: k, at least 2 and at most the number of classes; their sizes in classes differ by at most one.
        seed: chooses the folds; None keeps the order of classes, in k consecutive runs.
    """
    if folds < 2:
        raise InputError(f"folds must be at least 2, not {folds}.")
    classes = _classes(images, at_least=folds)
    if seed is not None:
        classes = np.random.default_rng(seed).permutation(classes)
    pairs = []
    for validation in np.array_split(classes, folds):
        training = np.setdiff1d(classes, validation)
        pairs.append((images.of_classes(training, "train"), images.of_classes(validation, "val")))
    return pairs


def _classes(images: ImageSet, at_least: int) -> np.typing.NDArray[np.int64]:
    classes = np.unique(images.labels)
    if len(classes) < at_least:
        raise InputError(f"{images.name}: {len(classes)} classes are too few to split into {at_least} parts.")
    return classes
