"""``evaluate``: vectors and labels to metrics. The one entry point of this room that most people need.

Reads as a table of contents: who is right (``relevance``), at which ranks (``ranks``), what that is worth
(``metrics``), kept a query at a time (``result``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from recollect.common.errors import InputError
from recollect.common.threads import limited_threads, threads_for
from recollect.evaluation import metrics as metric_table
from recollect.evaluation.distributed import gather, shard
from recollect.evaluation.exact import Ties
from recollect.evaluation.ranks import DEFAULT_MEMORY, stream_ranks
from recollect.evaluation.relevance import ByLabel, as_labels
from recollect.evaluation.result import Evaluation
from recollect.evaluation.vectors import ArrayLike, Vectors

_OPERATIONS = 100  # threads mostly wait in small evaluations: 5,000 vectors of 128 take 83 ms on one, 86 ms on two


def evaluate(
    embeddings: ArrayLike,
    labels: Any,
    gallery: ArrayLike | None = None,
    gallery_labels: Any | None = None,
    ks: Sequence[int] = (1, 10, 100, 1000),
    *,
    metrics: Sequence[str] | None = None,
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
        ks: the k of ``r@k`` and ``recall@k``; may exceed the gallery.
        metrics: which to compute: any of ``r@k``, ``recall@k``, ``map``, ``map@r``, ``r_precision``, ``mrr``,
            ``first_rank``. All by default. Without ``map`` the pass is faster: it stops counting where none looks.
        junk: for each query, gallery indices that are neither right nor wrong and are taken out of its ranking.
        distractors: more vectors, appended to the gallery and wrong for every query.
        similarity: ``"dot"`` takes vectors as they are; ``"cosine"`` divides each by its length first.
        ties: a negative exactly as similar as a positive counts as ahead of it (``"pessimistic"``, so that collapsed
            or duplicated vectors never flatter) or as behind (``"optimistic"``).
        memory: bytes to use beside the inputs.
        device: where to compute; the device of ``embeddings`` by default.
        distributed: share the queries over the processes of ``torch.distributed``; call it on all of them.
        progress: show a progress line (in a terminal).

    Returns:
        ``.metrics`` (means as fractions, e.g. ``{"r@1": 0.81, …}``), ``.per_query``, and more: see ``Evaluation``.

    Raises:
        InputError: shapes or lengths that do not fit, values that are not finite, no query with a positive.

    Example:
        >>> vectors = [[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]]
        >>> evaluate(vectors, [0, 0, 1, 1], ks=[1]).metrics["r@1"]
        1.0
    """
    names, ks = metric_table.checked_metrics(metrics), metric_table.checked_ks(ks)
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

    relevance = ByLabel(query_labels, gallery_labels, added, junk)
    if not relevance.counts.any():
        raise InputError(
            f"none of the {len(queries)} queries has a positive: no label occurs "
            + ("twice." if gallery is None else "in both the queries and the gallery.")
        )
    per_query = {name: np.full(len(queries), np.nan) for name in metric_table.columns(names, ks)}
    tiles = stream_ranks(
        queries,
        items,
        relevance,
        metric_table.limits_for(names, ks),
        themselves=gallery is None and junk is None,
        chosen=shard(len(queries), distributed),
        ties=ties,
        memory=memory,
        progress=progress,
    )
    with limited_threads(threads_for(len(queries) * len(items) * queries.dim, _OPERATIONS)):
        mine = [
            (
                tile.queries.cpu().numpy(),
                {name: v.cpu().numpy() for name, v in metric_table.compute(tile, names, ks).items()},
            )
            for tile in tiles
        ]
    for numbers, values in (part for process in gather(mine, distributed) for part in process):
        for name, column in values.items():
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
    }
    return Evaluation(per_query, query_labels, relevance.counts, settings)


def _device(embeddings: object, device: torch.device | str | None) -> torch.device:
    if device is not None:
        return torch.device(device)
    return embeddings.device if isinstance(embeddings, Tensor) else torch.device("cpu")


def _check_lengths(vectors: int, labels: int, what: str, of: str) -> None:
    if vectors == 0:
        raise InputError(f"{what}: there are no vectors.")
    if vectors != labels:
        raise InputError(f"{what}: {vectors} vectors but {labels} labels ({of}); give one label a vector, in order.")
