"""The page of a comparison of losses: one self-contained HTML file, and ``comparison.json`` next to it.

Rebuilt from the run folders each time. Names of losses come from the user and are escaped (``report/markup.py``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from recollect.common.files import write_json, write_text
from recollect.common.text import in_decimals, in_words
from recollect.report.charts import Bar, bar_chart
from recollect.report.markup import Child, Markup, element, join, name_of, table
from recollect.report.page import check_target, document
from recollect.studies.comparison import CellResult, LossComparison, in_points

GENERATOR = "recollect compare"
_DASH = "–"


def check_page(folder: Path) -> None:
    """Raise ``InputError`` if there is a ``comparison.html`` that recollect did not write."""
    check_target(folder / "comparison.html", False, GENERATOR)


def write_comparison(found: LossComparison) -> None:
    """Write ``comparison.html`` and ``comparison.json`` into the study's folder."""
    write_text(found.page, document("Losses compared", _body(found), _CONTENTS, GENERATOR))
    write_json(found.page.with_suffix(".json"), found.as_dict())


_CONTENTS = [("results", "Results"), ("pairs", "Each pair"), ("how", "How it was measured")]


def _body(found: LossComparison) -> Markup:
    parts: dict[str, Child] = {"results": _results(found), "pairs": _pairs(found), "how": _how(found)}
    config = found.planned.config
    missing = None if found.complete else "Some runs are not finished; the same command resumes them."
    return join(
        element("h1", "Losses compared"),
        element(
            "p",
            "Every loss at its own best learning rate, on ",
            name_of(config.data.title),
            f" with {config.model.init}. r@1 in percent on unseen test classes.",
            class_="introduction",
        ),
        element("ul", element("li", missing), class_="remarks") if missing else None,
        [element("section", element("h2", name), parts[key], id=key, aria_label=name) for key, name in _CONTENTS],
    )


def _results(found: LossComparison) -> Markup:
    ordered = sorted(found.results, key=lambda result: -(result.mean or -1))
    bars = [
        Bar(result.cell.label, result.mean, 0 if result.cell.trains else 1, result.half_width)
        for result in ordered
        if result.mean is not None
    ]
    lowest = min((bar.value - (bar.half or 0) for bar in bars), default=0.0)
    low = max(0.0, 5.0 * math.floor((lowest - 5) / 5))
    looks = ["trained", "no step"] if any(bar.look for bar in bars) else ["trained"]
    caption = "Mean over seeds; the line is its 90 % interval." + ("" if low == 0 else f" The axis begins at {low:g}.")
    others = [name for name in (ordered[0].metrics if ordered else ()) if name.startswith("r@") and name != "r@1"][:3]
    more = [*others, *(name for name in ("map@r",) if ordered and name in ordered[0].metrics)]
    rows = [
        [
            name_of(result.cell.label),
            _shown(result),
            *(f"{result.metrics[name]:.1f}" if name in result.metrics else _DASH for name in more),
            # Without a step, every seed may have the same result.
            str(len(result.by_seed) if result.cell.trains or result.half_width is not None else 1),
        ]
        for result in ordered
    ]
    shown = {"map@r": "mAP@R"}
    head = ["loss", "r@1", *(shown.get(name, name) for name in more), "seeds"]
    failures = [f"{result.cell.label}, {why}" for result in found.results for why in result.failures]
    return join(
        element(
            "div",
            bar_chart(bars, looks, title="r@1 of each loss", value="r@1", low=low, caption=caption),
            class_="charts",
        ),
        table(
            head,
            rows,
            caption="Results, best first: mean ± half of the 90 % interval (Student's t over seeds).",
        ),
        _trainings(ordered),
        element("ul", [element("li", why) for why in failures], class_="remarks") if failures else None,
    )


def _trainings(ordered: Sequence[CellResult]) -> Markup | None:
    """How each loss was trained; a row without a step has nothing to say here."""
    rows = [
        [
            name_of(result.cell.label),
            *_training(result),
            _seconds(result.processor_seconds),
            _seconds(result.searched_seconds),
        ]
        for result in ordered
        if result.cell.trains
    ]
    head = ["loss", "learning rate", "steps", "images seen", "s per run", "s of search"]
    batches = {(r.choice.batch, r.cell.batch) for r in ordered if r.choice and r.choice.batch not in (0, r.cell.batch)}
    found = "".join(f" Rate and steps were found at batch {a:,} and used at {b:,}." for a, b in sorted(batches))
    caption = f"How each was trained, per run.{found} s: processor seconds."
    return table(head, rows, caption=caption) if rows else None


def _pairs(found: LossComparison) -> Markup:
    if not found.pairs:
        return element("p", "There is only one loss, so there is nothing to compare.")
    rows = [
        [
            join(name_of(pair.first), " − ", name_of(pair.second)),
            in_points(pair.differences),
            _by_seed(pair.differences),
        ]
        for pair in found.pairs
    ]
    return join(
        element("ul", [element("li", pair.sentence) for pair in found.pairs]),
        table(
            ["pair", "difference", "by seed"],
            rows,
            caption="Differences of r@1 in points, seed by seed: runs of one seed share their batches.",
        ),
    )


def _how(found: LossComparison) -> Markup:
    planned = found.planned
    bench, seeds, config = planned.cells[0].bench, planned.matrix.seeds, planned.config
    frozen = config.model.freeze
    trained = "the whole network" if frozen == "none" else f"what follows {frozen}, on features computed once,"
    own = len(planned.pairs)
    spent = sum((r.processor_seconds or 0) * len(r.by_seed) + (r.searched_seconds or 0) for r in found.results)
    lines = [
        f"Data: {planned.train_images:,} training images of {planned.train_classes:,} classes. {trained[0].upper()}"
        f"{trained[1:]} is trained.",
        f"Batch: {planned.batches}.",
        f"Budget: {bench.budget}.",
        "Learning rates are chosen with seed 0 on half of the training classes, measured on the other half; test images "
        "cannot be loaded there. Rates are 1, 3, 10, …, continued while the best is the lowest or highest.",
        f"Then each loss is trained on all training classes with seeds {', '.join(map(str, seeds))} and tested once."
        + (" All start from the closed form, a whitening of the training classes." if config.model.whitening else ""),
        "“Finds more” means that the 90 % interval of the paired differences is above zero, from three seeds on. It covers "
        "the seeds, not other classes or data sets"
        + (f"; of {own} pairs at 90 % about {own / 10:.1g} would seem to differ by chance." if own > 1 else "."),
        "A loss's own parameters, such as proxies, have the same learning rate as the network times "
        f"optimizer.loss_multiplier ({config.optimizer.loss_multiplier:g}).",
        f"Processor time of all runs: {in_words(spent)}, reading images and evaluations included.",
    ]
    return element("ul", [element("li", line) for line in lines])


def _training(result: CellResult) -> tuple[str, str, str]:
    if result.choice is None or result.steps is None:
        return _DASH, _DASH, _DASH
    end = " (end of the search)" if result.choice.at_the_end else ""
    limit = " (limit)" if result.choice.at_the_limit else ""
    return f"{result.choice.rate:g}{end}", f"{result.steps:,}{limit}", f"{result.steps * result.cell.batch:,}"


def _shown(result: CellResult) -> str:
    if result.mean is None:
        return _DASH
    return f"{result.mean:.1f}" + ("" if result.half_width is None else f" ± {result.half_width:.1f}")


def _seconds(value: float | None) -> str:
    return _DASH if not value else f"{value:.1f}" if value < 10 else f"{value:,.0f}"


def _by_seed(differences: tuple[float, ...]) -> str:
    return ", ".join(in_decimals(value, 1, plus=True) for value in differences) or _DASH
