"""Tables of results: this report's, those of ``recollect eval``, the paper's, and means over seeds.

Rows are embeddings and columns are metrics. Results with other metrics have their own table, so that no cell is empty
because two evaluations used different k.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from recollect.common.errors import RecollectError
from recollect.common.text import in_decimals, number_of
from recollect.config.recipes import published_tests
from recollect.evaluation import Evaluation, metric_name, paired_bootstrap
from recollect.report.markup import Child, Markup, element, join, name_of, table
from recollect.report.measured import Contender
from recollect.report.runs import Run, number
from recollect.report.shown_images import Shown

Row = tuple[Child, Mapping[str, Any]]
_NOT_METRICS = ("kind", "step", "split", "first_rank", "seconds")


def percent(value: float | None) -> str:
    """A fraction as percent with one decimal; a dash for nothing."""
    return "–" if value is None or not np.isfinite(value) else f"{100 * value:.1f}"


def headline(contenders: Sequence[Contender]) -> Markup | None:
    """The main numbers, in large print."""
    if not contenders:
        return None
    tiles = []
    for contender in contenders:
        r1, map_at_r = _with_spread(contender, "r@1"), _with_spread(contender, "map@r")
        tiles.append(
            element(
                "li",
                element("span", name_of(contender.name), class_="who"),
                element("span", f"{r1} %", class_="big"),
                element("span", f"r@1 · mAP@R {map_at_r} %", class_="small"),
                element("span", contender.what, class_="small"),
            )
        )
    return element("ul", tiles, class_="tiles")


def results(
    runs: Sequence[Run], contenders: Sequence[Contender], means: Sequence[Contender], shown: Shown | None
) -> Markup:
    """Metrics of every contender and the published ones; means over seeds; differences; results of ``recollect eval``."""
    published = _published(runs)
    parts: list[Markup | None] = []
    if contenders and shown is not None:
        rows: list[Row] = [(name_of(one.name), one.evaluation.metrics) for one in contenders]
        metrics = _metrics(rows, len(shown.names))
        caption = join("In percent, over ", measured_over(shown, contenders[0].evaluation))
        parts.append(_grid(rows + published, metrics, caption))
        parts.append(seeds(means))
        parts.append(_differences(means))
    elif watched := [run for run in runs if run.evaluations]:
        rows = [
            (join(name_of(run.name), ", ", name_of(str(run.evaluations[-1].get("split")))), run.evaluations[-1])
            for run in watched
        ]
        parts += _tables(rows, "In percent, as evaluated at the end of training (during training)")
        parts.append(_grid(published, _metrics(published), "In percent, published") if published else None)
    evaluated: list[Row] = [
        (join(*((name_of(run.name), ", ") if len(runs) > 1 else ()), name_of(name)), values)
        for run in runs
        for name, values in run.evaluated.items()
    ]
    parts += _tables(evaluated, "In percent, by recollect eval")
    found = [part for part in parts if part is not None]
    return join(*found) if found else element("p", "Nothing was evaluated.")


def _published(runs: Sequence[Run]) -> list[Row]:
    rows: list[Row] = []
    for run in runs:
        for name, values in published_tests(run.setting("published")).items():
            title = join("paper", " (" if name else None, name_of(name) if name else None, ")" if name else None)
            row = (title, {key: value / 100 for key, value in values.items()})
            if row not in rows:
                rows.append(row)
    return rows


def _tables(rows: Sequence[Row], caption: str) -> list[Markup | None]:
    """One table per set of metrics."""
    kinds: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        kinds.setdefault(tuple(_metrics([row])), []).append(row)
    return [_grid(same, metrics, caption) for metrics, same in kinds.items()]


def _grid(rows: Sequence[Row], metrics: Sequence[str], caption: Child) -> Markup | None:
    if not rows or not metrics:
        return None
    lines = [[title, *(percent(number(values.get(name))) for name in metrics)] for title, values in rows]
    return table(["", *(metric_name(name) for name in metrics)], lines, caption=caption)


def _metrics(rows: Sequence[Row], images: int | None = None) -> list[str]:
    """Metrics that the rows have, r@k in the order of k; not those whose k reaches all images."""
    kept = []
    for name in dict.fromkeys(name for _, values in rows for name in values):
        if name in _NOT_METRICS or name.startswith("recall@"):
            continue
        if images is not None and name.startswith("r@") and name[2:].isdigit() and int(name[2:]) >= images:
            continue
        kept.append(name)
    numbered = [name for name in kept if name.startswith("r@") and name[2:].isdigit()]
    return sorted(numbered, key=lambda name: int(name[2:])) + [name for name in kept if name not in numbered]


def measured_over(shown: Shown, found: Evaluation) -> Markup:
    """How many queries and classes the numbers are over, and what they are searched among."""
    part = "all" if len(shown.names) == shown.whole else f"{len(shown.names):,} of the"
    asked = number_of(len(np.unique(found.labels[found.positives > 0])), "class")
    return join(
        f"{number_of(found.counted, 'query/queries')} of {asked}, each searched among {part} {shown.whole:,} images of ",
        name_of(f"{shown.data}/{shown.split}"),
        f" ({number_of(len(np.unique(shown.labels)), 'class')})",
    )


def _differences(contenders: Sequence[Contender]) -> Markup | None:
    """Confidence intervals of differences: every contender against the first, and the trained ones with each other."""
    pairs = [(contenders[0], other) for other in contenders[1:]]
    if len(contenders) > 2 and not contenders[0].trained:
        pairs += [(contenders[1], other) for other in contenders[2:]]
    rows: list[list[Child]] = []
    for first, second in pairs:
        cells: list[Child] = []
        for metric in ("r@1", "map@r"):
            try:
                test = paired_bootstrap(first.evaluation, second.evaluation, metric)
            except RecollectError:
                break
            cells += [_points(test.difference), f"{_points(test.low)} … {_points(test.high)}"]
        else:
            rows.append([join(name_of(second.name), " − ", name_of(first.name)), *cells])
    if not rows or len(contenders) < 3:  # for a single pair the verdict has it
        return None
    head = ["difference", "r@1", "95 % interval", "mAP@R", "95 % interval"]
    return table(head, rows, caption="Differences in points, with 95 % confidence intervals (bootstrap over classes)")


def _points(difference: float) -> str:
    return in_decimals(100 * difference, 1, plus=True)


def seeds(means: Sequence[Contender]) -> Markup | None:
    """Mean and standard deviation of settings that were run with several seeds; None if there are none."""
    rows: list[list[Child]] = [
        [name_of(one.name), *(_with_spread(one, metric) for metric in ("r@1", "map@r"))] for one in means if one.spread
    ]
    if not rows:
        return None
    caption = "Runs of one setting: mean ± standard deviation over seeds, in percent"
    return table(["setting", "r@1", "mAP@R"], rows, caption=caption)


def _with_spread(one: Contender, metric: str) -> str:
    value = percent(one.evaluation.metrics[metric])
    return value if one.spread is None else f"{value} ± {percent(one.spread[metric])}"


def flat_settings(values: Mapping[str, Any], above: str = "", without: Sequence[str] = ()) -> dict[str, str]:
    """Settings by their dotted names, as text."""
    flat: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            flat.update(flat_settings(value, f"{above}{key}.", without))
        elif f"{above}{key}" not in without:
            flat[f"{above}{key}"] = str(value)
    return flat
