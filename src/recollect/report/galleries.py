"""Queries with their results: which classes are confused, and the worst, the best and the most changed queries.

``rows_of_results`` draws them all. Results of equal similarity are shown in the order in which the evaluation counts them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from recollect.data.image_set import Indices
from recollect.evaluation import Evaluation
from recollect.report.map import Atlas
from recollect.report.markup import Child, Markup, element, join, name_of, render, unfolding
from recollect.report.results import Labels, ModelResult, ReportImages
from recollect.search.exact import Neighbours, nearest

QUERIES = 5
"""Queries of each kind that are shown at once."""
MORE = 10
"""Queries of each kind that unfold below them."""
TOP = 8
"""Results of each."""
_BY_CLASS = 40
_MOST_PAIRS = 3
PAIRS = 20
"""Pairs of classes of which the page gives their share of all failures."""
_LISTED = 500  # pairs in the table: a filter by class finds the failures of nearly every class
_ROWS = 10  # of them at once

Twins = Mapping[int, frozenset[int]]
"""For an image, those that are near-duplicates of it, itself included."""


@dataclass(frozen=True)
class Confusion:
    """How often one class is confused with another.

    Attributes:
        query_class, result_class: labels: queries of the first class had an image of the second as their first result.
        times: number of such queries. queries: number of queries of that class that have a positive.
        example: the query with the most results of the other class.
    """

    query_class: int
    result_class: int
    times: int
    queries: int
    example: int


def in_rank_order(
    neighbours: Neighbours, queries: Labels, labels: Labels, first_rank: NDArray[np.float64]
) -> Neighbours:
    """Results in the order that the evaluation gives them where similarities are equal, as those of exact copies are.

    It counts a negative as similar as a positive before it, so that an embedding gains nothing from ties.

    Args:
        neighbours: results of ``queries``, most similar first.
        labels: of all images. first_rank: of each query, the rank of its first positive.
    """
    indices, similarities = neighbours.indices.copy(), neighbours.similarities.copy()
    width = indices.shape[1]
    same = labels[indices] == labels[queries][:, None]
    place = np.where(same.any(axis=1), same.argmax(axis=1), width) if width else np.zeros(len(queries))
    wrong = np.isfinite(first_rank) & (place != first_rank - 1) & (np.minimum(place, first_rank - 1) < width)
    for row in np.flatnonzero(wrong).tolist():
        ahead = np.flatnonzero(~same[row])[: int(first_rank[row]) - 1].tolist()
        ahead += np.flatnonzero(same[row])[:1].tolist()
        order = [*ahead, *(column for column in range(width) if column not in ahead)]
        indices[row], similarities[row] = indices[row, order], similarities[row, order]
    return Neighbours(indices, similarities)


def confused_pairs(labels: Labels, neighbours: Neighbours) -> list[Confusion]:
    """Pairs of classes by how often the first result for a query of one is of the other, most frequent first.

    Only queries that have a positive count.
    """
    sizes = np.bincount(labels)
    if not neighbours.indices.shape[1]:
        return []
    classes = labels[neighbours.indices]
    wrong = np.flatnonzero((classes[:, 0] != labels) & (sizes[labels] > 1))
    kinds, place, times = np.unique(
        np.stack([labels[wrong], classes[wrong, 0]]), axis=1, return_inverse=True, return_counts=True
    )
    agreement = (classes[wrong] == classes[wrong, :1]).sum(axis=1)
    # The example of each pair: most results of the other class, then the most similar first result.
    order = np.lexsort((-neighbours.similarities[wrong, 0], -agreement, place.reshape(-1)))
    first = np.searchsorted(place.reshape(-1)[order], np.arange(kinds.shape[1]))
    confusions = [
        Confusion(int(own), int(other), int(count), int(sizes[own]), int(wrong[example]))
        for own, other, count, example in zip(*kinds.tolist(), times.tolist(), order[first].tolist(), strict=True)
    ]
    return sorted(confusions, key=lambda c: (-c.times, -c.times / c.queries, c.query_class, c.result_class))


def failures_section(
    confusions: Sequence[Confusion],
    primary: ModelResult,
    images: ReportImages,
    atlas: Atlas,
    twins: Twins,
    of: str | None = None,
) -> Markup:
    """Confused pairs of classes: a table of the most frequent ones, and an example row each.

    ``of``: the run that is examined, if there are several.
    """
    if not confusions:
        return element("p", "Every query with a positive has one in the first place: no classes are confused.")

    def examples(pairs: Sequence[Confusion]) -> Markup:
        return rows_of_results([pair.example for pair in pairs], [primary], images, atlas, twins, pairs)

    first = primary.evaluation.values("r@1")
    return render(
        "failures.html",
        of=of,
        confusions=confusions,
        queries=primary.evaluation.counted,
        most=PAIRS,
        copies=sum(first[query] == 0 and _has_other_label(query, images, twins) for query in twins),
        names=images.class_names,
        rows=_ROWS,
        listed=_LISTED,
        examples=unfolding(confusions, QUERIES, QUERIES + MORE, examples, "more examples") if atlas.at_hand else None,
    )


def worst(result: Evaluation, count: int = QUERIES + MORE) -> list[int]:
    """Queries whose first positive has the lowest rank; none with a positive in the first place."""
    first = np.nan_to_num(result.values("first_rank"), nan=0.0)
    order = np.argsort(-first, kind="stable")
    return _from_many_classes(order[first[order] > 1], result.labels, count)


def best(result: Evaluation, count: int = QUERIES + MORE) -> list[int]:
    """Queries with all or nearly all of their positives first; among equals those with more positives."""
    metric = "map" if "map" in result.per_query else "map@r"
    precision = np.nan_to_num(result.values(metric), nan=-1.0)
    order = np.lexsort((-result.positives, -precision))
    return _from_many_classes(order[np.nan_to_num(result.values("first_rank")[order]) == 1], result.labels, count)


def changed(before: Evaluation, after: Evaluation, count: int = QUERIES + MORE) -> list[int]:
    """Queries whose first positive moved up the most, by ratio of ranks; first those where it reached the top."""
    old, new = before.values("first_rank"), after.values("first_rank")
    with np.errstate(invalid="ignore"):
        gain = np.nan_to_num(np.log(old) - np.log(new), nan=0.0)
    order = np.lexsort((-gain, new != 1))
    return _from_many_classes(order[gain[order] > 0], after.labels, count)


def _from_many_classes(order: Indices, labels: Labels, count: int) -> list[int]:
    """The first ``count`` of ``order``, one per class; if there are too few classes, again from the start."""
    earlier: dict[int, int] = {}  # how many of its class come before a query
    rounds = []
    for index in order.tolist():
        label = int(labels[index])
        rounds.append(earlier.get(label, 0))
        earlier[label] = rounds[-1] + 1
    return [int(order[place]) for place in np.argsort(rounds, kind="stable")[:count]]


def gallery_section(
    models: Sequence[ModelResult], primary: ModelResult, images: ReportImages, atlas: Atlas, twins: Twins
) -> Markup:
    """The selected queries, in groups."""
    if not atlas.at_hand:
        return element("p", "No gallery: the images are not available.")
    if len(images.names) < 2:
        return element("p", "No gallery: there is only one image.")
    pairs = [(models[0], primary)] if models[0] is not primary else []
    pairs += [(primary, other) for other in models if other not in (models[0], primary)]
    groups: list[tuple[Child, list[int], list[ModelResult], str]] = []
    for before, after in pairs[:_MOST_PAIRS]:
        between = None if len(models) == 2 else join(" from ", name_of(before.name), " to ", name_of(after.name))
        improved, lost = changed(before.evaluation, after.evaluation), changed(after.evaluation, before.evaluation)
        groups.append((join("Improved", between), improved, [before, after], "No query improved."))
        groups.append((join("Got worse", between), lost, [before, after], "No query got worse."))
    of = None if len(models) <= 2 else join(" of ", name_of(primary.name))
    best_ones, worst_ones = best(primary.evaluation, QUERIES), worst(primary.evaluation)
    groups.append((join("Best queries", of), best_ones, [primary], "No query has a positive in the first place."))
    groups.append((join("Worst queries", of), worst_ones, [primary], "Every query has a positive in the first place."))
    sections: list[tuple[Child, Markup]] = []
    for title, queries, rows, otherwise in groups:
        # Rows of several comparisons take pictures from one budget, so only the first pair unfolds.
        most = QUERIES + MORE if len(rows) == 1 or rows[0] is pairs[0][0] else QUERIES
        show = partial(rows_of_results, models=rows, images=images, atlas=atlas, twins=twins)
        content = unfolding(queries, QUERIES, most, show) if queries else element("p", otherwise)
        sections.append((title, content))
    # The worst query of each class, lowest classes first.
    first = np.nan_to_num(primary.evaluation.values("first_rank"), nan=0.0)
    means = primary.evaluation.class_means("r@1")
    order = sorted(means, key=lambda label: (means[label], images.class_names[label]))[:_BY_CLASS]
    lowest = [max(np.flatnonzero(images.labels == label).tolist(), key=first.__getitem__) for label in order]
    by_class = rows_of_results(lowest, [primary], images, atlas, twins) if len(lowest) > 1 else None
    return render("galleries.html", sections=sections, by_class=by_class, shown=len(lowest), classes=len(means))


def _has_other_label(query: int, images: ReportImages, twins: Twins) -> bool:
    """Whether an image of another class is a near-duplicate of the query."""
    return any(images.labels[other] != images.labels[query] for other in twins.get(query, ()))


def rows_of_results(
    queries: Sequence[int],
    models: Sequence[ModelResult],
    images: ReportImages,
    atlas: Atlas,
    twins: Twins,
    confusions: Sequence[Confusion] = (),
) -> Markup:
    """Each query with a row of results for every model.

    Args:
        queries, models, images, atlas: what to show. twins: near-duplicates, to be marked.
        confusions: of which the queries are examples; a filter finds their rows by either class.
    """
    own = np.array(queries, np.int64)
    top = min(TOP, len(images.names) - 1)
    answers = []
    for model in models:
        ranks = model.evaluation.values("first_rank")[own]
        found = nearest(model.vectors[own], model.vectors, top, own=own)
        answers.append((model.name, ranks, in_rank_order(found, own, images.labels, ranks)))
    return render(
        "gallery.html",
        queries=queries,
        confusions=confusions,
        answers=answers,
        images=images,
        atlas=atlas,
        twins=twins,
        has_other_label=_has_other_label,
    )
