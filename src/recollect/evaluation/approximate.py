"""The cost of an approximate index: its results compared with the exact ones, with time and size.

A search service may use an index that looks at part of the gallery only. This
file builds a faiss index of the usual kinds, varies its search parameter, and reports how much of the exact result is lost
for each value. It only measures: ``Index.approximate`` builds approximate search for an index of images. Needs the extra
``index``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from recollect.common.errors import InputError
from recollect.common.imports import require
from recollect.evaluation.metrics import checked_ks
from recollect.evaluation.relevance import ByLabel, as_labels
from recollect.evaluation.vectors import ArrayLike, Vectors

IndexKind = Literal["ivf", "hnsw", "pq"]

# The search parameter of each kind, its meaning, and the values tried.
_KNOBS: dict[str, tuple[str, tuple[int, ...]]] = {
    "ivf": ("nprobe", (1, 4, 16, 64)),
    "hnsw": ("efSearch", (16, 64, 256)),
    "pq": ("bytes", (8, 16, 32, 64)),
}
_CENTROIDS = 256  # values of one byte of a product quantizer


@dataclass(frozen=True)
class IndexRow:
    """One setting of an index.

    Attributes:
        setting: e.g. ``"nprobe=16"``.
        neighbours: k → mean share of the exact first k that the index's first k contain.
        r: k → r@k of the index's answers (empty without labels).
        milliseconds: search time per query, all queries at once.
        build_seconds: time to train and fill the index.
        mebibytes: size of the index.
    """

    setting: str
    neighbours: dict[int, float]
    r: dict[int, float]
    milliseconds: float
    build_seconds: float
    mebibytes: float


@dataclass(frozen=True)
class IndexCost:
    """The exact search first, then the settings of the index, cheapest first."""

    kind: str
    exact: IndexRow
    rows: list[IndexRow]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def index_cost(
    embeddings: ArrayLike,
    labels: Any | None = None,
    gallery: ArrayLike | None = None,
    gallery_labels: Any | None = None,
    *,
    kind: IndexKind = "ivf",
    ks: Sequence[int] = (1, 10, 100),
    settings: Sequence[int] | None = None,
    seed: int = 0,
) -> IndexCost:
    """Compare an approximate index with exact search on the same vectors (inner product).

    Args:
        embeddings: N × d queries. Without a gallery they are also searched, and each query is excluded by its index.
        labels: N labels, for ``r@k``; gallery_labels likewise.
        kind: ``"ivf"`` (clusters; parameter: clusters searched), ``"hnsw"`` (graph; parameter: candidates kept),
            ``"pq"`` (compressed vectors; parameter: bytes per vector).
        ks: numbers of results; the largest determines the time.
        settings: values of the parameter.
        seed: seed of the clustering.

    Raises:
        MissingExtraError: faiss is not installed.
        InputError: an unknown kind, or too few vectors to train it.
    """
    faiss = check_index_kind(kind)
    ks = checked_ks(ks)
    queries = _matrix(embeddings, "embeddings")
    items = queries if gallery is None else _matrix(gallery, "gallery")
    if items.shape[1] != queries.shape[1]:
        raise InputError(
            f"embeddings have {queries.shape[1]} dimensions and the gallery {items.shape[1]}: "
            "embed both with the same model."
        )
    own = gallery is None
    ks = [k for k in ks if k <= len(items) - own]
    if not ks:
        raise InputError(f"the gallery has {len(items)} items, fewer than any of the ks: give a smaller k.")
    right = None if labels is None else _right(labels, gallery_labels, len(queries), len(items))

    flat, seconds = _timed(lambda: _filled(faiss.IndexFlatIP(items.shape[1]), items))
    answer, search = _timed(lambda: _search(flat, queries, max(ks), own))
    exact = _row(faiss, "exact", flat, answer, answer, ks, right, search, seconds)
    rows = []
    knob, usual = _KNOBS[kind]
    index, seconds = None, 0.0
    for value in sorted(usual if settings is None else settings):
        if kind == "pq" and (value < 1 or items.shape[1] % value):
            if settings is not None:
                raise InputError(
                    f"pq: {items.shape[1]} dimensions cannot be divided into {value} equal parts; choose a divisor."
                )
            continue
        if index is None or kind == "pq":
            index, seconds = _timed(lambda value=value: _built(faiss, kind, items, value, seed))
        _turn(index, kind, value)
        found, search = _timed(lambda index=index: _search(index, queries, max(ks), own))
        rows.append(_row(faiss, f"{knob}={value}", index, found, answer, ks, right, search, seconds))
    return IndexCost(kind, exact, rows)


def check_index_kind(kind: str) -> Any:
    """Refuse an index that cannot be built, before vectors are computed for it; returns faiss."""
    if kind not in _KNOBS:
        raise InputError(f"an index of kind {kind!r} is unknown: choose one of {', '.join(_KNOBS)}.")
    return require("faiss", "index", "comparing with an approximate index")


def _built(faiss: Any, kind: str, items: NDArray[np.float32], value: int, seed: int) -> Any:
    dim = items.shape[1]
    if kind == "hnsw":
        return _filled(faiss.IndexHNSWFlat(dim, 32, faiss.METRIC_INNER_PRODUCT), items)
    if kind == "pq":
        if len(items) < _CENTROIDS:
            raise InputError(f"pq learns {_CENTROIDS} centroids and needs as many vectors; there are {len(items)}.")
        index = faiss.IndexPQ(dim, value, 8, faiss.METRIC_INNER_PRODUCT)
        index.pq.cp.seed = seed
        index.pq.cp.min_points_per_centroid = 1  # too few vectors are reported by us, so faiss need not print a warning
    else:
        lists = max(1, min(round(4 * math.sqrt(len(items))), len(items) // 8))
        quantiser = faiss.IndexFlatIP(dim)
        index = faiss.IndexIVFFlat(quantiser, dim, lists, faiss.METRIC_INNER_PRODUCT)
        index.own_fields = True
        quantiser.this.disown()
        index.cp.seed = seed
        index.cp.min_points_per_centroid = 1
    index.train(items)
    return _filled(index, items)


def _filled(index: Any, items: NDArray[np.float32]) -> Any:
    index.add(items)
    return index


def _turn(index: Any, kind: str, value: int) -> None:
    if kind == "ivf":
        index.nprobe = value
    elif kind == "hnsw":
        index.hnsw.efSearch = value


def _search(index: Any, queries: NDArray[np.float32], k: int, own: bool) -> NDArray[np.int64]:
    """N × k item numbers, −1 where the index found no more; the query itself is dropped by its number."""
    _, found = index.search(queries, k + own)
    if not own:
        return np.asarray(found, dtype=np.int64)
    itself = found == np.arange(len(queries))[:, None]
    # A stable sort moves the query behind the others and changes nothing else.
    order = np.argsort(itself, axis=1, kind="stable")
    return np.asarray(np.take_along_axis(found, order, axis=1)[:, :k], dtype=np.int64)


def _row(
    faiss: Any,
    setting: str,
    index: Any,
    found: NDArray[np.int64],
    answer: NDArray[np.int64],
    ks: Sequence[int],
    right: tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_]] | None,
    search: float,
    build: float,
) -> IndexRow:
    neighbours = {
        k: float(np.mean([np.isin(a[:k], f[:k]).mean() for a, f in zip(answer, found, strict=True)])) for k in ks
    }
    r: dict[int, float] = {}
    if right is not None:
        query_labels, item_labels, counted = right
        hits = (item_labels[found] == query_labels[:, None]) & (found >= 0)
        r = {k: float(hits[:, :k].any(axis=1)[counted].mean()) for k in ks}
    size = faiss.serialize_index(index).nbytes / (1 << 20)
    return IndexRow(setting, neighbours, r, 1000 * search / len(found), build, size)


def _right(
    labels: Any, gallery_labels: Any | None, queries: int, items: int
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_]]:
    """Labels of queries and items, and which queries have a positive: the others are left out, as in ``evaluate``."""
    relevance = ByLabel(labels, gallery_labels)
    known = as_labels(labels, "labels"), as_labels(labels if gallery_labels is None else gallery_labels, "labels")
    for name, found, wanted in (("labels", known[0], queries), ("gallery_labels", known[1], items)):
        if len(found) != wanted:
            raise InputError(f"{name}: {len(found)} labels for {wanted} vectors; give one label per vector.")
    return *known, relevance.counts > 0


def _matrix(vectors: ArrayLike, what: str) -> NDArray[np.float32]:
    opened = Vectors([vectors], what, torch.device("cpu"))
    if len(opened) == 0:
        raise InputError(f"{what}: there are no vectors.")
    return np.ascontiguousarray(opened.rows(0, len(opened), torch.float32).numpy())


def _timed(work: Any) -> tuple[Any, float]:
    start = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start
