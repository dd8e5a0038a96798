"""Small SVG charts (lines, points, bars, pairs of histograms), and the parts of the page that are charts.

Each chart takes numbers and returns one ``<figure>``. ``curves``, ``similarity_charts`` and ``speed`` draw those of a report.
Colours are classes of ``style.css`` (light and dark); lines and points also differ by dashes and shapes, so that no chart
depends on colour alone. Every figure has a caption, a text description, and its numbers in a table. Pages use the fonts
of the reader's machine, so drawings leave room for the widest of them (``text_width``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from recollect.common.text import in_words
from recollect.report.markup import Child, Markup, element, join, name_of, render, table
from recollect.report.results import ModelResult, ReportImages, Run, finite, random_part

WIDTH, HEIGHT = 470, 272
_RIGHT, _TOP, _BOTTOM = 12, 12, 50
_BAR_ROW, _BAR_TOP, _BAR_BOTTOM = 20, 4, 24
# Of the font size; other ASCII letters and digits take at most 0.64.
_WIDTHS = {" ',.ijl": 0.37, "!()*-/:;I[]frt|": 0.46, "ABCDEFGHJKLNOPQRSTUVXYZ": 0.79, "#&+<=>^~": 0.84, "MWmw%@": 1.0}
_EM = {letter: width for letters, width in _WIDTHS.items() for letter in letters}
SERIES = 6
"""Different looks of a line; a seventh looks like the first."""
MOST_POINTS = 400
"""Maximum number of points per line; longer lines are averaged in groups, which also smooths a noisy loss."""
MOST_PAIRED = 8000
"""Images whose pairs are counted by similarity."""
_FINE = 4000  # bins from -1 to 1, fine enough for the share of ordered pairs; drawn ones are sums of them
_PAIR_ROWS = 512

Counts = NDArray[np.float64]


@dataclass(frozen=True)
class Line:
    """One line of a chart: a name and its points."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    dots: bool = False


@dataclass(frozen=True)
class Point:
    """A point with its name; a marked point differs by shape, not by colour alone."""

    name: str
    x: float
    y: float
    marked: bool = False


@dataclass(frozen=True)
class Bar:
    """One bar: its name, its value in percent, which of the legend's looks it has (from 0), half the width of its interval."""

    name: str
    value: float
    look: int = 0
    half: float | None = None


def line_chart(
    lines: Sequence[Line],
    *,
    title: str,
    x_label: str,
    y_label: str,
    percent: bool = False,
    from_zero: bool = False,
    caption: Child = None,
    log_ticks: Sequence[float] | None = None,
) -> Markup | None:
    """Lines over one pair of axes; None when no line has a point.

    Args:
        lines: what to draw.
        title, x_label, y_label, caption: words.
        percent: values are shares.
        from_zero: the axis of values begins at 0 instead of near the lowest.
        log_ticks: makes the x axis logarithmic, with these values on it.
    """
    visible = [thinned for line in lines if len((thinned := _thinned(line)).x)]
    if not visible:
        return None
    low, high = value_range([value for line in visible for value in line.y], percent)
    xs = [*(value for line in visible for value in line.x), *(log_ticks or ())]
    y_range = (0.0 if from_zero else low, max(high, 0.05) if percent else high)
    frame = _Frame(xs, y_range, percent, log_ticks is not None)
    summary = ". ".join(f"{line.name}: from {frame.text(line.y[0])} to {frame.text(line.y[-1])}" for line in visible)
    drawn = [_drawn(line, number, frame) for number, line in enumerate(visible)]
    words, shapes = f"{y_label} over {x_label}. {summary}.", [frame.axes(x_label, y_label, log_ticks), drawn]
    head, names = ["line", "first", "last", "lowest", "highest"], [line.name for line in visible]
    rows = [[line.name, *map(frame.text, (line.y[0], line.y[-1], min(line.y), max(line.y)))] for line in visible]
    return _figure("line", title, words, shapes, names, caption, head, rows)


def scatter_chart(
    points: Sequence[Point],
    *,
    title: str,
    x_label: str,
    y_label: str,
    log: bool = False,
    percent: bool = False,
    caption: Child = None,
) -> Markup | None:
    """Points over one pair of axes; None when there is none.

    Args:
        points: in any order; those that are not numbers, or not above 0 on a logarithmic axis, are left out.
        title, x_label, y_label: words.
        log: whether the x axis is logarithmic. percent: whether y is a fraction to be shown in percent.
        caption: below the title.
    """
    visible = [p for p in points if math.isfinite(p.x) and math.isfinite(p.y) and (not log or p.x > 0)]
    if not visible:
        return None
    # Margins: points at the edge stay whole.
    frame = _Frame([p.x for p in visible], value_range([p.y for p in visible], percent, 0.06), percent, log, 0.04)
    shapes = frame.axes(x_label, y_label)
    for p in sorted(visible, key=lambda p: p.marked):
        x, y = frame.x(p.x), frame.y(p.y)
        hint = element("title", f"{p.name}: {frame.text(p.y)} at {p.x:.3g}")
        if p.marked:
            diamond = _path([(x, y - 7.5), (x + 7.5, y), (x, y + 7.5), (x - 7.5, y)])
            shapes.append(element("path", hint, d=f"{diamond}Z", class_="dot dot-2"))
        else:
            shape = {"cx": round(x, 1), "cy": round(y, 1), "r": 4, "fill_opacity": 0.6}
            shapes.append(element("circle", hint, class_="dot dot-1", **shape))
    best = max(visible, key=lambda p: p.y)
    summary = f"{len(visible)} points. The highest, {best.name}, is {frame.text(best.y)} at {best.x:.3g}."
    rows = [[p.name, f"{p.x:.3g}", frame.text(p.y)] for p in sorted(visible, key=lambda p: p.x)]
    legend, words = ["chosen"] if any(p.marked for p in visible) else [], f"{y_label} over {x_label}. {summary}"
    return _figure("diamond", title, words, shapes, legend, caption, ["point", x_label, y_label], rows)


def bar_chart(
    bars: Sequence[Bar], looks: Sequence[str], *, title: str, value: str, low: float = 0.0, caption: Child = None
) -> Markup | None:
    """Horizontal bars from ``low`` on; None when there are none.

    Args:
        bars: from top to bottom.
        looks: what each look means, for the legend.
        title, caption: words. value: what is measured, e.g. ``"r@1"``.
        low: where the axis begins, in percent; a bar below it has no length.
    """
    if not bars:
        return None
    names = [_fitted(bar.name, 248) for bar in bars]  # half of the drawing is for bars
    left, right = 8 + max(map(text_width, names)), WIDTH - 8 - text_width("100.0")
    highest = max(100.0 if low > 50 else 1.0, *(bar.value + (bar.half or 0.0) for bar in bars))
    marks = [mark for mark in ticks(low, highest) if mark >= low]
    bottom = _BAR_TOP + _BAR_ROW * len(bars)

    def across(amount: float) -> float:
        return round(left + max(0.0, amount - low) / (marks[-1] - low) * (right - left), 1)

    parts = _tick_names([(across(mark), f"{mark:g}") for mark in marks], bottom + 16)
    parts += [
        element("line", x1=across(mark), x2=across(mark), y1=_BAR_TOP, y2=bottom, class_="grid") for mark in marks
    ]
    for number, (bar, name) in enumerate(zip(bars, names, strict=True)):
        y, end = _BAR_TOP + _BAR_ROW * number, across(bar.value)
        hint = element("title", f"{bar.name}: {bar.value:.1f}")
        parts.append(element("text", name, x=round(left - 6, 1), y=y + 14, text_anchor="end", class_="label"))
        shape = {"x": round(left, 1), "y": y + 3, "width": round(end - left, 1), "height": _BAR_ROW - 6}
        parts.append(element("rect", hint, class_=f"bar dot-{bar.look % SERIES + 1}", **shape))
        if bar.half is not None:
            start, end = (min(across(bar.value + sign * bar.half), right) for sign in (-1, 1))
            middle = y + _BAR_ROW / 2
            parts.append(element("line", x1=start, x2=end, y1=middle, y2=middle, class_="interval"))
        parts.append(element("text", f"{bar.value:.1f}", x=round(end + 5, 1), y=y + 14))
    best = max(bars, key=lambda bar: bar.value)
    words = f"{len(bars)} bars of {value} in percent. The longest is {best.name} with {best.value:.1f}."
    rows = [[bar.name, f"{bar.value:.1f}"] for bar in bars]
    return _figure("bar", title, words, parts, looks, caption, ["", value], rows, bottom + _BAR_BOTTOM)


class _Frame:
    """Maps values to positions, and draws the axes. ``margin``: free room beside the outermost x, as a share of the range."""

    def __init__(
        self,
        xs: Sequence[float],
        y_range: tuple[float, float],
        percent: bool = False,
        log: bool = False,
        margin: float = 0.0,
    ) -> None:
        self.xs, self.percent, self.place = xs, percent, math.log10 if log else float
        self.x_range = value_range(list(map(self.place, xs)), margin=margin)
        self.y_ticks = ticks(*y_range)
        self.y_range = (min(y_range[0], self.y_ticks[0]), max(y_range[1], self.y_ticks[-1]))
        self.y_names = [f"{100 * value:g} %" if percent else _number(value) for value in self.y_ticks]
        self.left = max(66.0, 28 + max(map(text_width, self.y_names)))  # beside them, the name of the axis

    def x(self, value: float) -> float:
        """Where a value lies across."""
        low, high = self.x_range
        return self.left + (self.place(value) - low) / (high - low) * (WIDTH - self.left - _RIGHT)

    def y(self, value: float) -> float:
        """Where a value lies down the page."""
        low, high = self.y_range
        return HEIGHT - _BOTTOM - (value - low) / (high - low) * (HEIGHT - _TOP - _BOTTOM)

    def text(self, value: float) -> str:
        """A value in words."""
        if self.percent:
            return f"{100 * value:.1f}\u00a0%"
        return f"{value:,.0f}" if 1000 <= abs(value) < 1e7 else f"{value:.4g}"

    def axes(self, x_label: str, y_label: str, x_ticks: Sequence[float] | None = None) -> list[Markup]:
        """Grid lines, numbers and names of the axes; ``x_ticks``: values instead of round numbers."""
        left, bottom, right = round(self.left, 1), HEIGHT - _BOTTOM, WIDTH - _RIGHT
        parts = []
        for value, name in zip(self.y_ticks, self.y_names, strict=True):
            y = round(self.y(value), 1)
            parts.append(element("line", x1=left, x2=right, y1=y, y2=y, class_="grid"))
            parts.append(element("text", name, x=round(left - 6, 1), y=y + 4, text_anchor="end"))
        low, high = self.x_range
        if x_ticks is None:
            if self.place is float:
                x_ticks = ticks(low, high)
                if all(value == int(value) for value in self.xs):  # there is no step 2.5
                    x_ticks = [value for value in x_ticks if value == int(value)]
            else:
                x_ticks = _log_ticks(low, high)
            x_ticks = [value for value in x_ticks if low <= self.place(value) <= high]
        places = [round(self.x(value), 1) for value in x_ticks]
        parts += [element("line", x1=x, x2=x, y1=bottom, y2=bottom + 4, class_="tick") for x in places]
        parts += _tick_names(list(zip(places, map(_number, x_ticks), strict=True)), bottom + 22)
        parts.append(element("line", x1=left, x2=right, y1=bottom, y2=bottom, class_="tick"))
        middle, half = round((left + right) / 2, 1), (_TOP + bottom) / 2
        x_label, y_label = _fitted(x_label, 2 * (WIDTH - middle)), _fitted(y_label, 2 * half)
        parts.append(element("text", x_label, x=middle, y=HEIGHT - 7, text_anchor="middle", class_="label"))
        turned = f"rotate(-90 16 {half})"
        parts.append(element("text", y_label, x=16, y=half, text_anchor="middle", transform=turned, class_="label"))
        return parts


def text_width(text: str) -> float:
    """An upper bound of the width of ``text``, in units of the drawing, in the widest fonts of screens.

    These are Verdana and DejaVu Sans (by letter), and those whose letters are all equally wide. Text is largest in narrow
    windows and on paper: 16 units (``style.css``).
    """
    return 16 * max(0.61 * len(text), sum(_EM.get(c, 0.64 if c.isascii() else 1.0) for c in text))


def _fitted(text: str, room: float) -> str:
    """``text``, shortened in the middle to fit: both its file and its options stay visible. Hints and tables have it whole."""
    short, half = text, len(text) // 2
    while text_width(short) > room:
        short, half = f"{text[:half]}…{text[-half:]}", half - 1
    return short


def _tick_names(names: Sequence[tuple[float, str]], y: float) -> list[Markup]:
    """Names below their places, none beyond the edge; where all would not fit, every second, every third and so on."""
    spots = [(min(x, WIDTH - text_width(name) / 2), text_width(name) / 2, name) for x, name in names]
    step = next(
        step
        for step in count(1)
        if all(x + half + 5 <= next_x - next_half for (x, half, _), (next_x, next_half, _) in pairwise(spots[::step]))
    )
    return [element("text", name, x=round(x, 1), y=y, text_anchor="middle") for x, _, name in spots[::step]]


def _number(value: float) -> str:
    return f"{value:,g}".replace("-", "−")


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from at most ``low`` to at least ``high``.

    Examples:
        >>> ticks(0.0, 0.93)
        [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    raw = (high - low) / about or 1.0
    power = 10.0 ** math.floor(math.log10(raw))
    step = power * next(factor for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{number * step:.14g}") for number in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """Round numbers around ``10**low`` to ``10**high``, at least two of them inside.

    Examples:
        >>> _log_ticks(-4.1, -2.9)
        [0.0001, 0.001]
    """
    for digits in ((1,), (1, 3), (1, 2, 5)):
        values = [
            float(f"{digit}e{power}") for power in range(math.floor(low), math.ceil(high) + 1) for digit in digits
        ]
        inside = [value for value in values if low <= math.log10(value) <= high]
        if len(inside) >= 2:
            return inside
    return ticks(10**low, 10**high)


def value_range(values: Sequence[float], percent: bool = False, margin: float = 0.0) -> tuple[float, float]:
    """The lowest and the highest value, apart even if they are equal and by a ``margin``; shares stay between 0 and 1."""
    low, high = min(values), max(values)
    room = margin * (high - low) if low < high else 0.02 if percent else abs(low) / 2 or 0.5
    low, high = low - room, high + room
    return (max(low, 0.0), min(high, 1.0)) if percent else (low, high)


def _thinned(line: Line) -> Line:
    """The line with finite points only, and no more than can be seen."""
    points = [(x, y) for x, y in zip(line.x, line.y, strict=True) if math.isfinite(x) and math.isfinite(y)]
    if len(points) > MOST_POINTS:
        points = [tuple(group.mean(0).tolist()) for group in np.array_split(np.array(points), MOST_POINTS)]
    return Line(line.name, [x for x, _ in points], [y for _, y in points], line.dots)


def _drawn(line: Line, number: int, frame: _Frame) -> Markup:
    points = [(frame.x(x), frame.y(y)) for x, y in zip(line.x, line.y, strict=True)]
    look = number % SERIES + 1
    shapes = [element("path", d=_path(points), class_=f"line line-{look}")]
    if line.dots or len(points) == 1:
        for (x, y), value, at in zip(points, line.y, line.x, strict=True):
            hint = element("title", f"{line.name}: {frame.text(value)} at {at:,g}")
            shapes.append(element("circle", hint, cx=round(x, 1), cy=round(y, 1), r=3, class_=f"dot dot-{look}"))
    return element("g", shapes)


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _figure(
    look: str,
    title: str,
    description: str,
    shapes: Child,
    legend: Sequence[str],
    caption: Child,
    head: Sequence[str],
    rows: Sequence[Sequence[Child]],
    height: int = HEIGHT,
) -> Markup:
    """A chart with its numbers; ``look``: of the samples in the legend, see ``chart.html``."""
    numbers = table(head, rows, caption=f"{title}, in numbers")
    words = {"title": title, "description": description, "caption": caption, "numbers": numbers}
    drawing = {"shapes": shapes, "width": WIDTH, "height": height}
    return render("chart.html", look=look, looks=SERIES, legend=legend, **words, **drawing)


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
        lines = []
        for run in runs:
            records = [record for record in run.evaluations if str(record.get("split")) == split]
            for metric in ("r@1", "r@10") if len(runs) == 1 else ("r@1",):
                name = metric if len(runs) == 1 else f"{run.name}, {metric}"
                lines.append(Line(name, _column(records, "step"), _column(records, metric), dots=True))
        title = {"val": "r@k of the validation classes", "test": "r@k of the test set"}.get(split, f"r@k of {split}")
        caption = "It chooses the weights that are kept." if split == "val" else "Watched only; it chooses nothing."
        parts.append(
            line_chart(lines, title=title, x_label="step", y_label="r@k", percent=True, from_zero=True, caption=caption)
        )
    return render("curves.html", charts=parts, runs=runs)


def _column(records: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    return [float("nan") if (value := finite(record.get(key))) is None else value for record in records]


def similarity_charts(models: Sequence[ModelResult], images: ReportImages) -> Markup:
    """Similarities of pairs of the same class and of different classes, as histograms with the same axes for all models."""
    counted = [count_similarities(model.vectors, images.labels) for model in models]
    spans = [similarity_span(counts) for counts in counted]
    edges = np.linspace(min(low for low, _ in spans), max(high for _, high in spans), 65)
    centres, names = (edges[:-1] + edges[1:]) / 2, ("same class", "different classes")
    both = [bin_shares(counts, edges) for counts in counted]
    frame = _Frame(edges.tolist(), (0.0, max(float(shares.max()) for shares in both) or 1.0), percent=True)
    charts = []
    for model, counts, shares in zip(models, counted, both, strict=True):
        shapes = frame.axes("similarity", "share of pairs")
        # The second is drawn first: negatives are the broad mass behind, positives stand before them.
        for place in (1, 0):
            steps = np.repeat(edges, 2).tolist(), [0.0, *np.repeat(shares[place], 2).tolist(), 0.0]
            points = [(frame.x(x), frame.y(y)) for x, y in zip(*steps, strict=True)]
            shapes.append(element("path", d=_path(points) + "Z", class_=f"area area-{place + 1}"))
        means = [f"{(values * centres).sum():.3f}" if values.any() else "–" for values in shares]
        rows = list(zip(names, means, strict=True))
        caption = "One of the two kinds does not occur."
        if (share := ordered_share(counts)) is not None:
            caption = f"A pair of one class is more similar than a pair of two in {100 * share:.1f} % of all cases."
        words = f"Shares of pairs by similarity. {'; '.join(f'{name}: mean {mean}' for name, mean in rows)}."
        head = ["pairs", "mean similarity"]
        charts.append(_figure("area", model.name, words, shapes, names, caption, head, rows))
    part = f"Of the pairs among {MOST_PAIRED:,} images drawn at random."
    note = element("p", part, class_="note") if len(images.names) > MOST_PAIRED else None
    return join(note, element("div", charts, class_="charts"))


def ordered_share(counts: Counts) -> float | None:
    """The share of (positive, negative) pairs in which the positive is the more similar: 0.5 is chance, 1 perfect.

    Also known as the area under the ROC curve. None without positives or negatives.
    """
    positive, negative = counts
    total = positive.sum() * negative.sum()
    below = np.cumsum(negative) - negative / 2  # pairs in one bin count half
    return float((positive * below).sum() / total) if total else None


def bin_shares(counts: Counts, edges: Counts) -> Counts:
    """Of each kind, the share of pairs in every bin; those beyond the ``edges`` are in the first and the last."""
    centres = np.clip((np.arange(_FINE) + 0.5) / _FINE * 2 - 1, edges[0], edges[-1])
    return np.stack([np.histogram(centres, edges, weights=kind)[0] / max(kind.sum(), 1) for kind in counts])


def similarity_span(counts: Counts, share: float = 0.001) -> tuple[float, float]:
    """The similarities that all but a ``share`` of the pairs on either side lie between, for both kinds."""
    risen = [np.cumsum(kind) / kind.sum() for kind in counts if kind.sum()]
    if not risen:
        return -1.0, 1.0
    low = min(int(np.searchsorted(one, share)) for one in risen)
    high = max(int(np.searchsorted(one, 1 - share)) for one in risen)
    return low / _FINE * 2 - 1, min(high + 1, _FINE) / _FINE * 2 - 1


def count_similarities(vectors: NDArray[np.float32], labels: NDArray[np.int64]) -> Counts:
    """Pairs of different rows by similarity, 2 × ``_FINE`` bins from −1 to 1: of one class, and of different classes.

    Each pair is counted once; with more than ``MOST_PAIRED`` rows, those of a random part.
    """
    some = random_part(len(vectors), MOST_PAIRED)
    rows, classes = torch.from_numpy(vectors[some]), torch.from_numpy(labels[some])
    counts = torch.zeros(2, _FINE, dtype=torch.float64)
    for start in range(0, len(rows), _PAIR_ROWS):
        here = rows[start : start + _PAIR_ROWS]
        tile = here @ rows[start:].T
        place = ((tile + 1) / 2 * _FINE).long().clamp_(0, _FINE - 1)
        same = classes[start : start + len(here), None] == classes[None, start:]
        # Only above the diagonal: each pair once, and no vector with itself.
        later = torch.arange(len(rows) - start)[None, :] > torch.arange(len(here))[:, None]
        for kind, pairs in enumerate((same & later, ~same & later)):
            counts[kind] += torch.bincount(place[pairs], minlength=_FINE)
    return np.asarray(counts.numpy())


def speed(runs: Sequence[Run]) -> Markup:
    """Throughput and memory, in numbers and over time."""
    rows: list[dict[str, Child]] = []
    for run in runs:
        rates = [rate for rate in _column(run.steps, "images_per_second") if np.isfinite(rate)]
        memory = [used for used in _column(run.steps, "memory_mb") if np.isfinite(used)]
        machine, times = run.recorded("machine"), run.times
        row: dict[str, Child] = {
            "run": name_of(run.name),
            "state": run.status,
            "steps": f"{len(run.steps):,}",
            "training": None if times is None else _seconds(times.training),
            "preparation": None if times is None else _seconds(times.preparing),
            "images/s (median)": f"{median(rates):,.0f}" if rates else None,
            "peak memory": f"{max(memory):,.0f} MB" if memory else None,
            "machine": str(machine.get("gpu") or machine.get("processor") or "") or None,
        }
        rows.append(row)
    head = [name for name in rows[0] if any(row[name] is not None for row in rows)]
    cells = [
        [("–" if run.steps else "none") if row[name] is None else row[name] for name in head]
        for run, row in zip(runs, rows, strict=True)
    ]
    grid = table(head, cells, caption="Time, throughput and memory", numbers=False)
    lines = [Line(run.name, _column(run.steps, "step"), _column(run.steps, "images_per_second")) for run in runs]
    chart = line_chart(lines, title="Throughput", x_label="step", y_label="images per second", from_zero=True)
    return join(grid, element("div", chart, class_="charts") if chart else None)


def _seconds(seconds: float) -> str:
    return in_words(seconds) if seconds >= 1 else "none" if not seconds else "less than 1 s"
