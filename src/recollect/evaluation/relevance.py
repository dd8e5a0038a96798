"""Which gallery items are relevant to a query, and which are ignored.

Relevance is given by label (``ByLabel``: positives share the query's label) and by lists (``ByLists``: positives and
ignored items are named, as in Revisited Oxford and Paris). Both work on a few queries at a
time, so that large classes never become one large list of pairs. To add another kind of relevance, implement ``counts``,
``groups`` and ``pairs``; nothing else is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recollect.common.errors import InputError

Ints = NDArray[np.int64]


class Pairs(NamedTuple):
    """(query, item) pairs: ``rows`` index the requested queries, ``items`` the gallery."""

    rows: Ints
    items: Ints


class Relevance(Protocol):
    """What the streaming pass needs."""

    counts: Ints
    """The number of positives of every query."""
    groups: Ints
    """One number per query; queries with equal numbers tend to share positives and are best processed together."""

    def pairs(self, queries: Ints) -> tuple[Pairs, Pairs]:
        """Positives, and items to leave out of the ranking, of the given queries."""


class Lists:
    """One list of gallery indices per query, packed; duplicates within a list are dropped."""

    def __init__(self, lists: Sequence[Any], queries: int, gallery: int, what: str) -> None:
        if len(lists) != queries:
            raise InputError(
                f"{what}: {len(lists)} lists for {queries} queries; give one list per query (it may be empty)."
            )
        unique = [np.unique(np.asarray(entry, dtype=np.int64)) for entry in lists]
        for number, entry in enumerate(unique):
            if entry.ndim != 1 or (entry.size and (entry[0] < 0 or entry[-1] >= gallery)):
                raise InputError(
                    f"{what}: the list of query {number} has indices from {entry.min()} to {entry.max()}, but the "
                    f"gallery's items are numbered 0 to {gallery - 1}."
                )
        self.lengths: Ints = np.array([len(entry) for entry in unique], dtype=np.int64)
        self.starts: Ints = np.cumsum(self.lengths) - self.lengths
        self.values: Ints = np.concatenate([*unique, np.empty(0, np.int64)]).astype(np.int64)

    def pairs(self, queries: Ints) -> Pairs:
        """The pairs of the given queries."""
        lengths = self.lengths[queries]
        return Pairs(np.repeat(np.arange(len(queries)), lengths), self.values[_ranges(self.starts[queries], lengths)])


class ByLabel:
    """Positives are the gallery items with the query's label, without the query itself and without its junk.

    Args:
        labels: of the queries.
        gallery_labels: of the gallery, or None if the queries are the gallery; each query is then excluded from its list.
        distractors: how many unlabelled items follow the gallery; they are negatives of every query.
        junk: one list of gallery indices per query; these items are ignored, neither right nor wrong.
    """

    def __init__(
        self, labels: Any, gallery_labels: Any | None, distractors: int = 0, junk: Sequence[Any] | None = None
    ) -> None:
        query_labels = as_labels(labels, "labels")
        item_labels = query_labels if gallery_labels is None else as_labels(gallery_labels, "gallery_labels")
        if query_labels.dtype.kind != item_labels.dtype.kind:
            raise InputError(
                f"labels are {query_labels.dtype} but gallery_labels are {item_labels.dtype}: use the same type for both."
            )
        self._own = gallery_labels is None
        classes, codes = np.unique(np.concatenate([query_labels, item_labels]), return_inverse=True)
        self._class = codes[: len(query_labels)].astype(np.int64)
        item_class = codes[len(query_labels) :].astype(np.int64)
        self._members: Ints = np.argsort(item_class, kind="stable").astype(np.int64)
        self._sizes: Ints = np.bincount(item_class, minlength=len(classes)).astype(np.int64)
        self._starts: Ints = np.cumsum(self._sizes) - self._sizes
        self._items = len(item_labels) + distractors
        self._junk = None if junk is None else Lists(junk, len(query_labels), self._items, "junk")
        self.groups: Ints = self._class
        self.counts: Ints = self._sizes[self._class] - int(self._own)
        if self._junk is not None:
            rows, items = self._junk.pairs(np.arange(len(query_labels)))
            known = items < len(item_labels)
            rows, items = rows[known], items[known]
            lost = item_class[items] == self._class[rows]
            if self._own:
                lost &= items != rows
            self.counts = self.counts - np.bincount(rows[lost], minlength=len(query_labels))

    def pairs(self, queries: Ints) -> tuple[Pairs, Pairs]:
        """Positives and ignored items of the given queries."""
        own = self._class[queries]
        rows = np.repeat(np.arange(len(queries)), self._sizes[own])
        items = self._members[_ranges(self._starts[own], self._sizes[own])]
        ignored_rows, ignored_items = np.empty(0, np.int64), np.empty(0, np.int64)
        if self._own:
            ignored_rows, ignored_items = np.arange(len(queries)), queries
        if self._junk is not None:
            junk = self._junk.pairs(queries)
            ignored_rows = np.concatenate([ignored_rows, junk.rows])
            ignored_items = np.concatenate([ignored_items, junk.items])
        kept = ~np.isin(rows * self._items + items, ignored_rows * self._items + ignored_items)
        return Pairs(rows[kept], items[kept]), Pairs(ignored_rows, ignored_items)


class ByLists:
    """Positives and ignored items named one by one; an item in both lists is a positive."""

    def __init__(self, positives: Sequence[Any], ignored: Sequence[Any], gallery: int) -> None:
        self._positives = Lists(positives, len(positives), gallery, "positives")
        self._ignored = Lists(ignored, len(positives), gallery, "ignored items")
        self.counts: Ints = self._positives.lengths
        self.groups: Ints = np.arange(len(positives))

    def pairs(self, queries: Ints) -> tuple[Pairs, Pairs]:
        """Positives and ignored items of the given queries."""
        return self._positives.pairs(queries), self._ignored.pairs(queries)


def as_labels(labels: Any, what: str) -> NDArray[Any]:
    """Labels as a one-dimensional array of integers or of strings."""
    try:
        array = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    except (
        TypeError,
        ValueError,
        RuntimeError,
    ) as error:  # sparse tensors, meta tensors, lists of different lengths
        raise InputError(f"{what}: not an array of labels ({str(error).splitlines()[0]}).") from error
    if array.ndim != 1:
        raise InputError(f"{what}: give one label per vector; the shape is {tuple(array.shape)}.")
    if array.dtype.kind in "iub" or array.size == 0:
        return array.astype(np.int64)
    if array.dtype.kind in "US":
        return array
    raise InputError(f"{what}: labels must be whole numbers or strings, but the type is {array.dtype}.")


def to_tensor(values: Ints, device: torch.device) -> Tensor:
    """Indices on the device that computes."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(device)


def _ranges(starts: Ints, lengths: Ints) -> Ints:
    """The numbers start … start + length − 1 of every range, one range after the other."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))
