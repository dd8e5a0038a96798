"""The parts of the page that are charts: losses and r@k over time, similarities, throughput.

Similarities are counted tile by tile over all pairs of up to ``MOST`` images, or of as many drawn at random: every pair of
either kind is equally likely to be drawn, so the shares are unbiased, and 32 million pairs give the same curve as 5 billion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from recollect.common.text import in_words
from recollect.report.charts import Line, as_shares, histogram_pair, line_chart
from recollect.report.markup import Child, Markup, element, join, name_of, table
from recollect.report.measured import Contender
from recollect.report.runs import Run, number
from recollect.report.shown_images import Shown
from recollect.report.verdict_view import time_spent

MOST = 8000
"""Images whose pairs are counted."""
_FINE = 4000  # bins from -1 to 1, fine enough for the share of ordered pairs; drawn ones are sums of them
_ROWS = 512
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


@dataclass(frozen=True)
class Similarities:
    """Counts of pairs by similarity, in ``_FINE`` bins from −1 to 1.

    Attributes:
        positive: pairs of one class. negative: pairs of different classes.
    """

    positive: NDArray[np.float64]
    negative: NDArray[np.float64]

    @property
    def ordered(self) -> float | None:
        """The share of (positive, negative) pairs in which the positive is the more similar: 0.5 is chance, 1 perfect.

        Also known as the area under the ROC curve. None without positives or negatives.
        """
        total = self.positive.sum() * self.negative.sum()
        if not total:
            return None
        below = np.cumsum(self.negative) - self.negative / 2  # pairs in one bin count half
        return float((self.positive * below).sum() / total)

    def binned(
        self, low: float, high: float, bins: int = 64
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Counts of positives and negatives in ``bins`` from ``low`` to ``high``, and the bins' edges."""
        centres = (np.arange(_FINE) + 0.5) / _FINE * 2 - 1
        edges = np.linspace(low, high, bins + 1)
        place = np.clip(np.searchsorted(edges, centres, side="right") - 1, 0, bins - 1)
        positive = np.bincount(place, weights=self.positive, minlength=bins).astype(np.float64)
        negative = np.bincount(place, weights=self.negative, minlength=bins).astype(np.float64)
        return positive, negative, edges

    def span(self, share: float = 0.001) -> tuple[float, float]:
        """The similarities that all but a ``share`` of the pairs on either side lie between, for both kinds."""
        lows, highs = [], []
        for counts in (self.positive, self.negative):
            if counts.sum():
                risen = np.cumsum(counts) / counts.sum()
                lows.append(int(np.searchsorted(risen, share)))
                highs.append(int(np.searchsorted(risen, 1 - share)))
        if not lows:
            return -1.0, 1.0
        return min(lows) / _FINE * 2 - 1, min(max(highs) + 1, _FINE) / _FINE * 2 - 1


def count_similarities(vectors: NDArray[np.float32], labels: NDArray[np.int64]) -> Similarities:
    """Count all pairs of different rows, each once; with more than ``MOST`` rows, of a random part."""
    if len(vectors) > MOST:
        some = np.sort(np.random.default_rng(0).choice(len(vectors), MOST, replace=False))
        vectors, labels = vectors[some], labels[some]
    rows, classes = torch.from_numpy(np.ascontiguousarray(vectors)), torch.from_numpy(labels)
    counts = torch.zeros(2, _FINE, dtype=torch.float64)
    for start in range(0, len(rows), _ROWS):
        here = rows[start : start + _ROWS]
        tile = here @ rows[start:].T
        place = ((tile + 1) / 2 * _FINE).long().clamp_(0, _FINE - 1)
        same = classes[start : start + len(here), None] == classes[None, start:]
        # Only above the diagonal: each pair once, and no vector with itself.
        later = torch.arange(len(rows) - start)[None, :] > torch.arange(len(here))[:, None]
        for kind, chosen in enumerate((same & later, ~same & later)):
            counts[kind] += torch.bincount(place[chosen], minlength=_FINE)
    return Similarities(counts[0].numpy(), counts[1].numpy())


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
