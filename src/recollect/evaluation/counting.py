"""How many similarities lie above a threshold: the innermost loops of the streaming pass.

Everything here is exact for the numbers it is given. What those numbers mean, and how close ones are decided, is in
``exact.py``. Measured alternatives (comparisons to bool, packed sums, ``searchsorted``) are listed in
``docs/evaluation.md``.
"""

from __future__ import annotations

import torch
from torch import Tensor

MANY_THRESHOLDS = 256
"""Thresholds a row from which sorting the row once is cheaper than comparing it with each."""

_WORDS = {torch.float32: (torch.int32, 31), torch.float64: (torch.int64, 63)}


def count_above(similarities: Tensor, thresholds: Tensor, scratch: Tensor) -> Tensor:
    """For each row of an n × t matrix, the number of entries strictly above that row's threshold.

    The sign bit of ``threshold − entry`` is the answer, so the bits are shifted down to −1 or 0 and added up: three
    passes that all vectorise, where a comparison to bool and its sum do not.

    Args:
        similarities: n × t, float32 or float64; −inf is above nothing.
        thresholds: n, same type; +inf has nothing above it.
        scratch: flat buffer of at least n · t entries of the same type, overwritten.
    """
    word, bits = _WORDS[similarities.dtype]
    difference = scratch[: similarities.numel()].view(similarities.shape)
    # + 0 turns a threshold of −0 into +0: the difference of equal zeros must not carry a sign.
    torch.sub((thresholds + 0.0).unsqueeze(1), similarities, out=difference)
    signs = difference.view(word).bitwise_right_shift_(bits)
    return -signs.sum(dim=1, dtype=word).long()


def count_above_each(similarities: Tensor, thresholds: Tensor, wanted: Tensor, scratch: Tensor) -> Tensor:
    """For each row and each of its thresholds, the number of entries strictly above it.

    Args:
        similarities: n × t.
        thresholds: n × m.
        wanted: n × m, bool; the others are left at 0.
        scratch: flat buffer of at least n · t entries.

    Returns:
        n × m, int64.
    """
    rows, width = similarities.shape
    counts = torch.zeros(thresholds.shape, dtype=torch.int64, device=similarities.device)
    if thresholds.shape[1] > MANY_THRESHOLDS:
        ascending = similarities.sort(dim=1).values
        counts = width - torch.searchsorted(ascending, thresholds.contiguous(), right=True)
        return counts * wanted
    asked = wanted.sum(dim=0)
    dense = 2 * asked >= rows
    for column in dense.nonzero().flatten().tolist():
        counts[:, column] = count_above(similarities, thresholds[:, column], scratch)
    pairs = (wanted & ~dense).nonzero()
    for some in pairs.split(rows):
        row, column = some.unbind(1)
        counts[row, column] = count_above(similarities.index_select(0, row), thresholds[row, column], scratch)
    return counts * wanted
