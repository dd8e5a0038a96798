"""Counting similarities above a threshold: the innermost loops of the streaming pass.

Everything here is exact for the numbers it is given. What the numbers mean, and how close ones are compared, is in
``exact.py``. Measured alternatives (comparisons to bool, packed sums, ``searchsorted``) are listed in
``docs/evaluation.md``.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

MANY_THRESHOLDS = 256
"""Number of thresholds per row from which sorting the row once is cheaper than comparing it with each."""

GROUP = 16
"""Entries of a row whose maximum is taken together; tiles are padded to a multiple of it, see ``padded``."""

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


def padded(size: int) -> int:
    """``size`` rounded up to whole groups."""
    return -(-size // GROUP) * GROUP


def busy_groups(similarities: Tensor, floors: Tensor) -> tuple[Tensor, Tensor]:
    """Row and group of every group with an entry above its row's floor: one pass finds the few entries that matter.

    Group g of G holds the columns g, g + G, g + 2G, …: torch takes maxima over neighbours at a tenth of the speed.

    Args:
        similarities: n × t, contiguous or the transpose of something contiguous; t is a multiple of ``GROUP``.
        floors: n.
    """
    rows, columns = similarities.shape
    groups = columns // GROUP
    if similarities.stride(1) == 1:
        place = _places(similarities.view(rows, GROUP, groups).amax(dim=1) > floors.unsqueeze(1))
        return place // groups, place % groups
    place = _places(similarities.T.view(GROUP, groups, rows).amax(dim=0) > floors)
    return place % rows, place // rows


def group_entries(similarities: Tensor, rows: Tensor, groups: Tensor, floors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Row, column and value of the entries of the given groups that are above their row's floor."""
    down, across = similarities.stride()
    members = similarities.shape[1] // GROUP * torch.arange(GROUP, device=groups.device)
    place = (rows * down + groups * across).unsqueeze(1) + members * across
    flat = similarities if across == 1 else similarities.T
    # index_select on a flat view: several times as fast as indexing with rows and columns.
    entries = flat.view(-1).index_select(0, place.view(-1)).view(place.shape)
    found = _places(entries > floors.index_select(0, rows).unsqueeze(1))
    group = found // GROUP
    columns = groups.index_select(0, group) + members.index_select(0, found % GROUP)
    return rows.index_select(0, group), columns, entries.view(-1).index_select(0, found)


def _places(mask: Tensor) -> Tensor:
    """Where a mask is True, counted through its rows. NumPy finds few among many several times as fast as torch."""
    if mask.device.type == "cpu":
        return torch.from_numpy(np.flatnonzero(mask.numpy()))
    return mask.flatten().nonzero().flatten()
