"""Two further protocols: re-identification, and Revisited Oxford and Paris.

Re-identification: one random image of each identity is the gallery, all others are queries. Vehicle re-identification
papers report VehicleID this way, averaged over random draws. Image-retrieval papers, among them the one this library
follows, instead rank all images of a test list against each other: that is plain ``evaluate``. The two give different
numbers for the same vectors and therefore have different names.

Revisited Oxford and Paris: Easy, Medium and Hard, mAP and mP@k, with or without a million distractors. Each query has easy,
hard and junk images among the database's. A set-up says which are positives and which are removed from the ranking;
precision is the benchmark's own (trapezoids, and P@k cut at the last positive). Database and distractors may be on disk:
they are read once, in tiles. ``evaluate_rankings`` does the same for existing ranked lists, such as those of an approximate
index or a re-ranker, which may be truncated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from recollect.common.errors import InputError
from recollect.common.machine import usable_device
from recollect.evaluation.inputs import ArrayLike, ByLists, Vectors, as_labels
from recollect.evaluation.metrics import METRICS, checked_ks, limits_for
from recollect.evaluation.ranks import stream_ranks
from recollect.evaluation.retrieval import Evaluation, check_lengths, evaluate, gather, save_arrays, shard
from recollect.evaluation.tiles import Ties


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
    vectors = Vectors([embeddings], "embeddings", torch.device("cpu"))
    names = as_labels(labels, "labels")
    check_lengths(len(vectors), len(names), "embeddings", "labels")
    dtype = torch.float64 if vectors.is_double else torch.float32
    draws, queries = [], []
    for seed in numbers:
        shuffled = np.random.default_rng(seed).permutation(len(names))
        _, first = np.unique(names[shuffled], return_index=True)
        gallery = np.sort(shuffled[first])
        others = np.setdiff1d(np.arange(len(names)), gallery)
        if not others.size:
            raise InputError(
                "every identity has a single image, which the gallery takes, so no query is left: add images."
            )
        searched, items = vectors.take(others, dtype), vectors.take(gallery, dtype)
        draws.append(evaluate(searched, names[others], items, names[gallery], ks, metrics=("r@k", "mrr"), **options))
        queries.append(others)
    table = {f"reid/{name}": np.array([draw.metrics[name] for draw in draws]) for name in draws[0].metrics}
    return ReidResult(
        metrics={name: float(values.mean()) for name, values in table.items()},
        macro={f"reid/{name}": float(np.mean([draw.macro[name] for draw in draws])) for name in draws[0].metrics},
        deviations={name: float(values.std()) for name, values in table.items()},
        draws=draws,
        queries=queries,
    )


Floats = NDArray[np.float64]
GroundTruth = Sequence[Mapping[str, Any]]

# set-up → (lists of positives, lists taken out of the ranking)
SETUPS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "easy": (("easy",), ("junk", "hard")),
    "medium": (("easy", "hard"), ("junk",)),
    "hard": (("hard",), ("junk", "easy")),
}


@dataclass(frozen=True)
class RevisitedResult:
    """Per-query values of each set-up; NaN for a query without a positive there.

    Attributes:
        per_query: set-up → name (``map``, ``mp@1``, …) → one value per query.
    """

    per_query: dict[str, dict[str, Floats]]

    @property
    def metrics(self) -> dict[str, float]:
        """``medium/map``, ``hard/mp@10``, …: means over the queries that have a positive, as fractions."""
        means = {}
        for setup, values in self.per_query.items():
            for name, column in values.items():
                numbers = column[~np.isnan(column)]
                means[f"{setup}/{name}"] = float(numbers.mean()) if numbers.size else float("nan")
        return means

    def save(self, path: Path | str, *, overwrite: bool = False) -> Path:
        """Write the per-query values as ``.npz``, one array per set-up and name: ``numpy.load(path)["hard/map"]``."""
        arrays = {f"{setup}/{name}": v for setup, values in self.per_query.items() for name, v in values.items()}
        return save_arrays(path, arrays, overwrite)


def average_precision(positions: Sequence[int] | Floats, positives: int) -> float:
    """The benchmark's average precision from ascending 0-based ranks of the positives found.

    Each positive adds the mean of the precisions just before and at it; one that was not found adds nothing.

    Args:
        positions: 0-based ranks after ignored images have been taken out.
        positives: how many there are, found or not.
    """
    r = np.asarray(positions, dtype=np.float64)
    j = np.arange(len(r))
    before = np.where(r == 0, 1.0, j / np.maximum(r, 1))
    return float(((before + (j + 1) / (r + 1)) / 2).sum() / positives)


def precision_at(positions: Sequence[int] | Floats, k: int) -> float:
    """The share of positives among the first k, or among those up to the last positive found if that is sooner."""
    r = np.asarray(positions, dtype=np.float64)
    if not r.size:
        return 0.0
    cut = min(r.max() + 1, k)
    return float((r < cut).sum() / cut)


def evaluate_revisited(
    queries: ArrayLike,
    database: ArrayLike,
    gnd: GroundTruth,
    distractors: ArrayLike | None = None,
    *,
    ks: Sequence[int] = (1, 5, 10),
    setups: Sequence[str] = ("easy", "medium", "hard"),
    similarity: Literal["dot", "cosine"] = "dot",
    ties: Ties = "pessimistic",
    memory: int | None = None,
    device: torch.device | str | None = None,
    distributed: bool = False,
    progress: bool = False,
) -> RevisitedResult:
    """Rank database and distractors for every query, all set-ups in one pass over them.

    Args:
        queries: Q × d. database: N × d. Arrays, tensors, memory maps or paths of ``.npy`` files.
        gnd: Q dicts with lists of database indices ``easy``, ``hard`` and ``junk`` (a missing one is empty).
        distractors: more vectors, numbered after the database's and wrong for every query; may be on disk.
        ks: the k of ``mp@k``.
        setups: which of ``easy``, ``medium``, ``hard``.
        similarity, ties, memory, device, distributed, progress: as in ``evaluate``.

    Examples:
        >>> result = evaluate_revisited([[1.0, 0.0]], [[0.9, 0.1], [0.0, 1.0]], [{"easy": [0], "hard": [], "junk": []}])
        >>> result.metrics["medium/map"]
        1.0
    """
    ks = checked_ks(ks)
    place = usable_device(str(device or "cpu"))
    # The set-ups differ only in what counts, so each query is ranked once per set-up in the same pass over the files.
    stacked = Vectors([queries] * len(setups), "queries", place, similarity)
    items = Vectors([database, distractors], "database", place, similarity)
    number = len(stacked) // len(setups)
    if number == 0 or len(items) == 0:
        raise InputError(f"there are {number} queries and {len(items)} database vectors; both are needed.")
    if len(gnd) != number:
        raise InputError(f"gnd has {len(gnd)} entries for {number} queries; give one per query, in order.")
    in_database = len(Vectors([database], "database", place))
    lists = [_lists(entry, setup, query, in_database) for setup in setups for query, entry in enumerate(gnd)]
    relevance = ByLists([ok for ok, _ in lists], [ignored for _, ignored in lists], len(items))
    tiles = stream_ranks(
        stacked,
        items,
        relevance,
        limits_for([METRICS["map"]], ks),
        subset=shard(len(stacked), distributed),
        ties=ties,
        memory=memory,
        progress=progress,
    )
    mine = {}
    for tile in tiles:
        for row, (which, ranks, neighbours) in enumerate(
            zip(tile.queries.tolist(), tile.ranks.cpu().numpy(), tile.items.cpu().numpy(), strict=True)
        ):
            count, (ok, ignored) = int(tile.positives[row]), lists[which]
            # A positive that is also to be ignored keeps its place, but later ones move up, as in the benchmark. The
            # published ground truth has no such image.
            both = np.isin(neighbours[:count], ignored)
            mine[which] = _values(ranks[:count] - 1 - (np.cumsum(both) - both), len(ok), ks)
    table = np.full((len(stacked), 1 + len(ks)), np.nan)
    for part in gather(mine, distributed):
        for which, values in part.items():
            table[which] = values
    return _result(table, setups, ks)


def evaluate_rankings(
    rankings: Sequence[Sequence[int]],
    gnd: GroundTruth,
    *,
    ks: Sequence[int] = (1, 5, 10),
    setups: Sequence[str] = ("easy", "medium", "hard"),
) -> RevisitedResult:
    """The same metrics for ranked lists of database indices, best first, complete or truncated.

    Args:
        rankings: one list per query; indices beyond the database are distractors.
        gnd: as in ``evaluate_revisited``.
    """
    ks = checked_ks(ks)
    if len(gnd) != len(rankings):
        raise InputError(f"gnd has {len(gnd)} entries for {len(rankings)} ranked lists; give one per query, in order.")
    rows = []
    for setup in setups:
        for query, (ranking, entry) in enumerate(zip(rankings, gnd, strict=True)):
            listed = np.asarray(ranking, dtype=np.int64)
            ok, ignored = _lists(entry, setup, query, None)
            positions = np.flatnonzero(np.isin(listed, ok))
            positions = positions - np.searchsorted(np.flatnonzero(np.isin(listed, ignored)), positions)
            rows.append(_values(positions.astype(np.float64), len(ok), ks))
    return _result(np.array(rows), setups, ks)


def _values(positions: Floats, positives: int, ks: Sequence[int]) -> list[float]:
    if not positives:
        return [np.nan] * (1 + len(ks))
    return [average_precision(positions, positives), *(precision_at(positions, k) for k in ks)]


def _result(table: Floats, setups: Sequence[str], ks: Sequence[int]) -> RevisitedResult:
    """The result of a table with the queries of one set-up after the other, and a column per metric."""
    names = ["map", *(f"mp@{k}" for k in ks)]
    parts = zip(setups, np.split(table, len(setups)), strict=True)
    return RevisitedResult(
        {setup: {name: part[:, column].copy() for column, name in enumerate(names)} for setup, part in parts}
    )


def _lists(
    entry: Mapping[str, Any], setup: str, query: int, database: int | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positives and ignored images of one query in one set-up."""
    unknown = set(entry) - {"easy", "hard", "junk", "bbx"}
    if unknown or not ({"easy", "hard"} & set(entry)):
        raise InputError(f"gnd: query {query} has the keys {sorted(entry)}; the keys are easy, hard and junk.")
    lists = {}
    for name in ("easy", "hard", "junk"):
        value = entry.get(name)
        lists[name] = np.unique(np.asarray([] if value is None else value, dtype=np.int64))
        if database is not None and lists[name].size and not 0 <= lists[name][0] <= lists[name][-1] < database:
            raise InputError(
                f"gnd: query {query} has {name} images from {lists[name][0]} to {lists[name][-1]}, but the database's "
                f"images are numbered 0 to {database - 1}."
            )
    if setup not in SETUPS:
        raise InputError(f"setups: {setup!r} is not a set-up; choose from {', '.join(SETUPS)}.")
    right, ignored = SETUPS[setup]
    return np.unique(np.concatenate([lists[n] for n in right])), np.unique(np.concatenate([lists[n] for n in ignored]))
