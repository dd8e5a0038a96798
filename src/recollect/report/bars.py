"""Horizontal bars with their names and numbers, in the style of ``charts``: the paper's bar plots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from recollect.report.charts import LETTER, SERIES, figure, legend, ticks
from recollect.report.markup import Child, Markup, element, table

_WIDTH, _ROW, _TOP, _BOTTOM = 470, 20, 4, 24
_LONGEST = 26
"""Letters that a name beside a bar has at most: half of the drawing is for bars."""


@dataclass(frozen=True)
class Bar:
    """One bar: its name, its value in percent, which of the legend's looks it has (from 0), half the width of its interval."""

    name: str
    value: float
    look: int = 0
    half: float | None = None


def bar_chart(
    bars: Sequence[Bar], looks: Sequence[str], *, title: str, value: str, low: float = 0.0, caption: Child = None
) -> Markup | None:
    """Bars from ``low`` on; None when there are none.

    Args:
        bars: from top to bottom.
        looks: what each look means, for the legend.
        title, caption: words. value: what is measured, e.g. ``"r@1"``.
        low: where the axis begins, in percent; a bar below it has no length.
    """
    if not bars:
        return None
    left = 8 + LETTER * min(_LONGEST, max(len(bar.name) for bar in bars))
    right = _WIDTH - 8 - LETTER * len("100.0")
    marks = [
        mark
        for mark in ticks(low, max(100.0 if low > 50 else 1.0, *(bar.value + (bar.half or 0.0) for bar in bars)))
        if mark >= low
    ]
    high = marks[-1]
    bottom = _TOP + _ROW * len(bars)

    def across(amount: float) -> float:
        return left + max(0.0, amount - low) / (high - low) * (right - left)

    parts: list[Markup] = []
    for mark in marks:
        x = round(across(mark), 1)
        parts.append(element("line", x1=x, x2=x, y1=_TOP, y2=bottom, class_="grid"))
        parts.append(element("text", f"{mark:g}", x=x, y=bottom + 16, text_anchor="middle"))
    for number, bar in enumerate(bars):
        y, look = _TOP + _ROW * number, bar.look % SERIES + 1
        width = round(across(bar.value) - left, 1)
        hint = element("title", f"{bar.name}: {bar.value:.1f}")
        parts.append(element("text", _fitted(bar.name), x=left - 6, y=y + 14, text_anchor="end", class_="label"))
        shape = {"x": round(left, 1), "y": y + 3, "width": width, "height": _ROW - 6}
        parts.append(element("rect", hint, class_=f"bar dot-{look}", **shape))
        end = left + width
        if bar.half is not None:
            start, end = (min(across(bar.value + sign * bar.half), right) for sign in (-1, 1))
            middle = {"y1": y + _ROW / 2, "y2": y + _ROW / 2}
            parts.append(element("line", x1=round(start, 1), x2=round(end, 1), class_="interval", **middle))
        parts.append(element("text", f"{bar.value:.1f}", x=round(end + 5, 1), y=y + 14))
    best = max(bars, key=lambda bar: bar.value)
    svg = element(
        "svg",
        element("title", title),
        element("desc", f"{len(bars)} bars of {value} in percent. The longest is {best.name} with {best.value:.1f}."),
        parts,
        viewBox=f"0 0 {_WIDTH} {bottom + _BOTTOM}",
        role="img",
        class_="chart",
    )
    numbers = table(["", value], [[bar.name, f"{bar.value:.1f}"] for bar in bars], caption=f"{title}, in numbers")
    samples = [
        element("rect", x=1, y=1, width=14, height=10, class_=f"dot-{number % SERIES + 1}")
        for number in range(len(looks))
    ]
    return figure(title, svg, legend(looks, samples, 16), caption, numbers)


def _fitted(name: str) -> str:
    """A name, shortened in the middle: both its file and its options stay visible. The hint and the table have it whole."""
    half = (_LONGEST - 1) // 2
    return name if len(name) <= _LONGEST else f"{name[:half]}…{name[-half:]}"
