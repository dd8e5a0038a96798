"""The verdict in words, and the parts of the page that are tables: results, classes, settings.

In tables of results, rows are embeddings and columns are metrics. Results with other metrics have their own table, so that no
cell is empty because two evaluations used different k.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import yaml

from recollect.common.errors import RecollectError
from recollect.common.text import in_decimals, in_words, number_of
from recollect.config.recipes import published_tests
from recollect.evaluation import Evaluation, Verdict, metric_name, paired_bootstrap, verdict
from recollect.evaluation.verdict import LEVEL
from recollect.report.markup import Child, Markup, breakable, element, join, name_of, render, table
from recollect.report.results import AFTER, BEFORE, ModelResult, ReportImages, Run, finite, flat_settings, settings_of

_NOT_METRICS = ("kind", "step", "split", "first_rank", "seconds")
_METRICS = ("r@1", "map@r")
_MOST = 12  # comparisons in words; more are in the tables
_MOST_STARTS = 3  # runs of which the steps are judged by themselves
_CLASSES_LISTED, _CHANGED_LISTED = 15, 7
_FACTS = ("started", "finished", "command", "versions", "machine", "data", "weights", "choices")  # of the manifest
_LONGEST = 200  # characters of a value among the settings that differ

Row = tuple[Child, Mapping[str, Any]]


def percent(value: float | None) -> str:
    """A fraction as percent with one decimal; a dash for nothing."""
    return "–" if value is None or not np.isfinite(value) else f"{100 * value:.1f}"


def _with_spread(one: ModelResult, metric: str) -> str:
    value = percent(one.evaluation.metrics[metric])
    return value if one.spread is None else f"{value} ± {percent(one.spread[metric])}"


def headline(models: Sequence[ModelResult]) -> Markup | None:
    """The main numbers, in large print."""
    return render("headline.html", models=models, value=_with_spread) if models else None


def verdict_section(
    runs: Sequence[Run],
    models: Sequence[ModelResult],
    images: ReportImages | None,
    excluded: Sequence[str],
    apart: Sequence[Run] = (),
) -> Markup | None:
    """Every run against its starting weights, then against the first run; then the number of queries and classes.

    A run is judged only on classes that it was not trained on. What its steps did on top of its start, and the verdicts on
    runs that were tested on other images (``apart``), are those of their manifests.
    """
    if not models or images is None:
        return None
    # A line compares two models, or is what a run recorded against its start or the pre-trained network.
    lines: list[dict[str, Any]] = []
    intervals = False
    for before, after in _pairs(models)[:_MOST]:
        seen = next((one for one in (after, before) if one.seen), None)
        pair: dict[str, Any] = {"before": before, "after": after, "seen": seen, "error": None, "run": None}
        try:
            pair["verdict"] = verdict(before.evaluation, after.evaluation)
            intervals |= seen is None and pair["verdict"].enough_classes
        except RecollectError as error:
            pair["error"] = str(error)
        lines.append(pair)
    single = [group[0] for _, group in settings_of(runs) if len(group) == 1]
    recorded = [(run, "start") for run in single if len(single) <= _MOST_STARTS]
    for run, against in recorded + [(run, "pretrained") for run in apart[:_MOST]]:
        values = run.recorded("verdicts").get(against)
        with suppress(RecollectError):
            if isinstance(values, Mapping):
                judged = {"verdict": Verdict.from_dict(values), "run": run, "against": against}
                lines.append(judged | {"seen": None, "error": None})
    return render(
        "verdict.html",
        named=len(runs) > 1,
        lines=lines,
        intervals=intervals,
        over=measured_over(images, models[-1].evaluation),
        models=models,
        metrics=_METRICS,
        percent=percent,
        excluded=excluded,
        times=_times(runs),
        unbroken=_unbroken,
        settings=len(settings_of(runs)),
    )


def _pairs(models: Sequence[ModelResult]) -> list[tuple[ModelResult, ModelResult]]:
    """What is compared: every model with the first, and the trained ones with the first trained one."""
    pairs = [(models[0], other) for other in models[1:]]
    if len(models) > 2 and not models[0].trained:
        pairs += [(models[1], other) for other in models[2:]]
    return pairs


def _unbroken(numbers: str) -> str:
    """Differences and their intervals: an interval is not broken across lines."""
    return re.sub(r"\d+ % CI [^:()]*", lambda interval: interval[0].replace(" ", "\u00a0"), numbers)


def _times(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """How long the runs of each setting took; what of it was not for steps, in brackets."""
    spent = []
    for name, group in settings_of(runs):
        times = [run.times for run in group if run.times is not None]
        preparing, judging = sum(one.preparing for one in times), sum(one.judging for one in times)
        whole = in_words(preparing + sum(one.training for one in times) + judging)
        parts = [
            f"{'nearly all' if in_words(seconds) == whole else in_words(seconds)} {what}"
            for seconds, what in ((preparing, "before the first step"), (judging, "for the verdict"))
            if seconds >= 1
        ]
        words = f"{whole} for {len(times)} runs" if len(times) > 1 else whole
        if times:
            spent.append((name, f"{words} ({', '.join(parts)})" if parts else words))
    return spent


def results(
    runs: Sequence[Run], models: Sequence[ModelResult], means: Sequence[ModelResult], images: ReportImages | None
) -> Markup:
    """Metrics of every model and the published ones; means over seeds; differences; results of ``recollect eval``."""
    published = _published(runs)
    parts: list[Markup] = []
    if models and images is not None:
        rows: list[Row] = [(name_of(one.name), one.evaluation.metrics) for one in models]
        caption = join("In percent, over ", measured_over(images, models[0].evaluation))
        parts += [
            _grid(rows + published, _metrics(rows, len(images.names)), caption),
            seeds(means),
            _differences(means),
        ]
    elif watched := [run for run in runs if run.evaluations]:
        rows = [
            (join(name_of(run.name), ", ", name_of(str(run.evaluations[-1].get("split")))), run.evaluations[-1])
            for run in watched
        ]
        parts += _tables(rows, "In percent, as evaluated at the end of training (during training)")
        parts.append(_grid(published, _metrics(published), "In percent, published"))
    evaluated: list[Row] = [
        (join(*((name_of(run.name), ", ") if len(runs) > 1 else ()), name_of(name)), values)
        for run in runs
        for name, values in run.evaluated.items()
    ]
    parts += _tables(evaluated, "In percent, by recollect eval")
    return join(*parts) or element("p", "Nothing was evaluated.")


def _published(runs: Sequence[Run]) -> list[Row]:
    rows: list[Row] = []
    for run in runs:
        for name, values in published_tests(run.setting("published")).items():
            row = (join("paper (", name_of(name), ")") if name else "paper", {k: v / 100 for k, v in values.items()})
            if row not in rows:
                rows.append(row)
    return rows


def _tables(rows: Sequence[Row], caption: str) -> list[Markup]:
    """One table per set of metrics."""
    kinds: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        kinds.setdefault(tuple(_metrics([row])), []).append(row)
    return [_grid(same, metrics, caption) for metrics, same in kinds.items()]


def _grid(rows: Sequence[Row], metrics: Sequence[str], caption: Child) -> Markup:
    lines = [[title, *(percent(finite(values.get(name))) for name in metrics)] for title, values in rows]
    return table(["", *(metric_name(name) for name in metrics)], lines if metrics else [], caption=caption)


def _metrics(rows: Sequence[Row], images: int | None = None) -> list[str]:
    """Metrics that the rows have, r@k in the order of k; not those whose k reaches all images."""
    names = dict.fromkeys(name for _, values in rows for name in values if name not in _NOT_METRICS)
    ks = {name: int(name[2:]) for name in names if name.startswith("r@") and name[2:].isdigit()}
    recalls = sorted((name for name in ks if images is None or ks[name] < images), key=lambda name: ks[name])
    return recalls + [name for name in names if name not in ks and not name.startswith("recall@")]


def measured_over(images: ReportImages, evaluation: Evaluation) -> Markup:
    """How many queries and classes the numbers are over, and what they are searched among."""
    part = "all" if len(images.names) == images.whole else f"{len(images.names):,} of the"
    classes = number_of(len(np.unique(evaluation.labels[evaluation.positives > 0])), "class")
    queries = f"{number_of(evaluation.counted, 'query/queries')} of {classes}"
    return join(
        f"{queries}, each searched among {part} {images.whole:,} images of ",
        name_of(f"{images.data}/{images.split}"),
        f" ({number_of(len(np.unique(images.labels)), 'class')})",
    )


def _differences(models: Sequence[ModelResult]) -> Markup:
    """Confidence intervals of differences, where there are several; for a single pair the verdict has it."""
    rows: list[list[Child]] = []
    for first, second in _pairs(models) if len(models) > 2 else ():
        try:
            tests = [paired_bootstrap(first.evaluation, second.evaluation, metric) for metric in _METRICS]
        except RecollectError:
            continue
        points = [
            [in_decimals(100 * x, 1, plus=True) for x in (test.difference, test.low, test.high)] for test in tests
        ]
        cells = [cell for value, low, high in points for cell in (value, f"{low} … {high}")]
        rows.append([join(name_of(second.name), " − ", name_of(first.name)), *cells])
    interval = f"{100 * LEVEL:g} %"
    head = ["difference", "r@1", f"{interval} interval", "mAP@R", f"{interval} interval"]
    return table(
        head, rows, caption=f"Differences in points, with {interval} confidence intervals (bootstrap over classes)"
    )


def seeds(means: Sequence[ModelResult]) -> Markup:
    """Mean and standard deviation of settings that were run with several seeds."""
    rows: list[list[Child]] = [
        [name_of(one.name), *(_with_spread(one, metric) for metric in _METRICS)] for one in means if one.spread
    ]
    caption = "Runs of one setting: mean ± standard deviation over seeds, in percent"
    return table(["setting", "r@1", "mAP@R"], rows, caption=caption)


def class_section(models: Sequence[ModelResult], primary: ModelResult, images: ReportImages) -> Markup:
    """r@1 per class: the distribution, and the lowest and the most changed classes of ``primary``."""
    means = [model.evaluation.class_means("r@1") for model in models]
    sizes = Counter(images.labels.tolist())
    spread = table(
        ["r@1 in %", *(f"{10 * n}–{10 * (n + 1)}" for n in range(10))],
        [
            [name_of(model.name), *(str(count) for count in np.histogram(list(values.values()), 10, (0, 1))[0])]
            for model, values in zip(models, means, strict=True)
        ],
        caption="Number of classes by r@1",
    )
    short = {BEFORE: "before", AFTER: "after"}
    head = ["class", "images", *(name_of(short.get(model.name, model.name)) for model in models)]

    def listed(classes: Sequence[int], caption: Child, most: int = _CHANGED_LISTED) -> Markup:
        rows: list[list[Child]] = [
            [breakable(images.class_names[c]), f"{sizes[c]:,}", *(percent(values.get(c)) for values in means)]
            for c in classes[:most]
        ]
        return table(head, rows, caption=caption)

    now = primary.evaluation.class_means("r@1")
    of = None if len(models) <= 2 else join(" of ", name_of(primary.name))
    parts = [listed(sorted(now, key=lambda c: now[c]), join("Lowest r@1", of, ", in %"), _CLASSES_LISTED)]
    if models[0] is not primary:
        change = {c: now[c] - value for c, value in means[0].items() if c in now}
        order = sorted(change, key=lambda c: change[c])
        between = join(None if len(models) == 2 else join(" by ", name_of(primary.name)), ", r@1 in %")
        parts.append(listed([c for c in reversed(order) if change[c] > 0], join("Most gained", between)))
        parts.append(listed([c for c in order if change[c] < 0], join("Most lost", between)))
    many = " many" if len(models) > 2 else ""  # columns: the tables are below one another
    return join(spread, element("div", parts, class_=f"class-lists{many} by-class"))


def settings(runs: Sequence[Run]) -> Markup:
    """Which settings differ between runs, and every setting of each."""
    flat = [flat_settings(run.settings) | _training_images(run) for run in runs]
    keys = dict.fromkeys(key for values in flat for key in values)
    different = [key for key in keys if len({values.get(key) for values in flat}) > 1]
    facts = [{key: run.manifest[key] for key in _FACTS if key in run.manifest} for run in runs]
    every = list(zip(runs, flat, facts, strict=True))
    return render("settings.html", different=different, runs=every, longest=_LONGEST, yaml=_yaml)


def _yaml(values: Mapping[str, Any]) -> str:
    return str(yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=100))


def _training_images(run: Run) -> dict[str, str]:
    """How many there are, with the beginning of their fingerprint: equal counts may be other images."""
    plan = run.recorded("plan")
    if not run.trained_on or not plan:
        return {}
    count = f"{plan.get('images')} of {plan.get('classes')} classes"
    return {"training images": f"{count}, fingerprint {run.trained_on[:8]}"}
