"""The top of the page: whether training helped, in words, over how many queries, and what is not included."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from recollect.common.errors import RecollectError
from recollect.common.words import in_words
from recollect.evaluation import Verdict, metric_name, verdict
from recollect.report.markup import Child, Markup, element, join, name_of
from recollect.report.measured import Contender
from recollect.report.runs import Run, number
from recollect.report.seeds import settings_of
from recollect.report.shown_images import Shown

_SIGN = {"helped": "✓", "made it worse": "✗", "no clear change": "≈"}
_LOOK = {"helped": "good", "made it worse": "bad", "no clear change": "even"}
_MOST = 12  # comparisons in words; more are in the tables
_METRICS = ("r@1", "map@r")


def verdict_section(
    runs: Sequence[Run], contenders: Sequence[Contender], shown: Shown | None, left_out: Sequence[str]
) -> Markup | None:
    """Every run against its starting weights, then against the first run; then the number of queries and classes."""
    if not contenders or shown is None:
        return None
    lines = []
    for before, after in _pairs(contenders)[:_MOST]:
        try:
            lines.append(_line(verdict(before.evaluation, after.evaluation), before, after, len(contenders)))
        except RecollectError as error:
            lines.append(element("li", f"{after.name} cannot be compared with {before.name}: {error}"))
    facts = [_about(contenders[-1], shown), _macro(contenders)]
    if left_out:
        facts.append(join("Not included: ", "; ".join(left_out), "."))
    if (spent := _time(runs)) is not None:
        facts.append(spent)
    return element(
        "div",
        element("ul", lines, class_="judgements") if lines else None,
        element("ul", [element("li", fact) for fact in facts], class_="facts"),
        class_="verdict",
    )


def _pairs(contenders: Sequence[Contender]) -> list[tuple[Contender, Contender]]:
    pairs = [(contenders[0], other) for other in contenders[1:]]
    if len(contenders) > 2 and not contenders[0].trained:
        pairs += [(contenders[1], other) for other in contenders[2:]]
    return pairs


def _line(found: Verdict, before: Contender, after: Contender, count: int) -> Markup:
    if before.trained:
        subject: Child = join(name_of(after.name), " instead of ", name_of(before.name))
    elif count == 2:
        subject = "Training"
    else:
        subject = join("Training of ", name_of(after.name))
    gap = ": " if found.judgement == "no clear change" else " "
    sign = element("span", _SIGN[found.judgement], class_=f"sign {_LOOK[found.judgement]}", aria_hidden="true")
    return element(
        "li",
        sign,
        element(
            "div",
            element("strong", subject, gap, found.outcome(), "."),
            f" {_unbroken(found.numbers())}. {found.caution()}",
        ),
    )


def _unbroken(numbers: str) -> str:
    """Differences and their intervals: an interval is not broken across lines, and minus signs are as in the tables."""
    signs = re.sub(r"\([^()]*\)", lambda found: found[0].replace("-", "−"), numbers)
    return re.sub(r"\d+ % CI [^:()]*", lambda found: found[0].replace(" ", "\u00a0"), signs)


def _about(contender: Contender, shown: Shown) -> Markup:
    part = "all" if shown.complete else f"{len(shown.names):,} of the"
    counted, classes = contender.evaluation.counted, len(np.unique(shown.labels))
    return join(
        f"Measured over {counted:,} queries of {classes:,} classes: {part} {shown.whole:,} images of ",
        name_of(f"{shown.data}/{shown.split}"),
        ", each searched among the others. Intervals: bootstrap over classes",
        ", of the mean over seeds." if contender.spread else ".",
    )


def _macro(contenders: Sequence[Contender]) -> Markup:
    """Averages over classes: in two, as a change; of several runs, one after the other, since none led to the next."""
    if len(contenders) <= 2:
        values = [
            f"{metric_name(metric)} " + " → ".join(f"{100 * one.evaluation.macro[metric]:.1f}" for one in contenders)
            for metric in _METRICS
        ]
        return join("Averaged over classes instead of queries (macro): ", ", ".join(values), ".")
    said: list[Child] = []
    for one in contenders:
        values = [f"{metric_name(metric)} {100 * one.evaluation.macro[metric]:.1f}" for metric in _METRICS]
        said.append(join(name_of(one.name), f" {', '.join(values)}"))
    return join("Averaged over classes instead of queries (macro): ", *_separated(said, "; "), ".")


def _separated(parts: Sequence[Child], between: str) -> list[Child]:
    return [piece for part in parts for piece in (between, part)][1:]


def time_spent(run: Run) -> tuple[float, float] | None:
    """Seconds of preparing (features of a frozen part, choosing a learning rate) and of training; None if not known."""
    outcome = run.manifest.get("outcome")
    known = [outcome.get("seconds")] if isinstance(outcome, Mapping) else []
    known += [record.get("seconds") for record in reversed(run.steps)]
    training = next((value for value in map(number, known) if value is not None), None)
    if training is None:
        return None
    return number(run.manifest.get("preparation_seconds")) or 0.0, training


def _time(runs: Sequence[Run]) -> Markup | None:
    said: list[Child] = []
    settings = settings_of(runs)
    for name, group in settings:
        times = [spent for run in group if (spent := time_spent(run)) is not None]
        if not times:
            continue
        preparing, training = (sum(parts) for parts in zip(*times, strict=True))
        whole, part = in_words(preparing + training), in_words(preparing)
        more = "nearly all" if part == whole else part
        words = f"{whole} ({more} of it before the first step)" if preparing >= 1 else whole
        said.append(words if len(settings) == 1 else join(name_of(name), f" {words}"))
    return join("Time spent: ", *_separated(said, ", "), ".") if said else None
