"""``report.html`` of a study: the chosen trial, all trials, the importance of each parameter, the cost, the final test.

Built from ``StudyResults`` alone, with the elements and charts of ``report``: no script, no network, every text escaped.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from recollect._version import __version__
from recollect.common.files import write_text
from recollect.common.text import number_of
from recollect.config.recipes import published_tests
from recollect.evaluation import metric_name
from recollect.report.markup import Child, Markup, element, join, name_of, table
from recollect.report.page import check_target, document
from recollect.tuning import study_page_parts
from recollect.tuning.results import StudyResults
from recollect.tuning.study_page_parts import percent, shown, title_of

GENERATOR = "recollect tune"


def write_page(path: Path, results: StudyResults) -> Path:
    """Write the page; an earlier page of a study is overwritten, any other file is not."""
    check_target(path, False, GENERATOR)
    heading = f"Settings for {results.data if results.recipe == 'folder' else results.recipe}"
    parts: list[tuple[str, str, Child]] = [
        ("result", "Result", _result(results)),
        ("trials", "Trials", study_page_parts.trials(results)),
        ("parameters", "Parameters", study_page_parts.parameters(results)),
        ("cost", "Cost", study_page_parts.cost(results)),
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


def _today() -> str:
    return f"{datetime.now():%-d %B %Y}"


def _introduction(results: StudyResults) -> str:
    halves = results.protocol
    return (
        f"{len(results.trials)} settings were each trained on the first half of the training classes "
        f"({halves['train']['classes']:,}) and validated on the second ({halves['validation']['classes']:,}). The one with "
        "the best validation is then trained on all of them and tested once."
    )


def _state(results: StudyResults) -> str:
    open_ = results.count("running", "queued")
    if open_:
        return f"The search is running: {'1 trial is' if open_ == 1 else f'{open_} trials are'} not done."
    return "The study is closed: it has been tested." if results.final else "The final training is not done yet."


def _tiles(results: StudyResults) -> Markup | None:
    best = results.best
    if best is None:
        return None
    tiles = [("validation", percent(best.value), f"{results.select} of trial {best.number:04d}, classes held out")]
    for name, metrics in (results.final or {}).get("metrics", {}).items():
        first = next((key for key in (results.select, "r@1") if key in metrics), None)
        if first is not None:
            tiles.append(("test", percent(metrics[first]), f"{first} on {_set_name(results, name)}, measured once"))
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


def _set_name(results: StudyResults, name: str) -> str:
    """A test set's name on the page: ``folder/test`` with the name of the folder."""
    kind, _, split = name.partition("/")
    return f"{results.data}/{split}" if kind == "folder" else name


def _result(results: StudyResults) -> Markup:
    best = results.best
    if best is None:
        return element("p", "No trial has finished yet.")
    rows: list[list[Child]] = [
        [element("code", key), shown(value)] for key, value in best.settings.items() if value is not None
    ]
    chosen = table(
        ["setting", "value"],
        rows,
        caption=f"Settings of trial {best.number:04d}, the highest validation {results.select}",
        numbers=False,
    )
    return join(element("div", chosen, _test(results), class_="columns"), _rule(results))


def _test(results: StudyResults) -> Markup | None:
    if results.final is None:
        return element("p", "Not tested yet.")
    published = published_tests(results.protocol["published"])
    tables = []
    for name, metrics in results.final["metrics"].items():
        paper = published.get(name) or published.get("") or {}
        rows: list[list[Child]] = [
            [metric_name(key), f"{100 * value:.2f}", *([f"{paper[key]:.1f}" if key in paper else "–"] if paper else [])]
            for key, value in metrics.items()
            if key != "first_rank"
        ]
        head = ["metric, in %", "here", *(["paper"] if paper else [])]
        tables.append(
            table(
                head,
                rows,
                caption=join("Test on ", name_of(_set_name(results, name)), ", once, after the choice was made"),
            )
        )
    return join(*tables) if tables else element("p", "This data set has no test split.")


def _rule(results: StudyResults) -> Markup | None:
    final, best = results.final, results.best
    if best is None:
        return None
    text = (
        f"Trial {best.number:04d} was best at epoch {best.best_epoch:g}. The final training uses the same number of epochs, on "
        "all training classes, with the milestones before that epoch; its last weights are kept."
    )
    if final is not None:
        text += (
            f" That was {number_of(final['epochs'], 'epoch')}, {number_of(final['steps'], 'step')}: an ordinary run in "
            f"{final['folder']}."
        )
        text += " Validation and test use different classes and numbers of images, so their values are not comparable."
    return element("p", text, class_="note")


def _protocol(results: StudyResults) -> Markup:
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
            "During the search only the training split can be loaded. Test images are opened once, after the choice "
            "has been recorded.",
        ),
        element(
            "div",
            table(["parameter", "range"], varied, caption="Search space", numbers=False),
            table(["", "classes", "images", "fingerprint"], sets, caption="Training classes, in halves by their order"),
            class_="columns",
        ),
        element("ul", [element("li", remark) for remark in remarks], class_="remarks") if remarks else None,
        element(
            "p", f"Sampler: {results.sampler}, seed {results.seed}. Data: ", name_of(results.data), ".", class_="note"
        ),
    )
