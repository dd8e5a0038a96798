"""Random numbers that belong to an image, not to a worker: a function of (seed, epoch, batch, image, occurrence).

No generator is kept and nothing is drawn in turn, so the numbers do not depend on workers, processes or
order. Changing a constant here changes the augmentation of every run; the tests check some values.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from recollect.data.image_set import Indices

Uniforms = NDArray[np.float64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def uniforms(seed: int, epoch: int, batch: int, indices: Indices, occurrences: Indices, count: int) -> Uniforms:
    """``count`` numbers in [0, 1) for every image, as len(indices) × count.

    Args:
        seed: of the run.
        epoch: of the run.
        batch: number of the batch within the epoch, from 0: an image in several batches is augmented differently in each.
        indices: the images.
        occurrences: how often each occurred before in its batch: a repeated image is augmented differently.
        count: numbers per image.

    Examples:
        >>> rows = uniforms(0, 0, 0, np.array([7, 8]), np.array([0, 0]), 3)
        >>> bool((rows[1] == uniforms(0, 0, 0, np.array([8]), np.array([0]), 3)[0]).all())
        True
    """
    key = np.full(len(indices), seed, dtype=np.uint64)
    for part in (epoch, batch, indices, occurrences):
        key = _mix(key) + np.asarray(part).astype(np.uint64)
    steps = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
    bits = _mix(_mix(key)[:, None] + steps)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def occurrences(indices: Indices) -> Indices:
    """For every entry, the number of equal entries before it."""
    order = np.argsort(indices, kind="stable")
    ordered = indices[order]
    positions = np.arange(len(indices))
    first = np.r_[True, ordered[1:] != ordered[:-1]] if len(indices) else np.zeros(0, dtype=bool)
    result = np.empty(len(indices), dtype=np.int64)
    result[order] = positions - np.maximum.accumulate(np.where(first, positions, 0))
    return result


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64: a bijection of 64-bit words that passes the usual test batteries as a counter."""
    values = values + _GOLDEN
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
