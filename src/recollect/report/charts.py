"""Small SVG charts: lines, and pairs of histograms. Each function takes numbers and returns one ``<figure>``.

Colours are classes of ``style.css`` (light and dark); lines also differ by their dashes, so that no chart depends on
colour alone. Every figure has a caption, a text description, and its numbers in a table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recollect.report.markup import Child, Markup, element, table

WIDTH, HEIGHT = 470, 270
_RIGHT, _TOP, _BOTTOM = 12, 12, 48
LETTER = 9.2
"""Width of a letter where text is largest: 16 units, in narrow windows (``style.css``). Drawings leave room for that."""
SERIES = 6
"""Different looks of a line; a seventh looks like the first."""
MOST_POINTS = 400
"""Maximum number of points per line; longer lines are averaged in groups, which also smooths a noisy loss."""


@dataclass(frozen=True)
class Line:
    """One line of a chart: a name and its points."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    dots: bool = False


def line_chart(
    lines: Sequence[Line],
    *,
    title: str,
    x_label: str,
    y_label: str,
    percent: bool = False,
    caption: Child = None,
    from_zero: bool = False,
    zoomed: bool = False,
    x_ticks: Sequence[tuple[float, str]] | None = None,
) -> Markup | None:
    """Lines over one pair of axes; None when no line has a point.

    Args:
        lines: what to draw.
        title, x_label, y_label, caption: words.
        percent: values are shares, and their axis begins at 0 unless ``zoomed``.
        from_zero: the axis of other values begins at 0 too.
        zoomed: the axis begins near the lowest value.
        x_ticks: places and their names instead of round numbers, e.g. of a logarithmic axis.
    """
    kept = [thinned for line in lines if len((thinned := _thinned(line)).x)]
    if not kept:
        return None
    x_range = value_range([value for line in kept for value in line.x])
    low, high = value_range([value for line in kept for value in line.y])
    low, high = (0.0 if from_zero or (percent and not zoomed) else low), (max(high, 0.05) if percent else high)
    frame = Frame(x_range, (low, high), percent)
    drawn = [_drawn(line, number, frame) for number, line in enumerate(kept)]
    summary = ". ".join(f"{line.name}: from {frame.shown(line.y[0])} to {frame.shown(line.y[-1])}" for line in kept)
    svg = element(
        "svg",
        element("title", title),
        element("desc", f"{y_label} over {x_label}. {summary}."),
        frame.axes(x_label, y_label, x_ticks),
        drawn,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        class_="chart",
    )
    rows = [
        [line.name, frame.shown(line.y[0]), frame.shown(line.y[-1]), frame.shown(min(line.y)), frame.shown(max(line.y))]
        for line in kept
    ]
    numbers = table(["line", "first", "last", "lowest", "highest"], rows, caption=f"{title}, in numbers")
    return figure(title, svg, _line_legend([line.name for line in kept]), caption, numbers)


def histogram_pair(
    counts: tuple[NDArray[np.float64], NDArray[np.float64]],
    edges: NDArray[np.float64],
    *,
    title: str,
    names: tuple[str, str],
    x_label: str,
    caption: Child = None,
    top: float | None = None,
) -> Markup:
    """Two histograms over the same bins, each as shares of its own total; ``top``: the highest share on the axis."""
    shares = [as_shares(values) for values in counts]
    high = top or max(float(values.max(initial=0.0)) for values in shares) or 1.0
    frame = Frame((float(edges[0]), float(edges[-1])), (0.0, high), percent=True)
    shapes = []
    # The second is drawn first: negatives are the broad mass behind, positives stand before them.
    for number in (1, 0):
        points = [(frame.x(float(edges[0])), frame.y(0.0))]
        for left, right, share in zip(edges[:-1].tolist(), edges[1:].tolist(), shares[number].tolist(), strict=True):
            points += [(frame.x(left), frame.y(share)), (frame.x(right), frame.y(share))]
        points.append((frame.x(float(edges[-1])), frame.y(0.0)))
        shapes.append(element("path", d=_path(points) + "Z", class_=f"area area-{number + 1}"))
    means = [_mean(values, edges) for values in shares]
    said = "; ".join(f"{name}: mean {mean:.3f}" for name, mean in zip(names, means, strict=True) if mean is not None)
    svg = element(
        "svg",
        element("title", title),
        element("desc", f"Shares of pairs by {x_label}. {said}."),
        frame.axes(x_label, "share of pairs"),
        shapes,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        class_="chart",
    )
    rows = [[name, "–" if mean is None else f"{mean:.3f}"] for name, mean in zip(names, means, strict=True)]
    numbers = table(["pairs", f"mean {x_label}"], rows, caption=f"{title}, in numbers")
    legend = element(
        "ul",
        [
            element("li", element("span", class_=f"swatch swatch-{number}", aria_hidden="true"), name)
            for number, name in enumerate(names, 1)
        ],
        class_="legend",
    )
    return figure(title, svg, legend, caption, numbers)


class Frame:
    """Maps values to positions, and draws the axes."""

    def __init__(self, x_range: tuple[float, float], y_range: tuple[float, float], percent: bool = False) -> None:
        self.x_range, self.percent = x_range, percent
        self.y_ticks = ticks(*y_range)
        self.y_range = (min(y_range[0], self.y_ticks[0]), max(y_range[1], self.y_ticks[-1]))
        self.y_names = [f"{100 * value:g} %" if percent else f"{value:,g}".replace("-", "−") for value in self.y_ticks]
        self.left = max(66.0, 28 + LETTER * max(map(len, self.y_names)))  # beside them, the name of the axis

    def x(self, value: float) -> float:
        """Where a value lies across."""
        low, high = self.x_range
        return self.left + (value - low) / (high - low) * (WIDTH - self.left - _RIGHT)

    def y(self, value: float) -> float:
        """Where a value lies down the page."""
        low, high = self.y_range
        return HEIGHT - _BOTTOM - (value - low) / (high - low) * (HEIGHT - _TOP - _BOTTOM)

    def shown(self, value: float) -> str:
        """A value in words."""
        if self.percent:
            return f"{100 * value:.1f}\u00a0%"
        return f"{value:,.0f}" if 1000 <= abs(value) < 1e7 else f"{value:.4g}"

    def axes(self, x_label: str, y_label: str, x_ticks: Sequence[tuple[float, str]] | None = None) -> list[Markup]:
        """Grid lines, numbers and names of the axes; ``x_ticks`` are places and their names instead of round numbers."""
        left, bottom, right = round(self.left, 1), HEIGHT - _BOTTOM, WIDTH - _RIGHT
        parts = []
        for value, name in zip(self.y_ticks, self.y_names, strict=True):
            y = round(self.y(value), 1)
            parts.append(element("line", x1=left, x2=right, y1=y, y2=y, class_="grid"))
            parts.append(element("text", name, x=round(left - 6, 1), y=y + 4, text_anchor="end"))
        if x_ticks is None:
            inside = [value for value in ticks(*self.x_range) if self.x_range[0] <= value <= self.x_range[1]]
            said = [f"{value:,g}" if abs(value) < 1e5 else f"{value:.3g}" for value in inside]
            x_ticks = [(value, text.replace("-", "−")) for value, text in zip(inside, said, strict=True)]
        for value, name in x_ticks:
            x = round(self.x(value), 1)
            # A number centred on the last tick would be cut off at the edge.
            anchor = "end" if x > right - 16 else "middle"
            parts.append(element("line", x1=x, x2=x, y1=bottom, y2=bottom + 4, class_="tick"))
            parts.append(
                element(
                    "text",
                    name,
                    x=min(x, right),
                    y=bottom + 20,
                    text_anchor=anchor,
                )
            )
        parts.append(element("line", x1=left, x2=right, y1=bottom, y2=bottom, class_="tick"))
        parts.append(
            element("text", x_label, x=round((left + right) / 2, 1), y=HEIGHT - 7, text_anchor="middle", class_="label")
        )
        middle = (_TOP + bottom) / 2
        turned = f"rotate(-90 14 {middle})"
        parts.append(element("text", y_label, x=14, y=middle, text_anchor="middle", transform=turned, class_="label"))
        return parts


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


def value_range(values: Sequence[float]) -> tuple[float, float]:
    """The lowest and the highest value, separated even if they are equal."""
    low, high = min(values), max(values)
    if low == high:
        margin = abs(low) / 2 or 0.5
        return low - margin, high + margin
    return low, high


def _thinned(line: Line) -> Line:
    """The line with finite points only, and no more than can be seen."""
    points = [(float(x), float(y)) for x, y in zip(line.x, line.y, strict=True) if _finite(x) and _finite(y)]
    if len(points) > MOST_POINTS:
        groups = np.array_split(np.array(points), MOST_POINTS)
        points = [(float(group[:, 0].mean()), float(group[:, 1].mean())) for group in groups]
    return Line(line.name, [x for x, _ in points], [y for _, y in points], line.dots)


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _drawn(line: Line, number: int, frame: Frame) -> Markup:
    points = [(frame.x(x), frame.y(y)) for x, y in zip(line.x, line.y, strict=True)]
    look = number % SERIES + 1
    shapes = [element("path", d=_path(points), class_=f"line line-{look}")]
    if line.dots or len(points) == 1:
        for (x, y), value, at in zip(points, line.y, line.x, strict=True):
            hint = element("title", f"{line.name}: {frame.shown(value)} at {at:,g}")
            shapes.append(element("circle", hint, cx=round(x, 1), cy=round(y, 1), r=3, class_=f"dot dot-{look}"))
    return element("g", shapes)


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def as_shares(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Counts divided by their sum."""
    total = float(counts.sum())
    return counts / total if total else counts


def _mean(shares: NDArray[np.float64], edges: NDArray[np.float64]) -> float | None:
    return float((shares * (edges[:-1] + edges[1:]) / 2).sum()) if shares.any() else None


def _line_legend(names: Sequence[str]) -> Markup:
    """The names next to a sample of their lines, with dashes."""
    lines = [element("line", x1=1, x2=29, y1=6, y2=6, class_=f"line line-{n % SERIES + 1}") for n in range(len(names))]
    return legend(names, lines, 30)


def legend(names: Sequence[str], samples: Sequence[Markup], width: int, height: int = 12) -> Markup:
    """Names, each beside a sample drawn in a box of ``width`` × ``height``."""
    box = f"0 0 {width} {height}"
    drawn = [element("svg", part, viewBox=box, width=width, height=height, aria_hidden="true") for part in samples]
    items = [element("li", sample, element("bdi", name)) for name, sample in zip(names, drawn, strict=True)]
    return element("ul", items, class_="legend")


def figure(title: str, svg: Markup, legend: Markup, caption: Child, numbers: Markup) -> Markup:
    """The title and caption, the legend, the drawing, and its numbers to unfold."""
    words = element("figcaption", element("strong", title), " " if caption else None, caption)
    return element("figure", words, legend, svg, element("details", element("summary", "In numbers"), numbers))
