"""Queries worth looking at, each with what was found for it: the worst, the best, and those that training changed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from recollect.data.image_set import Indices
from recollect.evaluation import Evaluation
from recollect.report.markup import Markup, element, name_of
from recollect.report.measured import Contender
from recollect.report.shown_images import Shown
from recollect.report.thumbnails import Pictures
from recollect.search.exact_search import nearest

QUERIES = 5
"""Queries of each kind."""
TOP = 8
"""Results of each."""


def worst(result: Evaluation, count: int = QUERIES) -> list[int]:
    """Queries whose first right answer comes latest; none that has one in the first place."""
    first = result.values("first_rank")
    order = np.argsort(-np.nan_to_num(first, nan=0.0), kind="stable")
    return _from_many_classes(order[np.nan_to_num(first[order], nan=0.0) > 1], result.labels, count)


def best(result: Evaluation, count: int = QUERIES) -> list[int]:
    """Queries with all their positives first, or nearly; of equals those with more positives."""
    precision = np.nan_to_num(result.values("map"), nan=-1.0)
    order = np.lexsort((-result.positives, -precision))
    return _from_many_classes(order[np.nan_to_num(result.values("first_rank")[order]) == 1], result.labels, count)


def changed(before: Evaluation, after: Evaluation, count: int = QUERIES) -> list[int]:
    """Queries whose first right answer moved up the most, by ratio of ranks; first those it moved to the top."""
    old, new = before.values("first_rank"), after.values("first_rank")
    with np.errstate(invalid="ignore"):
        gain = np.nan_to_num(np.log(old) - np.log(new), nan=0.0)
    order = np.lexsort((-gain, new != 1))
    return _from_many_classes(order[gain[order] > 0], after.labels, count)


def _from_many_classes(order: Indices, labels: NDArray[np.int64], count: int) -> list[int]:
    """The first ``count`` of ``order``, a class once; if the classes do not suffice, again from the start."""
    chosen: list[int] = []
    waiting = [int(index) for index in order]
    while waiting and len(chosen) < count:
        seen: set[int] = set()
        later = []
        for index in waiting:
            if len(chosen) < count and int(labels[index]) not in seen:
                seen.add(int(labels[index]))
                chosen.append(index)
            else:
                later.append(index)
        waiting = later
    return chosen


def rows_of_results(
    queries: Sequence[int], contenders: Sequence[Contender], shown: Shown, pictures: Pictures, top: int = TOP
) -> Markup:
    """Each query with a row of results for every contender."""
    own = np.array(queries, np.int64)
    found = [nearest(c.vectors[own], c.vectors, min(top, len(shown.names) - 1), own=own) for c in contenders]
    blocks = []
    for place, query in enumerate(queries):
        rows = []
        for contender, answers in zip(contenders, found, strict=True):
            rank = contender.evaluation.values("first_rank")[query]
            items = [
                _result(number, int(index), float(similarity), query, shown, pictures)
                for number, (index, similarity) in enumerate(
                    zip(answers.indices[place], answers.similarities[place], strict=True), 1
                )
            ]
            words = element(
                "p",
                element("strong", name_of(contender.name)) if len(contenders) > 1 else None,
                " — " if len(contenders) > 1 else None,
                f"first right answer: number {int(rank):,}" if np.isfinite(rank) else "no right answer exists",
                class_="rank",
            )
            rows.append(element("div", words, element("ol", items, class_="strip"), class_="row"))
        blocks.append(element("article", _query(query, shown, pictures), element("div", rows), class_="query"))
    return element("div", blocks, class_="gallery")


def _query(index: int, shown: Shown, pictures: Pictures) -> Markup:
    name = shown.class_names[int(shown.labels[index])]
    return element(
        "figure",
        pictures.image(index, f"Query: an image of class {name}"),
        element("figcaption", element("span", "query", class_="tag"), name_of(name), title=shown.names[index]),
        class_="asked",
    )


def _result(number: int, index: int, similarity: float, query: int, shown: Shown, pictures: Pictures) -> Markup:
    right = shown.labels[index] == shown.labels[query]
    name = shown.class_names[int(shown.labels[index])]
    verdict = "right" if right else "wrong"
    mark = element("span", "✓" if right else "✗", class_="mark", aria_hidden="true")
    return element(
        "li",
        element(
            "figure",
            pictures.image(index, f"Result {number}, {verdict}: class {name}, similarity {similarity:.3f}"),
            element("figcaption", mark, f"{similarity:.2f}", element("br"), name_of(name), title=name),
        ),
        class_=verdict,
    )
