"""The parts of a study's page about trials: the search, all trials, parameters, cost; see ``study_page.py``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from recollect.common.text import in_words
from recollect.report.charts import Line, Point, line_chart, scatter_chart
from recollect.report.markup import Child, Markup, element, join, name_of, table
from recollect.tuning.results import BEST_SHARE, MIN_FOR_IMPORTANCE, StudyResults, TrialRecord

TITLES = {
    "lr": "learning rate",
    "decays": "number of decays",
    "first_decay": "first decay, share of the training",
    "gamma": "size of a decay (gamma)",
    "epochs": "epochs",
}
_CURVES = 6


def title_of(name: str) -> str:
    """The display name of a parameter."""
    return TITLES.get(name, name)


def percent(value: float | None) -> str:
    """A fraction as percent with two decimals; a dash for nothing."""
    return "–" if value is None else f"{100 * value:.2f} %"


def trials(results: StudyResults) -> Markup:
    """The course of the search and every trial."""
    known = [trial for trial in results.trials if trial.value is not None]
    order = sorted(known, key=lambda trial: trial.merit, reverse=True)
    rest = [trial for trial in results.trials if trial.value is None]
    names = list(results.space)
    head = ["trial", "state", f"validation {results.select}", "mAP@R", "best epoch", *map(title_of, names)]
    head += ["seconds", "machine"]
    rows = [_row(trial, names, results) for trial in [*order, *rest]]
    failures = [trial for trial in results.trials if trial.failure]
    return join(
        element("div", [chart for chart in (_course(results), _curves(order)) if chart], class_="charts"),
        table(head, rows, caption="Every trial, the best first"),
        element("ul", [element("li", f"Trial {t.number:04d} failed: {t.failure}") for t in failures], class_="remarks")
        if failures
        else None,
        element(
            "p", "Each is an ordinary run in ", element("code", "trials/"), "; as a table: trials.csv.", class_="note"
        ),
    )


def _row(trial: TrialRecord, names: Sequence[str], results: StudyResults) -> list[Child]:
    chosen = trial.number == results.chosen
    return [
        join(f"{trial.number:04d}", element("strong", " ◆ chosen") if chosen else None),
        trial.state,
        percent(trial.value),
        percent(trial.map_at_r),
        "–" if trial.best_epoch is None else f"{trial.best_epoch:g}",
        *(shown(trial.drawn.get(name)) for name in names),
        f"{trial.seconds:,.0f}",
        name_of(trial.host),
    ]


def shown(value: Any) -> str:
    """A setting, shortened."""
    if isinstance(value, list | tuple):
        return ", ".join(shown(item) for item in value) or "none"
    if isinstance(value, float):
        return f"{value:.4g}"
    return "–" if value is None else str(value)


def _course(results: StudyResults) -> Markup | None:
    """Each trial's value, in the order of trials."""
    known = [(trial, trial.value) for trial in results.trials if trial.value is not None]
    return scatter_chart(
        [Point(f"trial {t.number:04d}", float(t.number), value, t.number == results.chosen) for t, value in known],
        title="The search",
        x_label="trial",
        y_label=f"validation {results.select}",
        percent=True,
        caption="Each trial's best validation, in the order of trials.",
    )


def _curves(order: Sequence[TrialRecord]) -> Markup | None:
    chosen = [trial for trial in order if trial.curve][:_CURVES]
    lines = [
        Line(f"trial {trial.number:04d}", [epoch for epoch, _ in trial.curve], [value for _, value in trial.curve])
        for trial in chosen
    ]
    return line_chart(
        lines,
        title=f"Validation of the best {len(lines)} trials",
        x_label="epoch",
        y_label="validation",
        percent=True,
        caption="Where a curve falls again, longer training did not help.",
    )


def parameters(results: StudyResults) -> Markup:
    """The importance of each parameter, and validation against its value."""
    charts = []
    for name, said in results.space.items():
        points = [
            Point(f"trial {t.number:04d}", float(t.drawn[name]), t.value, t.number == results.chosen)
            for t in results.trials
            if t.value is not None and t.state == "done" and _is_number(t.drawn.get(name))
        ]
        if len({point.x for point in points}) < 2:
            continue
        chart = scatter_chart(
            points,
            title=title_of(name)[0].upper() + title_of(name)[1:],
            x_label=title_of(name),
            y_label=f"validation {results.select}",
            log=said.endswith(":log"),
            percent=True,
            caption=_share(results, name),
        )
        charts.append(chart)
    return join(_importance(results), element("div", [c for c in charts if c is not None], class_="charts"))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _share(results: StudyResults, name: str) -> str | None:
    return f"Importance {100 * results.importance[name]:.0f} %." if name in results.importance else None


def _importance(results: StudyResults) -> Markup:
    if not results.importance:
        return element(
            "p",
            f"The importance of each parameter is not shown: it needs at least {MIN_FOR_IMPORTANCE} finished trials "
            "with different results.",
        )
    rows: list[list[Child]] = [
        [title_of(name), results.space.get(name, ""), f"{100 * share:.1f} %"]
        for name, share in results.importance.items()
    ]
    return join(
        table(["parameter", "range", "importance"], rows, caption="Importance of each parameter"),
        element(
            "p",
            f"PED-ANOVA over finished trials: how far the values of the best {100 * BEST_SHARE:.0f} % differ from those of "
            "all, in shares that add up to 100 %. It holds for this range only, and with few trials it is at most a hint: "
            "two more trials may reverse it.",
            class_="note",
        ),
    )


def cost(results: StudyResults) -> Markup:
    """Time and images."""
    final = results.final
    rows: list[list[Child]] = [["search", str(len(results.trials)), in_words(results.seconds), f"{results.images:,}"]]
    if final is not None:
        rows.append(["final training", "1", in_words(final["seconds"]), f"{final['images']:,}"])
        both, images = in_words(results.seconds + final["seconds"]), results.images + final["images"]
        rows.append(["together", str(len(results.trials) + 1), both, f"{images:,}"])
    count = f"{results.count('done')} done, {results.count('pruned')} stopped early, {results.count('failed')} failed"
    return join(
        table(["part", "trainings", "time", "images trained on"], rows, caption="Time of training and images seen"),
        element("p", f"{count}. Times are summed over machines and include validation.", class_="note"),
    )
