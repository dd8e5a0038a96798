"""Selected queries with their results: the worst, the best, and those that training changed.

``failures.py`` and ``data_checks.py`` show their rows with the same functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from recollect.common.text import in_decimals
from recollect.data.image_set import Indices
from recollect.evaluation import Evaluation
from recollect.report.atlas import Atlas
from recollect.report.markup import Child, Markup, breakable, element, join, listed, name_of
from recollect.report.measured import Contender
from recollect.report.neighbours import in_rank_order
from recollect.report.shown_images import Shown
from recollect.search.exact import nearest

QUERIES = 5
"""Queries of each kind that are shown at once."""
MORE = 10
"""Queries of each kind that unfold below them."""
TOP = 8
"""Results of each."""
_BY_CLASS = 40
_MOST_PAIRS = 3

Entry = TypeVar("Entry")
Twins = Mapping[int, frozenset[int]]
"""For an image, those that are near-duplicates of it, itself included."""


def worst(result: Evaluation, count: int = QUERIES + MORE) -> list[int]:
    """Queries whose first positive has the lowest rank; none with a positive in the first place."""
    first = result.values("first_rank")
    order = np.argsort(-np.nan_to_num(first, nan=0.0), kind="stable")
    return _from_many_classes(order[np.nan_to_num(first[order], nan=0.0) > 1], result.labels, count)


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


def _from_many_classes(order: Indices, labels: NDArray[np.int64], count: int) -> list[int]:
    """The first ``count`` of ``order``, one per class; if there are too few classes, again from the start."""
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


def gallery_section(
    contenders: Sequence[Contender], looked_at: Contender, shown: Shown, atlas: Atlas, twins: Twins
) -> Markup:
    """The selected queries, in groups."""
    if not atlas.at_hand:
        return element("p", "No gallery: the images are not available.")
    if len(shown.names) < 2:
        return element("p", "No gallery: there is only one image.")
    pairs = [(contenders[0], looked_at)] if contenders[0] is not looked_at else []
    pairs += [(looked_at, other) for other in contenders if other not in (contenders[0], looked_at)]
    parts: list[Markup | None] = [legend()]

    def add(title: Child, queries: list[int], rows: Sequence[Contender], otherwise: str) -> None:
        parts.append(element("h3", title))
        if not queries:
            parts.append(element("p", otherwise))
            return
        # Rows of several comparisons take pictures from one budget, so only the first pair unfolds.
        allowed = QUERIES + MORE if len(rows) == 1 or rows[0] is pairs[0][0] else QUERIES
        some = queries[:allowed]
        parts.append(rows_of_results(some[:QUERIES], rows, shown, atlas, twins=twins))
        parts.append(unfolding(some[QUERIES:], lambda more: rows_of_results(more, rows, shown, atlas, twins=twins)))

    for before, after in pairs[:_MOST_PAIRS]:
        between = (
            Markup("") if len(contenders) == 2 else join(" from ", name_of(before.name), " to ", name_of(after.name))
        )
        improved = changed(before.evaluation, after.evaluation)
        add(join("Improved", between), improved, [before, after], "No query improved.")
        lost = changed(after.evaluation, before.evaluation)
        add(join("Got worse", between), lost, [before, after], "No query got worse.")
    of = Markup("") if len(contenders) <= 2 else join(" of ", name_of(looked_at.name))
    best_ones, worst_ones = best(looked_at.evaluation, QUERIES), worst(looked_at.evaluation)
    add(join("Best queries", of), best_ones, [looked_at], "No query has a positive in the first place.")
    add(join("Worst queries", of), worst_ones, [looked_at], "Every query has a positive in the first place.")
    parts.append(_by_class(looked_at, shown, atlas, twins))
    return join(*parts)


def legend() -> Markup:
    """What the frames mean."""
    return element(
        "p",
        "Each row is a query with its results, most similar first; the number is the similarity. ",
        element("span", "✓", class_="mark right-mark"),
        "with a solid frame: the query's class. ",
        element("span", "✗", class_="mark wrong-mark"),
        "with a dashed frame: another class.",
    )


def unfolding(rest: Sequence[Entry], show: Callable[[Sequence[Entry]], Markup], what: str = "more") -> Markup | None:
    """The rest of a list, collapsed; nothing if there is none."""
    if not rest:
        return None
    return element("details", element("summary", f"{len(rest)} {what}"), show(rest), class_="more")


def _by_class(looked_at: Contender, shown: Shown, atlas: Atlas, twins: Twins) -> Markup | None:
    """The worst query of each class, lowest classes first."""
    first = np.nan_to_num(looked_at.evaluation.values("first_rank"), nan=0.0)
    means = looked_at.evaluation.class_means("r@1")
    order = sorted(means, key=lambda label: (means[label], shown.class_names[label]))[:_BY_CLASS]
    queries = [
        int(members[np.argmax(first[members])]) for c in order if len(members := np.flatnonzero(shown.labels == c))
    ]
    if len(queries) < 2:
        return None
    part = f"the {len(queries)} lowest of {len(means):,} classes" if len(means) > len(queries) else "every class"
    rows = rows_of_results(queries, [looked_at], shown, atlas, twins=twins)
    return join(
        element("h3", "Class by class"),
        element("details", element("summary", f"The worst query of {part}"), rows, class_="more"),
    )


def rows_of_results(
    queries: Sequence[int],
    contenders: Sequence[Contender],
    shown: Shown,
    atlas: Atlas,
    top: int = TOP,
    *,
    twins: Twins | None = None,
    notes: Sequence[Child] | None = None,
    about: Sequence[int] | None = None,
) -> Markup:
    """Each query with a row of results for every contender.

    Args:
        queries, contenders, shown, atlas: what to show. top: results of each. twins: near-duplicates, to be marked.
        notes: words above each query. about: another class that each row is about; a filter finds the row by it too.
    """
    own = np.array(queries, np.int64)
    top = min(top, len(shown.names) - 1)
    found = [
        in_rank_order(
            nearest(c.vectors[own], c.vectors, top, own=own), own, shown.labels, c.evaluation.values("first_rank")[own]
        )
        for c in contenders
    ]
    blocks = []
    for place, query in enumerate(queries):
        rows = []
        for contender, answers in zip(contenders, found, strict=True):
            rank = contender.evaluation.values("first_rank")[query]
            items = [
                _result(number, int(index), float(similarity), query, shown, atlas, twins or {})
                for number, (index, similarity) in enumerate(
                    zip(answers.indices[place], answers.similarities[place], strict=True), 1
                )
            ]
            words = element(
                "p",
                element("strong", name_of(contender.name)) if len(contenders) > 1 else None,
                " — " if len(contenders) > 1 else None,
                f"first positive at rank {int(rank):,}" if np.isfinite(rank) else "there is no positive",
                class_="rank",
            )
            rows.append(element("div", words, element("ol", items, class_="strip"), class_="row"))
        note = None if notes is None else element("p", notes[place], class_="note-line")
        classes = [int(shown.labels[query]), *([] if about is None else [about[place]])]
        blocks.append(
            element(
                "article",
                _query(query, shown, atlas),
                element("div", note, rows),
                class_="query",
                data_pics=True,
                data_classes=listed(shown.class_names[number] for number in classes),
            )
        )
    return element("div", blocks, class_="gallery")


def _query(index: int, shown: Shown, atlas: Atlas) -> Markup:
    name = shown.class_names[int(shown.labels[index])]
    return element(
        "figure",
        atlas.image(index, f"Query: an image of class {name}"),
        element(
            "figcaption",
            element("span", "query", class_="tag"),
            breakable(name),
            element("span", breakable(shown.names[index]), class_="file unscripted"),
            title=shown.names[index],
        ),
        class_="asked",
    )


def _result(number: int, index: int, similarity: float, query: int, shown: Shown, atlas: Atlas, twins: Twins) -> Markup:
    right = shown.labels[index] == shown.labels[query]
    name = shown.class_names[int(shown.labels[index])]
    verdict = "right" if right else "wrong"
    twin = not right and index in twins.get(query, ())
    mark = element("span", "✓" if right else "✗", class_="mark", aria_hidden="true")
    said = f"Result {number}, {verdict}: class {name}, similarity {similarity:.3f}"
    return element(
        "li",
        element(
            "figure",
            atlas.image(index, f"{said}, a near-duplicate of the query" if twin else said, similarity),
            element(
                "figcaption",
                mark,
                in_decimals(similarity, 2),
                element("span", "near-duplicate", class_="badge") if twin else None,
                breakable(name),
                title=name,
            ),
        ),
        class_=verdict,
    )
