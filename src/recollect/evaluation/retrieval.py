"""``evaluate``: vectors and labels to metrics. The entry point that most users need.

Reads as a table of contents: which items are relevant (``relevance``), at which ranks (``ranks``), their metrics
(``metrics``), stored per query (``result``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from recollect.common.errors import InputError
from recollect.common.machine import limited_threads, threads_for, usable_device
from recollect.evaluation import metrics as metric_table
from recollect.evaluation.hierarchy import GRADED, GradedRanks, Hierarchy
from recollect.evaluation.inputs import ArrayLike, ByLabel, Vectors, as_labels
from recollect.evaluation.metrics import Metric, MetricLike
from recollect.evaluation.ranks import DEFAULT_MEMORY, stream_ranks
from recollect.evaluation.result import Evaluation, as_ids, gather, shard
from recollect.evaluation.tiles import RankTile, Ties, tie_sign

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
    memory: int = DEFAULT_MEMORY,
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
        memory: bytes to use in addition to the inputs.
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
    if similarity not in ("dot", "cosine"):
        raise InputError(f"similarity={similarity!r} is unknown: choose 'dot' or 'cosine'.")
    if gallery is None and gallery_labels is not None:
        raise InputError("gallery_labels are given but no gallery: pass both, or neither to search among the queries.")
    if gallery is not None and gallery_labels is None:
        raise InputError("a gallery is given without gallery_labels: pass one label for each of its vectors.")
    place = _device(embeddings, device)
    cosine = similarity == "cosine"
    extra = [] if distractors is None else [distractors]
    queries = Vectors([embeddings], "embeddings", place, cosine)
    items = Vectors([embeddings if gallery is None else gallery, *extra], "gallery", place, cosine)
    added = 0 if distractors is None else len(Vectors(extra, "distractors", place))
    query_labels = as_labels(labels, "labels")
    _check_lengths(len(queries), len(query_labels), "embeddings", "labels")
    if gallery_labels is not None:
        _check_lengths(len(items) - added, len(as_labels(gallery_labels, "gallery_labels")), "gallery", "its labels")
    ks = metric_table.default_ks(len(items) - (gallery is None)) if ks is None else metric_table.checked_ks(ks)
    graded, plain = _asked(metrics, coarse_labels is not None)
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
    ranked, limits = relevance, metric_table.limits_for(plain, ks)
    if hierarchy is not None and graded:
        ranked = ByLabel(hierarchy.coarse, hierarchy.gallery_coarse, added, junk)
        limits = metric_table.limits_for([metric_table.METRICS["map"]], ks)
    tiles = stream_ranks(
        queries,
        items,
        ranked,
        limits,
        themselves=gallery is None and junk is None,
        chosen=shard(len(queries), distributed),
        ties=ties,
        memory=memory,
        progress=progress,
    )
    mine = []
    with limited_threads(threads_for(len(queries) * len(items) * queries.dim, _OPERATIONS)):
        for tile in tiles:
            for of_label, levels in _levels(tile, hierarchy if graded else None, tie_sign(ties)):
                values = metric_table.compute(of_label, plain, ks)
                if levels is not None:
                    values |= {name: GRADED[name](levels) for name in graded}
                mine.append((of_label.queries.cpu().numpy(), {name: v.cpu().numpy() for name, v in values.items()}))
    per_query = {name: np.full(len(queries), np.nan) for name in [*metric_table.columns(plain, ks), *graded]}
    for numbers, found in (part for process in gather(mine, distributed) for part in process):
        for name, column in found.items():
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


def _asked(metrics: Sequence[MetricLike] | None, hierarchical: bool) -> tuple[list[str], list[Metric]]:
    """Names of the graded metrics, and the others."""
    if metrics is None:
        return list(GRADED) if hierarchical else [], metric_table.checked_metrics(None)
    graded = [name for name in GRADED if name in metrics]
    if graded and not hierarchical:
        raise InputError(f"metrics: {', '.join(graded)} need labels of a second level: pass coarse_labels.")
    others = [metric for metric in metrics if not (isinstance(metric, str) and metric in GRADED)]
    return graded, metric_table.checked_metrics(others) if others or not graded else []


def _levels(tile: RankTile, hierarchy: Hierarchy | None, sign: int) -> Iterator[tuple[RankTile, GradedRanks | None]]:
    """The ranks of the positives by label, and with a hierarchy those of both levels."""
    if hierarchy is None:
        yield tile, None
        return
    for levels, of_label in hierarchy.split(tile, sign):
        yield of_label, levels


def _device(embeddings: object, device: torch.device | str | None) -> torch.device:
    if device is not None:
        return usable_device(str(device))
    return embeddings.device if isinstance(embeddings, Tensor) else torch.device("cpu")


def _check_lengths(vectors: int, labels: int, what: str, of: str) -> None:
    if vectors == 0:
        raise InputError(f"{what}: there are no vectors.")
    if vectors != labels:
        raise InputError(f"{what}: {vectors} vectors but {labels} labels ({of}); give one label per vector, in order.")
