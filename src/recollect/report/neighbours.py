"""The nearest images of every image, and results based on them: confused classes, suspected labels, lonely images.

All use one exact search over all pairs (``search/exact_search.py``). This file only computes; ``failures.py`` and
``data_checks.py`` show the results.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recollect.common.console import ProgressLine
from recollect.search.exact_search import Found, nearest_unchecked

NEAREST = 10
"""Neighbours of each image."""
AGREEING = 5
"""Number of neighbours that must agree before a label is suspected."""
FEWEST = 3
"""Minimum number of images of the other class; two could be neighbours by chance."""
_AT_ONCE = 4096  # images between two steps of the progress line

Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Confusion:
    """How often one class is confused with another.

    Attributes:
        asked, answered: labels: queries of the first class had an image of the second as their first result.
        times: number of such queries. queries: number of queries of that class that have a positive.
        example: the query with the most results of the other class.
    """

    asked: int
    answered: int
    times: int
    queries: int
    example: int


@dataclass(frozen=True)
class Suspect:
    """An image whose nearest images all belong to one other class.

    Attributes:
        image: its number. suggested: the label of its neighbours.
        neighbours: how many were compared. nearest: the first of them.
        similarity: their mean similarity. own: similarity to the nearest image of its own class; NaN if it has none.
    """

    image: int
    suggested: int
    neighbours: int
    nearest: int
    similarity: float
    own: float


@dataclass(frozen=True)
class Lonely:
    """An image far from all others: its number, the nearest image and the similarity to it."""

    image: int
    nearest: int
    similarity: float


def neighbours_of_all(vectors: NDArray[np.float32], count: int = NEAREST) -> Found:
    """The nearest other images of every image: N × count, fewer columns if there are fewer images."""
    total = len(vectors)
    count = min(count, total - 1)
    if count < 1:
        return Found(np.empty((total, 0), np.int64), np.empty((total, 0), np.float32))
    gallery = np.ascontiguousarray(vectors, np.float32)
    parts = []
    with ProgressLine("comparing", total) as line:
        for start in range(0, total, _AT_ONCE):
            own = np.arange(start, min(start + _AT_ONCE, total))
            parts.append(nearest_unchecked(gallery[own], gallery, count, own=own))
            line.advance(len(own))
    return Found(np.concatenate([p.indices for p in parts]), np.concatenate([p.similarities for p in parts]))


def confused_pairs(labels: Labels, found: Found) -> list[Confusion]:
    """Pairs of classes by how often the first result for a query of one is of the other, most frequent first.

    Only queries that have a positive count.
    """
    sizes = np.bincount(labels)
    if not found.indices.shape[1]:
        return []
    answered = labels[found.indices]
    wrong = np.flatnonzero((answered[:, 0] != labels) & (sizes[labels] > 1))
    kinds, place, times = np.unique(
        np.stack([labels[wrong], answered[wrong, 0]]), axis=1, return_inverse=True, return_counts=True
    )
    agreement = (answered[wrong] == answered[wrong, :1]).sum(axis=1)
    # The example of each pair: most results of the other class, then the most similar first result.
    order = np.lexsort((-found.similarities[wrong, 0], -agreement, place.reshape(-1)))
    first = np.searchsorted(place.reshape(-1)[order], np.arange(kinds.shape[1]))
    confusions = [
        Confusion(int(asked), int(other), int(count), int(sizes[asked]), int(wrong[example]))
        for asked, other, count, example in zip(*kinds.tolist(), times.tolist(), order[first].tolist(), strict=True)
    ]
    return sorted(confusions, key=lambda c: (-c.times, -c.times / c.queries, c.asked, c.answered))


def suspected_labels(vectors: NDArray[np.float32], labels: Labels, found: Found) -> list[Suspect]:
    """Images whose nearest neighbours all belong to one other class, clearest first.

    The nearest ``AGREEING`` must agree, or all images of a smaller class, if it has at least ``FEWEST``.
    """
    if not found.indices.shape[1]:
        return []
    sizes = np.bincount(labels)
    answered = labels[found.indices]
    suggested = answered[:, 0]
    asked = np.minimum(np.minimum(AGREEING, sizes[suggested]), answered.shape[1])
    agree = np.cumprod(answered == suggested[:, None], axis=1).sum(axis=1)
    suspects = np.flatnonzero(
        (suggested != labels) & (sizes[suggested] >= FEWEST) & (agree >= asked) & (asked >= FEWEST)
    )
    members = {label: np.flatnonzero(labels == label) for label in np.unique(labels[suspects]).tolist()}
    listed = []
    for image in suspects.tolist():
        others = members[int(labels[image])]
        others = others[others != image]
        own = float((vectors[others] @ vectors[image]).max()) if len(others) else float("nan")
        count = int(asked[image])
        mean = float(found.similarities[image, :count].mean())
        listed.append(Suspect(image, int(suggested[image]), count, int(found.indices[image, 0]), mean, own))
    return sorted(listed, key=lambda s: (-(s.similarity - np.nan_to_num(s.own, nan=0.0)), s.image))


def lonely_images(found: Found) -> list[Lonely]:
    """Images far from all others, the loneliest first.

    Their similarity to the nearest image is below the lower quartile by more than 3 times the interquartile range:
    Tukey's rule for far outliers.
    """
    if not found.indices.shape[1]:
        return []
    highest = found.similarities[:, 0]
    low, high = np.quantile(highest, [0.25, 0.75])
    lonely = np.flatnonzero(highest < low - 3 * (high - low))
    order = lonely[np.argsort(highest[lonely], kind="stable")].tolist()
    return [Lonely(image, int(found.indices[image, 0]), float(highest[image])) for image in order]
