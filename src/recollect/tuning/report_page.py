"""``report.html`` of a study: the chosen trial, every trial, how much each parameter mattered, the cost, the final test.

Built from ``Results`` alone, with the report room's elements and charts: no script, no network, every text escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from recollect._version import __version__
from recollect.common.files import write_text
from recollect.report.charts import Line, line_chart
from recollect.report.markup import Child, Markup, element, join, name_of, table
from recollect.report.page import check_target, document
from recollect.report.scatter import Point, scatter_chart
from recollect.training.recipes import published_tests
from recollect.tuning.results import MIN_FOR_IMPORTANCE, Results, TrialRecord

GENERATOR = "recollect tune"
TITLES = {
    "lr": "learning rate",
    "decays": "number of decays",
    "first_decay": "first decay, share of the training",
    "gamma": "size of a decay (gamma)",
    "epochs": "epochs",
}
_CURVES = 6


def write_page(path: Path, results: Results) -> Path:
    """Write the page; an earlier one of its kind is replaced, any other file is not."""
    check_target(path, False, GENERATOR)
    heading = f"Settings for {results.recipe}"
    parts: list[tuple[str, str, Child]] = [
        ("result", "Result", _result(results)),
        ("trials", "Trials", _trials(results)),
        ("parameters", "Parameters", _parameters(results)),
        ("cost", "Cost", _cost(results)),
        ("protocol", "Protocol", _protocol(results)),
    ]
    body = join(
        element("h1", heading),
        element("p", _introduction(results), class_="introduction"),
        _tiles(results),
        element("p", f"{_state(results)} Written by recollect {__version__} on {_today()}.", class_="note"),
        [element("section", element("h2", name), content, id=key, aria_label=name) for key, name, content in parts],
    )
    write_text(path, document(heading, body, [(key, name) for key, name, _ in parts], GENERATOR))
    return path


def title_of(name: str) -> str:
    """A parameter in words."""
    return TITLES.get(name, name)


def _today() -> str:
    return f"{datetime.now():%-d %B %Y}"


def _introduction(results: Results) -> str:
    halves = results.protocol
    return (
        f"{len(results.trials)} settings were each trained on the first half of the training classes "
        f"({halves['train']['classes']:,}) and validated on the second ({halves['validation']['classes']:,}). The one with "
        "the best validation is then trained on all of them and tested once."
    )


def _state(results: Results) -> str:
    open_ = results.count("running", "queued")
    if open_:
        return f"The search is under way: {open_} trials are not done."
    return "The study is closed: it has been tested." if results.final else "The final training is not done yet."


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f} %"


def _tiles(results: Results) -> Markup | None:
    best = results.best
    if best is None:
        return None
    tiles = [("validation", _percent(best.value), f"{results.select} of trial {best.number:04d}, classes held out")]
    for name, metrics in (results.final or {}).get("metrics", {}).items():
        first = next((key for key in (results.select, "r@1") if key in metrics), None)
        if first is not None:
            tiles.append(("test", _percent(metrics[first]), f"{first} on {name}, measured once"))
    return element(
        "ul",
        [
            element(
                "li",
                element("span", who, class_="who"),
                element("span", big, class_="big"),
                element("span", small, class_="small"),
            )
            for who, big, small in tiles
        ],
        class_="tiles",
    )


def _result(results: Results) -> Markup:
    best = results.best
    if best is None:
        return element("p", "No trial has come to its end yet.")
    rows: list[list[Child]] = [
        [element("code", key), _shown(value)] for key, value in best.settings.items() if value is not None
    ]
    chosen = table(
        ["setting", "value"],
        rows,
        caption=f"Settings of trial {best.number:04d}, the highest validation {results.select}",
        numbers=False,
    )
    return join(element("div", chosen, _test(results), class_="columns"), _rule(results))


def _test(results: Results) -> Markup | None:
    if results.final is None:
        return element("p", "Not tested yet.")
    published = published_tests(results.protocol["published"])
    tables = []
    for name, metrics in results.final["metrics"].items():
        paper = published.get(name) or published.get("") or {}
        rows: list[list[Child]] = [
            [key, f"{100 * value:.2f}", *([f"{paper[key]:.1f}" if key in paper else "–"] if paper else [])]
            for key, value in metrics.items()
            if key != "first_rank"
        ]
        head = ["metric, in %", "here", *(["paper"] if paper else [])]
        tables.append(table(head, rows, caption=join("Test on ", name_of(name), ", once, after the choice was made")))
    return join(*tables) if tables else element("p", "This data set has no test split of its own.")


def _rule(results: Results) -> Markup | None:
    final, best = results.final, results.best
    if best is None:
        return None
    text = (
        f"Trial {best.number:04d} was best at epoch {best.best_epoch:g}. The final training goes on for as many epochs, over "
        "all training classes, with the milestones that lie before; its last weights are kept."
    )
    if final is not None:
        text += f" That was {final['epochs']} epochs, {final['steps']:,} steps: an ordinary run in {final['folder']}."
    return element("p", text, class_="note")


def _trials(results: Results) -> Markup:
    known = [trial for trial in results.trials if trial.value is not None]
    order = sorted(known, key=lambda trial: (-(trial.value or 0.0), trial.number))
    rest = [trial for trial in results.trials if trial.value is None]
    names = list(results.space)
    head = ["trial", "state", f"validation {results.select}", "best epoch", *map(title_of, names), "seconds", "machine"]
    rows = [_row(trial, names, results) for trial in [*order, *rest]]
    failures = [trial for trial in results.trials if trial.failure]
    return join(
        element("div", [chart for chart in (_course(results), _curves(order)) if chart], class_="charts"),
        table(head, rows, caption="Every trial, the best first"),
        element("ul", [element("li", f"Trial {t.number:04d} failed: {t.failure}") for t in failures], class_="remarks")
        if failures
        else None,
        element(
            "p", "Each is an ordinary run in ", element("code", "trials/"), "; as a table: trials.csv.", class_="note"
        ),
    )


def _row(trial: TrialRecord, names: Sequence[str], results: Results) -> list[Child]:
    chosen = trial.number == results.chosen
    return [
        join(f"{trial.number:04d}", element("strong", " ◆ chosen") if chosen else None),
        trial.state,
        _percent(trial.value),
        "–" if trial.best_epoch is None else f"{trial.best_epoch:g}",
        *(_shown(trial.drawn.get(name)) for name in names),
        f"{trial.seconds:,.0f}",
        name_of(trial.host),
    ]


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(_shown(item) for item in value) or "none"
    if isinstance(value, float):
        return f"{value:.4g}"
    return "–" if value is None else str(value)


def _course(results: Results) -> Markup | None:
    """Each trial's value, in the order of trials."""
    known = [(trial, trial.value) for trial in results.trials if trial.value is not None]
    return scatter_chart(
        [Point(f"trial {t.number:04d}", float(t.number), value, t.number == results.chosen) for t, value in known],
        title="The search",
        x_label="trial",
        y_label=f"validation {results.select}",
        percent=True,
        caption="Each trial's best validation, in the order of trials.",
    )


def _curves(order: Sequence[TrialRecord]) -> Markup | None:
    chosen = [trial for trial in order if trial.curve][:_CURVES]
    lines = [
        Line(f"trial {trial.number:04d}", [epoch for epoch, _ in trial.curve], [value for _, value in trial.curve])
        for trial in chosen
    ]
    return line_chart(
        lines,
        title=f"The best {len(lines)} on the way",
        x_label="epoch",
        y_label="validation",
        percent=True,
        caption="Where a curve falls again, training longer did not help.",
    )


def _parameters(results: Results) -> Markup:
    charts = []
    for name, said in results.space.items():
        points = [
            Point(f"trial {t.number:04d}", float(t.drawn[name]), t.value, t.number == results.chosen)
            for t in results.trials
            if t.value is not None and t.state == "done" and _is_number(t.drawn.get(name))
        ]
        if len({point.x for point in points}) < 2:
            continue
        chart = scatter_chart(
            points,
            title=title_of(name)[0].upper() + title_of(name)[1:],
            x_label=title_of(name),
            y_label=f"validation {results.select}",
            log=said.endswith(":log"),
            percent=True,
            caption=_share(results, name),
        )
        charts.append(chart)
    return join(_importance(results), element("div", [c for c in charts if c is not None], class_="charts"))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _share(results: Results, name: str) -> str | None:
    return f"Importance {100 * results.importance[name]:.0f} %." if name in results.importance else None


def _importance(results: Results) -> Markup:
    if not results.importance:
        return element(
            "p",
            f"How much each parameter mattered is not said: that takes at least {MIN_FOR_IMPORTANCE} finished trials "
            "with different results.",
        )
    rows: list[list[Child]] = [
        [title_of(name), results.space.get(name, ""), f"{100 * share:.1f} %"]
        for name, share in results.importance.items()
    ]
    return join(
        table(["parameter", "range", "importance"], rows, caption="How much each parameter mattered"),
        element(
            "p",
            "PED-ANOVA over finished trials: how far the values of the best tenth differ from those of all, in shares "
            "that add up to 100 %. It speaks of this range only, and with few trials it is a hint at most: two trials "
            "more may turn it around.",
            class_="note",
        ),
    )


def _cost(results: Results) -> Markup:
    final = results.final
    rows: list[list[Child]] = [
        [
            "search",
            str(len(results.trials)),
            f"{results.seconds:,.0f}",
            _duration(results.seconds),
            f"{results.images:,}",
        ]
    ]
    if final is not None:
        rows.append(
            ["final training", "1", f"{final['seconds']:,.0f}", _duration(final["seconds"]), f"{final['images']:,}"]
        )
        both = results.seconds + final["seconds"]
        rows.append(["together", "", f"{both:,.0f}", _duration(both), f"{results.images + final['images']:,}"])
    count = f"{results.count('done')} done, {results.count('pruned')} ended early, {results.count('failed')} failed"
    return join(
        table(["", "trainings", "seconds", "", "images trained on"], rows, caption="Time of training and images seen"),
        element("p", f"{count}. Seconds are added over machines, validation included.", class_="note"),
    )


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _protocol(results: Results) -> Markup:
    halves = results.protocol
    varied: list[list[Child]] = [[title_of(name), said] for name, said in results.space.items()]
    sets: list[list[Child]] = [
        [who, f"{halves[key]['classes']:,}", f"{halves[key]['images']:,}", halves["fingerprints"][key][:16]]
        for who, key in (("trains in the search", "train"), ("validates", "validation"))
    ]
    remarks = halves["remarks"]
    return join(
        element(
            "p",
            "During the search nothing but the training split can be loaded. Test images are first opened after the "
            "choice is written down, and once.",
        ),
        element(
            "div",
            table(["parameter", "range"], varied, caption="What is varied", numbers=False),
            table(["", "classes", "images", "fingerprint"], sets, caption="Training classes, in halves by their order"),
            class_="columns",
        ),
        element("ul", [element("li", remark) for remark in remarks], class_="remarks") if remarks else None,
        element(
            "p", f"Sampler: {results.sampler}, seed {results.seed}. Data: ", name_of(results.data), ".", class_="note"
        ),
    )
