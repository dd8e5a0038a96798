"""The parts of the page that are tables: results beside published ones, classes, settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import yaml

from recollect.common.errors import RecollectError
from recollect.config.overrides import published_tests
from recollect.evaluation import metric_name, paired_bootstrap
from recollect.report.markup import Child, Markup, element, join, name_of, table
from recollect.report.measured import Contender
from recollect.report.runs import Run, number
from recollect.report.shown_images import Shown

_CLASSES_LISTED = 15


def percent(value: float | None) -> str:
    """A fraction as percent with one decimal; a dash for nothing."""
    return "–" if value is None or not np.isfinite(value) else f"{100 * value:.1f}"


def headline(contenders: Sequence[Contender]) -> Markup | None:
    """The numbers most people look for, in large print."""
    if not contenders:
        return None
    tiles = []
    for contender in contenders:
        metrics = contender.evaluation.metrics
        tiles.append(
            element(
                "li",
                element("span", name_of(contender.name), class_="who"),
                element("span", f"{percent(metrics['r@1'])} %", class_="big"),
                element("span", f"r@1 · mAP@R {percent(metrics['map@r'])} %", class_="small"),
                element("span", contender.what, class_="small"),
            )
        )
    return element("ul", tiles, class_="tiles")


def results(runs: Sequence[Run], contenders: Sequence[Contender], shown: Shown | None) -> Markup:
    """Metrics of every contender, of ``recollect eval``, and the published ones, side by side; then the differences."""
    columns: list[tuple[Child, Mapping[str, float]]] = []
    for contender in contenders:
        columns.append((name_of(contender.name), contender.evaluation.metrics))
    for run in runs:
        for name, metrics in run.evaluated.items():
            columns.append((join(name_of(run.name), ", recollect eval: ", name_of(name)), metrics))
    published = [row for run in runs for row in published_tests(run.setting("published")).items()]
    seen: list[tuple[str, dict[str, float]]] = []
    for name, row in published:
        if (name, row) in seen:
            continue
        seen.append((name, row))
        title = join("paper", " (" if name else None, name_of(name) if name else None, ")" if name else None)
        columns.append((title, {key: value / 100 for key, value in row.items()}))
    for run in runs:
        if not contenders and run.evaluations:
            last = run.evaluations[-1]
            columns.append((join(name_of(run.name), ", during training: ", name_of(str(last.get("split")))), last))
    wanted = _metrics_to_show(columns, shown)
    if not columns or not wanted:
        return element("p", "Nothing was evaluated.")
    rows = [[metric_name(name), *(percent(number(values.get(name))) for _, values in columns)] for name in wanted]
    about = _about(shown) if contenders else None
    grid = table(["metric, in %", *(title for title, _ in columns)], rows, caption=about or "Metrics, in percent")
    return join(element("div", grid, _differences(contenders), class_="columns"), _comparable(shown, bool(seen)))


def _metrics_to_show(columns: Sequence[tuple[Child, Mapping[str, float]]], shown: Shown | None) -> list[str]:
    names = list(dict.fromkeys(name for _, values in columns for name in values))
    most = len(shown.names) if shown is not None else None
    kept = []
    for name in names:
        if name in ("kind", "step", "split", "first_rank") or name.startswith("recall@"):
            continue
        if name.startswith("r@") and most is not None and name[2:].isdigit() and int(name[2:]) >= most:
            continue
        kept.append(name)
    numbered = [name for name in kept if name.startswith("r@") and name[2:].isdigit()]
    return sorted(numbered, key=lambda name: int(name[2:])) + [name for name in kept if name not in numbered]


def _about(shown: Shown | None) -> Markup | None:
    if shown is None:
        return None
    part = "all" if shown.complete else f"{len(shown.names):,} of the"
    return join(
        f"{part} {shown.whole:,} images of ",
        name_of(f"{shown.data}/{shown.split}"),
        f" ({len(set(shown.labels.tolist())):,} classes), each a query among the others",
    )


def _comparable(shown: Shown | None, published: bool) -> Markup | None:
    if shown is None or shown.complete:
        return None
    more = (
        " Compare a whole set with the paper's row: recollect eval, or recollect report --images 0."
        if published
        else ""
    )
    return element(
        "p",
        "A part of the set is easier to search than the whole: these numbers compare the columns with each other, "
        f"not with numbers of the whole set.{more}",
        class_="note",
    )


def _differences(contenders: Sequence[Contender]) -> Markup | None:
    """How sure the differences are: every contender against the first, and the trained ones among each other."""
    pairs = [(contenders[0], other) for other in contenders[1:]]
    if len(contenders) > 2 and contenders[0].name == "init":
        pairs += [(contenders[1], other) for other in contenders[2:]]
    rows: list[list[Child]] = []
    for first, second in pairs:
        for metric in ("r@1", "map@r"):
            try:
                test = paired_bootstrap(first.evaluation, second.evaluation, metric)
            except RecollectError:
                continue
            rows.append(
                [
                    join(name_of(second.name), " − ", name_of(first.name)),
                    metric_name(metric),
                    _points(test.difference),
                    f"{_points(test.low)} … {_points(test.high)}",
                ]
            )
    if not rows:
        return None
    caption = "Differences in points, with the range that holds 95 % of them when classes are drawn anew"
    return table(["difference", "metric", "points", "95 % interval"], rows, caption=caption)


def _points(difference: float) -> str:
    return f"{100 * difference:+.1f}".replace("-", "−")


def class_section(contenders: Sequence[Contender], looked_at: Contender, shown: Shown) -> Markup:
    """r@1 class by class: how classes are spread, and the lowest and the most changed ones of ``looked_at``."""
    means = [contender.evaluation.class_means("r@1") for contender in contenders]
    sizes = Counter(shown.labels.tolist())
    spread = table(
        ["r@1 of a class in %", *(f"{10 * n}–{10 * (n + 1)}" for n in range(10))],
        [
            [name_of(contender.name), *(str(count) for count in np.histogram(list(values.values()), 10, (0, 1))[0])]
            for contender, values in zip(contenders, means, strict=True)
        ],
        caption="How many classes have which r@1",
    )
    head: list[Child] = ["class", "images", *(name_of(contender.name) for contender in contenders)]

    def listed(classes: Sequence[int], caption: Child) -> Markup | None:
        rows: list[list[Child]] = [
            [name_of(shown.class_names[c]), f"{sizes[c]:,}", *(percent(values.get(c)) for values in means)]
            for c in classes[:_CLASSES_LISTED]
        ]
        return table(head, rows, caption=caption) if rows else None

    now = looked_at.evaluation.class_means("r@1")
    parts = [listed(sorted(now, key=lambda c: now[c]), join("Lowest r@1 with ", name_of(looked_at.name), ", in %"))]
    if contenders[0] is not looked_at:
        change = {c: now[c] - value for c, value in means[0].items() if c in now}
        order = sorted(change, key=lambda c: change[c])
        between = join(" from ", name_of(contenders[0].name), " to ", name_of(looked_at.name), ", r@1 in %")
        parts.append(listed([c for c in reversed(order) if change[c] > 0], join("Most gained", between)))
        parts.append(listed([c for c in order if change[c] < 0], join("Most lost", between)))
    return join(spread, element("div", parts, class_="columns"))


def settings(runs: Sequence[Run]) -> Markup:
    """Which settings differ between runs, and every setting of each."""
    parts: list[Markup] = []
    if len(runs) > 1:
        flat = [_flat(run.settings) for run in runs]
        keys = [
            key
            for key in dict.fromkeys(k for values in flat for k in values)
            if len({values.get(key) for values in flat}) > 1
        ]
        if keys:
            rows: list[list[Child]] = [
                [element("code", key), *(values.get(key, "–") for values in flat)] for key in keys
            ]
            parts.append(
                table(
                    ["setting", *(name_of(run.name) for run in runs)],
                    rows,
                    caption="Settings that differ",
                    numbers=False,
                )
            )
    for run in runs:
        text = yaml.safe_dump(_plain(run.settings), sort_keys=False, allow_unicode=True, width=100)
        facts = {
            key: run.manifest[key]
            for key in ("started", "finished", "command", "versions", "machine", "data", "weights", "choices")
            if key in run.manifest
        }
        about = yaml.safe_dump(_plain(facts), sort_keys=False, allow_unicode=True, width=100) if facts else ""
        parts.append(
            element(
                "details",
                element("summary", "All settings of ", name_of(run.name)),
                element("pre", text, tabindex="0", aria_label=f"settings of {run.name}", role="region"),
                element("pre", about, tabindex="0", aria_label=f"circumstances of {run.name}", role="region")
                if about
                else None,
            )
        )
    return join(*parts)


def _plain(value: Any) -> Any:
    """Values that YAML can write whatever a file held."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _flat(values: Mapping[str, Any], above: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            flat.update(_flat(value, f"{above}{key}."))
        else:
            flat[f"{above}{key}"] = str(value)
    return flat
