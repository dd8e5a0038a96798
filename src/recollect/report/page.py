"""``write_report``: one or several runs to one HTML file that needs nothing else.

No script, no network: a policy in the page itself forbids both, so that nothing a file name smuggles in could act.
Reads as a table of contents; what each part shows is in ``sections.py`` and ``gallery.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import Any

from recollect._version import __version__
from recollect.common.errors import InputError, RecollectError
from recollect.common.files import write_text
from recollect.report import gallery, plots, sections
from recollect.report.markup import Child, Markup, element, join, name_of
from recollect.report.measured import LIMIT, Contender, Measured, measure
from recollect.report.runs import Run, distinct_names, read_run
from recollect.report.shown_images import Shown
from recollect.report.thumbnails import Pictures

logger = logging.getLogger(__name__)
GENERATOR = "recollect report"
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def write_report(
    runs: Sequence[Path | str],
    out: Path | str | None = None,
    *,
    names: Sequence[str] | None = None,
    limit: int | None = LIMIT,
    split: str | None = None,
    root: Path | str | None = None,
    device: str | None = None,
    skip_bad: bool = True,
    overwrite: bool = False,
    title: str | None = None,
    introduction: str | None = None,
) -> Path:
    """Write the report of a run, or of several compared.

    Args:
        runs: run folders; the others are compared with the first.
        out: the file; by default ``report.html`` in the run, or beside the first of several.
        names: what to call the runs; their folders' names by default.
        limit: test images to embed at most, None for all. split: of which part of the data.
        root: where the images of all runs are now; by default where each run found them.
        device: where to embed them. skip_bad: leave out those that cannot be read, with a remark.
        overwrite: replace a file that is no report. An earlier report is always replaced.
        title: of the page. introduction: a paragraph below it.

    Returns:
        The file.

    Raises:
        InputError: no run given, or a file in the way. DataError: a folder that is no run.
    """
    if not runs:
        raise InputError("name at least one run folder.")
    read = [read_run(path) for path in runs]
    chosen = list(names) if names is not None else distinct_names(read)
    if len(chosen) != len(read):
        raise InputError(f"{len(chosen)} names for {len(read)} runs: give one each.")
    read = [replace(run, name=name) for run, name in zip(read, chosen, strict=True)]
    folder = read[0].folder.path
    path = Path(out) if out is not None else (folder if len(read) == 1 else folder.parent) / "report.html"
    check_target(path, overwrite)
    place = None if root is None else str(root)
    measured = [_measured(run, limit=limit, split=split, root=place, device=device, skip_bad=skip_bad) for run in read]
    shown, contenders, remarks = _side_by_side(read, measured)
    for remark in remarks:
        logger.info(remark)
    write_text(path, _page(read, shown, contenders, remarks, title, introduction))
    return path


def check_target(path: Path, overwrite: bool, generator: str = GENERATOR) -> None:
    """Refuse to replace a file that recollect did not write.

    Raises:
        InputError: there is one.
    """
    if overwrite or not path.exists():
        return
    if path.is_file():
        with path.open("rb") as file:
            if f'content="{generator} '.encode() in file.read(4096):
                return
    raise InputError(f"{path} exists and is no page of {generator!r}: choose another --out, or allow it: --overwrite.")


def _measured(run: Run, **options: Any) -> Measured | str:
    """What the run's weights are worth, or why that is not known."""
    try:
        return measure(run, **options)
    except RecollectError as error:
        return f"No images to search in for {run.name}: {error}"


def _side_by_side(
    runs: Sequence[Run], measured: Sequence[Measured | str]
) -> tuple[Shown | None, list[Contender], list[str]]:
    """Everything that can be compared: what all started from, if it is the same, and every run on the same images."""
    remarks = [f"{run.name}: {remark}" if len(runs) > 1 else remark for run in runs for remark in run.remarks]
    known: list[tuple[Run, Measured]] = []
    for run, found in zip(runs, measured, strict=True):
        if isinstance(found, str):
            remarks.append(found)
            continue
        remarks += [f"{run.name}: {remark}" if len(runs) > 1 else remark for remark in found.remarks]
        known.append((run, found))
    if not known:
        return None, [], list(dict.fromkeys(remarks))
    shown = next((found.shown for _, found in known if found.shown.images is not None), known[0][1].shown)
    same = [(run, found) for run, found in known if found.shown.same_as(shown)]
    for run, found in known:
        if not found.shown.same_as(shown):
            remarks.append(
                f"{run.name} was tested on other images ({found.shown.data}), so its queries are not compared."
            )
    contenders = []
    if len({found.init_key for _, found in same}) == 1 and same[0][1].init is not None:
        contenders.append(same[0][1].init)
    contenders += [found.trained for _, found in same if found.trained is not None]
    return shown, contenders, list(dict.fromkeys(remarks))


def _page(
    runs: Sequence[Run],
    shown: Shown | None,
    contenders: Sequence[Contender],
    remarks: Sequence[str],
    title: str | None,
    introduction: str | None,
) -> str:
    heading = title or (
        "Report of " + runs[0].name if len(runs) == 1 else "Comparison of " + ", ".join(r.name for r in runs)
    )
    parts: list[tuple[str, str, Child]] = [("results", "Results", sections.results(runs, contenders, shown))]
    parts.append(("curves", "Curves", plots.curves(runs)))
    if shown is not None and contenders:
        pictures = Pictures(shown.images, shown.names)
        parts.append(("similarities", "Similarities", plots.similarity_charts(contenders, shown)))
        parts.append(("gallery", "Gallery", _gallery(contenders, _looked_at(contenders), shown, pictures)))
        parts.append(("classes", "Classes", sections.class_section(contenders, _looked_at(contenders), shown)))
    parts.append(("speed", "Speed and memory", plots.speed(runs)))
    parts.append(("settings", "Settings", sections.settings(runs)))
    states = element(
        "p", f"{_states(runs)} Written by recollect {__version__} on {datetime.now():%-d %B %Y}.", class_="note"
    )
    body = join(
        element("h1", heading),
        element("p", introduction, class_="introduction") if introduction else None,
        sections.headline(contenders),
        states,
        element("ul", [element("li", remark) for remark in remarks], class_="remarks") if remarks else None,
        [element("section", element("h2", name), content, id=key, aria_label=name) for key, name, content in parts],
    )
    return document(heading, body, [(key, name) for key, name, _ in parts])


def _states(runs: Sequence[Run]) -> str:
    if len(runs) == 1:
        return f"This run is {runs[0].status}."
    if all(run.finished for run in runs):
        return "All runs are finished."
    return " ".join(f"{run.name} is {run.status}." for run in runs)


def _looked_at(contenders: Sequence[Contender]) -> Contender:
    """The one that is looked at alone: the first run, or what it started from when there is nothing else."""
    return contenders[0] if len(contenders) == 1 or contenders[0].name != "init" else contenders[1]


def _gallery(contenders: Sequence[Contender], looked_at: Contender, shown: Shown, pictures: Pictures) -> Markup:
    """The queries worth looking at."""
    if not pictures.at_hand:
        return element("p", "No gallery: the images are not at hand.")
    if len(shown.names) < 2:
        return element("p", "No gallery: a single image has nothing to be found among.")
    pairs = [(contenders[0], looked_at)] if contenders[0] is not looked_at else []
    pairs += [(looked_at, other) for other in contenders if other not in (contenders[0], looked_at)]
    parts: list[Markup] = [
        element(
            "p",
            "Each row is a query with what was found for it, most similar first; the number is the similarity. ",
            element("span", "✓", class_="mark right-mark"),
            " with a full frame: of the query's class. ",
            element("span", "✗", class_="mark wrong-mark"),
            " with a dashed frame: of another.",
        )
    ]

    def add(title: Child, queries: list[int], rows: Sequence[Contender], otherwise: str) -> None:
        content = gallery.rows_of_results(queries, rows, shown, pictures) if queries else element("p", otherwise)
        parts.append(element("h3", title))
        parts.append(content)

    for before, after in pairs:
        arrow = join(" from ", name_of(before.name), " to ", name_of(after.name))
        improved = gallery.changed(before.evaluation, after.evaluation)
        add(join("Improved", arrow), improved, [before, after], "No query found its class earlier.")
        lost = gallery.changed(after.evaluation, before.evaluation)
        add(join("Lost", arrow), lost, [before, after], "No query found its class later.")
    best, worst = gallery.best(looked_at.evaluation), gallery.worst(looked_at.evaluation)
    add(join("Best queries of ", name_of(looked_at.name)), best, [looked_at], "No query has a right answer first.")
    add(join("Worst queries of ", name_of(looked_at.name)), worst, [looked_at], "Every query has a right answer first.")
    return join(*parts)


def document(title: str, body: Markup, contents: Sequence[tuple[str, str]] = (), generator: str = GENERATOR) -> str:
    """A whole HTML file around ``body``."""
    style = resources.files("recollect.report").joinpath("style.css").read_text(encoding="utf-8")
    links = element("ul", [element("li", element("a", name, href=f"#{key}")) for key, name in contents])
    return "<!DOCTYPE html>\n" + element(
        "html",
        element(
            "head",
            element("meta", charset="utf-8"),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            Markup(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
            element("meta", name="generator", content=f"{generator} {__version__}"),
            element("meta", name="color-scheme", content="light dark"),
            element("title", title),
            element("style", Markup(style)),
        ),
        element(
            "body",
            element("a", "Skip to the content", href="#content", class_="skip"),
            element("nav", links, aria_label="Contents") if contents else None,
            element("main", body, id="content", tabindex="-1"),
        ),
        lang="en",
    )
