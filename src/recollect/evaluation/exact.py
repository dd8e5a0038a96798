"""Comparisons with the exactness of float64 at the cost of float32.

The similarity of a query and an item is their dot product in float64 of the vectors as given. Two similarities that
differ by no more than float64's own rounding are *tied*; ``ties`` says what a tied negative does. The pass multiplies
in float32, whose result depends on tile shapes, libraries and processors in its last digits; so float32 decides only
where its error bound allows:

    entry >  threshold + error bound      above
    entry <= threshold − error bound      not above
    in between                            the pair's product is taken again in float64

Ranks are therefore the same for every tile size, thread count, device and number of processes, and a duplicate of a
positive among the negatives is a tie, in any column.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from recollect.common.errors import InputError
from recollect.evaluation.counting import count_above
from recollect.evaluation.relevance import Pairs, to_tensor
from recollect.evaluation.vectors import Vectors

Ties = Literal["pessimistic", "optimistic"]

_SAFETY = 4.0
"""Errors of a sum of d products are at most d units of rounding, and grow like √d with overwhelming probability.

4√d units is a strict bound up to d = 16. The largest error measured (random, non-negative, nearly constant and sparse
vectors) is 0.27 of it at small d, 0.1 at d = 512 and 0.02 at d = 4096.
"""

_ROWS_TOGETHER = 128
"""Queries whose positives are looked up in one product: enough for whole classes, few enough to waste little."""

_PAIRWISE_BELOW = 64
"""With fewer close entries than one in this many, single products are cheaper than whole float64 rows."""


def rounding(dim: int, dtype: torch.dtype) -> float:
    """A bound on the error of a dot product of two unit vectors of ``dim`` dimensions computed in ``dtype``."""
    return _SAFETY * math.sqrt(dim) * torch.finfo(dtype).eps / 2


def tie_sign(ties: Ties) -> int:
    """−1 if a tied negative counts as ahead (the threshold moves down by the tolerance), +1 if as behind."""
    if ties not in ("pessimistic", "optimistic"):
        raise InputError(f"ties={ties!r} is unknown: choose 'pessimistic' (a tied negative is ahead) or 'optimistic'.")
    return -1 if ties == "pessimistic" else 1


def check_range(largest: float, dtype: torch.dtype, what: str) -> None:
    """Refuse vectors whose products overflow: infinities would all tie."""
    if largest > torch.finfo(dtype).max / 16:
        raise InputError(
            f"{what}: the vectors are so long that their products overflow (product of norms {largest:.3g}); "
            "normalize them, for example with similarity='cosine'."
        )


def pair_similarities(queries: Tensor, gallery: Vectors, pairs: Pairs, chunk: int) -> Tensor:
    """Float64 similarities of (query row, gallery item) pairs given in the order of their rows.

    Neighbouring queries share their positives (a class), so a few rows times their distinct items is far cheaper than
    one product per pair.
    """
    found = torch.empty(len(pairs.rows), dtype=torch.float64, device=queries.device)
    for start in range(0, len(queries), _ROWS_TOGETHER):
        first, last = np.searchsorted(pairs.rows, [start, start + _ROWS_TOGETHER])
        left = queries[start : start + _ROWS_TOGETHER].double()
        distinct, place = np.unique(pairs.items[first:last], return_inverse=True)
        for column in range(0, len(distinct), chunk):
            block = left @ gallery.take(distinct[column : column + chunk], queries.dtype).double().T
            here = np.flatnonzero((place >= column) & (place < column + chunk))
            entry = (pairs.rows[first:last][here] - start) * block.shape[1] + place[here] - column
            found[to_tensor(here + first, found.device)] = block.view(-1)[to_tensor(entry, found.device)]
    return found


def above(queries: Tensor, items: Tensor, rows: Tensor, columns: Tensor, thresholds: Tensor, room: int) -> Tensor:
    """Whether the float64 similarities of k pairs are above k thresholds, using memory for about ``room`` numbers."""
    found = torch.empty(len(rows), dtype=torch.bool, device=rows.device)
    step = max(64, room // (2 * items.shape[1]))
    for start in range(0, len(rows), step):
        some = slice(start, start + step)
        products = queries[rows[some]].double() * items[columns[some]].double()
        found[some] = products.sum(dim=1) > thresholds[some]
    return found


def count_close(
    queries: Tensor,
    items: Tensor,
    similarities: Tensor,
    pairs: Tensor,
    low: Tensor,
    high: Tensor,
    exact: Tensor,
    close: int,
    scratch: Tensor,
) -> Tensor:
    """Of the entries that float32 cannot decide, the number above each threshold in float64.

    Args:
        queries: q × d, items: t × d, similarities: their q × t product in float32 (−inf where not counted).
        pairs: k query rows, one for each undecided (query, threshold).
        low: k thresholds less the error bound; high: plus the error bound; exact: the thresholds in float64.
        close: number of entries in between, over all pairs.
        scratch: flat float32 buffer of at least one tile.
    """
    width = similarities.shape[1]
    counts = torch.zeros(len(pairs), dtype=torch.int64, device=pairs.device)
    step = max(1, scratch.numel() // (2 * width))
    if close * _PAIRWISE_BELOW > len(pairs) * width:
        # So many are undecided (with a collapsed model, all are) that the rows are computed again in float64.
        right = items.double().T
        for start in range(0, len(pairs), step):
            some = slice(start, start + step)
            row, place = torch.unique_consecutive(pairs[some], return_inverse=True)
            again = (queries[row].double() @ right).masked_fill_(similarities[row] == -math.inf, -math.inf)[place]
            decided = count_above(similarities[pairs[some]], high[some], scratch)
            counts[some] = count_above(again, exact[some], torch.empty_like(again).flatten()) - decided
        return counts
    for start in range(0, len(pairs), step):
        some = slice(start, start + step)
        entries = similarities[pairs[some]]
        between = (entries > low[some].unsqueeze(1)) & (entries <= high[some].unsqueeze(1))
        place, column = between.nonzero().unbind(1)
        place = place + start
        decided = above(queries, items, pairs[place], column, exact[place], scratch.numel())
        counts += torch.bincount(place[decided], minlength=len(pairs))
    return counts
