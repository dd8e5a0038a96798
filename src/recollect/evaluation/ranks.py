"""The streaming pass: for each query, the rank of every positive it needs, exactly.

The rank of the j-th best positive is j plus the number of negatives above it, so nothing has to be sorted or kept: a
tile of queries is multiplied with a tile of the gallery, entries that are not negatives are set to −∞, those above
each positive's similarity are counted, and the tile is overwritten by the next. Two facts skip most of the counting,
exactly: a row whose largest entry is not above a threshold adds nothing to it, and a count that has passed the
deepest rank any asked metric looks at (``Limits``) cannot matter any more.

Order of loops: blocks of queries (as many as fit the memory given; usually one) → tiles of the gallery (each read
once a block, from disk if it lies there) → tiles of the block. ``metrics.py`` turns the result into numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from recollect.common.errors import InputError
from recollect.common.progress import ProgressLine
from recollect.evaluation import exact
from recollect.evaluation.counting import count_above_each
from recollect.evaluation.relevance import Ints, Relevance, to_tensor
from recollect.evaluation.vectors import Vectors

MEBIBYTE = 1 << 20
DEFAULT_MEMORY = 512 * MEBIBYTE
_SMALLEST_MEMORY = MEBIBYTE

# Measured best on processors with 1 MiB of L2 a core: the tile's 4 MiB stay in L3 between product and counts.
_QUERY_ROWS, _GALLERY_ROWS = 512, 2048
_BYTES_A_POSITIVE = 96  # indices, similarity, count, limit, thresholds, mask pair and their temporaries

Limits = Callable[[Tensor, int], Tensor]
"""(positives a query [q], width P) → q × P int64: negatives above the j-th positive from which it no longer matters."""


@dataclass(frozen=True)
class RankTile:
    """Ranks of a few queries.

    Attributes:
        queries: [q] numbers of the queries.
        positives: [q] how many positives each has.
        ranks: [q × P] float64, 1 for the top; ascending, +inf after the last positive. A rank beyond the limit asked
            for is given as the first rank beyond it.
        items: [q × P] the gallery item at each of those ranks, −1 after the last.
    """

    queries: Tensor
    positives: Tensor
    ranks: Tensor
    items: Tensor


@dataclass
class _QueryTile:
    """What the pass knows about a few queries: vectors, their positives' similarities, negatives counted so far."""

    queries: Ints
    vectors: Tensor  # q × d
    norms: Tensor  # q, float64
    positives: Tensor  # q
    similarities: Tensor  # q × P float64, descending, +inf as padding so that nothing is above it
    items: Tensor  # q × P
    limits: Tensor  # q × P
    hidden_rows: Ints  # entries that are not negatives, ordered by item
    hidden_items: Ints
    above: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.above = torch.zeros_like(self.limits)

    @property
    def finished(self) -> bool:
        return not bool((self.above < self.limits).any())


@dataclass(frozen=True)
class _Plan:
    """Tile sizes for a memory budget."""

    query_rows: int
    gallery_rows: int
    block_bytes: int

    @classmethod
    def for_memory(cls, memory: int, dim: int, dtype: torch.dtype) -> _Plan:
        if memory < _SMALLEST_MEMORY:
            raise InputError(f"memory={memory} bytes is too little: give at least {_SMALLEST_MEMORY} (1 MiB).")
        size = torch.finfo(dtype).bits // 8
        rows, columns = _QUERY_ROWS, _GALLERY_ROWS

        def fixed(rows: int, columns: int) -> int:
            # similarities, scratch and gathered rows; the gallery's tile and its float64 twin; the queries' twin
            return size * 4 * rows * columns + (size + 8) * columns * dim + 8 * rows * dim

        while fixed(rows, columns) > memory // 2 and columns > 8:
            rows, columns = max(rows // 2, 4), max(columns // 2, 8)
        return cls(rows, columns, memory // 3)


def stream_ranks(
    queries: Vectors,
    gallery: Vectors,
    relevance: Relevance,
    limits: Limits,
    *,
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
        chosen: numbers of the queries to do; all by default.
        ties: whether a negative tied with a positive counts as ahead (``"pessimistic"``) or behind.
        memory: bytes the pass may use beside its inputs.
        progress: show a progress line.
    """
    if queries.dim != gallery.dim:
        raise InputError(
            f"queries have {queries.dim} dimensions and the gallery {gallery.dim}: embed both with the same model."
        )
    dtype = torch.float64 if queries.is_double or gallery.is_double else torch.float32
    plan = _Plan.for_memory(memory, queries.dim, dtype)
    sign = exact.tie_sign(ties)
    todo = np.arange(len(relevance.counts)) if chosen is None else chosen
    todo = todo[relevance.counts[todo] > 0]
    # Tiles are padded to their longest row, so queries with as many positives go together; within those, classes do.
    todo = todo[np.lexsort((todo, relevance.groups[todo], relevance.counts[todo]))]
    with ProgressLine(
        "ranking", total=len(todo) * len(gallery), unit="pairs", quiet=None if progress else True
    ) as line:
        for block in _blocks(todo, relevance.counts, queries.dim, plan):
            yield from _rank_block(block, queries, gallery, relevance, limits, sign, plan, dtype, line)


def _rank_block(
    block: list[Ints],
    queries: Vectors,
    gallery: Vectors,
    relevance: Relevance,
    limits: Limits,
    sign: int,
    plan: _Plan,
    dtype: torch.dtype,
    line: ProgressLine,
) -> list[RankTile]:
    """One pass over the gallery for the tiles of one block."""
    with torch.no_grad(), _full_precision():
        tiles = [_query_tile(numbers, queries, gallery, relevance, limits, plan, dtype) for numbers in block]
        largest_tile = max(map(len, block)) * min(plan.gallery_rows, len(gallery))
        buffer = torch.empty(largest_tile, dtype=dtype, device=gallery.device)
        scratch = torch.empty_like(buffer)
        for start in range(0, len(gallery), plan.gallery_rows):
            items = gallery.rows(start, min(start + plan.gallery_rows, len(gallery)), dtype)
            longest = float(torch.linalg.vector_norm(items, dim=1, dtype=torch.float64).max())
            for tile in tiles:
                if not tile.finished:
                    _count(tile, items, start, longest, sign, buffer, scratch)
                line.advance(len(tile.queries) * len(items))
        return [_finished(tile) for tile in tiles]


def _count(
    tile: _QueryTile, items: Tensor, start: int, longest: float, sign: int, buffer: Tensor, scratch: Tensor
) -> None:
    """Add the negatives among ``items`` (the gallery from ``start`` on) to the tile's counts."""
    rows, columns = len(tile.vectors), len(items)
    dtype = items.dtype
    similarities = buffer[: rows * columns].view(rows, columns)
    torch.mm(tile.vectors, items.T, out=similarities)
    first, last = np.searchsorted(tile.hidden_items, [start, start + columns])
    hidden = tile.hidden_rows[first:last] * columns + (tile.hidden_items[first:last] - start)
    similarities.view(-1).index_fill_(0, to_tensor(hidden, items.device), -math.inf)

    scale = (tile.norms * longest).unsqueeze(1)
    exact.check_range(float(scale.max()), dtype, "embeddings")
    # A zero vector ties with everything and has no rounding of its own, hence the smallest number there is.
    tolerance = exact.rounding(items.shape[1], torch.float64) * scale + torch.finfo(torch.float64).tiny
    threshold = tile.similarities + sign * tolerance
    if dtype == torch.float64:
        low = high = threshold
    else:
        margin = exact.rounding(items.shape[1], dtype) * scale + items.shape[1] * torch.finfo(dtype).tiny
        low, high = (threshold - margin).to(dtype), (threshold + margin).to(dtype)

    largest = similarities.amax(dim=1, keepdim=True)
    wanted = (tile.above < tile.limits) & (largest > low)
    if not bool(wanted.any()):
        return
    sure = count_above_each(similarities, high, wanted & (largest > high), scratch)
    tile.above += sure
    if dtype == torch.float64:
        return
    close = count_above_each(similarities, low, wanted, scratch) - sure
    row, column = close.nonzero().unbind(1)
    if len(row):
        tile.above[row, column] += exact.count_close(
            tile.vectors,
            items,
            similarities,
            row,
            low[row, column],
            high[row, column],
            threshold[row, column],
            int(close.sum()),
            scratch,
        )


def _query_tile(
    numbers: Ints,
    queries: Vectors,
    gallery: Vectors,
    relevance: Relevance,
    limits: Limits,
    plan: _Plan,
    dtype: torch.dtype,
) -> _QueryTile:
    """Gather a tile's vectors and the similarities of its positives, best first."""
    device = gallery.device
    vectors = queries.take(numbers, dtype)
    positives, ignored = relevance.pairs(numbers)
    counts = relevance.counts[numbers]
    width = int(counts.max())
    found = exact.pair_similarities(vectors, gallery, positives, plan.gallery_rows)
    # Pairs are in the order of their rows, so a pair's column is its distance from its row's first pair.
    column = np.arange(len(positives.rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    place = to_tensor(positives.rows, device), to_tensor(column, device)
    similarities = torch.full((len(numbers), width), -math.inf, dtype=torch.float64, device=device)
    items = torch.full((len(numbers), width), -1, dtype=torch.int64, device=device)
    similarities[place], items[place] = found, to_tensor(positives.items, device)
    similarities, order = similarities.sort(dim=1, descending=True, stable=True)
    similarities.masked_fill_(similarities == -math.inf, math.inf)
    hidden_rows = np.concatenate([positives.rows, ignored.rows])
    hidden_items = np.concatenate([positives.items, ignored.items])
    by_item = np.argsort(hidden_items, kind="stable")
    number = to_tensor(counts, device)
    wanted_depth = limits(number, width)
    # Padding counts as finished from the start.
    wanted_depth = wanted_depth * (torch.arange(width, device=device) < number.unsqueeze(1))
    return _QueryTile(
        queries=numbers,
        vectors=vectors,
        norms=torch.linalg.vector_norm(vectors, dim=1, dtype=torch.float64),
        positives=number,
        similarities=similarities,
        items=items.gather(1, order),
        limits=wanted_depth,
        hidden_rows=hidden_rows[by_item],
        hidden_items=hidden_items[by_item],
    )


def _finished(tile: _QueryTile) -> RankTile:
    place = torch.arange(1, tile.above.shape[1] + 1, device=tile.above.device)
    ranks = (torch.minimum(tile.above, tile.limits) + place).double()
    padding = place > tile.positives.unsqueeze(1)
    return RankTile(
        queries=to_tensor(tile.queries, ranks.device),
        positives=tile.positives,
        ranks=ranks.masked_fill_(padding, math.inf),
        items=tile.items,
    )


def _blocks(todo: Ints, counts: Ints, dim: int, plan: _Plan) -> Iterator[list[Ints]]:
    """Cut the queries into blocks that fit the memory, each a list of tiles."""
    block: list[Ints] = []
    used, start = 0, 0
    while start < len(todo):
        rows = plan.query_rows
        tile = todo[start : start + rows]
        # A tile of queries with very many positives gets fewer rows; one query is always possible.
        while len(tile) > 1 and len(tile) * int(counts[tile[-1]]) * _BYTES_A_POSITIVE > plan.block_bytes // 4:
            tile = tile[: len(tile) // 2]
        cost = len(tile) * (int(counts[tile[-1]]) * _BYTES_A_POSITIVE + 8 * dim)
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
    """Products in full float32, whatever the program around us allows: the error bound depends on it."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
