"""Evaluates vectors by the appropriate protocol: retrieval, re-identification, or Revisited's.

Used by ``recollect eval``, the end of ``tune``, the validation during training and the studies. Vectors come from
``target_vectors.py`` and ``embedding_sets.py``, metrics from ``evaluation``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recollect.common.errors import ConfigError
from recollect.common.reading import open_npy
from recollect.config.schema import Config
from recollect.data import RevisitedBenchmark
from recollect.evaluation import (
    Evaluation,
    changed_queries,
    evaluate,
    evaluate_reid,
    evaluate_revisited,
    paired_bootstrap,
)
from recollect.evaluation.hierarchy import GRADED
from recollect.evaluation.metrics import Metric
from recollect.evaluation.result import write_summary
from recollect.inference.opening import Opened
from recollect.inference.target_vectors import Target, embed_test
from recollect.inference.test_sets import EVERY_K, TestSet
from recollect.losses.matryoshka import prefix_lengths, unit_rows

PROTOCOLS = ("all", "reid")
_GRADED_ENTRIES = 10**9
"""Number of similarities up to which hierarchical AP is computed on a CPU by default: about four minutes on one core."""


def check_protocol(protocol: str) -> None:
    """Refuse an unknown protocol; called before an hour of embedding."""
    if protocol not in PROTOCOLS:
        raise ConfigError(f"--protocol {protocol} is unknown: choose all or reid.")


def evaluate_target(
    target: Target,
    ks: Sequence[int] | None = None,
    protocol: str = "all",
    *,
    hierarchical: bool | None = None,
    **options: Any,
) -> tuple[Any, dict[str, Any]]:
    """Run the appropriate protocol; returns its result, and plain values for ``metrics.json``.

    Args:
        target: the vectors.
        ks: the k of r@k; the target's own by default.
        protocol: ``"all"``: everything against everything; ``"reid"``: a random gallery. Ignored if there is ground truth.
        hierarchical: compute ``h_ap`` and ``ndcg``, which rank everything of a query's coarser class. By default if there
            are coarse labels and, on a CPU, it takes a few minutes at most. ``"left_out"`` of the summary names the
            metrics that were skipped.
        options: options of ``evaluate``.

    Raises:
        ConfigError: ``hierarchical`` is set without coarse labels.
    """
    check_protocol(protocol)
    if hierarchical and target.coarse_labels is None:
        raise ConfigError(
            "hierarchical AP needs images with coarser classes, such as sop and inaturalist: remove --hierarchical."
        )
    wanted = list(target.ks if ks is None else ks)
    if "metrics" in options and (target.gnd is not None or protocol == "reid"):
        raise ConfigError("your own metrics work only with labelled images and the protocol all: remove them.")
    if target.gnd is not None:
        return _revisited(target, options)
    if protocol == "reid":
        drawn = evaluate_reid(target.embeddings, target.labels, wanted, **options)
        shown = {"metrics": drawn.metrics, "deviations": drawn.deviations, "draws": len(drawn.draws)}
        return drawn, {**shown, "protocol": "reid", "source": target.source}
    levels = _graded(target, hierarchical, options.get("device"))
    if levels and "metrics" in options:
        options["metrics"] = [*options["metrics"], *GRADED]
    result = evaluate(
        target.embeddings,
        target.labels,
        target.gallery,
        target.gallery_labels,
        wanted,
        distractors=target.distractors,
        coarse_labels=target.coarse_labels if levels else None,
        gallery_coarse_labels=target.gallery_coarse_labels if levels else None,
        progress=True,
        **options,
    )
    result = replace(result, settings={**result.settings, "identity": target.identity})
    left_out = {"left_out": list(GRADED)} if target.coarse_labels is not None and not levels else {}
    return result, {**result.summary(), "protocol": "all", **left_out, "source": target.source}


def _graded(target: Target, hierarchical: bool | None, device: Any) -> bool:
    """Whether to rank both levels of labels: by default, unless every row of a large matrix would be sorted on a CPU."""
    if target.coarse_labels is None or hierarchical is not None:
        return bool(hierarchical)
    place = str(getattr(target.embeddings, "device", "cpu") if device is None else device)
    gallery = target.embeddings if target.gallery is None else target.gallery
    return not place.startswith("cpu") or len(target.embeddings) * len(gallery) <= _GRADED_ENTRIES


def _revisited(target: Target, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    def ranked(distractors: Any) -> tuple[Any, dict[str, float]]:
        found = evaluate_revisited(
            target.embeddings, target.gallery, target.gnd or [], distractors, progress=True, **options
        )
        return found, {name: value for name, value in found.metrics.items() if value == value}

    found, known = ranked(target.distractors)
    # A hundredth of the work, and it shows the effect of the distractors.
    more = {} if target.distractors is None else {"without_distractors": ranked(None)[1]}
    return found, {"metrics": known, "protocol": "revisited", **more, "source": target.source}


def evaluate_prefixes(
    target: Target, dims: Sequence[int], ks: Sequence[int] | None = None, protocol: str = "all", **options: Any
) -> dict[int, dict[str, float]]:
    """Metrics of the first numbers of the vectors, normalized, by length; the whole vectors come last.

    For embeddings trained with ``loss.dims``.

    Args:
        target: the vectors. dims: the lengths. ks, protocol, options: as for ``evaluate_target``.
    """
    whole = int(target.embeddings.shape[1])
    if target.gnd is None and protocol == "all":
        options["metrics"] = ("r@k", "map@r")
    found = {}
    for dim in prefix_lengths(dims, whole):
        cut = {name: _prefix(getattr(target, name), dim, whole) for name in ("embeddings", "gallery", "distractors")}
        found[dim] = dict(evaluate_target(replace(target, **cut), ks, protocol, **options)[1]["metrics"])
    return found


def _prefix(vectors: Any, dim: int, whole: int) -> Any:
    if vectors is None or dim == whole:
        return vectors
    if isinstance(vectors, str | Path):
        vectors = open_npy(vectors)
    short = vectors[:, :dim]  # from a file on disk, only this part is read
    return unit_rows(short if isinstance(short, Tensor) else torch.from_numpy(np.array(short)))


def compare_evaluations(first: Evaluation, second: Evaluation) -> dict[str, Any]:
    """Compare ``second`` with ``first`` on the same queries: for each metric the difference with its 95 % interval, and
    how many queries improved and got worse; ``"differences"``: the settings that differ besides the model.

    Raises:
        ConfigError: they are of different images, so their queries differ.
    """
    found: dict[str, Any] = {"differences": compare_settings(first, second)}
    for metric in (name for name in second.per_query if name in first.per_query and name != "first_rank"):
        test, changes = paired_bootstrap(first, second, metric), changed_queries(first, second, metric)
        found[metric] = {**vars(test), "better": len(changes.better), "worse": len(changes.worse)}
    return found


def compare_settings(other: Evaluation, result: Evaluation) -> list[str]:
    """Differences of two results besides the model, in words, to be shown with the comparison.

    Raises:
        ConfigError: they are of different images, so their queries differ.
    """
    first, second = (dict(found.settings.get("identity") or {}) for found in (other, result))
    for what in ("images", "names"):
        if what in first and what in second and first[what] != second[what]:
            raise ConfigError(
                "the two results are of different images, so their queries cannot be compared: evaluate both "
                "models on the same test set with --data, or compare runs with recollect report RUN1 RUN2."
            )
    said = [
        f"{name}: {first[name]} there, {second[name]} here"
        for name in second
        if name in first and name not in ("images", "names") and first[name] != second[name]
    ]
    if not any(what in first and what in second for what in ("images", "names")):
        said.append("at least one result does not record its images; only labels were compared")
    return said


def measure_and_keep(
    opened: Opened, test: TestSet, place: Path | None = None, *, recipe: Config | None = None
) -> dict[str, float]:
    """Embed and evaluate a labelled test set and write both result files; returns its metrics."""
    target = embed_test(opened, test, recipe=recipe)
    result, summary = evaluate_target(target)
    folder = place or target.place
    result.save(folder / "queries.npz", overwrite=True)
    write_summary(folder / "metrics.json", summary, overwrite=True)
    return dict(summary["metrics"])


def measure_labelled(
    vectors: Tensor | NDArray[np.float32],
    labels: Any,
    *,
    ks: Sequence[int] = EVERY_K,
    more: Sequence[Metric] = (),
    distributed: bool = False,
) -> dict[str, float]:
    """r@k and mAP@R of labelled vectors, everything against everything, and ``more`` metrics; used during training."""
    return evaluate(vectors, labels, ks=ks, metrics=("r@k", "map@r", *more), distributed=distributed).metrics


def measure_benchmark(database: Tensor, benchmark: RevisitedBenchmark, *, distributed: bool) -> dict[str, float]:
    """``map`` and ``mp@k`` of queries that are images of the database, as validation measures them."""
    queries = database[torch.from_numpy(benchmark.query_rows).to(database.device)]
    # Every positive of a validation query counts as easy.
    found = evaluate_revisited(
        queries, database, benchmark.ground_truth, setups=("easy",), device=database.device, distributed=distributed
    )
    return {name.removeprefix("easy/"): value for name, value in found.metrics.items()}
