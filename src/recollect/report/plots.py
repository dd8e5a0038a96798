"""The parts of the page that are charts: losses and r@k over time, similarities, throughput."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from recollect.common.words import in_words
from recollect.report.charts import Line, as_shares, histogram_pair, line_chart
from recollect.report.markup import Child, Markup, element, join, name_of, table
from recollect.report.measured import Contender
from recollect.report.runs import Run, number
from recollect.report.shown_images import Shown
from recollect.report.similarities import MOST, count_similarities
from recollect.report.verdict_view import time_spent

_CURVE_KS = ("r@1", "r@10")


def curves(runs: Sequence[Run]) -> Markup:
    """Losses, one chart per kind of loss, and what was evaluated during training."""
    parts: list[Markup | None] = []
    kinds = dict.fromkeys(str(run.setting("loss.name", "loss")) for run in runs if run.steps)
    for kind in kinds:
        group = [run for run in runs if str(run.setting("loss.name", "loss")) == kind]
        lines = [Line(run.name, _column(run.steps, "step"), _column(run.steps, "loss")) for run in group]
        more = " Losses of different kinds are not comparable, so each has its own chart." if len(kinds) > 1 else None
        parts.append(line_chart(lines, title=f"Loss: {kind}", x_label="step", y_label="loss", caption=more))
    splits = dict.fromkeys(str(record.get("split")) for run in runs for record in run.evaluations)
    for split in splits:
        metrics = [name for name in _CURVE_KS if len(runs) == 1 or name == "r@1"]
        lines = []
        for run in runs:
            records = [record for record in run.evaluations if str(record.get("split")) == split]
            for metric in metrics:
                name = metric if len(runs) == 1 else f"{run.name}, {metric}"
                lines.append(Line(name, _column(records, "step"), _column(records, metric), dots=True))
        title = {"val": "r@k of the validation classes", "test": "r@k of the test set"}.get(split, f"r@k of {split}")
        caption = "It chooses the weights that are kept." if split == "val" else "Watched only; it chooses nothing."
        parts.append(
            line_chart(lines, title=title, x_label="step", y_label="r@k", percent=True, from_zero=True, caption=caption)
        )
    drawn = [part for part in parts if part is not None]
    if not any(run.steps for run in runs):
        return element("p", "No curves: no step was taken.", class_="note")
    if not any(run.evaluations for run in runs):
        drawn.append(
            element(
                "p",
                "No r@k curve: nothing was evaluated during training. Validation classes (",
                element("code", "--validation random"),
                ") or ",
                element("code", "--watch-test"),
                " give one.",
                class_="note",
            )
        )
    return element("div", drawn, class_="charts")


def _column(records: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    return [float("nan") if (value := number(record.get(key))) is None else value for record in records]


def similarity_charts(contenders: Sequence[Contender], shown: Shown) -> Markup:
    """Histograms of similarities, with the same axes for all."""
    counted = [count_similarities(contender.vectors, shown.labels) for contender in contenders]
    spans = [counts.span() for counts in counted]
    low, high = min(span[0] for span in spans), max(span[1] for span in spans)
    drawn = [counts.binned(low, high) for counts in counted]
    top = max(float(as_shares(kind).max()) for *kinds, _ in drawn for kind in kinds)
    charts = []
    for contender, counts, (positive, negative, edges) in zip(contenders, counted, drawn, strict=True):
        ordered = counts.ordered
        said = (
            "One of the two kinds does not occur."
            if ordered is None
            else f"A pair of one class is more similar than a pair of two in {100 * ordered:.1f} % of all cases."
        )
        charts.append(
            histogram_pair(
                (positive, negative),
                edges,
                title=contender.name,
                names=("same class", "different classes"),
                x_label="similarity",
                caption=said,
                top=top,
            )
        )
    part = (
        element("p", f"Of the pairs among {MOST:,} images drawn at random.", class_="note")
        if len(shown.names) > MOST
        else None
    )
    return join(part, element("div", charts, class_="charts"))


def speed(runs: Sequence[Run]) -> Markup:
    """Throughput and memory, in numbers and over time."""
    rows: list[list[Child]] = []
    for run in runs:
        rates = [rate for rate in _column(run.steps, "images_per_second") if np.isfinite(rate)]
        memory = [used for used in _column(run.steps, "memory_mb") if np.isfinite(used)]
        machine = run.manifest.get("machine") if isinstance(run.manifest.get("machine"), Mapping) else {}
        spent = time_spent(run)
        rows.append(
            [
                name_of(run.name),
                run.status,
                f"{len(run.steps):,}",
                "–" if spent is None else _seconds(spent.training),
                "–" if spent is None else _seconds(spent.preparing),
                f"{median(rates):,.0f}" if rates else "–",
                f"{max(memory):,.0f} MB" if memory else "–",
                str((machine or {}).get("gpu") or (machine or {}).get("processor") or "–"),
            ]
        )
    head = ["run", "state", "steps", "training", "preparation", "images/s (median)", "peak memory", "machine"]
    known = [place for place in range(len(head)) if any(row[place] != "–" for row in rows)]
    shown = [
        ["none" if row[place] == "–" and not run.steps else row[place] for place in known]
        for run, row in zip(runs, rows, strict=True)
    ]
    grid = table([head[place] for place in known], shown, caption="Time, throughput and memory", numbers=False)
    lines = [Line(run.name, _column(run.steps, "step"), _column(run.steps, "images_per_second")) for run in runs]
    chart = line_chart(lines, title="Throughput", x_label="step", y_label="images per second", from_zero=True)
    return join(grid, element("div", chart, class_="charts") if chart else None)


def _seconds(seconds: float) -> str:
    return in_words(seconds) if seconds >= 1 else "none" if not seconds else "less than 1 s"
