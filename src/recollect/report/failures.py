"""Where it fails: which classes are taken for which, with an example of each, and the classes with the lowest r@1."""

from __future__ import annotations

from collections.abc import Sequence

from recollect.report.atlas import Atlas
from recollect.report.gallery import Twins, rows_of_results, unfolding
from recollect.report.markup import Child, Markup, breakable, element, join, name_of, table
from recollect.report.measured import Contender
from recollect.report.neighbours import Confusion
from recollect.report.shown_images import Shown

PAIRS = 20
"""Pairs of classes in the table."""
_ROWS, _EXAMPLES, _MORE, _TOP = 10, 5, 10, 6


def failures_section(
    confusions: Sequence[Confusion], looked_at: Contender, shown: Shown, atlas: Atlas, twins: Twins
) -> Markup:
    """Confused pairs of classes: a table of the most frequent ones, and an example row each."""
    if not confusions:
        return element("p", "Every query with a right answer has one first: no classes are confused.")
    failed = sum(pair.times for pair in confusions)
    counted = looked_at.evaluation.counted
    copies = sum(_is_twin(pair.example, looked_at, shown, twins) for pair in confusions)
    summary = element(
        "p",
        f"{failed:,} of {counted:,} queries have an image of another class first. They fall on {len(confusions):,} pairs of "
        f"classes; the {min(PAIRS, len(confusions))} most frequent explain "
        f"{100 * sum(pair.times for pair in confusions[:PAIRS]) / failed:.0f} % of them."
        + (f" {copies:,} examples are near-duplicates with two labels: the data, not the model." if copies else ""),
    )

    def grid(pairs: Sequence[Confusion]) -> Markup:
        rows: list[list[Child]] = [
            [
                breakable(shown.class_names[pair.asked]),
                breakable(shown.class_names[pair.answered]),
                f"{pair.times:,} of {pair.queries:,}",
                f"{100 * pair.times / pair.queries:.0f} %",
            ]
            for pair in pairs
        ]
        head, caption = ["class", "is taken for", "queries", "share"], "Classes that are confused most"
        return element("div", table(head, rows, caption=caption, numbers=False), class_="by-class")

    tables = join(grid(confusions[:_ROWS]), unfolding(confusions[_ROWS:PAIRS], grid, "more pairs of classes"))
    if not atlas.at_hand:
        return join(summary, tables)

    def show(numbers: Sequence[int]) -> Markup:
        pairs = [confusions[number] for number in numbers]
        notes: list[Child] = [
            join(
                element("strong", name_of(shown.class_names[pair.asked])),
                " taken for ",
                element("strong", name_of(shown.class_names[pair.answered])),
                f", {pair.times:,} of {pair.queries:,} queries",
                element("span", "near-duplicate of another class", class_="badge")
                if _is_twin(pair.example, looked_at, shown, twins)
                else None,
            )
            for pair in pairs
        ]
        return rows_of_results([p.example for p in pairs], [looked_at], shown, atlas, _TOP, twins=twins, notes=notes)

    examples = range(min(_EXAMPLES, len(confusions)))
    rest = range(len(examples), min(_EXAMPLES + _MORE, len(confusions)))
    return join(
        summary,
        tables,
        element("h3", "An example of each"),
        show(examples),
        unfolding(rest, show, "more examples"),
    )


def _is_twin(query: int, looked_at: Contender, shown: Shown, twins: Twins) -> bool:
    """Whether an image of another class is a near-duplicate of the query."""
    return any(shown.labels[other] != shown.labels[query] for other in twins.get(query, ()))
