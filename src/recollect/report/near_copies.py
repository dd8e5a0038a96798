"""Which small pictures are copies of each other: recompressed, resized, brighter, darker or slightly cropped.

Pairs that correlate at 16 × 16 pixels are candidates. Different objects on a plain background correlate at that size too, so
a candidate is compared again at 64 × 64 grey pixels: the second picture is aligned with the first, both are cut into blocks,
and even the half of the blocks that agrees least has to correlate. Characters that differ in an accent pass that too, so no
part may be much brighter or darker in one picture than in the other. Figures are in docs/report.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from recollect.report.small_pictures import FINE, SmallPictures
from recollect.search.duplicates import close_pairs, join_pairs, settled_groups

CANDIDATES = 0.9
"""Minimum correlation at 16 × 16 pixels for two pictures to be compared more closely."""
AGREE = 0.6
"""Minimum agreement of two aligned pictures to be copies."""
DIFFER = 0.4
"""Largest difference of a part's mean brightness between copies, in standard deviations of the picture."""
MOST_CHECKED = 5000
"""Pairs that are compared closely at most, the most similar first: about 3 seconds."""
_AT_ONCE = 500
_KEPT = 200_000  # candidates held in memory
_BLOCK, _EDGE = 8, 4  # pixels of a block's side; pixels along the edge that a crop may have cut off
_BLACK, _WHITE = 5, 250  # grey levels beyond which a pixel may have been clipped
_ENOUGH = 0.1  # share of pixels not clipped in one picture alone, by which brightness and contrast are measured
_TEXTURE = 4.0  # standard deviation from which a block shows something, in grey levels
_CROPS = (-0.05, -0.033, -0.017, 0.0, 0.017, 0.033, 0.05)  # cut from each side of the first (below 0) or of the second
_SHIFTS = tuple(product((-1, 0, 1), repeat=2))  # pixels

Floats = NDArray[np.float32]
Places = NDArray[np.int64]


def group_copies(pictures: SmallPictures) -> tuple[Places, Floats]:
    """For every picture the number of its group, and the lowest correlation at 16 × 16 pixels among the group's pairs.

    Pairs that are in one group already are not compared, so that many copies of one picture cost little.
    """
    left, right, values = _candidates(pictures.signatures())
    roots = np.arange(len(pictures.places))
    lowest = np.full(len(roots), np.inf, np.float32)
    checked = 0
    while len(left) and checked < MOST_CHECKED:
        apart = settled_groups(roots, lowest)[0]
        open_pairs = np.flatnonzero(apart[left] != apart[right])
        some, rest = open_pairs[:_AT_ONCE], open_pairs[_AT_ONCE:]
        good = some[agreement(pictures.fine[left[some]], pictures.fine[right[some]]) >= AGREE]
        join_pairs(roots, lowest, left[good], right[good], values[good])
        checked += len(some)
        left, right, values = left[rest], right[rest], values[rest]
    return settled_groups(roots, lowest)


def _candidates(rows: Floats) -> tuple[Places, Places, Floats]:
    """Pairs that correlate, the most similar first."""
    left, right, values = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32)
    for more_left, more_right, more_values in close_pairs(rows, CANDIDATES):
        values = np.concatenate([values, more_values])
        order = np.argsort(-values, kind="stable")[:_KEPT]
        left, right = np.concatenate([left, more_left])[order], np.concatenate([right, more_right])[order]
        values = values[order]
    return left, right, values


def agreement(left: NDArray[np.uint8], right: NDArray[np.uint8]) -> Floats:
    """How well pairs of pictures agree after alignment, from −1 to 1: mean correlation of the blocks that agree least.

    Half of the blocks count, and of those only the ones in which either picture shows something. Two pictures without any
    such block agree by 0, and so do two that differ in some part, see ``DIFFER``.

    Args:
        left, right: P × FINE × FINE.
    """
    one = left.astype(np.float32)
    other = _aligned(one, right.astype(np.float32))
    first, second = _blocks(one), _blocks(other)
    size = np.sqrt((first**2).mean(axis=2)), np.sqrt((second**2).mean(axis=2))
    correlation = (first * second).mean(axis=2) / np.maximum(size[0] * size[1], _TEXTURE)
    shows = np.maximum(*size) >= _TEXTURE
    ordered = np.sort(np.where(shows, correlation, np.inf), axis=1)
    counted = np.arange(ordered.shape[1]) < (shows.sum(axis=1, keepdims=True) + 1) // 2
    total = np.where(counted, ordered, 0).sum(axis=1)
    mean = total / np.maximum(counted.sum(axis=1), 1)
    agree: Floats = np.where(_difference(one, other) <= DIFFER, mean, np.minimum(mean, 0)).astype(np.float32)
    return agree


def _difference(left: Floats, right: Floats) -> Floats:
    """The largest difference of a block's mean brightness, in standard deviations; overall brightness and contrast aside.

    One picture is brightened and clipped to resemble the other, and the other way round: what was clipped to white or black
    can only be predicted, not restored, so the better of the two counts.
    """
    inner = slice(_EDGE, FINE - _EDGE)
    one, other = left[:, inner, inner], right[:, inner, inner]
    return np.minimum(_unexplained(one, other), _unexplained(other, one))


def _unexplained(pictures: Floats, others: Floats) -> Floats:
    """The largest mean of a block that is left when ``others``, brightened and clipped, are subtracted from ``pictures``."""
    kept = ((pictures > _BLACK) == (others > _BLACK)) & ((pictures < _WHITE) == (others < _WHITE))
    kept |= kept.mean(axis=(1, 2), keepdims=True) < _ENOUGH
    weight = kept / kept.sum(axis=(1, 2), keepdims=True)
    here, there = ((weight * part).sum(axis=(1, 2), keepdims=True) for part in (pictures, others))
    spread = np.maximum((weight * (others - there) ** 2).sum(axis=(1, 2), keepdims=True), 1e-6)
    slope = (weight * (pictures - here) * (others - there)).sum(axis=(1, 2), keepdims=True) / spread
    rest = pictures - np.clip(here + slope * (others - there), 0, 255)
    sums = np.cumsum(np.cumsum(np.pad(rest, ((0, 0), (1, 0), (1, 0))), axis=1), axis=2)
    starts = np.arange(0, sums.shape[1] - _BLOCK, 2)  # blocks overlap, so that one of them covers any detail
    ends = starts + _BLOCK
    inside = sums[:, ends][:, :, ends] - sums[:, starts][:, :, ends] - sums[:, ends][:, :, starts]
    means = (inside + sums[:, starts][:, :, starts]) / _BLOCK**2
    largest: Floats = np.abs(means).max(axis=(1, 2)) / np.maximum(pictures.std(axis=(1, 2)), 1)
    return largest


def _blocks(pictures: Floats) -> Floats:
    """P × blocks × pixels, each block with mean 0."""
    count = (FINE - 2 * _EDGE) // _BLOCK
    inner = pictures[:, _EDGE:-_EDGE, _EDGE:-_EDGE].reshape(-1, count, _BLOCK, count, _BLOCK)
    cut = inner.transpose(0, 1, 3, 2, 4).reshape(len(pictures), count**2, _BLOCK**2)
    centred: Floats = cut - cut.mean(axis=2, keepdims=True)
    return centred


def _aligned(left: Floats, right: Floats) -> Floats:
    """``right``, cropped and then shifted so that it correlates most with ``left``."""
    crops = _best(left, right, [(crop, 0, 0) for crop in _CROPS])
    result = right.copy()
    for number, crop in enumerate(_CROPS):
        some = np.flatnonzero(crops == number)
        ways = [(crop, down, across) for down, across in _SHIFTS]
        shifts = _best(left[some], right[some], ways)
        for place, way in enumerate(ways):
            chosen = some[shifts == place]
            result[chosen] = _resampled(right[chosen], *way)
    return result


def _best(left: Floats, right: Floats, ways: Sequence[tuple[float, int, int]]) -> Places:
    """For each pair, the number of the way to crop and shift ``right`` that correlates most with ``left``."""
    one = _centred(left)
    found = []
    for way in ways:
        other = _centred(_resampled(right, *way))
        found.append((one * other).sum(axis=1) / np.maximum(np.linalg.norm(other, axis=1), 1e-6))
    best: Places = np.stack(found).argmax(axis=0)
    return best


def _resampled(pictures: Floats, crop: float, down: int, across: int) -> Floats:
    """Pictures without ``crop`` of each side, shifted, at their old size; a negative crop leaves a margin."""
    side = pictures.shape[1]
    centre = (side - 1) / 2
    place = centre + (np.arange(side) - centre) * (1 - 2 * crop)
    rows, columns = (np.clip(np.rint(place + shift), 0, side - 1).astype(np.intp) for shift in (down, across))
    taken: Floats = pictures[:, rows][:, :, columns]
    return taken


def _centred(pictures: Floats) -> Floats:
    """P × pixels with mean 0."""
    rows = pictures.reshape(len(pictures), FINE**2)
    centred: Floats = rows - rows.mean(axis=1, keepdims=True)
    return centred
