"""The parts of the page that are tables: classes and settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import yaml

from recollect.report.markup import Child, Markup, breakable, element, join, name_of, table
from recollect.report.measured import AFTER, BEFORE, Contender
from recollect.report.outcome_tables import flat_settings, percent
from recollect.report.runs import Run
from recollect.report.shown_images import Shown

_CLASSES_LISTED, _CHANGED_LISTED = 15, 7
_LONGEST = 200  # characters of a value among the settings that differ


def class_section(contenders: Sequence[Contender], looked_at: Contender, shown: Shown) -> Markup:
    """r@1 per class: the distribution, and the lowest and the most changed classes of ``looked_at``."""
    means = [contender.evaluation.class_means("r@1") for contender in contenders]
    sizes = Counter(shown.labels.tolist())
    spread = table(
        ["r@1 in %", *(f"{10 * n}–{10 * (n + 1)}" for n in range(10))],
        [
            [name_of(contender.name), *(str(count) for count in np.histogram(list(values.values()), 10, (0, 1))[0])]
            for contender, values in zip(contenders, means, strict=True)
        ],
        caption="Number of classes by r@1",
    )
    short = [
        name_of({BEFORE: "before", AFTER: "after"}.get(contender.name, contender.name)) for contender in contenders
    ]
    head: list[Child] = ["class", "images", *short]

    def listed(classes: Sequence[int], caption: Child, most: int = _CHANGED_LISTED) -> Markup | None:
        rows: list[list[Child]] = [
            [breakable(shown.class_names[c]), f"{sizes[c]:,}", *(percent(values.get(c)) for values in means)]
            for c in classes[:most]
        ]
        return table(head, rows, caption=caption) if rows else None

    now = looked_at.evaluation.class_means("r@1")
    of = Markup("") if len(contenders) <= 2 else join(" of ", name_of(looked_at.name))
    parts = [listed(sorted(now, key=lambda c: now[c]), join("Lowest r@1", of, ", in %"), _CLASSES_LISTED)]
    if contenders[0] is not looked_at:
        change = {c: now[c] - value for c, value in means[0].items() if c in now}
        order = sorted(change, key=lambda c: change[c])
        between = join(Markup("") if len(contenders) == 2 else join(" by ", name_of(looked_at.name)), ", r@1 in %")
        parts.append(listed([c for c in reversed(order) if change[c] > 0], join("Most gained", between)))
        parts.append(listed([c for c in order if change[c] < 0], join("Most lost", between)))
    many = " many" if len(contenders) > 2 else ""  # columns: the tables are below one another
    return join(spread, element("div", parts, class_=f"class-lists{many} by-class"))


def settings(runs: Sequence[Run]) -> Markup:
    """Which settings differ between runs, and every setting of each."""
    parts: list[Markup] = []
    if len(runs) > 1:
        flat = [flat_settings(run.settings) | _training_images(run) for run in runs]
        keys = [
            key
            for key in dict.fromkeys(k for values in flat for k in values)
            if len({values.get(key) for values in flat}) > 1
        ]
        if keys:
            rows: list[list[Child]] = [
                [element("code", key), *(_set(values.get(key)) for values in flat)] for key in keys
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


def _training_images(run: Run) -> dict[str, str]:
    """How many there are, with the beginning of their fingerprint: equal counts may be other images."""
    plan = run.manifest.get("plan")
    if not run.trained_on or not isinstance(plan, Mapping):
        return {}
    count = f"{plan.get('images')} of {plan.get('classes')} classes"
    return {"training images": f"{count}, fingerprint {run.trained_on[:8]}"}


def _set(value: str | None) -> str:
    """A setting's value in words, where it has none; of a long list, the beginning."""
    if value in (None, "None"):
        return "not set"
    return value if len(value) <= _LONGEST else f"{value[:_LONGEST]}…"


def _plain(value: Any) -> Any:
    """Values that YAML can always write."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
