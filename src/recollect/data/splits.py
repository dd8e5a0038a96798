"""Splits by class: validation classes within the training classes, and k folds of them.

Retrieval is tested on unseen classes, so validation must use unseen classes too. Test classes are never
used here. Tuning and training call it; it needs only an ``ImageSet``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from recollect.common.errors import ConfigError, InputError
from recollect.data.image_set import ImageSet

MODES = ("paper", "random")


_DRAWS = 64


def held_out_classes(sizes: NDArray[np.int64], share: float, seed: int = 0) -> NDArray[np.int64]:
    """Draw classes for testing, with about ``share`` of the classes and of the images.

    Classes are sorted by size and divided into as many consecutive groups as classes are needed; one class is drawn from
    each, so both sides get large and small ones. Of 64 such draws, the one whose share of the images is closest to
    ``share`` is used.

    Args:
        sizes: the number of images of each class, at least two classes.
        share: the share for testing, between 0 and 1; with an odd number of classes, the larger half is for training.
        seed: seed of the draw.

    Returns:
        The numbers of the classes held out, in order.

    Examples:
        >>> held_out_classes(np.array([10, 1, 9, 2]), 0.5).tolist()
        [0, 1]
    """
    count = len(sizes)
    testing = min(max(1, int(count * share + 1e-9)), count - 1)
    drawn = min(testing, count - testing)  # of the smaller side, so that every group has at least two classes
    wanted = share if drawn == testing else 1 - share
    random = np.random.default_rng(seed)
    best: tuple[float, NDArray[np.int64]] | None = None
    for _ in range(_DRAWS):
        order = np.lexsort((random.permutation(count), -sizes))
        groups = np.array_split(order, drawn)
        chosen = np.array([run[random.integers(len(run))] for run in groups])
        distance = abs(float(sizes[chosen].sum()) / max(1, int(sizes.sum())) - wanted)
        if best is None or distance < best[0] - 1e-12:
            best = distance, chosen
    chosen = np.sort(best[1] if best is not None else np.empty(0, np.int64))
    return chosen if drawn == testing else np.setdiff1d(np.arange(count), chosen)


def class_disjoint_split(images: ImageSet, mode: str = "paper", seed: int = 0) -> tuple[ImageSet, ImageSet]:
    """Split training images into a training part and a validation part with no class in common.

    Args:
        images: a training set.
        mode: ``"paper"``: the first half of the classes, in their order, is for training and the second for validation;
            ``"random"``: a random half.
        seed: seed of the random half; ``"paper"`` ignores it.

    Returns:
        The training part (split ``"train"``) and the validation part (split ``"val"``).

    Examples:
        >>> pixels = np.zeros((4, 1, 1), np.uint8)
        >>> images = ImageSet("demo", list("abcd"), [0, 1, 2, 3], list("wxyz"), arrays=pixels)
        >>> [list(part.class_names) for part in class_disjoint_split(images)]
        [['w', 'x'], ['y', 'z']]
    """
    if mode not in MODES:
        raise ConfigError(f"split mode {mode!r} is unknown: choose one of {', '.join(MODES)}.")
    classes = np.unique(images.labels)
    if len(classes) < 2:
        raise InputError(f"{images.name}: 1 class is too few to split into 2 parts.")
    if mode == "random":
        classes = np.random.default_rng(seed).permutation(classes)
    middle = (len(classes) + 1) // 2  # the larger half is for training
    return images.of_classes(classes[:middle], "train"), images.of_classes(classes[middle:], "val")


def class_folds(images: ImageSet, folds: int, seed: int | None = 0) -> list[tuple[ImageSet, ImageSet]]:
    """k pairs of training and validation parts: every class is in exactly one of the validation parts.

    Args:
        images: a training set.
        folds: k, at least 2 and at most the number of classes; their sizes in classes differ by at most one.
        seed: chooses the folds; None keeps the order of classes, in k consecutive runs.
    """
    if folds < 2:
        raise InputError(f"folds must be at least 2, not {folds}.")
    classes = np.unique(images.labels)
    if len(classes) < folds:
        raise InputError(f"{images.name}: {len(classes)} classes are too few for {folds} folds.")
    if seed is not None:
        classes = np.random.default_rng(seed).permutation(classes)
    pairs = []
    for validation in np.array_split(classes, folds):
        training = np.setdiff1d(classes, validation)
        pairs.append((images.of_classes(training, "train"), images.of_classes(validation, "val")))
    return pairs
