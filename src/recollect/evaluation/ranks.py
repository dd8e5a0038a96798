"""The streaming pass: for each query, the rank of every positive it needs, exactly.

The rank of the j-th best positive is j plus the number of negatives above it, so nothing has to be sorted or kept: a
tile of queries is multiplied with a tile of the gallery, entries that are not negatives are set to −∞, the others are
counted (``tiles.py``), and the product is overwritten by the next. Counting stops beyond the deepest rank that a requested
metric needs (``Limits``).

Two orders of loops. In general: blocks of queries (as many as fit the memory given; usually one) → tiles of the
gallery (each read once per block, possibly from disk) → tiles of the block. When the queries are the gallery and
fit in memory, similarities are symmetric: each pair of tiles is multiplied once and counted in both directions, which halves
the arithmetic. Both give the same ranks. ``metrics.py`` turns them into numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from torch import Tensor

from recollect.common.console import ProgressLine
from recollect.common.errors import InputError
from recollect.common.machine import full_precision
from recollect.evaluation.inputs import Ints, Relevance, Vectors
from recollect.evaluation.tiles import (
    Limits,
    QueryTile,
    RankTile,
    Ties,
    Workspace,
    longest,
    padded,
    tie_sign,
    vector_lengths,
)

MEBIBYTE = 1 << 20
DEFAULT_MEMORY = 512 * MEBIBYTE
"""Bytes on a CPU; on a GPU a quarter of what is free, if that is more."""

_SIDE = 1008
"""Rows and columns of a tile. Smaller ones are dominated by call overhead, larger ones save nothing. With 1,024, the
entries of a column would fall into the same few lines of the cache, and reading columns would take five times as long."""

_DEVICE_SIDES = 8
"""On a GPU, tiles are up to this many times as wide: each waits a few times for the device, and launches 150 kernels."""


class _Plan:
    """The rows and columns of a tile for a memory budget, and the bytes for one block of queries."""

    def __init__(self, memory: int | None, dim: int, dtype: torch.dtype, device: torch.device) -> None:
        if memory is None:
            free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0
            memory = max(DEFAULT_MEMORY, free // 4)
        if memory < MEBIBYTE:
            raise InputError(f"memory={memory} bytes is too little: give at least {MEBIBYTE} (1 MiB).")
        self.rows = _SIDE if device.type == "cpu" else _DEVICE_SIDES * _SIDE
        self._size, self._dim = torch.finfo(dtype).bits // 8, dim
        while self._tile_bytes() > memory // 2 and self.rows > 8:
            self.rows //= 2
        self._memory = memory
        self.block_bytes = max(memory - self._tile_bytes(), memory // 2)

    def threads(self, device: torch.device) -> int:
        """How many pairs of tiles to count at a time."""
        most = torch.get_num_threads() if device.type == "cpu" else 1
        return max(1, min(most, self._memory // 2 // self._tile_bytes()))

    def _tile_bytes(self) -> int:
        # similarities, cells and entries picked out; the gallery's tile, vectors of pairs and float64 twins of both
        return self.rows * (10 * self._size * self.rows + (self._size + 24) * self._dim)

    def cost(self, counts: Ints) -> int:
        """Bytes kept for a tile of queries with these numbers of positives."""
        # A positive: index, similarity, limit, count, bounds, 32 cells and their temporaries. A query: its fewest cells.
        return len(counts) * (self._size * self._dim + max(1, int(counts.max())) * 200 + 1024)

    def blocks(self, todo: Ints, counts: Ints) -> Iterator[list[Ints]]:
        """Cut the queries into blocks that fit the memory, each a list of tiles."""
        block: list[Ints] = []
        used, start = 0, 0
        while start < len(todo):
            tile = todo[start : start + self.rows]
            # A tile of queries with very many positives gets fewer rows; one query is always possible.
            while len(tile) > 1 and self.cost(counts[tile]) > self.block_bytes // 4:
                tile = tile[: len(tile) // 2]
            cost = self.cost(counts[tile])
            if block and used + cost > self.block_bytes:
                yield block
                block, used = [], 0
            block.append(tile)
            used += cost
            start += len(tile)
        if block:
            yield block


def stream_ranks(
    queries: Vectors,
    gallery: Vectors,
    relevance: Relevance,
    limits: Limits,
    *,
    themselves: bool = False,
    subset: Ints | None = None,
    ties: Ties = "pessimistic",
    memory: int | None = None,
    progress: bool = False,
) -> Iterator[RankTile]:
    """Ranks of the positives of every query that has one, a few queries at a time, in no particular order.

    Args:
        queries: N_q × d. gallery: N_g × d, on the same device.
        relevance: the positives and the ignored items of each query.
        limits: how deep ranks have to be exact.
        themselves: the gallery begins with the queries, and hiding is symmetric: if z is hidden from x, x is hidden from z.
        subset: numbers of the queries to process; all by default.
        ties: whether a negative tied with a positive counts as ahead (``"pessimistic"``) or behind.
        memory: bytes the pass may use in addition to its inputs; None for ``DEFAULT_MEMORY``.
        progress: show a progress line.
    """
    if queries.dim != gallery.dim:
        raise InputError(
            f"queries have {queries.dim} dimensions and the gallery {gallery.dim}: embed both with the same model."
        )
    dtype = torch.float64 if queries.is_double or gallery.is_double else torch.float32
    plan, sign = _Plan(memory, queries.dim, dtype, queries.device), tie_sign(ties)
    counts = relevance.counts
    todo = np.arange(len(counts)) if subset is None else subset
    # Tiles are padded to their longest row, so queries with equal numbers of positives go together; within those, classes.
    todo = todo[np.lexsort((todo, relevance.groups[todo], counts[todo]))]
    pieces = [todo[start : start + plan.rows] for start in range(0, len(todo), plan.rows)]
    symmetric = themselves and subset is None and sum(plan.cost(counts[piece]) for piece in pieces) <= plan.block_bytes
    blocks, places = plan.blocks(todo[counts[todo] > 0], counts), np.arange(len(gallery))
    if symmetric:
        blocks, places[todo] = iter([pieces]), np.arange(len(todo))
    line = ProgressLine("ranking", total=len(queries) * len(gallery), unit="pairs", quiet=None if progress else True)
    with line:
        for block in blocks:
            with torch.no_grad(), full_precision():
                shared = queries, gallery, relevance, limits, sign, dtype, plan.rows, places
                tiles = [QueryTile(numbers, *shared) for numbers in block]
                _count(tiles, gallery, plan.rows, symmetric, plan.threads(queries.device), line)
                ranks = [tile.result() for tile in tiles]
            yield from ranks


def _count(
    tiles: list[QueryTile], gallery: Vectors, rows: int, symmetric: bool, threads: int, line: ProgressLine
) -> None:
    """The tiles against each other, each pair once, if ``symmetric``; then against the rest of the gallery."""
    threads = min(threads, len(tiles))
    spaces = [Workspace() for _ in range(threads)]
    start = 0

    def count(left: QueryTile, items: Tensor, first: int, longest_item: float, right: QueryTile | None = None) -> int:
        if left.open or (right is not None and right.open):
            space = spaces.pop()
            with torch.no_grad():
                product = _product(left, items, first, space)
                with left.lock:
                    left.count(product, items, longest_item, space)
                if right is not None:
                    with right.lock:
                        right.count(product.T, left.vectors, longest_item, space)
            spaces.append(space)
        return len(left.queries) * len(items) * (1 if right is None else 2)

    with _mapper(threads) as mapped:
        if symmetric:
            bound = max(tile.longest for tile in tiles)
            firsts = np.cumsum([0, *(len(tile.queries) for tile in tiles)])
            start = int(firsts[-1])
            # Along diagonals, so that threads seldom wait for the same tile.
            pairs = [(i, i + apart) for apart in range(len(tiles)) for i in range(len(tiles) - apart)]
            jobs = ((tiles[i], tiles[j].vectors, firsts[j], bound, tiles[j] if i != j else None) for i, j in pairs)
            for done in mapped(lambda job: count(*job), jobs):
                line.advance(done)
        for first in range(start, len(gallery), rows):
            items = gallery.rows(first, min(first + rows, len(gallery)), tiles[0].vectors.dtype)
            bound = longest(vector_lengths(items))
            for done in mapped(partial(count, items=items, first=first, longest_item=bound), tiles):
                line.advance(done)


@contextmanager
def _mapper(threads: int) -> Iterator[Callable[..., Iterator[int]]]:
    """``map`` in several Python threads of few torch threads each: the small operations of counting do not divide well."""
    if threads == 1:
        yield map
        return
    before = torch.get_num_threads()
    pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(before // threads,))
    try:
        yield pool.map
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(before)


def _product(tile: QueryTile, items: Tensor, start: int, space: Workspace) -> Tensor:
    """Similarities of the negatives among the items at the places from ``start`` on; −∞ elsewhere, and as padding to
    whole groups in both directions."""
    space.start_pair()
    product = space.empty("product", (padded(len(tile.vectors)), padded(len(items))), items)
    product[len(tile.vectors) :] = -math.inf
    product[:, len(items) :] = -math.inf
    torch.mm(tile.vectors, items.T, out=product[: len(tile.vectors), : len(items)])
    tile.hide(product, start, len(items))
    return product
