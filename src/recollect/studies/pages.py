"""The pages of studies: ``report.html`` of a search and ``comparison.html`` of losses, one self-contained file each.

Built from the records of ``summary.py`` with the templates and charts of ``report``: no script, no network. Names of losses,
classes and machines come from others; ``report/markup.py`` escapes whatever a template prints.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recollect.common.files import write_json, write_text
from recollect.config.recipes import published_tests
from recollect.report.charts import Bar, Line, Point, bar_chart, line_chart, scatter_chart
from recollect.report.markup import Markup, join, render
from recollect.report.page import check_target, document
from recollect.studies.summary import (
    BEST_SHARE,
    MIN_FOR_IMPORTANCE,
    LossComparison,
    StudyResults,
    TrialRecord,
    in_points,
)

TITLES = {
    "lr": "learning rate",
    "decays": "number of decays",
    "first_decay": "first decay, share of the training",
    "gamma": "size of a decay (gamma)",
    "epochs": "epochs",
}
_CURVES = 6


# A search ---------------------------------------------------------------------------------------------------------------


def write_study(path: Path, results: StudyResults) -> Path:
    """Write the page of a search; an earlier page of a study is overwritten, any other file is not."""
    check_target(path, False, "recollect tune")
    heading = f"Settings for {results.data if results.recipe == 'folder' else results.recipe}"
    ranked = sorted((t for t in results.trials if t.value is not None), key=lambda t: t.merit, reverse=True)
    best = [trial for trial in ranked if trial.curve][:_CURVES]
    tests = (results.final or {}).get("metrics", {})
    published = published_tests(results.protocol["published"])
    body = render(
        "study.html",
        heading=heading,
        results=results,
        # folder/test is shown with the name of the folder.
        tests={re.sub("^folder/", lambda _: f"{results.data}/", name): metrics for name, metrics in tests.items()},
        published=[published.get(name) or published.get("") or {} for name in tests],
        trials=[*ranked, *(trial for trial in results.trials if trial.value is None)],
        titles={name: TITLES.get(name, name) for name in results.space},
        failures=[f"Trial {t.number:04d} failed: {t.failure}" for t in results.trials if t.failure],
        course=scatter_chart(
            _points(results, lambda trial: trial.number),
            title="The search",
            x_label="trial",
            y_label=f"validation {results.select}",
            percent=True,
            caption="Each trial's best validation, in the order of trials.",
        ),
        curves=line_chart(
            [Line(f"trial {t.number:04d}", [epoch for epoch, _ in t.curve], [v for _, v in t.curve]) for t in best],
            title=f"Validation of the best {len(best)} trials",
            x_label="epoch",
            y_label="validation",
            percent=True,
            caption="Where a curve falls again, longer training did not help.",
        ),
        parameter_charts=join(*(_parameter_chart(results, name) for name in results.space)),
        best_share=BEST_SHARE,
        min_for_importance=MIN_FOR_IMPORTANCE,
    )
    sections = [(name.lower(), name) for name in ("Result", "Trials", "Parameters", "Cost", "Protocol")]
    write_text(path, document(heading, body, sections, "recollect tune"))
    return path


def _points(results: StudyResults, across: Callable[[TrialRecord], Any]) -> list[Point]:
    """Validation of the trials against what is a number of them."""
    return [
        Point(f"trial {trial.number:04d}", float(x), trial.value, trial.number == results.chosen)
        for trial in results.trials
        if trial.value is not None and type(x := across(trial)) in (int, float)
    ]


def _parameter_chart(results: StudyResults, name: str) -> Markup | None:
    """Validation against a parameter that is a number."""
    title, share = TITLES.get(name, name), results.importance.get(name)
    points = _points(results, lambda trial: trial.drawn.get(name) if trial.state == "done" else None)
    if len({point.x for point in points}) < 2:
        return None
    return scatter_chart(
        points,
        title=title[0].upper() + title[1:],
        x_label=title,
        y_label=f"validation {results.select}",
        log=results.space[name].endswith(":log"),
        percent=True,
        caption=None if share is None else f"Importance {100 * share:.0f} %.",
    )


# A comparison -----------------------------------------------------------------------------------------------------------


def write_comparison(comparison: LossComparison) -> None:
    """Write ``comparison.html`` and ``comparison.json`` into the study's folder."""
    ordered = sorted(comparison.results, key=lambda result: -(result.mean or -1))
    bars = [
        Bar(result.cell.label, result.mean, 0 if result.cell.trains else 1, result.half_width)
        for result in ordered
        if result.mean is not None
    ]
    lowest = min((bar.value - (bar.half or 0) for bar in bars), default=0.0)
    low = max(0.0, 5.0 * math.floor((lowest - 5) / 5))
    chart = bar_chart(
        bars,
        ["trained", "no step"] if any(bar.look for bar in bars) else ["trained"],
        title="r@1 of each loss",
        value="r@1",
        low=low,
        caption="Mean over seeds; the line is its 90 % interval." + (f" The axis begins at {low:g}." if low else ""),
    )
    names = list(ordered[0].metrics) if ordered else []
    others = [name for name in names if name.startswith("r@") and name != "r@1"][:3]
    batches = {(r.choice.batch, r.cell.batch) for r in ordered if r.choice and r.choice.batch not in (0, r.cell.batch)}
    body = render(
        "comparison.html",
        in_points=in_points,
        comparison=comparison,
        ordered=ordered,
        chart=chart,
        metrics={**{name: name for name in others}, **({"map@r": "mAP@R"} if "map@r" in names else {})},
        failures=[f"{result.cell.label}, {why}" for result in comparison.results for why in result.failures],
        batches=sorted(batches),
        spent=sum((r.processor_seconds or 0) * len(r.by_seed) + (r.searched_seconds or 0) for r in comparison.results),
    )
    sections = [("results", "Results"), ("pairs", "Each pair"), ("how", "How it was measured")]
    write_text(comparison.page, document("Losses compared", body, sections, "recollect compare"))
    write_json(comparison.page.with_suffix(".json"), comparison.as_dict())
