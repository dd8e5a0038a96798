"""The vectors of one generation in memory, by slot, for exact search. The SQLite store fills and refreshes it.

Slots are the rows of a matrix that grows; the slot of a removed item stays until another item takes it, and is
skipped by searches.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.search.exact_search import Found, nearest_unchecked

_GATHER_BELOW = 0.25
"""With a smaller share of the slots allowed, copying their rows together is faster than multiplying with all."""


class LoadedVectors:
    """Vectors by slot.

    Attributes:
        epoch, changes: the state of the store they were read in.
        matrix: at least ``size`` × dim; float32, or float16 for a generation kept in half precision.
        live: which slots hold an item.
        size: slots in use, live or not.
    """

    def __init__(self, dim: int, half: bool, epoch: int, changes: int) -> None:
        self.epoch, self.changes = epoch, changes
        self.matrix: NDArray[Any] = np.zeros((0, dim), np.float16 if half else np.float32)
        self.live = np.zeros(0, bool)
        self.size = 0
        self._owner: object = None

    def reserve(self, size: int) -> None:
        """Make room for ``size`` slots."""
        if size > len(self.matrix):
            # A quarter more than needed, so that a growing index is not copied with every batch.
            room = size if not len(self.matrix) else max(size, len(self.matrix) + len(self.matrix) // 4)
            matrix = np.zeros((room, self.matrix.shape[1]), self.matrix.dtype)
            matrix[: self.size] = self.matrix[: self.size]
            live = np.zeros(room, bool)
            live[: self.size] = self.live[: self.size]
            self.matrix, self.live = matrix, live
            self._owner = None
        self.size = max(self.size, size)

    def adopt(self, matrix: NDArray[Any], owner: object) -> None:
        """Use ``matrix``, which holds the same vectors, from now on; ``owner``, which owns the memory, is kept alive."""
        self.matrix, self._owner = matrix, owner
        self.live = self.live[: len(matrix)]

    def search(
        self, queries: NDArray[np.float32], k: int, slots: NDArray[np.int64] | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Slots and similarities of the nearest items, Q × min(k, items).

        Args:
            queries: Q × dim.
            k: how many.
            slots: only these may be found (all of them live); None for all items.
        """
        items = int(self.live[: self.size].sum()) if slots is None else len(slots)
        count = min(k, items)
        if count == 0:
            return np.zeros((len(queries), 0), np.int64), np.zeros((len(queries), 0), np.float32)
        matrix, allowed = self.matrix[: self.size], None
        if slots is None:
            if items < self.size:
                allowed = self.live[: self.size]
        elif items < _GATHER_BELOW * self.size:
            found = nearest_unchecked(queries, matrix[slots], count)
            return slots[found.indices], found.similarities
        else:
            allowed = np.zeros(self.size, bool)
            allowed[slots] = True
        found = nearest_unchecked(queries, matrix, count, allowed=allowed)
        return found.indices, found.similarities


def merged(first: Found, second: Found, k: int) -> Found:
    """The best ``k`` of two lists of results for the same queries."""
    indices = np.concatenate([first.indices, second.indices], axis=1)
    similarities = np.concatenate([first.similarities, second.similarities], axis=1)
    order = np.argsort(-similarities, axis=1, kind="stable")[:, :k]
    return Found(np.take_along_axis(indices, order, 1), np.take_along_axis(similarities, order, 1))
