"""What "above" means, decided in float64, at the price of float32.

The similarity of a query and an item is their dot product in float64 of the vectors as given. Two similarities that
differ by no more than float64's own rounding are *tied*; ``ties`` says what a tied negative does. The pass multiplies
in float32, whose result depends on tile shapes, libraries and processors in its last digits; so float32 decides only
where it can:

    entry >  threshold + error bound      above
    entry <= threshold − error bound      not above
    in between                            the pair's product is taken again in float64

Ranks are therefore the same for every tile size, thread count, device and number of processes, and a duplicate of a
positive among the negatives is a tie, whichever column it landed in.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from recollect.common.errors import InputError
from recollect.evaluation.counting import count_above

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from recollect.evaluation.vectors import Vectors

Ties = Literal["pessimistic", "optimistic"]

_SAFETY = 4.0
"""Rounding errors of a sum of d products grow like √d with overwhelming probability; 4√d units is far beyond any seen.

The largest error measured (random, non-negative and one-signed vectors, d up to 4096) is under a tenth of this.
"""

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
    """Refuse vectors whose products leave the number range: infinities would all tie."""
    if largest > torch.finfo(dtype).max / 16:
        raise InputError(
            f"{what}: vectors so long that their products overflow (product of norms {largest:.3g}); "
            "normalise them, for example with similarity='cosine'."
        )


def pair_similarities(
    queries: Tensor, gallery: Vectors, rows: NDArray[np.int64], items: NDArray[np.int64], chunk: int
) -> Tensor:
    """Float64 similarities of the given (query row, gallery item) pairs.

    Queries of one tile share their positives (a class), so one product with the distinct items is far cheaper than
    one product a pair.
    """
    import numpy as np

    distinct, place = np.unique(items, return_inverse=True)
    order = np.argsort(place, kind="stable")
    found = torch.empty(len(items), dtype=torch.float64, device=queries.device)
    left = queries.double()
    for start in range(0, len(distinct), chunk):
        some = order[np.searchsorted(place[order], start) : np.searchsorted(place[order], start + chunk)]
        block = left @ gallery.take(distinct[start : start + chunk], queries.dtype).double().T
        row = torch.from_numpy(rows[some]).to(queries.device)
        column = torch.from_numpy(place[some] - start).to(queries.device)
        found[torch.from_numpy(some).to(queries.device)] = block[row, column]
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
        close: how many entries lie between, over all pairs.
        scratch: flat float32 buffer of at least one tile.
    """
    width = similarities.shape[1]
    counts = torch.zeros(len(pairs), dtype=torch.int64, device=pairs.device)
    step = max(1, scratch.numel() // (2 * width))
    if close * _PAIRWISE_BELOW > len(pairs) * width:
        # So much is undecided (a collapsed model makes everything so) that the rows are done again in float64.
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
        for few in torch.arange(len(place), device=place.device).split(4096):
            products = queries[pairs[place[few]]].double() * items[column[few]].double()
            above = products.sum(dim=1) > exact[place[few]]
            counts += torch.bincount(place[few][above], minlength=len(pairs))
    return counts
