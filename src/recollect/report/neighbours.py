"""The nearest images of every image, and results based on them: confused classes, suspected labels, lonely images.

All use one exact search over all pairs (``search/exact.py``). This file only computes; ``failures.py`` and
``data_checks.py`` show the results.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recollect.common.console import ProgressLine
from recollect.search.exact import Neighbours, nearest_unchecked

NEAREST = 10
"""Neighbours of each image."""
AMONG, AGREEING = 5, 3
"""A label is suspected if so many of the nearest images, 3 of 5, belong to one other class …"""
CLEAR = NEAREST
"""… and none of so many to its own. Measured by ``benchmarks/wrong_labels.py``; the table is in docs/report.md."""
FEW = 5
"""An image of a class with at most so many images seldom has them among its nearest: there all of ``AMONG`` must agree."""
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
    """An image most of whose nearest images belong to one other class, and none to its own.

    Attributes:
        image: its number. suggested: the other class.
        agreeing: how many of the nearest belong to that class. neighbours: of how many. nearest: the first of them.
        similarity: their mean similarity. own: similarity to the nearest image of its own class; NaN if it has none.
    """

    image: int
    suggested: int
    agreeing: int
    neighbours: int
    nearest: int
    similarity: float
    own: float

    @property
    def margin(self) -> float:
        """How much more similar the other class is; an image without its like counts as 0 similar to its own class."""
        return self.similarity - (0.0 if np.isnan(self.own) else self.own)


@dataclass(frozen=True)
class Lonely:
    """An image far from all others: its number, the nearest image and the similarity to it.

    ``depth``: how far that is below what is usual, in interquartile ranges.
    """

    image: int
    nearest: int
    similarity: float
    depth: float = 0.0


def neighbours_of_all(vectors: NDArray[np.float32], count: int = NEAREST) -> Neighbours:
    """The nearest other images of every image: N × count, fewer columns if there are fewer images."""
    total = len(vectors)
    count = min(count, total - 1)
    if count < 1:
        return Neighbours(np.empty((total, 0), np.int64), np.empty((total, 0), np.float32))
    gallery = np.ascontiguousarray(vectors, np.float32)
    parts = []
    with ProgressLine("comparing", total) as line:
        for start in range(0, total, _AT_ONCE):
            own = np.arange(start, min(start + _AT_ONCE, total))
            parts.append(nearest_unchecked(gallery[own], gallery, count, own=own))
            line.advance(len(own))
    return Neighbours(np.concatenate([p.indices for p in parts]), np.concatenate([p.similarities for p in parts]))


def in_rank_order(found: Neighbours, queries: Labels, labels: Labels, first_rank: NDArray[np.float64]) -> Neighbours:
    """Results in the order that the evaluation gives them where similarities are equal, as those of exact copies are.

    It counts a negative as similar as a positive before it, so that an embedding gains nothing from ties.

    Args:
        found: results of ``queries``, most similar first.
        labels: of all images. first_rank: of each query, the rank of its first positive.
    """
    indices, similarities = found.indices.copy(), found.similarities.copy()
    width = indices.shape[1]
    same = labels[indices] == labels[queries][:, None]
    place = np.where(same.any(axis=1), same.argmax(axis=1), width) if width else np.zeros(len(queries))
    wrong = np.isfinite(first_rank) & (place != first_rank - 1) & (np.minimum(place, first_rank - 1) < width)
    for row in np.flatnonzero(wrong).tolist():
        ahead = np.flatnonzero(~same[row])[: int(first_rank[row]) - 1].tolist()
        ahead += np.flatnonzero(same[row])[:1].tolist()
        order = [*ahead, *(column for column in range(width) if column not in ahead)]
        indices[row], similarities[row] = indices[row, order], similarities[row, order]
    return Neighbours(indices, similarities)


def confused_pairs(labels: Labels, found: Neighbours) -> list[Confusion]:
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


def suspected_labels(vectors: NDArray[np.float32], labels: Labels, found: Neighbours) -> list[Suspect]:
    """Images whose nearest belong to one other class, by the margin between its similarity and that of their own class.

    ``AGREEING`` of the nearest ``AMONG`` must be of one other class, and none of the nearest ``CLEAR`` of the image's own,
    or of as many as the other class has: with few images, those that follow say nothing. In a class of ``FEW`` images or
    fewer, all ``AMONG`` must agree, or the whole other class if it is smaller.
    """
    first = labels[found.indices[:, :AMONG]]
    width = first.shape[1]
    if not width:
        return []
    sizes = np.bincount(labels)
    alike = (first[:, :, None] == first[:, None, :]).sum(axis=2)  # how many of the nearest share the class of each
    place = alike.argmax(axis=1)[:, None]
    suggested = np.take_along_axis(first, place, axis=1)[:, 0]
    agreeing = alike.max(axis=1)
    asked = np.where(sizes[labels] > FEW, AGREEING, np.maximum(AGREEING, np.minimum(width, sizes[suggested])))
    clear = np.minimum(CLEAR, sizes[suggested])[:, None]
    own = (labels[found.indices] == labels[:, None]) & (np.arange(found.indices.shape[1]) < clear)
    suspects = np.flatnonzero((suggested != labels) & (agreeing >= asked) & ~own.any(axis=1)).tolist()
    members = {label: np.flatnonzero(labels == label) for label in np.unique(labels[suspects]).tolist()}
    listed = []
    for image in suspects:
        others = members[int(labels[image])]
        others = others[others != image]
        best = float((vectors[others] @ vectors[image]).max()) if len(others) else float("nan")
        those = np.flatnonzero(first[image] == suggested[image])
        mean = float(found.similarities[image, those].mean())
        nearest = int(found.indices[image, those[0]])
        listed.append(Suspect(image, int(suggested[image]), len(those), width, nearest, mean, best))
    return sorted(listed, key=lambda s: (-s.margin, s.image))


def lonely_images(*found: Neighbours) -> list[Lonely] | None:
    """Images far from all others, the loneliest first.

    Their similarity to the nearest image is below the lower quartile by more than 3 times the interquartile range:
    Tukey's rule for far outliers.

    Args:
        found: neighbours of the images in one embedding or several; an image is listed if it is lonely in any of them.

    Returns:
        None if similarities vary so much that no image could be lonely: below the limit there are only negative ones.
    """
    lonely: dict[int, Lonely] = {}
    with_others = [each for each in found if each.indices.shape[1]]
    judged = not with_others
    for each in with_others:
        highest = each.similarities[:, 0]
        low, high = np.quantile(highest, [0.25, 0.75])
        limit, span = low - 3 * (high - low), max(float(high - low), 1e-6)
        judged = judged or limit > 0
        for image in np.flatnonzero(highest < limit).tolist():
            depth = float(low - highest[image]) / span
            if image not in lonely or lonely[image].depth < depth:
                lonely[image] = Lonely(image, int(each.indices[image, 0]), float(highest[image]), depth)
    if not lonely and not judged:
        return None
    return sorted(lonely.values(), key=lambda one: (-one.depth, one.image))
