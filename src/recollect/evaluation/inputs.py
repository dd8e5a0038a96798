"""The inputs of an evaluation: vectors in tiles from any source, labels, and which gallery items are relevant to a query.

``Vectors`` are a tensor, an array, a ``.npy`` file on disk, or several of them in sequence. The streaming pass requests rows
and gets a new or shared tensor of the type it computes in; files are read one tile at a time. Values are checked when they
are read, because NaN compares as neither above nor below and would silently lower every rank.

Relevance is given by label (``ByLabel``: positives share the query's label) and by lists (``ByLists``: positives and
ignored items are named, as in Revisited Oxford and Paris). Both work on a few queries at a time, so that large classes
never become one large list of pairs. To add another kind of relevance, implement ``counts``, ``groups`` and ``pairs``;
nothing else is used.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recollect.common.errors import DataError, InputError
from recollect.common.reading import open_npy

ArrayLike: TypeAlias = "Tensor | NDArray[Any] | Path | str | Sequence[Sequence[float]]"
"""A source of N × d vectors: a tensor, an array or memory map, or the path of a ``.npy`` file (read in tiles)."""


class Vectors:
    """N × d vectors in one or more parts, read by rows.

    Args:
        parts: arrays one after the other, each N_i × d; rows are numbered through.
        what: the argument's name, for messages.
        device: where rows are put.
        similarity: ``"cosine"`` divides every vector by its length, so that products are cosines; a zero vector stays zero.
    """

    def __init__(
        self, parts: Sequence[ArrayLike | None], what: str, device: torch.device, similarity: str = "dot"
    ) -> None:
        if similarity not in ("dot", "cosine"):
            raise InputError(f"similarity={similarity!r} is unknown: choose 'dot' or 'cosine'.")
        self.what, self.device = what, device
        self._parts = [_opened(part, what) for part in parts if part is not None]
        self.dim = int(self._parts[0].shape[1])
        for part in self._parts:
            if part.shape[1] != self.dim:
                raise InputError(
                    f"{what}: vectors of {self.dim} and of {part.shape[1]} dimensions cannot be compared; "
                    "embed both with the same model."
                )
        self._starts = np.cumsum([0, *(len(part) for part in self._parts)])
        self._lengths: Tensor | None = None
        if similarity == "cosine":
            self._lengths = self._measure()

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def is_double(self) -> bool:
        """Whether any part is float64, so that the whole computation is."""
        return any(part.dtype in (torch.float64, np.dtype(np.float64)) for part in self._parts)

    def rows(self, start: int, stop: int, dtype: torch.dtype) -> Tensor:
        """Rows ``start`` to ``stop`` (not included) as ``dtype``; a view when nothing has to be converted."""
        pieces = []
        for part, first in zip(self._parts, self._starts.tolist(), strict=False):
            low, high = max(start - first, 0), min(stop - first, len(part))
            if low < high:
                pieces.append(self._converted(part[low:high], dtype))
        tile = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        self._check(tile, lambda row: start + row)
        return tile if self._lengths is None else _divided(tile, self._lengths[start:stop])

    def take(self, indices: NDArray[np.int64], dtype: torch.dtype) -> Tensor:
        """The rows at ``indices``, in that order, as ``dtype``."""
        rows = torch.empty(len(indices), self.dim, dtype=dtype, device=self.device)
        which = np.searchsorted(self._starts, indices, side="right") - 1
        for number, part in enumerate(self._parts):
            places = np.flatnonzero(which == number)
            if places.size:
                local = indices[places] - self._starts[number]
                part_rows = part[to_tensor(local, part.device)] if isinstance(part, Tensor) else part[local]
                values = self._converted(part_rows, dtype)
                if places.size == len(indices):
                    rows = values
                else:
                    rows[to_tensor(places, self.device)] = values
        self._check(rows, lambda row: int(indices[row]))
        return rows if self._lengths is None else _divided(rows, self._lengths[torch.from_numpy(indices)])

    def _measure(self) -> Tensor:
        """The length of every vector, measured once: a vector must be divided by the very same number every time it
        is read, or it would no longer tie with its duplicate."""
        step = max(1, (1 << 20) // self.dim)
        pieces = [
            torch.linalg.vector_norm(self.rows(start, min(start + step, len(self)), torch.float64), dim=1)
            for start in range(0, len(self), step)
        ]
        return torch.cat(pieces).clamp_min_(torch.finfo(torch.float32).tiny)

    def _converted(self, part: Tensor | NDArray[Any], dtype: torch.dtype) -> Tensor:
        if isinstance(part, np.ndarray):
            numpy_dtype = np.float64 if dtype == torch.float64 else np.float32
            with warnings.catch_warnings():
                # Rows are only read here, so a read-only array needs no warning and no copy.
                warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
                part = torch.from_numpy(np.ascontiguousarray(part, dtype=numpy_dtype))
        return part.detach().to(self.device, dtype)

    def _check(self, tile: Tensor, number: Any) -> None:
        # One sum finds any not-a-number or infinity at a fraction of the cost of looking at each value.
        if not bool(torch.isfinite(tile.sum())) and not bool(torch.isfinite(tile).all()):
            row = int((~torch.isfinite(tile).all(dim=1)).nonzero()[0, 0])
            raise InputError(
                f"{self.what}: row {number(row)} holds a value that is not finite (NaN or infinity); "
                "check the model that made it, or remove the row."
            )


def _divided(rows: Tensor, lengths: Tensor) -> Tensor:
    return (rows.double() / lengths.to(rows.device).unsqueeze(1)).to(rows.dtype)


def _opened(part: ArrayLike, what: str) -> Any:
    """A tensor or array of two dimensions; files are mapped, not read."""
    if isinstance(part, str | Path):
        try:
            part = open_npy(part)
        except DataError as error:
            raise DataError(f"{what}: {error}") from error
    if not isinstance(part, Tensor | np.ndarray):
        try:
            part = np.asarray(part, dtype=np.float32)
        except (TypeError, ValueError) as error:
            raise InputError(f"{what}: not an array of vectors ({error}).") from error
    if part.ndim != 2 or part.shape[1] == 0:
        raise InputError(f"{what}: give N × d vectors, one per row; the shape is {tuple(part.shape)}.")
    if isinstance(part, Tensor):
        is_real = part.layout == torch.strided and part.dtype != torch.bool and not part.is_complex()
    else:
        is_real = part.dtype.kind in "fiu"
    if not is_real:
        raise InputError(f"{what}: give a dense array of real numbers; the type is {part.dtype}.")
    return part


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
            raise InputError(f"{what}: {len(lists)} lists for {queries} queries; give one per query (it may be empty).")
        unique = [np.unique(np.asarray(entry, dtype=np.int64)) for entry in lists]
        for number, entry in enumerate(unique):
            if entry.size and (entry[0] < 0 or entry[-1] >= gallery):
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
            labelled = items < len(item_labels)
            rows, items = rows[labelled], items[labelled]
            excluded = item_class[items] == self._class[rows]
            if self._own:
                excluded &= items != rows
            self.counts = self.counts - np.bincount(rows[excluded], minlength=len(query_labels))

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
        ranked = ~np.isin(rows * self._items + items, ignored_rows * self._items + ignored_items)
        return Pairs(rows[ranked], items[ranked]), Pairs(ignored_rows, ignored_items)


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
    except (TypeError, ValueError, RuntimeError) as error:  # a sparse tensor, lists of different lengths
        raise InputError(f"{what}: not an array of labels ({str(error).splitlines()[0]}).") from error
    if array.ndim != 1:
        raise InputError(f"{what}: give one label per vector; the shape is {tuple(array.shape)}.")
    if array.dtype.kind in "iub" or array.size == 0:
        return array.astype(np.int64)
    if array.dtype.kind in "US":
        return array
    raise InputError(f"{what}: labels must be whole numbers or strings, but the type is {array.dtype}.")


def to_tensor(values: Ints, device: torch.device) -> Tensor:
    """Indices on the device that computes; a GPU gets them without the host waiting for what was queued before."""
    tensor = torch.from_numpy(np.ascontiguousarray(values))
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)


def _ranges(starts: Ints, lengths: Ints) -> Ints:
    """The numbers start … start + length − 1 of every range, one range after the other."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))
