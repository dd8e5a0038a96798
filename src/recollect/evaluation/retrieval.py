"""``evaluate``: vectors and labels to metrics, and its result, one value per query and metric.

``evaluate`` reads as a table of contents: which items are relevant (``inputs``), at which ranks (``ranks``), their metrics
(``metrics``), stored per query (``Evaluation``). Means, intervals and comparisons are computed from these (``verdict.py``).

Several processes share the queries: each ranks every W-th against the whole gallery (``shard``), and only values per query
are exchanged (``gather``), as objects, so that any ``torch.distributed`` backend works.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from recollect.common.errors import ConfigError, DataError, InputError
from recollect.common.files import atomic_write
from recollect.common.machine import limited_threads, threads_for, usable_device
from recollect.common.reading import parse_json, read_npz
from recollect.evaluation.inputs import ArrayLike, ByLabel, Vectors, as_labels
from recollect.evaluation.metrics import (
    GRADED,
    METRICS,
    RESERVED,
    Hierarchy,
    Metric,
    MetricLike,
    checked_ks,
    checked_metrics,
    columns,
    compute,
    default_ks,
    limits_for,
)
from recollect.evaluation.ranks import stream_ranks
from recollect.evaluation.tiles import Ties, tie_sign

_OPERATIONS = 100  # threads mostly wait in small evaluations: 5,000 vectors of 128 take 83 ms on one, 86 ms on two


def evaluate(
    embeddings: ArrayLike,
    labels: Any,
    gallery: ArrayLike | None = None,
    gallery_labels: Any | None = None,
    ks: Sequence[int] | None = None,
    *,
    metrics: Sequence[MetricLike] | None = None,
    coarse_labels: Any | None = None,
    gallery_coarse_labels: Any | None = None,
    ids: Sequence[str] | None = None,
    junk: Sequence[Sequence[int]] | None = None,
    distractors: ArrayLike | None = None,
    similarity: Literal["dot", "cosine"] = "dot",
    ties: Ties = "pessimistic",
    memory: int | None = None,
    device: torch.device | str | None = None,
    distributed: bool = False,
    progress: bool = False,
) -> Evaluation:
    """Rank the gallery for every query and measure what was found, exactly, in bounded memory.

    Without ``gallery`` every vector is a query in turn against all others: it is left out of its own ranking by its
    index, so duplicates of it stay in. A query without a positive is left out of the means.

    Args:
        embeddings: N × d query vectors: tensor, array, memory map or path of a ``.npy`` file.
        labels: N labels, whole numbers or strings. Positives of a query are the gallery items with its label.
        gallery: what to search in, if not the queries themselves. gallery_labels: its labels.
        ks: the k of ``r@k`` and ``recall@k``; may exceed the gallery. By default those of 1, 10, 100 and 1000 that are
            below the number of items a query is ranked against.
        metrics: which to compute: any of ``r@k``, ``recall@k``, ``map``, ``map@r``, ``r_precision``, ``mrr``,
            ``first_rank``, with coarse labels ``h_ap`` and ``ndcg``, and ``Metric`` objects or functions of (ranks,
            positives) of your own. All named ones by default. Without ``map`` and other metrics that need all ranks the
            pass is faster, because it stops counting beyond the ranks that matter.
        coarse_labels: N labels of a coarser level, for ``h_ap`` and ``ndcg``; gallery_coarse_labels: the gallery's.
        ids: the name of each query, one string per query (file name, content hash). Stored with the result, so that two
            results are compared only if they are of the same queries.
        junk: for each query, gallery indices that are neither right nor wrong and are taken out of its ranking.
        distractors: more vectors, appended to the gallery and wrong for every query.
        similarity: ``"dot"`` uses vectors unchanged; ``"cosine"`` normalizes them first.
        ties: a negative exactly as similar as a positive counts as ahead of it (``"pessimistic"``, so that collapsed
            or duplicated vectors never flatter) or as behind (``"optimistic"``).
        memory: bytes to use in addition to the inputs. By default 512 MiB; on a GPU a quarter of what is free, if more.
        device: where to compute; the device of ``embeddings`` by default.
        distributed: share the queries over the processes of ``torch.distributed``; call it on all of them.
        progress: show a progress line (in a terminal).

    Returns:
        ``.metrics`` (means as fractions, e.g. ``{"r@1": 0.81, …}``), ``.per_query``, and more: see ``Evaluation``.

    Raises:
        InputError: shapes or lengths that do not match, values that are not finite, no query with a positive.
        ConfigError: there is no such device.

    Examples:
        >>> vectors = [[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]]
        >>> evaluate(vectors, [0, 0, 1, 1], ks=[1]).metrics["r@1"]
        1.0
    """
    if (gallery is None) != (gallery_labels is None):
        raise InputError("pass both gallery and gallery_labels, or neither to search among the queries.")
    place = embeddings.device if isinstance(embeddings, Tensor) else torch.device("cpu")
    place = place if device is None else usable_device(str(device))
    queries = Vectors([embeddings], "embeddings", place, similarity)
    items = Vectors([embeddings if gallery is None else gallery, distractors], "gallery", place, similarity)
    added = 0 if distractors is None else len(Vectors([distractors], "distractors", place))
    query_labels = as_labels(labels, "labels")
    check_lengths(len(queries), len(query_labels), "embeddings", "labels")
    if gallery_labels is not None:
        check_lengths(len(items) - added, len(as_labels(gallery_labels, "gallery_labels")), "gallery", "its labels")
    ks = default_ks(len(items) - (gallery is None)) if ks is None else checked_ks(ks)
    graded, plain = _graded_and_plain(metrics, coarse_labels is not None)
    hierarchy = None
    if coarse_labels is not None:
        hierarchy = Hierarchy(query_labels, gallery_labels, coarse_labels, gallery_coarse_labels, added)
    elif gallery_coarse_labels is not None:
        raise InputError("gallery_coarse_labels are given without coarse_labels: pass both or neither.")

    relevance = ByLabel(query_labels, gallery_labels, added, junk)
    if not relevance.counts.any():
        raise InputError(
            f"none of the {len(queries)} queries has a positive: no label occurs "
            + ("twice." if gallery is None else "in both the queries and the gallery.")
        )
    ranked, limits = relevance, limits_for(plain, ks)
    if hierarchy is not None and graded:
        ranked = ByLabel(hierarchy.coarse, hierarchy.gallery_coarse, added, junk)
        limits = limits_for([METRICS["map"]], ks)
    tiles = stream_ranks(
        queries,
        items,
        ranked,
        limits,
        themselves=gallery is None and junk is None,
        subset=shard(len(queries), distributed),
        ties=ties,
        memory=memory,
        progress=progress,
    )
    mine, sign = [], tie_sign(ties)
    with limited_threads(threads_for(len(queries) * len(items) * queries.dim, _OPERATIONS)):
        for tile in tiles:
            for of_label, levels in [(tile, None)] if hierarchy is None or not graded else hierarchy.split(tile, sign):
                values = compute(of_label, plain, ks)
                if levels is not None:
                    values |= {name: GRADED[name](levels) for name in graded}
                table = torch.stack([of_label.queries.double(), *values.values()]).cpu().numpy()  # one copy from a GPU
                mine.append((table[0].astype(np.int64), dict(zip(values, table[1:], strict=True))))
    per_query = {name: np.full(len(queries), np.nan) for name in [*columns(plain, ks), *graded]}
    for numbers, tile_values in (part for process in gather(mine, distributed) for part in process):
        for name, column in tile_values.items():
            per_query[name][numbers] = column
    settings = {
        "ks": ks,
        "ties": ties,
        "similarity": similarity,
        "queries": len(queries),
        "gallery": len(items),
        "distractors": added,
        "query_is_gallery": gallery is None,
        "dimensions": queries.dim,
        "lower_is_better": [name for m in plain if not m.higher_is_better for name in m.columns(ks)],
    }
    return Evaluation(per_query, query_labels, relevance.counts, settings, as_ids(ids, len(queries)))


def _graded_and_plain(metrics: Sequence[MetricLike] | None, hierarchical: bool) -> tuple[list[str], list[Metric]]:
    """Names of the graded metrics, and the others."""
    if metrics is None:
        return list(GRADED) if hierarchical else [], checked_metrics(None)
    graded = [name for name in GRADED if name in metrics]
    if graded and not hierarchical:
        raise InputError(f"metrics: {', '.join(graded)} need labels of a second level: pass coarse_labels.")
    others = [metric for metric in metrics if not (isinstance(metric, str) and metric in GRADED)]
    return graded, checked_metrics(others)


def check_lengths(vectors: int, labels: int, what: str, of: str) -> None:
    """Check that there are vectors, each with a label."""
    if vectors == 0:
        raise InputError(f"{what}: there are no vectors.")
    if vectors != labels:
        raise InputError(f"{what}: {vectors} vectors but {labels} labels ({of}); give one label per vector, in order.")


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Per-query values of every metric, and their means.

    Attributes:
        per_query: metric → N values as fractions (``first_rank`` as a rank); NaN for a query without a positive.
        labels: N labels of the queries.
        positives: N numbers of positives.
        settings: the options of the evaluation: ks, ties, sizes.
        ids: the name of each of the N queries (file name, content hash), or None; see ``paired_bootstrap``.

    Examples:
        >>> result = Evaluation({"r@1": np.array([1.0, 0.0, 1.0])}, np.array([7, 7, 8]), np.array([1, 1, 1]))
        >>> round(result.metrics["r@1"], 3), result.class_means("r@1")
        (0.667, {7: 0.5, 8: 1.0})
    """

    per_query: Mapping[str, NDArray[np.float64]]
    labels: NDArray[Any]
    positives: NDArray[np.int64]
    settings: Mapping[str, Any] = field(default_factory=dict)
    ids: NDArray[np.str_] | None = None

    @property
    def metrics(self) -> dict[str, float]:
        """The mean of every metric over the queries that have a positive, as fractions from 0 to 1."""
        counted = self.positives > 0
        return {name: float(values[counted].mean()) for name, values in self.per_query.items()}

    @property
    def counted(self) -> int:
        """How many queries have a positive and therefore count in the means."""
        return int((self.positives > 0).sum())

    def values(self, metric: str) -> NDArray[np.float64]:
        """The per-query values of one metric, or an error that lists the available ones."""
        if metric not in self.per_query:
            raise InputError(f"{metric!r} was not computed; available: {', '.join(self.per_query)}.")
        return self.per_query[metric]

    def class_means(self, metric: str) -> dict[Any, float]:
        """The mean of ``metric`` over the queries of each class; classes without a counted query are left out."""
        values = self.values(metric)
        counted = self.positives > 0
        classes, place = np.unique(self.labels[counted], return_inverse=True)
        means = np.bincount(place, weights=values[counted]) / np.bincount(place)
        return dict(zip(classes.tolist(), means.tolist(), strict=True))

    @property
    def macro(self) -> dict[str, float]:
        """Every metric averaged over classes instead of queries, so that large and small classes have equal weight."""
        return {name: float(np.mean(list(self.class_means(name).values()))) for name in self.per_query}

    def summary(self) -> dict[str, Any]:
        """Plain values for ``metrics.json``."""
        return {
            "metrics": self.metrics,
            "macro": self.macro,
            "queries": len(self.positives),
            "queries_without_positive": len(self.positives) - self.counted,
            "settings": dict(self.settings),
        }

    def save(self, path: Path | str, *, overwrite: bool = False) -> Path:
        """Write all per-query values as ``.npz``.

        Raises:
            InputError: the file exists and ``overwrite`` is not set, or the name does not end in ``.npz``.
        """
        if Path(path).suffix != ".npz":
            raise InputError(f"{path}: per-query results are saved as .npz; give a name that ends in .npz.")
        arrays = {"labels": self.labels, "positives": self.positives, **self.per_query}
        arrays["settings"] = np.array(json.dumps(dict(self.settings)))
        return save_arrays(path, arrays if self.ids is None else {**arrays, "ids": self.ids}, overwrite)

    @classmethod
    def load(cls, path: Path | str) -> Evaluation:
        """Read what ``save`` wrote."""
        try:
            arrays = read_npz(path)
            settings = parse_json(str(arrays["settings"]), str(path), dict)
            labels, positives = arrays["labels"], arrays["positives"]
            ids = as_ids(arrays["ids"], len(positives)) if "ids" in arrays else None
        except (ValueError, KeyError) as error:
            raise DataError(f"{path}: not a file of per-query results ({error}).") from error
        values = {name: array for name, array in arrays.items() if name not in RESERVED}
        return cls(values, labels, positives, settings, ids)


def as_ids(ids: Any | None, queries: int) -> NDArray[np.str_] | None:
    """One string per query, or an error."""
    if ids is None:
        return None
    array = np.asarray(ids)
    if array.dtype.kind != "U" or array.shape != (queries,):
        raise InputError(
            f"ids: give {queries} strings, one per query; the shape is {array.shape} and the type {array.dtype}."
        )
    if len(np.unique(array)) != queries:
        raise InputError("ids: two queries have the same id; each query needs its own.")
    return array


def save_arrays(path: Path | str, arrays: Mapping[str, NDArray[Any]], overwrite: bool) -> Path:
    """Write arrays as ``.npz``, atomically."""
    path = Path(path)
    refuse_existing(path, overwrite)
    with atomic_write(path) as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    return path


def refuse_existing(path: Path, overwrite: bool) -> None:
    """Raise if ``path`` exists and may not be replaced."""
    if path.exists() and not overwrite:
        raise InputError(f"{path} already exists: choose another name, or allow overwriting (--overwrite).")


def shard(queries: int, distributed: bool) -> NDArray[np.int64] | None:
    """The numbers of the queries that this process evaluates; None for all."""
    if not distributed:
        return None
    if not (dist.is_available() and dist.is_initialized()):
        raise ConfigError(
            "distributed=True, but this program runs as a single process: start it with torchrun and call "
            "torch.distributed.init_process_group first, or set distributed=False."
        )
    return np.arange(dist.get_rank(), queries, dist.get_world_size())


def gather(mine: Any, distributed: bool) -> list[Any]:
    """Every process's ``mine``, in the order of ranks, on every process."""
    if not distributed:
        return [mine]
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return everyone
