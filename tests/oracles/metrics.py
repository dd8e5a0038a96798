"""All metrics by their definitions: one query at a time, a full sort, float64. Slow, and meant to be read.

Tests compare the streaming pass with this file. The two share no code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def ranking(similarities: NDArray[np.float64], positive: NDArray[np.bool_], ties: str) -> list[int]:
    """Ranks (from 1) of the positives when sorted by descending similarity; among equals, negatives first (or last)."""
    order = sorted(
        range(len(similarities)),
        key=lambda i: (-similarities[i], bool(positive[i]) if ties == "pessimistic" else not positive[i]),
    )
    return [rank for rank, item in enumerate(order, start=1) if positive[item]]


def metrics_of_ranks(ranks: Sequence[int], ks: Sequence[int]) -> dict[str, float]:
    """All metrics of one query from the ranks of its R positives."""
    R = len(ranks)
    hits = list(enumerate(ranks, start=1))  # (j, rank of the j-th positive)
    values: dict[str, float] = {}
    for k in ks:
        values[f"r@{k}"] = float(any(rank <= k for rank in ranks))
        values[f"recall@{k}"] = sum(rank <= k for rank in ranks) / R
    values["map"] = sum(j / rank for j, rank in hits) / R
    values["map@r"] = sum(j / rank for j, rank in hits if rank <= R) / R
    values["r_precision"] = sum(rank <= R for rank in ranks) / R
    values["mrr"] = 1 / ranks[0]
    values["first_rank"] = float(ranks[0])
    return values


def graded_metrics(similarities: NDArray[np.float64], levels: Sequence[int], ties: str) -> dict[str, float]:
    """H-AP, also as released, and NDCG of one query; among equals, items of lower level first (or last)."""
    sign = 1 if ties == "pessimistic" else -1
    order = sorted(range(len(levels)), key=lambda i: (-similarities[i], sign * levels[i]))
    ranked = [levels[i] for i in order]

    def h_ap(own: int) -> float:
        number = {1: ranked.count(1), 2: ranked.count(2) + own}
        rel = [level / 2 / number[level] if level else 0.0 for level in ranked]
        h_ranks = [sum(min(rel[j], rel[k]) for j in range(k + 1)) for k in range(len(ranked))]
        return sum(h_rank / (k + 1) for k, h_rank in enumerate(h_ranks)) / sum(rel)

    def gain(some: Sequence[int]) -> float:
        return float(sum((2**level - 1) / np.log2(1 + rank) for rank, level in enumerate(some, start=1)))

    best = gain(sorted(ranked, reverse=True))
    return {"h_ap": h_ap(0), "h_ap_released": h_ap(1), "ndcg": gain(ranked) / best}


def macro(values: Sequence[dict[str, float] | None], labels: Sequence[Any]) -> dict[str, float]:
    """The mean over classes of the means over their queries; queries without a positive are left out."""
    classes: dict[Any, list[dict[str, float]]] = {}
    for value, label in zip(values, labels, strict=True):
        if value is not None:
            classes.setdefault(label, []).append(value)
    names = next(iter(classes.values()))[0]
    return {
        name: sum(sum(v[name] for v in some) / len(some) for some in classes.values()) / len(classes) for name in names
    }


def evaluate(
    embeddings: Any,
    labels: Sequence[Any],
    gallery: Any = None,
    gallery_labels: Sequence[Any] | None = None,
    ks: Sequence[int] = (1, 10, 100, 1000),
    junk: Sequence[Sequence[int]] | None = None,
    distractors: Any = None,
    ties: str = "pessimistic",
    coarse_labels: Sequence[Any] | None = None,
    gallery_coarse_labels: Sequence[Any] | None = None,
) -> list[dict[str, float] | None]:
    """One dict of metrics per query; None for a query without a positive."""
    queries = np.asarray(embeddings, dtype=np.float64)
    items = queries if gallery is None else np.asarray(gallery, dtype=np.float64)
    item_labels = list(labels if gallery_labels is None else gallery_labels)
    item_coarse = None if coarse_labels is None else list(gallery_coarse_labels or coarse_labels)
    if distractors is not None:
        items = np.concatenate([items, np.asarray(distractors, dtype=np.float64)])
        item_labels += [None] * len(distractors)
        item_coarse = None if item_coarse is None else item_coarse + [None] * len(distractors)
    results: list[dict[str, float] | None] = []
    for number, (query, label) in enumerate(zip(queries, labels, strict=True)):
        left_out = set() if junk is None else set(junk[number])
        if gallery is None:
            left_out.add(number)
        kept = [i for i in range(len(items)) if i not in left_out]
        similarities = np.array([(query * items[i]).sum() for i in kept])
        positive = np.array([item_labels[i] == label for i in kept], dtype=bool)
        ranks = ranking(similarities, positive, ties)
        values = metrics_of_ranks(ranks, ks) if ranks else None
        if values is not None and coarse_labels is not None and item_coarse is not None:
            levels = [2 if item_labels[i] == label else int(item_coarse[i] == coarse_labels[number]) for i in kept]
            values |= graded_metrics(similarities, levels, ties)
        results.append(values)
    return results


def revisited_average_precision(positions: Sequence[int], positives: int) -> float:
    """Revisited Oxford and Paris: trapezoids under the precision–recall curve, from 0-based ranks."""
    total = 0.0
    for j, position in enumerate(positions):
        before = 1.0 if position == 0 else j / position
        total += (before + (j + 1) / (position + 1)) / 2
    return total / positives
