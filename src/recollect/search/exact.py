"""Exact search: the most similar vectors of a gallery, tile by tile, in bounded memory.

Reports, ``recollect search`` and the index in a file use it. Metrics do not: they need ranks, not lists (``evaluation``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recollect.common.errors import InputError
from recollect.search.stores import NEIGHBOURS

_TILE_BYTES = 64 << 20
_ROWS = 16384  # rows of the gallery multiplied at a time
_HALF_ROWS = 1024  # rows of half-precision vectors converted at a time: 2 MB at 512 dimensions stay in the cache
_MANY = 32  # queries from which one product with the gallery on the right is faster


@dataclass(frozen=True)
class Neighbours:
    """The results of Q queries, best first.

    Attributes:
        indices: Q × k positions in the gallery.
        similarities: Q × k dot products.
    """

    indices: NDArray[np.int64]
    similarities: NDArray[np.float32]


def nearest(
    queries: NDArray[np.float32],
    gallery: NDArray[np.float32],
    k: int = NEIGHBOURS,
    *,
    own: NDArray[np.int64] | None = None,
) -> Neighbours:
    """The ``k`` gallery vectors with the largest dot product, for every query; ties in the gallery's order.

    Args:
        queries: Q × d. gallery: N × d.
        k: how many; fewer come back when the gallery is smaller.
        own: for each query, its own position in the gallery, which is left out; -1 for none.

    Raises:
        InputError: shapes that do not match, values that are not finite, or an empty gallery.

    Examples:
        >>> neighbours = nearest(np.eye(2, dtype=np.float32), np.eye(2, dtype=np.float32), k=1)
        >>> neighbours.indices.tolist(), neighbours.similarities.tolist()
        ([[0], [1]], [[1.0], [1.0]])
    """
    if gallery.ndim != 2 or not len(gallery) or not np.isfinite(gallery).all():
        raise InputError(
            f"the gallery must be N × d finite values with at least one vector; its shape is {gallery.shape}."
        )
    queries = check_queries(queries, gallery.shape[1], k)
    count = min(k, len(gallery) - bool(own is not None and (own >= 0).any()))
    if count < 1:
        raise InputError("the gallery contains no vector besides the query itself: add images to it.")
    return nearest_unchecked(queries, np.ascontiguousarray(gallery, np.float32), count, own=own)


def check_queries(queries: NDArray[np.float32], dim: int, k: int) -> NDArray[np.float32]:
    """Queries as Q × dim float32.

    Raises:
        InputError: a wrong shape, values that are not finite, or a ``k`` below 1.
    """
    if k < 1:
        raise InputError(f"k is {k}: it must be at least 1.")
    rows = np.ascontiguousarray(queries, np.float32)
    if rows.ndim != 2 or rows.shape[1] != dim:
        raise InputError(f"queries must have {dim} dimensions, but the shape is {rows.shape}.")
    if not np.isfinite(rows).all():
        raise InputError("queries: a value is not finite (NaN or infinity).")
    return rows


def nearest_unchecked(
    queries: NDArray[np.float32],
    gallery: NDArray[Any],
    k: int,
    *,
    own: NDArray[np.int64] | None = None,
    allowed: NDArray[np.bool_] | None = None,
) -> Neighbours:
    """``nearest`` without checking every value first, which would cost as much as the search of one query.

    Args:
        queries: Q × d. gallery: N × d, float32 or float16; products are float32 in both cases.
        k: how many; at most the number of vectors that are allowed.
        own: as in ``nearest``.
        allowed: which of the N may be results; all when None.
    """
    if k == 0:
        return Neighbours(np.empty((len(queries), 0), np.int64), np.empty((len(queries), 0), np.float32))
    right = torch.from_numpy(gallery)
    rows = max(1, _TILE_BYTES // (4 * len(gallery)))
    indices = np.empty((len(queries), k), np.int64)
    similarities = np.empty((len(queries), k), np.float32)
    excluded = None if allowed is None else torch.from_numpy(~allowed)
    for start in range(0, len(queries), rows):
        part = slice(start, start + rows)
        tile = _products(torch.from_numpy(np.ascontiguousarray(queries[part], np.float32)), right)
        if own is not None:
            inside = np.flatnonzero(own[part] >= 0)
            tile[torch.from_numpy(inside), torch.from_numpy(own[part][inside])] = -torch.inf
        if excluded is not None:
            tile.masked_fill_(excluded, -torch.inf)
        values, places = tile.topk(min(k + 1, len(gallery)), dim=1)
        # topk takes any of several equal values at the end of the list; those that come first in the gallery are meant.
        for row in (values[:, k - 1] == values[:, -1]).nonzero().flatten() if k < len(gallery) else ():
            last = values[row, -1]
            above = int((values[row] > last).sum())
            places[row, above:k] = (tile[row] == last).nonzero().flatten()[: k - above]
        # topk does not define the order of equal values; two sorts do: first by position, then, stably, by value.
        places, order = places[:, :k].sort(dim=1)
        values, order = values[:, :k].gather(1, order).sort(dim=1, descending=True, stable=True)
        indices[part], similarities[part] = places.gather(1, order).numpy(), values.numpy()
    return Neighbours(indices, similarities)


def pair_tiles(vectors: NDArray[np.float32], size: int) -> Iterator[tuple[slice, slice, Tensor, Tensor]]:
    """Dot products of all pairs, ``size`` × ``size`` at a time.

    Yields:
        The rows of a tile, its columns, the products, and which of them belong to pairs: each pair once.

    Raises:
        InputError: not N × d finite values.
    """
    if vectors.ndim != 2 or not np.isfinite(vectors).all():
        raise InputError(f"vectors must be N × d finite values; their shape is {vectors.shape}.")
    rows = torch.from_numpy(np.ascontiguousarray(vectors, np.float32))
    for start in range(0, len(rows), size):
        for first in range(start, len(rows), size):
            left, right = slice(start, start + size), slice(first, first + size)
            tile = rows[left] @ rows[right].T
            yield left, right, tile, torch.ones_like(tile, dtype=torch.bool).triu_(start - first + 1)


def _products(queries: Tensor, gallery: Tensor) -> Tensor:
    """Q × N dot products in float32, some rows of the gallery at a time.

    For few queries, the gallery is the left factor, and a single query is duplicated: over 1,000,000 × 512 the product with
    one vector takes 200 ms of processor time, that with two 108 ms (faiss 105 ms), and with the gallery on the right 400 ms.
    For many, the result must not be transposed: 167 queries over 100,000 × 64 take 180 ms that way, and 72 ms at once.
    """
    if len(queries) >= _MANY and gallery.dtype == torch.float32:
        return queries @ gallery.T
    # Not expand(): a stride of 0 is five times slower.
    right = (queries if len(queries) > 1 else queries.repeat(2, 1)).T
    products = torch.empty(len(queries), len(gallery))
    rows = _ROWS if gallery.dtype == torch.float32 else _HALF_ROWS
    for start in range(0, len(gallery), rows):
        part = slice(start, start + rows)
        products[:, part] = (gallery[part].float() @ right).T[: len(queries)]
    return products
