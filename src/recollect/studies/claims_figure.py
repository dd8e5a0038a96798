"""A claim as a figure: measured cells with error bars and, if the paper prints its numbers, the paper's next to them.

Numbers along an axis (batch sizes, τ1) are drawn as curves over a logarithmic axis; names (losses, sets of k) are listed one
below the other, so that long ones are readable.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recollect.common.files import atomic_write
from recollect.studies.claims import Claim
from recollect.studies.summary import CellResult

_COLOURS = ("#1d4ed8", "#b45309", "#047857", "#7c3aed")
_MARKS = ("o", "s", "^", "D")

Point = tuple[float | str, float, float]
"""Where on the axis, r@1 in percent, and its standard deviation over seeds."""


def draw_claim(claim: Claim, results: dict[str, CellResult], path: Path) -> bool:
    """Draw a claim into an SVG file.

    Returns:
        Whether there was anything to draw.
    """
    ours: dict[str, list[Point]] = {}
    for curve in claim.curves:
        found = [(x, results[cell.name]) for x, cell in curve.points]
        ours[curve.label] = [
            (x, result.mean, result.deviation or 0.0) for x, result in found if result.mean is not None
        ]
    if not any(ours.values()):
        return False
    panels = {f"measured: {claim.bench.name}": ours}
    if claim.published is not None and claim.published.curves:
        published = claim.published.curves
        paper: dict[str, list[Point]] = {
            label: [(x, value, 0.0) for x, value in published.get(label, ())] for label in ours
        }
        panels[f"the paper: {claim.published.source}"] = paper
    numeric = all(isinstance(x, int | float) for curve in claim.curves for x, _ in curve.points)
    names = max(len({x for points in panel.values() for x, _, _ in points}) for panel in panels.values())
    height = 3.1 if numeric else 1.1 + 0.24 * names
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "recollect", "svg.fonttype": "none", "font.size": 9}):
        # Without pyplot, which would keep every figure in memory and look for a display.
        drawing = Figure(figsize=(4.6 * len(panels), height), layout="constrained")
        for number, (title, points) in enumerate(panels.items()):
            axes = drawing.add_subplot(1, len(panels), number + 1)
            axes.set_title(title, fontsize=9)
            axes.grid(True, alpha=0.3)
            (_draw_curves if numeric else _draw_names)(axes, points, claim.x_label)
            if len(ours) > 1 and number == 0:
                axes.legend(fontsize=8)
        with atomic_write(path) as file:
            drawing.savefig(file, format="svg", metadata={"Date": None})
    return True


def _draw_curves(axes: Any, curves: dict[str, list[Point]], x_label: str) -> None:
    for number, (label, points) in enumerate(curves.items()):
        if points:
            xs, ys, deviations = zip(*points, strict=True)
            axes.errorbar(xs, ys, yerr=deviations, linestyle="-", **_look(number, label))
    axes.set_xscale("log", base=2 if x_label == "batch" else 10)
    axes.set_xlabel(x_label)
    axes.set_ylabel("r@1 (%)")


def _draw_names(axes: Any, curves: dict[str, list[Point]], x_label: str) -> None:
    """Names from top to bottom, r@1 across; curves a little apart, so that none hides another."""
    names = list(dict.fromkeys(x for points in curves.values() for x, _, _ in points))
    for number, (label, points) in enumerate(curves.items()):
        if points:
            shift = 0.16 * (number - (len(curves) - 1) / 2)
            places = [names.index(x) + shift for x, _, _ in points]
            values, deviations = [value for _, value, _ in points], [deviation for _, _, deviation in points]
            axes.errorbar(values, places, xerr=deviations, linestyle="none", **_look(number, label))
    axes.set_yticks(range(len(names)), _as_text(names))
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlabel("r@1 (%)")
    axes.set_ylabel(x_label)


def _as_text(names: Sequence[float | str]) -> list[str]:
    return [name if isinstance(name, str) else f"{name:g}" for name in names]


def _look(number: int, label: str) -> dict[str, Any]:
    return {
        "label": label,
        "color": _COLOURS[number % len(_COLOURS)],
        "marker": _MARKS[number % len(_MARKS)],
        "capsize": 3,
        "markersize": 4,
    }
