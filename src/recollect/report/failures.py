"""Failures: which classes are confused, with an example of each, and the classes with the lowest r@1."""

from __future__ import annotations

from collections.abc import Sequence

from recollect.common.text import number_of
from recollect.report.atlas import Atlas
from recollect.report.gallery import Twins, rows_of_results, unfolding
from recollect.report.markup import Child, Markup, breakable, element, join, name_of, table
from recollect.report.measured import Contender
from recollect.report.neighbours import Confusion
from recollect.report.shown_images import Shown

PAIRS = 20
"""Pairs of classes whose share of all failures is said."""
_LISTED = 500  # pairs in the table: a filter by class finds the failures of nearly every class
_ROWS, _EXAMPLES, _MORE = 10, 5, 10


def failures_section(
    confusions: Sequence[Confusion],
    looked_at: Contender,
    shown: Shown,
    atlas: Atlas,
    twins: Twins,
    of: str | None = None,
) -> Markup:
    """Confused pairs of classes: a table of the most frequent ones, and an example row each.

    ``of``: the run that is looked at, where there are several.
    """
    if not confusions:
        return element("p", "Every query with a positive has one in the first place: no classes are confused.")
    failed = sum(pair.times for pair in confusions)
    counted = looked_at.evaluation.counted
    first = looked_at.evaluation.values("r@1")
    copies = sum(first[query] == 0 and _has_other_label(query, shown, twins) for query in twins)
    summary = element(
        "p",
        None if of is None else join("With ", name_of(of), ", "),
        " ".join(filter(None, [_failed(failed, counted), _spread(confusions, failed), _of_copies(copies, failed)])),
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

    rarer = len(confusions) - _LISTED
    tables = join(
        grid(confusions[:_ROWS]),
        unfolding(confusions[_ROWS:_LISTED], grid, "more pairs of classes"),
        element("p", f"{rarer:,} rarer pairs are not listed.", class_="note") if rarer > 0 else None,
    )
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
                if _has_other_label(pair.example, shown, twins)
                else None,
            )
            for pair in pairs
        ]
        asked, answered = [pair.example for pair in pairs], [pair.answered for pair in pairs]
        return rows_of_results(asked, [looked_at], shown, atlas, twins=twins, notes=notes, about=answered)

    examples = range(min(_EXAMPLES, len(confusions)))
    rest = range(len(examples), min(_EXAMPLES + _MORE, len(confusions)))
    return join(
        summary,
        tables,
        element("h3", "An example of each"),
        show(examples),
        unfolding(rest, show, "more examples"),
    )


def _failed(failed: int, counted: int) -> str:
    verb = "has" if failed == 1 else "have"
    return f"{failed:,} of {number_of(counted, 'query/queries')} {verb} an image of another class first."


def _spread(confusions: Sequence[Confusion], failed: int) -> str:
    """Over how many pairs of classes the failures are spread; nothing for a single one."""
    if failed == 1:
        return ""
    if len(confusions) == 1:
        return "All are of one pair of classes."
    said = f"They are spread over {len(confusions):,} pairs of classes"
    if len(confusions) <= PAIRS:
        return f"{said}."
    share = sum(pair.times for pair in confusions[:PAIRS]) / failed
    return f"{said}; the {PAIRS} most frequent pairs account for {100 * share:.0f} %."


def _of_copies(count: int, failed: int) -> str:
    if not count:
        return ""
    if failed == 1:
        return "It has a near-duplicate with another label: the data may be at fault."
    said = "One of them has a near-duplicate" if count == 1 else f"{count:,} of them have near-duplicates"
    return f"{said} with another label: look at these first, the data may be at fault."


def _has_other_label(query: int, shown: Shown, twins: Twins) -> bool:
    """Whether an image of another class is a near-duplicate of the query."""
    return any(shown.labels[other] != shown.labels[query] for other in twins.get(query, ()))
