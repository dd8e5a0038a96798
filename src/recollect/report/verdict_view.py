"""The top of the page: whether training helped, in words, over how many queries, and what is not included."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recollect.common.errors import RecollectError
from recollect.common.text import in_words
from recollect.evaluation import Verdict, metric_name, verdict
from recollect.report.markup import Child, Markup, element, join, name_of
from recollect.report.measured import Contender
from recollect.report.outcome_tables import measured_over
from recollect.report.runs import Run, number
from recollect.report.seeds import settings_of
from recollect.report.shown_images import Shown

_SIGN = {"helped": "✓", "made it worse": "✗", "no clear change": "≈"}
_LOOK = {"helped": "good", "made it worse": "bad", "no clear change": "even"}
_MOST = 12  # comparisons in words; more are in the tables
_MOST_STARTS = 3  # runs of which the steps are judged by themselves
_METRICS = ("r@1", "map@r")


def verdict_section(
    runs: Sequence[Run],
    contenders: Sequence[Contender],
    shown: Shown | None,
    left_out: Sequence[str],
    apart: Sequence[Run] = (),
) -> Markup | None:
    """Every run against its starting weights, then against the first run; then the number of queries and classes.

    A run is judged only on classes that it was not trained on. What its steps did on top of its start, and the verdicts on
    runs that were tested on other images (``apart``), are those of their manifests.
    """
    if not contenders or shown is None:
        return None
    named = len(runs) > 1
    lines, intervals = [], False
    for before, after in _pairs(contenders)[:_MOST]:
        try:
            found = verdict(before.evaluation, after.evaluation)
        except RecollectError as error:
            lines.append(element("li", f"{after.name} cannot be compared with {before.name}: {error}"))
            continue
        seen = next((one for one in (after, before) if one.seen), None)
        lines.append(_line(found, _subject(before, after, named)) if seen is None else _no_test(found, seen, named))
        intervals |= seen is None and found.enough_classes
    single = [group[0] for _, group in settings_of(runs) if len(group) == 1]
    recorded = [_recorded(run, "start", named) for run in single if len(single) <= _MOST_STARTS]
    recorded += [_recorded(run, "pretrained", named) for run in apart[:_MOST]]
    lines += [line for line in recorded if line is not None]
    facts = [_about(contenders[-1], shown, intervals), _macro(contenders)]
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


def _subject(before: Contender, after: Contender, named: bool) -> Child:
    """What was done between two embeddings."""
    if before.trained:
        return join(name_of(after.name), " instead of ", name_of(before.name))
    done = "The closed form (0 steps)" if after.steps == 0 else "Training"
    return join(f"{done} of ", name_of(after.name)) if named else done


def _line(found: Verdict, subject: Child, more: str = "") -> Markup:
    gap = ": " if found.judgement == "no clear change" else " "
    sign = element("span", _SIGN[found.judgement], class_=f"sign {_LOOK[found.judgement]}", aria_hidden="true")
    said = element("strong", subject, gap, found.outcome(), ".")
    return element("li", sign, element("div", said, f" {_unbroken(found.numbers())}. {found.caution()}{more}"))


def _no_test(found: Verdict, seen: Contender, named: bool) -> Markup:
    """Numbers without a judgement: the classes were trained on."""
    who: Child = join(name_of(seen.name), " was") if named else "this run was"
    sign = element("span", _SIGN["no clear change"], class_="sign even", aria_hidden="true")
    values = ", ".join(change.values() for change in found.changes)
    return element(
        "li",
        sign,
        element(
            "div",
            element("strong", "Not a test of unseen classes: ", who, " trained on all classes that are shown here."),
            f" {values}. How well it works on new classes is measured by a run that holds some out.",
        ),
    )


def _recorded(run: Run, against: str, named: bool) -> Markup | None:
    """A verdict that was found at the end of training, on the run's own test images; None if there is none.

    ``against``: ``"start"``, what the steps did on top of the start of the last layer, or ``"pretrained"``.
    """
    kept = run.manifest.get("verdicts")
    values = kept.get(against) if isinstance(kept, Mapping) else None
    if not isinstance(values, Mapping):
        return None
    try:
        found = Verdict.from_dict(values)
    except RecollectError:
        return None
    of: Child = join(" of ", name_of(run.name)) if named else None
    done = "The closed form (0 steps)" if run.steps_taken == 0 else "Training"
    subject = join("Compared with 0 steps, the steps", of) if against == "start" else join(done, of)
    return _line(found, subject, f" Found at the end of training, over {found.queries:,} queries.")


def _unbroken(numbers: str) -> str:
    """Differences and their intervals: an interval is not broken across lines."""
    return re.sub(r"\d+ % CI [^:()]*", lambda found: found[0].replace(" ", "\u00a0"), numbers)


def _about(contender: Contender, shown: Shown, intervals: bool) -> Markup:
    ends = ", of the mean over seeds." if contender.spread else "."
    how = f" Intervals: bootstrap over classes{ends}" if intervals else ""
    return join("Measured over ", measured_over(shown, contender.evaluation), f".{how}")


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


@dataclass(frozen=True)
class Times:
    """Seconds of a run: preparing (features of a frozen part, choosing settings), training, and judging at the end."""

    preparing: float
    training: float
    judging: float

    @property
    def whole(self) -> float:
        """All of it."""
        return self.preparing + self.training + self.judging


def time_spent(run: Run) -> Times | None:
    """How long a run took; None if it is not known."""
    outcome = run.manifest.get("outcome")
    ended: Mapping[str, Any] = outcome if isinstance(outcome, Mapping) else {}
    known = [ended.get("seconds"), *(record.get("seconds") for record in reversed(run.steps))]
    training = next((value for value in map(number, known) if value is not None), None)
    if training is None:
        return None
    preparing, judging = number(run.manifest.get("preparation_seconds")), number(ended.get("judging_seconds"))
    return Times(preparing or 0.0, training, judging or 0.0)


def _time(runs: Sequence[Run]) -> Markup | None:
    said: list[Child] = []
    settings = settings_of(runs)
    for name, group in settings:
        times = [spent for run in group if (spent := time_spent(run)) is not None]
        if not times:
            continue
        together = f" for {len(times)} runs" if len(times) > 1 else ""
        whole = in_words(sum(one.whole for one in times))
        words = f"{whole}{together}{_parts(times, whole)}"
        said.append(words if len(settings) == 1 else join(name_of(name), f" {words}"))
    return join("Time spent: ", *_separated(said, "; "), ".") if said else None


def _parts(times: Sequence[Times], whole: str) -> str:
    """What of the time was not for steps, in brackets; nothing if there is none."""
    parts = (
        (sum(one.preparing for one in times), "before the first step"),
        (sum(one.judging for one in times), "for the verdict"),
    )
    said = [(in_words(seconds), what) for seconds, what in parts if seconds >= 1]
    words = ", ".join(f"{'nearly all' if part == whole else part} {what}" for part, what in said)
    return f" ({words})" if words else ""
