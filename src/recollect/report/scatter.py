"""A scatter of points over a parameter, one of them marked; the axis may be logarithmic. In the style of ``charts``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from recollect.report.charts import HEIGHT, WIDTH, Frame, figure, legend, value_range
from recollect.report.markup import Child, Markup, element, table

_AROUND = 0.02  # shown above and below fractions that are all equal


@dataclass(frozen=True)
class Point:
    """A point with its name; a marked point differs by shape, not by colour alone."""

    name: str
    x: float
    y: float
    marked: bool = False


def scatter_chart(
    points: Sequence[Point],
    *,
    title: str,
    x_label: str,
    y_label: str,
    log: bool = False,
    percent: bool = False,
    marked: str = "chosen",
    caption: Child = None,
) -> Markup | None:
    """Points over one pair of axes; None when there is none.

    Args:
        points: in any order; those that are not numbers, or not above 0 on a logarithmic axis, are left out.
        title, x_label, y_label: words.
        log: whether the x axis is logarithmic. percent: whether y is a fraction to be shown in percent.
        marked: what a marked point is called in the legend.
        caption: below the title.
    """
    kept = [p for p in points if math.isfinite(p.x) and math.isfinite(p.y) and (not log or p.x > 0)]
    if not kept:
        return None
    place = math.log10 if log else float
    low, high = value_range([p.y for p in kept])
    if percent:
        if len({p.y for p in kept}) == 1:
            low, high = kept[0].y - _AROUND, kept[0].y + _AROUND
        low, high = max(0.0, low), min(max(1.0, *(p.y for p in kept)), high)
    margin = 0.0 if percent and high == 1 else 0.06 * (high - low)
    left, right = value_range([place(p.x) for p in kept])
    x_range = (left - 0.04 * (right - left), right + 0.04 * (right - left))  # points at the edge stay whole
    frame = Frame(x_range, (max(0.0, low - margin) if percent else low - margin, high + margin), percent)
    labels = _powers(left, right) if log else _whole([p.x for p in kept])
    shapes = [_shape(p, frame.x(place(p.x)), frame.y(p.y), frame) for p in sorted(kept, key=lambda p: p.marked)]
    best = max(kept, key=lambda p: p.y)
    said = f"{len(kept)} points. The highest, {best.name}, is {frame.shown(best.y)} at {best.x:.3g}."
    svg = element(
        "svg",
        element("title", title),
        element("desc", f"{y_label} over {x_label}. {said}"),
        frame.axes(x_label, y_label, labels),
        shapes,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        class_="chart",
    )
    rows = [[p.name, f"{p.x:.3g}", frame.shown(p.y)] for p in sorted(kept, key=lambda p: p.x)]
    numbers = table(["point", x_label, y_label], rows, caption=f"{title}, in numbers")
    diamond = element("path", d=_diamond(10, 8, 7), class_="dot dot-2")
    return figure(
        title, svg, legend([marked], [diamond], 20, 16) if any(p.marked for p in kept) else Markup(""), caption, numbers
    )


def _shape(point: Point, x: float, y: float, frame: Frame) -> Markup:
    hint = element("title", f"{point.name}: {frame.shown(point.y)} at {point.x:.3g}")
    if not point.marked:
        return element("circle", hint, cx=round(x, 1), cy=round(y, 1), r=4, class_="dot dot-1", fill_opacity=0.6)
    return element("path", hint, d=_diamond(x, y), class_="dot dot-2")


def _diamond(x: float, y: float, size: float = 7.5) -> str:
    return f"M{x:.1f} {y - size:.1f}L{x + size:.1f} {y:.1f}L{x:.1f} {y + size:.1f}L{x - size:.1f} {y:.1f}Z"


def _whole(values: Sequence[float]) -> list[tuple[float, str]] | None:
    """Whole numbers as ticks, where there is nothing between them and they are few."""
    low, high = min(values), max(values)
    if any(value != int(value) for value in values) or high - low > 9:
        return None
    return [(float(number), f"{number:,}") for number in range(int(low), int(high) + 1)]


def _powers(low: float, high: float) -> list[tuple[float, str]]:
    """Places (in powers of ten) and names of round numbers from ``10**low`` to ``10**high``.

    Examples:
        >>> _powers(-4.1, -2.9)
        [(-4.0, '0.0001'), (-3.0, '0.001')]
    """
    for digits in ((1,), (1, 3), (1, 2, 5)):
        values = [(digit, power) for power in range(math.floor(low), math.ceil(high) + 1) for digit in digits]
        found = [(math.log10(d) + p, f"{d * 10.0**p:g}") for d, p in values if low <= math.log10(d) + p <= high]
        if len(found) >= 2:
            return found
    return [(low, f"{10**low:.2g}"), (high, f"{10**high:.2g}")]
