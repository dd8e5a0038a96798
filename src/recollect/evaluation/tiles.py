"""A tile of queries: how many negatives are above each of their positives, exactly.

For a similarity only one number matters: how many of its query's thresholds (the similarities of its positives) are
below it. A histogram of that number over all negatives gives every rank by one cumulative sum. The number is found in steps,
each for the entries that the one before left open:

1. groups of 16 entries whose largest is below the row's lowest threshold that still matters add nothing; if few groups are
   left, their entries go to step 3;
2. otherwise a table of uniform cells over the range of the row's thresholds gives the number for every cell that holds
   none of them; entries of the other cells go to step 3;
3. a bisection among the thresholds less and plus the error bound of the product's type;
4. between those two, the product of the pair in float64.

Similarities are dot products in float64 of the vectors as given. Two that differ by no more than float64's own rounding
are *tied*; ``ties`` says what a tied negative does. Step 4 adds up every pair in the same order, and a product of
matrices, whose last digits depend on its shape, decides only outside its error bound. Ranks are therefore the same for
every tile size, number of threads and number of processes. Measured alternatives are listed in ``docs/evaluation.md``.
"""

from __future__ import annotations

import functools
import math
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from recollect.common.errors import InputError
from recollect.evaluation.inputs import Ints, Pairs, Relevance, Vectors, to_tensor

Ties = Literal["pessimistic", "optimistic"]
Limits = Callable[[Tensor, int], Tensor]
"""(positives per query [q], width P) → q × P int64: negatives above the j-th positive from which it no longer matters."""

GROUP = 16
"""Entries of a row whose maximum is taken together; tiles are padded to a multiple of it, see ``padded``."""

_CELLS, _FEWEST_CELLS, _MOST_CELLS = 32, 256, 8192
"""Cells for each threshold, and the least and most of a row: more make the table slow, fewer leave more to bisect."""

_STRIP = 504
"""Rows looked up together: fewer mean more calls, more mean memory beyond the cache."""

_PAIRS = 4096
"""Pairs whose vectors are gathered together on a device."""

_CROWDED, _CROWDED_ROWS = 4, 32
"""Rows with more than one in four groups left are counted as a whole, if there are at least 32; and if more than one in
four of their entries are in cells with thresholds, they are multiplied again in float64."""


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


class QueryTile:
    """A few queries, their positives, and the histogram of the negatives so far.

    Args:
        numbers: the queries.
        limits: how deep ranks have to be exact.
        tie_sign: in which direction the tolerance moves the thresholds, see ``tie_sign``.
        dtype: the type of the products.
        chunk: gallery vectors to look up at a time.
        places: the place of every gallery item in the order of streaming.

    Attributes:
        queries: the numbers. vectors: [q × d]. longest: a bound on their lengths. open: whether any count still matters.
    """

    def __init__(
        self,
        numbers: Ints,
        queries: Vectors,
        gallery: Vectors,
        relevance: Relevance,
        limits: Limits,
        tie_sign: int,
        dtype: torch.dtype,
        chunk: int,
        places: Ints,
    ) -> None:
        device = gallery.device
        self.queries, self.lock, self._dense = numbers, threading.Lock(), 0
        self.vectors = queries.take(numbers, dtype)
        self._lengths = vector_lengths(self.vectors).unsqueeze(1)
        self.longest = longest(self._lengths)
        self.open, self._longest_item = bool(relevance.counts[numbers].any()), -1.0
        self._bounds: dict[torch.dtype, _Bounds] = {}

        positives, ignored = relevance.pairs(numbers)
        self._counts = counts = relevance.counts[numbers]
        width = max(1, int(counts.max()))
        self._positives = to_tensor(counts, device)
        real = torch.arange(width, device=device) < self._positives.unsqueeze(1)
        similarities = torch.full(real.shape, -math.inf, dtype=torch.float64, device=device)
        lengths, items = torch.zeros_like(similarities), torch.full_like(real, -1, dtype=torch.int64)
        # Pairs are in the order of their rows, as the places of ``real`` are.
        of_pairs = (*_similarities(self.vectors, gallery, positives, chunk), to_tensor(positives.items, device))
        for table, values in zip((similarities, lengths, items), of_pairs, strict=True):
            table.masked_scatter_(real, values)
        similarities, order = similarities.sort(dim=1, descending=True, stable=True)
        self._items = items.gather(1, order)
        self._similarities = similarities.masked_fill_(~real, math.inf)
        self._limits = limits(self._positives, width) * real
        # Reading whether any count can be complete would make the host wait for a GPU.
        self._limited = device.type != "cpu" or bool((self._limits < 1 << 32).logical_and_(self._limits > 0).any())
        # Of the query and its longest positive, not of what it is compared with: that depends on the tile. A zero vector
        # ties with everything and has no rounding error: use the smallest positive number.
        scale = self._lengths * lengths.amax(dim=1, keepdim=True)
        self._tolerance = rounding(self.vectors.shape[1], torch.float64) * scale + torch.finfo(torch.float64).tiny
        # Ascending from here on; −inf where there is no threshold that matters.
        thresholds = torch.where(self._limits > 0, similarities + tie_sign * self._tolerance, -math.inf).flip(1)
        self._thresholds = _table(thresholds)
        # [q × (P + 1)]: negatives with 0 … P thresholds below them.
        self._histogram = torch.zeros(len(numbers), width + 1, dtype=torch.int32, device=device)

        hidden_rows = np.concatenate([positives.rows, ignored.rows])
        hidden_places = places[np.concatenate([positives.items, ignored.items])]
        by_place = np.argsort(hidden_places, kind="stable")
        self._hidden_rows, self._hidden_places = hidden_rows[by_place], hidden_places[by_place]

    def hide(self, similarities: Tensor, start: int, items: int) -> None:
        """Set what is not a negative to −∞ in the product with the ``items`` items at the places from ``start`` on."""
        first, last = np.searchsorted(self._hidden_places, [start, start + items])
        entries = self._hidden_rows[first:last] * similarities.shape[1] + (self._hidden_places[first:last] - start)
        similarities.view(-1).index_fill_(0, to_tensor(entries, similarities.device), -math.inf)

    def count(self, similarities: Tensor, items: Tensor, longest_item: float, space: Workspace) -> None:
        """Add the negatives among ``items`` to the histogram.

        Args:
            similarities: [q × t] products with the items, −∞ where an entry is not a negative, padded with −∞ in both
                directions to whole groups; contiguous or the transpose of something contiguous.
            items: [up to t × d].
            longest_item: a bound on the items' lengths.
            space: memory that no other thread uses.
        """
        if longest_item > self._longest_item:
            self._longest_item = longest_item
            self._bounds.clear()
        bounds = self._bounds_of(similarities.dtype)
        if self._limited:
            bounds.raise_floors((self._above() < self._limits).flip(1))
            self.open = similarities.device.type != "cpu" or bool(bounds.floors.isfinite().any())
        if similarities.device.type != "cpu":  # every step waits for the device: all rows at once
            rows = torch.arange(len(self.queries), device=similarities.device)
            part = similarities[: len(rows)].contiguous()
            self._add(items, space, *self._count_rows(part, rows, items, space))
            return
        if self._dense:  # all rows were crowded in a tile before: look again after a few more
            self._dense -= 1
            self._count_crowded(similarities, torch.arange(len(self.queries)), items, space)
            return
        groups = _group_maxima(similarities)[: len(self.queries)] > bounds.floors.unsqueeze(1)
        crowded = _places(groups.sum(dim=1) * _CROWDED > groups.shape[1])
        if len(crowded) >= _CROWDED_ROWS:
            self._dense = 3 if len(crowded) == len(self.queries) else 0
            self._count_crowded(similarities, crowded, items, space)
            groups[crowded] = False
        self._add(items, space, *_group_entries(similarities, groups, bounds.floors))

    def _count_crowded(self, similarities: Tensor, crowded: Tensor, items: Tensor, space: Workspace) -> None:
        strips = []
        for rows in crowded.split(_STRIP):
            part = _pick(similarities, rows)
            if not part.is_contiguous():
                part = space.empty("rows", part.shape, part).copy_(part)
            strips.append(self._count_rows(part, rows, items, space))
        self._add(items, space, *(torch.cat(part) for part in zip(*strips, strict=True)))

    def _count_rows(self, similarities: Tensor, rows: Tensor, items: Tensor, space: Workspace) -> tuple[Tensor, ...]:
        """Add the entries of some rows; row, column and value of those left open are returned."""
        bounds, width = self._bounds_of(similarities.dtype), self._limits.shape[1]
        codes, index = bounds.grid().look_up(similarities, rows, space)
        places = _places(codes > width)
        # Ones in full: adding an expanded one takes half as long again.
        ones = space.empty("ones", codes.shape, self._histogram, 1)
        counts = self._histogram.new_zeros(len(codes), width + 2).scatter_add_(1, index.copy_(codes), ones)
        if len(places) * _CROWDED > similarities.numel() and similarities.dtype == torch.float32:
            # So many are open (with a collapsed model, all) that single products would take longer.
            products = space.double(self.vectors)[rows] @ space.double(items).T
            products.masked_fill_(similarities[:, : len(items)] == -math.inf, -math.inf)
            self._add(items, space, *self._count_rows(products, rows, items, space))
            return rows[:0], rows[:0], similarities.view(-1)[:0]
        self._histogram.index_add_(0, rows, counts[:, : width + 1])
        row = places // similarities.shape[1]
        value = similarities.view(-1).index_select(0, places)
        return rows.index_select(0, row), places - row * similarities.shape[1], value

    def _add(self, items: Tensor, space: Workspace, row: Tensor, column: Tensor, value: Tensor) -> None:
        """Single entries, in the order of their rows."""
        if not len(row):
            return
        below, between = self._bounds_of(value.dtype).search(row, value)
        if len(between):
            own = row.index_select(0, between)
            products = pair_products(self.vectors, items, own, column.index_select(0, between), space.double)
            below.index_copy_(0, between, _below(self._thresholds, own, products))
        one = torch.ones(1, dtype=torch.int32, device=row.device).expand(len(row))
        self._histogram.view(-1).index_add_(0, row * self._histogram.shape[1] + below, one)

    def _bounds_of(self, dtype: torch.dtype) -> _Bounds:
        if dtype not in self._bounds:
            dim, scale = self.vectors.shape[1], self._lengths * self._longest_item
            _check_range(float(scale.max()), dtype)
            # Twice, because in float64 the sum of a pair in its own order has an error, too.
            margin = rounding(dim, dtype) * scale * (2 if dtype == torch.float64 else 1) + dim * torch.finfo(dtype).tiny
            thresholds = self._thresholds[:, : self._limits.shape[1]]
            self._bounds[dtype] = bounds = _Bounds(thresholds, margin, dtype)
            bounds.raise_floors((self._above() < self._limits).flip(1))
        return self._bounds[dtype]

    def _above(self) -> Tensor:
        """[q × P] negatives above each positive, best first."""
        return self._histogram[:, 1:].flip(1).cumsum(dim=1)

    def result(self) -> RankTile:
        """The ranks of the queries that have a positive."""
        place = torch.arange(1, self._limits.shape[1] + 1, device=self._limits.device)
        ranks = (torch.minimum(self._above(), self._limits) + place).double()
        ranks.masked_fill_(place > self._positives.unsqueeze(1), math.inf)
        queries = to_tensor(self.queries, ranks.device)
        of_all = queries, self._positives, ranks, self._items, self._similarities, self._tolerance.squeeze(1)
        with_positives = to_tensor(np.flatnonzero(self._counts), ranks.device)
        return RankTile(*(values.index_select(0, with_positives) for values in of_all))


class Workspace:
    """Memory for counting one pair of tiles after another: fresh memory for each step takes as long as the step."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}
        self.start_pair()

    def start_pair(self) -> None:
        """Forget the vectors of the last pair of tiles."""
        self.double = functools.cache(torch.Tensor.double)

    def empty(
        self, name: str, shape: Sequence[int], like: Tensor, fill: int | None = None, dtype: torch.dtype | None = None
    ) -> Tensor:
        """A tensor of this shape, on the device and (unless ``dtype`` is given) of the type of ``like``."""
        dtype, size = dtype or like.dtype, math.prod(shape)
        buffer = self._buffers.get(name)
        if buffer is None or len(buffer) < size or buffer.dtype != dtype:
            buffer = self._buffers[name] = torch.empty(size, dtype=dtype, device=like.device)
            if fill is not None:
                buffer.fill_(fill)
        return buffer[:size].view(shape)


class _Bounds:
    """Thresholds less and plus the error of products of one type: an entry above ``high`` is above the threshold, one
    not above ``low`` is not, and one in between is undecided.

    Args:
        thresholds: [q × P] ascending, float64. margin: [q × 1].

    Attributes:
        floors: [q] the lowest bound of a row that still matters, +inf if there is none.
    """

    def __init__(self, thresholds: Tensor, margin: Tensor, dtype: torch.dtype) -> None:
        self._low = _table((thresholds - margin).to(dtype))
        self._high = pad((thresholds + margin).to(dtype), (1, 0), value=-math.inf)  # high of the threshold before
        self._lows, self._highs = self._low[:, : thresholds.shape[1]], self._high[:, 1:]
        self._grid: _Grid | None = None
        self._raised = self._raised_before_grid = 0

    def raise_floors(self, wanted: Tensor) -> None:
        """Leave out thresholds whose counts are complete."""
        self.floors = torch.where(wanted, self._lows, math.inf).amin(dim=1)
        self._raised += 1

    def grid(self) -> _Grid:
        """Cells from the floors up; made anew from time to time, because floors rise."""
        if self._grid is None or self._raised >= 4 * self._raised_before_grid:
            floors = self.floors.unsqueeze(1)
            low, high = (x.masked_fill(self._lows < floors, -math.inf) for x in (self._lows, self._highs))
            self._grid = _Grid(low, high, floors)
            self._raised_before_grid = self._raised
        return self._grid

    def search(self, rows: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """The number of thresholds below each value of the given rows, and the places of the undecided."""
        below = _below(self._low, rows, values)
        high = self._high.view(-1).index_select(0, rows * self._high.shape[1] + below)
        return below, _places(values <= high)


class _Grid:
    """Uniform cells over each row's thresholds: how many are below the cell, P + 1 if it holds one or its bounds.

    The cell is a non-decreasing function of the value, in which each operation rounds on its own, and thresholds go through the
    same operations: rounding can move an entry to a cell with a threshold, but not beyond it. Cell 0 is
    below the floor, so what is counted there does not matter.
    """

    def __init__(self, low: Tensor, high: Tensor, floors: Tensor) -> None:
        rows, width = low.shape
        self._cells = min(max(_CELLS * width, _FEWEST_CELLS), _MOST_CELLS)
        span = (high[:, -1:] - floors).nan_to_num_(nan=1.0, posinf=1.0, neginf=1.0)
        self._scale = ((self._cells - 4) / span).clamp_(max=1e30)  # finite for zero vectors
        self._origin = floors - 2 / self._scale  # floors fall into cell 2, or 1 by rounding
        first, last = (self._cells_of(x, self._origin, self._scale).long() for x in (low, high))
        dtype = torch.uint8 if width < 254 else torch.int32
        one = torch.ones(1, 1, dtype=dtype, device=low.device).expand(rows, width)
        begun, ended = torch.zeros(2, rows, self._cells + 1, dtype=dtype, device=low.device)
        begun.scatter_add_(1, first.clamp_(min=1), one)
        ended.scatter_add_(1, last + 1, one)
        for seen in (begun, ended):
            torch.cumsum(seen, dim=1, dtype=dtype, out=seen)
        self._codes = ended.masked_fill_(begun != ended, width + 1)

    def look_up(self, values: Tensor, rows: Tensor, space: Workspace) -> tuple[Tensor, Tensor]:
        """The numbers for all values of some rows, and the memory of their cells."""
        cells = space.empty("cells", values.shape, values)
        self._cells_of(values, _pick(self._origin, rows), _pick(self._scale, rows), cells)
        # By way of int32, which takes less time than int64 at once.
        integers = space.empty("integers", values.shape, values, dtype=torch.int32).copy_(cells)
        index = space.empty("index", values.shape, values, dtype=torch.int64).copy_(integers)
        codes = space.empty("codes", values.shape, self._codes)
        return torch.gather(_pick(self._codes, rows), 1, index, out=codes), index

    def _cells_of(self, values: Tensor, origin: Tensor, scale: Tensor, out: Tensor | None = None) -> Tensor:
        return torch.sub(values, origin, out=out).mul_(scale).clamp_(0, self._cells - 1)


def tie_sign(ties: Ties) -> int:
    """−1 if a tied negative counts as ahead (the threshold moves down by the tolerance), +1 if as behind."""
    if ties not in ("pessimistic", "optimistic"):
        raise InputError(f"ties={ties!r} is unknown: choose 'pessimistic' (a tied negative is ahead) or 'optimistic'.")
    return -1 if ties == "pessimistic" else 1


def rounding(dim: int, dtype: torch.dtype) -> float:
    """A bound on the error of a dot product of two unit vectors of ``dim`` dimensions computed in ``dtype``.

    Errors of a sum of d products are at most d units of rounding, and grow like √d with overwhelming probability.
    Both bounds are strict up to d = 16; the largest float32 error measured (random, non-negative, nearly constant and
    sparse vectors of 2 to 8,192 dimensions) is 0.45 of its bound. That of float64 also says what is tied.
    """
    units = 8 + 2 * math.sqrt(dim) if dtype == torch.float32 else 4 * math.sqrt(dim)
    return units * torch.finfo(dtype).eps / 2


def longest(lengths: Tensor) -> float:
    """A bound on the lengths of vectors, rounded up coarsely so that tiles of unit vectors share one."""
    length = float(lengths.max())
    if not math.isfinite(length):  # finite vectors whose squares are not: refused by ``_check_range``
        return math.inf
    return 0.0 if length == 0 else 2.0 ** (math.ceil(16 * math.log2(length)) / 16)


def padded(size: int) -> int:
    """``size`` rounded up to whole groups."""
    return -(-size // GROUP) * GROUP


def pair_products(
    left: Tensor, right: Tensor, rows: Tensor, columns: Tensor, double: Callable[[Tensor], Tensor] = torch.Tensor.double
) -> Tensor:
    """Float64 products of pairs in the order of their rows; a pair's terms are always added in the same order."""
    if left.device.type != "cpu":
        some = zip(rows.split(_PAIRS), columns.split(_PAIRS), strict=True)
        return torch.cat([(left[row].double() * right[column].double()).sum(dim=1) for row, column in some])
    if len(rows) * 2 < len(left) + len(right):
        left, right = left.index_select(0, rows), right.index_select(0, columns)
        rows = columns = torch.arange(len(rows))
    first = torch.searchsorted(rows, torch.arange(len(left) + 1))
    zeros = torch.zeros(len(rows), dtype=torch.float64)
    _hear_of_beta()
    pairs = torch.sparse_csr_tensor(first, columns, zeros, (len(left), len(right)), check_invariants=False)
    # One sum after the other: four times as fast as gathering the vectors of all pairs.
    products: Tensor = torch.sparse.sampled_addmm(pairs, double(left), double(right).T)
    return products.values()


@functools.cache
def _hear_of_beta() -> None:
    """Let torch give its one warning about sparse tensors unheard."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.sparse_csr_tensor(
            torch.zeros(2, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), torch.zeros(0), (1, 1)
        )


def _similarities(queries: Tensor, gallery: Vectors, pairs: Pairs, chunk: int) -> tuple[Tensor, Tensor]:
    """Float64 similarities of (query row, gallery item) pairs given in the order of their rows; and the items' lengths."""
    similarities, lengths = torch.empty(2, len(pairs.rows), dtype=torch.float64, device=queries.device)
    used = np.bincount(pairs.items, minlength=1) > 0
    distinct, place = np.flatnonzero(used), (np.cumsum(used) - 1)[pairs.items]
    for start in range(0, len(distinct), chunk):
        items = gallery.take(distinct[start : start + chunk], queries.dtype)
        here = np.flatnonzero((place >= start) & (place < start + chunk))
        rows, columns, at = (to_tensor(x, queries.device) for x in (pairs.rows[here], place[here] - start, here))
        similarities.index_copy_(0, at, pair_products(queries, items, rows, columns))
        lengths.index_copy_(0, at, vector_lengths(items).index_select(0, columns))
    return similarities, lengths


def vector_lengths(vectors: Tensor) -> Tensor:
    """[N] in float64."""
    lengths: Tensor = torch.linalg.vector_norm(vectors, dim=1, dtype=torch.float64)
    return lengths


def _check_range(largest: float, dtype: torch.dtype) -> None:
    """Refuse vectors whose products overflow: infinities would all tie."""
    if largest > torch.finfo(dtype).max / 16:
        raise InputError(
            f"embeddings: the vectors are so long that their products overflow (product of norms {largest:.3g}); "
            "normalize them, for example with similarity='cosine'."
        )


def _table(ascending: Tensor) -> Tensor:
    """Rows padded with +inf to a power of two, for ``_below``."""
    width = ascending.shape[1]
    return pad(ascending, (0, (1 << width.bit_length()) - width), value=math.inf)


def _below(table: Tensor, rows: Tensor, values: Tensor) -> Tensor:
    """How many entries of its row of the table are below each value: bisection.

    ``torch.searchsorted`` has no row per value; over keys of row and value it takes three times as long.
    """
    step, flat = table.shape[1], table.view(-1)
    first = place = rows * step
    while step > 1:
        step //= 2
        place = place.add(flat.index_select(0, place + (step - 1)) < values, alpha=step)
    return place - first


def _group_maxima(similarities: Tensor) -> Tensor:
    """[rows × G] largest entry of each group. Group g holds the columns g, g + G, g + 2G, …

    torch takes maxima over neighbours, and over rows of a transpose, at a tenth of the speed or less.
    """
    if similarities.stride(1) == 1:
        return similarities.view(len(similarities), GROUP, -1).amax(dim=1)
    return similarities.T.view(GROUP, -1, len(similarities)).amax(dim=0).T.contiguous()


def _group_entries(similarities: Tensor, groups: Tensor, floors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Row, column and value of the entries of the given groups [rows × G] that are above their row's floor."""
    down, across = similarities.stride()
    place = _places(groups)
    rows = place // groups.shape[1]
    columns = (place - rows * groups.shape[1]).unsqueeze(1) + groups.shape[1] * torch.arange(GROUP)
    flat = similarities.view(-1) if across == 1 else similarities.T.view(-1)
    # index_select on a flat view: several times as fast as indexing with rows and columns.
    entries = flat.index_select(0, (rows.unsqueeze(1) * down + columns * across).view(-1))
    above = _places(entries.view(-1, GROUP) > floors.index_select(0, rows).unsqueeze(1))
    return rows.index_select(0, above // GROUP), columns.view(-1).index_select(0, above), entries.index_select(0, above)


def _pick(table: Tensor, rows: Tensor) -> Tensor:
    """Some rows, ascending; without a copy if they are neighbours."""
    if rows.device.type == "cpu" and rows[-1] - rows[0] + 1 == len(rows):
        return table[rows[0] : rows[-1] + 1]
    return table.index_select(0, rows)


def _places(mask: Tensor) -> Tensor:
    """Where ``mask`` is true, counted through the rows. NumPy takes a seventh of torch's time on a processor."""
    if mask.device.type == "cpu":
        return torch.from_numpy(np.flatnonzero(mask.numpy()))
    return mask.flatten().nonzero().flatten()
