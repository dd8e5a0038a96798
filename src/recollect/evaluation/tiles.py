"""A tile of queries: the state of the streaming pass for a few queries, and the counting.

``ranks.py`` decides which similarities are computed when; here they are counted. A tile holds its queries' vectors,
the float64 similarities of their positives (best first) and the number of negatives found above each so far.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from recollect.evaluation import exact
from recollect.evaluation.counting import GROUP, MANY_THRESHOLDS, busy_groups, count_above_each, group_entries
from recollect.evaluation.relevance import Ints, Relevance, to_tensor
from recollect.evaluation.vectors import Vectors

Limits = Callable[[Tensor, int], Tensor]
"""(positives per query [q], width P) → q × P int64: negatives above the j-th positive from which it no longer matters."""

BYTES_A_POSITIVE = 104
"""Memory a tile takes for each positive: indices, similarity, count, limit, thresholds and their temporaries."""

_DEEP = 1 << 32  # a limit that no gallery reaches
_CROWDED, _CROWDED_ROWS = 4, 32
"""Rows with entries that matter in more than a quarter of their groups are counted as a whole, if there are at least 32."""


@dataclass(frozen=True)
class RankTile:
    """Ranks of a few queries.

    Attributes:
        queries: [q] numbers of the queries.
        positives: [q] how many positives each has, at least one.
        ranks: [q × P] float64, 1 for the top; ascending, +inf after the last positive. A rank beyond the requested
            limit is given as the first rank beyond it.
        items: [q × P] the gallery item at each of those ranks, −1 after the last.
        similarities: [q × P] their similarities, float64; +inf after the last.
        tolerance: [q] similarities no further apart than this are tied.
    """

    queries: Tensor
    positives: Tensor
    ranks: Tensor
    items: Tensor
    similarities: Tensor
    tolerance: Tensor


class _Bounds(NamedTuple):
    """[q × P] thresholds in float64, and the float32 values between which float32 cannot decide.

    They depend on ``longest_item``, the bound on the length of the items compared with.
    """

    longest_item: float
    exact: Tensor
    low: Tensor
    high: Tensor


@dataclass
class QueryTile:
    """A few queries, their positives, and the negatives counted so far.

    Attributes:
        queries: [q] their numbers. vectors: [q × d]. norms: [q] lengths, float64.
        positives: [q] how many each has.
        similarities: [q × P] of the positives, float64, descending; +inf as padding, so that nothing is above it.
        items: [q × P] which gallery items those are.
        limits: [q × P] counts from which a positive no longer matters; 0 for padding.
        hidden_rows, hidden_places: entries that are not negatives (positives, ignored items, the query itself), by
            their place in the order in which the gallery is streamed, ascending.
        tie_sign: in which direction the tolerance moves the threshold, see ``exact.tie_sign``.
        above: [q × P] negatives counted.
        open: whether any count still matters.
    """

    queries: Ints
    vectors: Tensor
    norms: Tensor
    positives: Tensor
    similarities: Tensor
    items: Tensor
    limits: Tensor
    hidden_rows: Ints
    hidden_places: Ints
    tie_sign: int
    above: Tensor = field(init=False)
    open: bool = field(init=False)
    longest: float = field(init=False)
    _known: _Bounds | None = field(init=False, default=None)
    _longest_item: float = field(init=False, default=0.0)
    _picks: bool = field(init=False)

    def __post_init__(self) -> None:
        self.above = torch.zeros_like(self.limits)
        self.open = bool((self.limits > 0).any())
        self.longest = longest(self.vectors)
        # Selecting entries pays off if few are above the thresholds that matter: not if every rank of every positive is
        # needed, nor with so many thresholds that rows are sorted.
        width = self.limits.shape[1]
        self._picks = width <= MANY_THRESHOLDS and not bool((self.limits[:, 1:] > _DEEP).any())

    def hide(self, similarities: Tensor, start: int, items: int) -> None:
        """Set what is not a negative to −∞ in the product with the ``items`` items at the places from ``start`` on."""
        first, last = np.searchsorted(self.hidden_places, [start, start + items])
        entries = self.hidden_rows[first:last] * similarities.shape[1] + (self.hidden_places[first:last] - start)
        similarities.view(-1).index_fill_(0, to_tensor(entries, similarities.device), -math.inf)

    def count(self, similarities: Tensor, items: Tensor, longest_item: float, scratch: Tensor) -> None:
        """Add the negatives among ``items`` to the counts.

        Args:
            similarities: [q × t] products with the items, −∞ where an entry is not a negative, padded with −∞ in both
                directions to whole groups; contiguous or the transpose of something contiguous.
            items: [up to t × d].
            longest_item: a bound on the items' lengths.
            scratch: flat buffer of at least q · t entries.
        """
        bounds = self._bounds(longest_item)
        wanted = self.above < self.limits
        # The lowest threshold of a row that still matters: one pass finds the entries above it, if there are any.
        floors = torch.where(wanted, bounds.low, math.inf).amin(dim=1)
        floors = torch.nn.functional.pad(floors, (0, len(similarities) - len(floors)), value=math.inf)
        rows, groups = busy_groups(similarities, floors)
        if not len(rows):
            return
        busy = torch.bincount(rows, minlength=len(floors))
        crowded = busy > (similarities.shape[1] // (GROUP * _CROWDED) if self._picks else 0)
        if self._picks and int(crowded.sum()) < _CROWDED_ROWS:
            self._count_few(similarities, items, rows, groups, floors, bounds)
        else:
            if self._picks:
                few = ~crowded[rows]
                self._count_few(similarities, items, rows[few], groups[few], floors, bounds)
            some = crowded.nonzero().flatten()
            self._count_rows(similarities, items, some, wanted[some], bounds, scratch)
        self.open = bool((self.above < self.limits).any())

    def _count_few(
        self, similarities: Tensor, items: Tensor, rows: Tensor, groups: Tensor, floors: Tensor, bounds: _Bounds
    ) -> None:
        """Rows with few entries that matter: these are picked out and compared with the thresholds one by one."""
        row, column, value = group_entries(similarities, rows, groups, floors)
        room = similarities.numel()
        for start in range(0, len(row), step := max(1, room // self.above.shape[1])):
            own, entry = row[start : start + step], value[start : start + step].unsqueeze(1)
            high = above = entry > bounds.high.index_select(0, own)
            low = entry > bounds.low.index_select(0, own)
            if self.vectors.dtype == torch.float32 and not torch.equal(low, high):
                which, threshold = (low & ~high).nonzero().unbind(1)
                left, right = own[which], column[start : start + step][which]
                above[which, threshold] = exact.above(
                    self.vectors, items, left, right, bounds.exact[left, threshold], room
                )
            self.above.index_add_(0, own, above.long())

    def _count_rows(
        self, similarities: Tensor, items: Tensor, rows: Tensor, wanted: Tensor, bounds: _Bounds, scratch: Tensor
    ) -> None:
        """Rows with many: all of a row's entries are compared with each threshold."""
        some = _rows(similarities[:, : len(items)], rows)
        low, high = bounds.low[rows], bounds.high[rows]
        largest = some.amax(dim=1, keepdim=True)  # a threshold that it does not reach has nothing above it
        wanted = wanted & (largest > low)
        counts = count_above_each(some, high, wanted & (largest > high), scratch)
        if some.dtype == torch.float32:
            close = count_above_each(some, low, wanted, scratch) - counts
            row, column = close.nonzero().unbind(1)
            if len(row):
                counts[row, column] += exact.count_close(
                    self.vectors[rows],
                    items,
                    some,
                    row,
                    low[row, column],
                    high[row, column],
                    bounds.exact[rows[row], column],
                    int(close.sum()),
                    scratch,
                )
        self.above[rows] += counts

    def result(self) -> RankTile:
        """The ranks of the queries that have a positive."""
        place = torch.arange(1, self.above.shape[1] + 1, device=self.above.device)
        ranks = (torch.minimum(self.above, self.limits) + place).double()
        ranks.masked_fill_(place > self.positives.unsqueeze(1), math.inf)
        kept = self.positives > 0
        queries = to_tensor(self.queries, ranks.device)
        return RankTile(
            queries[kept],
            self.positives[kept],
            ranks[kept],
            self.items[kept],
            self.similarities[kept],
            self._tolerance(self._longest_item)[kept],
        )

    def _bounds(self, longest_item: float) -> _Bounds:
        """The threshold of every positive, and the float32 values between which float32 cannot decide."""
        if self._known is None or self._known.longest_item != longest_item:
            dim, dtype = self.vectors.shape[1], self.vectors.dtype
            scale = (self.norms * longest_item).unsqueeze(1)
            exact.check_range(float(scale.max()), dtype, "embeddings")
            self._longest_item = max(self._longest_item, longest_item)
            threshold = self.similarities + self.tie_sign * self._tolerance(longest_item).unsqueeze(1)
            low = high = threshold
            if dtype == torch.float32:
                margin = exact.rounding(dim, dtype) * scale + dim * torch.finfo(dtype).tiny
                low, high = (threshold - margin).to(dtype), (threshold + margin).to(dtype)
            self._known = _Bounds(longest_item, threshold, low, high)
        return self._known

    def _tolerance(self, longest_item: float) -> Tensor:
        """[q] how far apart two similarities may be and still tie."""
        # A zero vector ties with everything and has no rounding error: use the smallest positive number.
        rounding = exact.rounding(self.vectors.shape[1], torch.float64)
        return rounding * self.norms * longest_item + torch.finfo(torch.float64).tiny


def query_tile(
    numbers: Ints,
    queries: Vectors,
    gallery: Vectors,
    relevance: Relevance,
    limits: Limits,
    tie_sign: int,
    dtype: torch.dtype,
    chunk: int,
    places: Ints | None = None,
) -> QueryTile:
    """Gather a tile's vectors and the similarities of its positives, best first.

    Args:
        numbers: the queries. chunk: gallery vectors to look up at a time.
        places: the place of every gallery item in the order of streaming; None for the gallery's own order.
    """
    device = gallery.device
    vectors = queries.take(numbers, dtype)
    positives, ignored = relevance.pairs(numbers)
    counts = relevance.counts[numbers]
    width = max(1, int(counts.max()))
    found = exact.pair_similarities(vectors, gallery, positives, chunk)
    # Pairs are in the order of their rows, so a pair's column is its distance from its row's first pair.
    column = np.arange(len(positives.rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    place = to_tensor(positives.rows, device), to_tensor(column, device)
    similarities = torch.full((len(numbers), width), -math.inf, dtype=torch.float64, device=device)
    items = torch.full((len(numbers), width), -1, dtype=torch.int64, device=device)
    similarities[place], items[place] = found, to_tensor(positives.items, device)
    similarities, order = similarities.sort(dim=1, descending=True, stable=True)
    similarities.masked_fill_(similarities == -math.inf, math.inf)
    hidden_rows = np.concatenate([positives.rows, ignored.rows])
    hidden_places = np.concatenate([positives.items, ignored.items])
    if places is not None:
        hidden_places = places[hidden_places]
    by_place = np.argsort(hidden_places, kind="stable")
    number = to_tensor(counts, device)
    return QueryTile(
        queries=numbers,
        vectors=vectors,
        norms=torch.linalg.vector_norm(vectors, dim=1, dtype=torch.float64),
        positives=number,
        similarities=similarities,
        items=items.gather(1, order),
        limits=limits(number, width) * (torch.arange(width, device=device) < number.unsqueeze(1)),
        hidden_rows=hidden_rows[by_place],
        hidden_places=hidden_places[by_place],
        tie_sign=tie_sign,
    )


def longest(vectors: Tensor) -> float:
    """A bound on the lengths of the vectors, rounded up coarsely so that tiles of unit vectors share one."""
    length = float(torch.linalg.vector_norm(vectors, dim=1, dtype=torch.float64).max())
    if not math.isfinite(length):  # finite vectors whose squares are not: refused by ``check_range``
        return math.inf
    return 0.0 if length == 0 else 2.0 ** (math.ceil(16 * math.log2(length)) / 16)


def _rows(similarities: Tensor, rows: Tensor) -> Tensor:
    """The given rows, contiguous; all of them without a copy when they already are."""
    if similarities.stride(1) != 1:
        return similarities.T.index_select(1, rows).T.contiguous()
    return similarities if len(rows) == len(similarities) else similarities.index_select(0, rows)
