"""The re-identification protocol: one random image of each identity is the gallery, all others are queries.

Vehicle re-identification papers report VehicleID this way, averaged over random draws. Image-retrieval papers, among
them the one this library follows, instead rank all images of a test list against each other: that is plain
``evaluate``. The two give different numbers for the same vectors and therefore have different names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from recollect.common.errors import InputError
from recollect.evaluation.relevance import as_labels, to_tensor
from recollect.evaluation.result import Evaluation
from recollect.evaluation.retrieval import evaluate
from recollect.evaluation.vectors import ArrayLike, Vectors


@dataclass(frozen=True)
class ReidResult:
    """Means over draws.

    Attributes:
        metrics: ``reid/r@k`` (the cumulative matching curve), ``reid/mrr``; the mean over the draws.
        macro: the same averaged over identities, so that each has equal weight, however many images it has.
        deviations: the standard deviations of ``metrics`` over the draws.
        draws: the evaluation of each draw. Queries are numbered as in ``queries`` of the same draw.
        queries: for each draw, the indices of the images used as queries.
    """

    metrics: dict[str, float]
    macro: dict[str, float]
    deviations: dict[str, float]
    draws: list[Evaluation]
    queries: list[Any]


def evaluate_reid(
    embeddings: ArrayLike,
    labels: Any,
    ks: Sequence[int] = (1, 5, 10),
    *,
    seeds: Sequence[int] | int = 10,
    **options: Any,
) -> ReidResult:
    """Draw one gallery image of each identity, query with all others, and average over draws.

    Args:
        embeddings: N × d vectors. labels: N identities.
        ks: the k of ``reid/r@k``.
        seeds: the seed of each draw, or how many draws (seeds 0, 1, …).
        options: passed on to ``evaluate``: ``similarity``, ``ties``, ``memory``, ``device``, ``distributed``.

    Examples:
        >>> vectors = [[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]]
        >>> evaluate_reid(vectors, [4, 4, 9, 9], ks=[1], seeds=3).metrics["reid/r@1"]
        1.0
    """
    numbers = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    if not numbers:
        raise InputError("seeds: at least one draw is needed.")
    unusual = {"metrics", "junk", "gallery", "gallery_labels"} & options.keys()
    if unusual:
        raise InputError(
            f"{', '.join(sorted(unusual))}: fixed by the re-identification protocol; use evaluate to set it."
        )
    vectors = Vectors([embeddings], "embeddings", torch.device("cpu"))
    names = as_labels(labels, "labels")
    if len(names) != len(vectors):
        raise InputError(f"embeddings: {len(vectors)} vectors but {len(names)} labels; give one label per vector.")
    dtype = torch.float64 if vectors.is_double else torch.float32
    everything = vectors.rows(0, len(vectors), dtype)
    draws, queries = [], []
    for seed in numbers:
        shuffled = np.random.default_rng(seed).permutation(len(names))
        _, first = np.unique(names[shuffled], return_index=True)
        chosen = np.sort(shuffled[first])
        others = np.setdiff1d(np.arange(len(names)), chosen)
        if not others.size:
            raise InputError(
                "every identity has a single image, so no query is left after drawing the gallery: add images."
            )
        rest, drawn = to_tensor(others, everything.device), to_tensor(chosen, everything.device)
        draws.append(
            evaluate(
                everything[rest],
                names[others],
                everything[drawn],
                names[chosen],
                ks,
                metrics=("r@k", "mrr"),
                **options,
            )
        )
        queries.append(others)
    table = {f"reid/{name}": np.array([draw.metrics[name] for draw in draws]) for name in draws[0].metrics}
    return ReidResult(
        metrics={name: float(values.mean()) for name, values in table.items()},
        macro={f"reid/{name}": float(np.mean([draw.macro[name] for draw in draws])) for name in draws[0].metrics},
        deviations={name: float(values.std()) for name, values in table.items()},
        draws=draws,
        queries=queries,
    )
