"""The result of an evaluation: one value per query and metric. Means, intervals and comparisons are computed from these.

Saved as ``.npz`` with one array per metric, so that ``numpy.load(path)["r@1"]`` reads one.
``verdict.py`` compares results; ``report`` and the command line print them.

Several processes share the queries: each ranks every W-th against the whole gallery (``shard``), and only values per query
are exchanged (``gather``), as objects, so that any ``torch.distributed`` backend works.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray

from recollect.common.errors import ConfigError, DataError, InputError
from recollect.common.files import atomic_write
from recollect.common.reading import parse_json, read_npz

RESERVED = ("labels", "positives", "settings", "ids")
"""Arrays of a file of per-query results that are not metrics."""


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
        path = Path(path)
        if path.suffix != ".npz":
            raise InputError(f"{path}: per-query results are saved as .npz; give a name that ends in .npz.")
        refuse_existing(path, overwrite)
        arrays: dict[str, Any] = {
            "labels": self.labels,
            "positives": self.positives,
            "settings": np.array(json.dumps(dict(self.settings))),
            **({} if self.ids is None else {"ids": self.ids}),
            **self.per_query,
        }
        with atomic_write(path) as file:
            np.savez_compressed(file, **arrays)
        return path

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
