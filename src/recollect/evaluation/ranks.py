"""The streaming pass: for each query, the rank of every positive it needs, exactly.

The rank of the j-th best positive is j plus the number of negatives above it, so nothing has to be sorted or kept: a
tile of queries is multiplied with a tile of the gallery, entries that are not negatives are set to −∞, those above
each positive's similarity are counted (``tiles.py``), and the product is overwritten by the next. Two shortcuts skip most
of the counting without changing the result: a group of entries whose largest is not above a threshold adds nothing to
it, and a count beyond the deepest rank that a requested metric needs (``Limits``) is not continued.

Two orders of loops. In general: blocks of queries (as many as fit the memory given; usually one) → tiles of the
gallery (each read once per block, possibly from disk) → tiles of the block. When the queries are the gallery and
fit in memory, similarities are symmetric: each pair of tiles is multiplied once and counted in both directions, which halves
the arithmetic. Both give the same ranks. ``metrics.py`` turns them into numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from recollect.common.console import ProgressLine
from recollect.common.errors import InputError
from recollect.evaluation import exact
from recollect.evaluation.counting import padded
from recollect.evaluation.relevance import Ints, Relevance
from recollect.evaluation.tiles import BYTES_A_POSITIVE, Limits, QueryTile, RankTile, longest, query_tile
from recollect.evaluation.vectors import Vectors

MEBIBYTE = 1 << 20
DEFAULT_MEMORY = 512 * MEBIBYTE
_SMALLEST_MEMORY = MEBIBYTE

# Smaller tiles are dominated by call overhead, larger ones by memory: the tile and scratch of its size should stay in cache.
_SIDE = 1024


class _Sides(NamedTuple):
    """Rows of tiles: both sides when queries are the gallery, and otherwise those of queries and of the gallery."""

    square: int
    queries: int
    gallery: int


_SIDES = _Sides(_SIDE, _SIDE // 2, _SIDE * 2)


@dataclass(frozen=True)
class _Plan:
    """Tile sizes for a memory budget; ``block_bytes`` is the memory for one block of queries."""

    query_rows: int
    gallery_rows: int
    block_bytes: int

    @classmethod
    def for_memory(cls, memory: int, dim: int, dtype: torch.dtype, rows: int, columns: int) -> _Plan:
        if memory < _SMALLEST_MEMORY:
            raise InputError(f"memory={memory} bytes is too little: give at least {_SMALLEST_MEMORY} (1 MiB).")
        size = torch.finfo(dtype).bits // 8

        def fixed() -> int:
            # similarities, scratch and gathered rows; the gallery's tile and its float64 twin; the queries' twin
            return size * 4 * rows * columns + (size + 8) * columns * dim + 8 * rows * dim

        while fixed() > memory // 2 and columns > 8:
            rows, columns = max(rows // 2, 4), max(columns // 2, 8)
        return cls(rows, columns, memory - fixed() if fixed() < memory // 2 else memory // 2)

    def cost(self, counts: Ints, dim: int, dtype: torch.dtype) -> int:
        """Bytes kept for a tile of queries with these numbers of positives."""
        vectors = torch.finfo(dtype).bits // 8 * dim
        return len(counts) * (vectors + max(1, int(counts.max())) * BYTES_A_POSITIVE)


def stream_ranks(
    queries: Vectors,
    gallery: Vectors,
    relevance: Relevance,
    limits: Limits,
    *,
    themselves: bool = False,
    chosen: Ints | None = None,
    ties: exact.Ties = "pessimistic",
    memory: int = DEFAULT_MEMORY,
    progress: bool = False,
) -> Iterator[RankTile]:
    """Ranks of the positives of every query that has one, a few queries at a time, in no particular order.

    Args:
        queries: N_q × d. gallery: N_g × d, on the same device.
        relevance: the positives and the ignored items of each query.
        limits: how deep ranks have to be exact.
        themselves: the gallery begins with the queries, and hiding is symmetric: if z is hidden from x, x is hidden from z.
        chosen: numbers of the queries to process; all by default.
        ties: whether a negative tied with a positive counts as ahead (``"pessimistic"``) or behind.
        memory: bytes the pass may use in addition to its inputs.
        progress: show a progress line.
    """
    if queries.dim != gallery.dim:
        raise InputError(
            f"queries have {queries.dim} dimensions and the gallery {gallery.dim}: embed both with the same model."
        )
    dtype = torch.float64 if queries.is_double or gallery.is_double else torch.float32
    sign = exact.tie_sign(ties)
    sides = _SIDES
    counts = relevance.counts
    make = partial(query_tile, queries=queries, gallery=gallery, relevance=relevance, limits=limits, tie_sign=sign)
    line = ProgressLine("ranking", total=len(queries) * len(gallery), unit="pairs", quiet=None if progress else True)
    with line:
        if themselves and chosen is None:
            plan = _Plan.for_memory(memory, queries.dim, dtype, sides.square, sides.square)
            order = _order(np.arange(len(counts)), relevance)
            pieces = [order[start : start + plan.query_rows] for start in range(0, len(order), plan.query_rows)]
            if sum(plan.cost(counts[piece], queries.dim, dtype) for piece in pieces) <= plan.block_bytes:
                places = np.arange(len(gallery))
                places[order] = np.arange(len(order))
                tile = partial(make, dtype=dtype, chunk=plan.gallery_rows, places=places)
                yield from _rank_themselves(pieces, tile, gallery, plan, dtype, line)
                return
        plan = _Plan.for_memory(memory, queries.dim, dtype, sides.queries, sides.gallery)
        todo = np.arange(len(counts)) if chosen is None else chosen
        for block in _blocks(_order(todo[counts[todo] > 0], relevance), counts, queries.dim, dtype, plan):
            tile = partial(make, dtype=dtype, chunk=plan.gallery_rows)
            yield from _rank_block(block, tile, gallery, plan, dtype, line)


def _rank_block(
    block: list[Ints], make: partial[QueryTile], gallery: Vectors, plan: _Plan, dtype: torch.dtype, line: ProgressLine
) -> list[RankTile]:
    """One pass over the gallery for the tiles of one block."""
    with torch.no_grad(), _full_precision():
        tiles = [make(numbers) for numbers in block]
        buffers = _buffers(max(map(len, block)), min(plan.gallery_rows, len(gallery)), dtype, gallery.device)
        _against(tiles, gallery, 0, plan, buffers, line)
        return [tile.result() for tile in tiles]


def _rank_themselves(
    pieces: list[Ints], make: partial[QueryTile], gallery: Vectors, plan: _Plan, dtype: torch.dtype, line: ProgressLine
) -> list[RankTile]:
    """Every pair of tiles once, counted for both; then the rest of the gallery, if any, for all."""
    with torch.no_grad(), _full_precision():
        tiles = [make(numbers) for numbers in pieces]
        buffers = _buffers(len(pieces[0]), min(plan.gallery_rows, len(gallery)), dtype, gallery.device)
        start = 0
        for number, right in enumerate(tiles):
            for left in tiles[: number + 1]:
                if left.open or right.open:
                    product = _product(left.vectors, right.vectors, buffers[0])
                    left.hide(product, start, len(right.queries))
                    if left.open:
                        left.count(product, right.vectors, right.longest, buffers[1])
                    if right.open and right is not left:
                        right.count(product.T, left.vectors, left.longest, buffers[1])
                line.advance(len(left.queries) * len(right.queries) * (1 if left is right else 2))
            start += len(right.queries)
        _against(tiles, gallery, start, plan, buffers, line)
        return [tile.result() for tile in tiles]


def _against(
    tiles: list[QueryTile],
    gallery: Vectors,
    first: int,
    plan: _Plan,
    buffers: tuple[Tensor, Tensor],
    line: ProgressLine,
) -> None:
    """Count the gallery from item ``first`` on, for all tiles."""
    for start in range(first, len(gallery), plan.gallery_rows):
        items = gallery.rows(start, min(start + plan.gallery_rows, len(gallery)), tiles[0].vectors.dtype)
        bound = longest(items)
        for tile in tiles:
            if tile.open:
                product = _product(tile.vectors, items, buffers[0])
                tile.hide(product, start, len(items))
                tile.count(product, items, bound, buffers[1])
            line.advance(len(tile.queries) * len(items))


def _buffers(rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Room for one tile of similarities, and scratch of the same size."""
    buffer = torch.empty(padded(rows) * padded(columns), dtype=dtype, device=device)
    return buffer, torch.empty_like(buffer)


def _product(left: Tensor, right: Tensor, buffer: Tensor) -> Tensor:
    """All similarities, padded with −∞ to whole groups in both directions."""
    rows, columns = padded(len(left)), padded(len(right))
    product = buffer[: rows * columns].view(rows, columns)
    product[len(left) :] = -math.inf
    product[:, len(right) :] = -math.inf
    torch.mm(left, right.T, out=product[: len(left), : len(right)])
    return product


def _order(queries: Ints, relevance: Relevance) -> Ints:
    """Tiles are padded to their longest row, so queries with equal numbers of positives go together; within those, classes."""
    return queries[np.lexsort((queries, relevance.groups[queries], relevance.counts[queries]))]


def _blocks(todo: Ints, counts: Ints, dim: int, dtype: torch.dtype, plan: _Plan) -> Iterator[list[Ints]]:
    """Cut the queries into blocks that fit the memory, each a list of tiles."""
    block: list[Ints] = []
    used, start = 0, 0
    while start < len(todo):
        tile = todo[start : start + plan.query_rows]
        # A tile of queries with very many positives gets fewer rows; one query is always possible.
        while len(tile) > 1 and plan.cost(counts[tile], dim, dtype) > plan.block_bytes // 4:
            tile = tile[: len(tile) // 2]
        cost = plan.cost(counts[tile], dim, dtype)
        if block and used + cost > plan.block_bytes:
            yield block
            block, used = [], 0
        block.append(tile)
        used += cost
        start += len(tile)
    if block:
        yield block


@contextmanager
def _full_precision() -> Iterator[None]:
    """Force products in full float32, even if the calling program allows less: the error bound depends on it."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
