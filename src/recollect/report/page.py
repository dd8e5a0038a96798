"""``write_report``: a self-contained HTML report of one or several runs.

It needs no network and has one script: a content security policy in the page allows style sheet and script by their hashes
and forbids everything else, so that nothing injected by a file name can run. The page also works without its script.
Reads as a table of contents; what each part shows is in ``verdict_view.py``, ``outcome_tables.py``, ``failures.py``,
``data_checks.py``, ``map_view.py``, ``gallery.py``, ``plots.py`` and ``sections.py``.
"""

from __future__ import annotations

import base64
import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from recollect._version import __version__
from recollect.common.errors import InputError, RecollectError
from recollect.common.files import make_folder_for, write_text
from recollect.config.automatic import is_pretrained
from recollect.report import gallery, outcome_tables, plots, sections
from recollect.report.atlas import BUDGET, Atlas
from recollect.report.data_checks import data_section
from recollect.report.failures import failures_section
from recollect.report.findings import MOST_READ, Findings, check_list, find_all, write_findings
from recollect.report.map_view import map_section
from recollect.report.markup import Child, Markup, element, join
from recollect.report.measured import (
    AFTER,
    LIMIT,
    MOST_FOR_MAP,
    Contender,
    Measured,
    Results,
    choose,
    measure,
    training_images,
)
from recollect.report.neighbours import confused_pairs, in_rank_order, neighbours_of_all
from recollect.report.runs import Run, distinct_names, read_run
from recollect.report.seeds import mean_over_seeds, one_per_setting, settings_of
from recollect.report.shown_images import Shown
from recollect.report.verdict_view import verdict_section
from recollect.search.exact import Neighbours

logger = logging.getLogger(__name__)
GENERATOR = "recollect report"
_CLASSES_OFFERED = 2000  # names that the filter suggests


@dataclass(frozen=True)
class Compared:
    """Everything evaluated on the same images, and a sample of these for pictures and pairwise checks.

    Attributes:
        shown, contenders: of all test images. sample, sampled: of those in pictures and checks.
        found, findings: neighbours in the sample, and what they and its pictures tell.
    """

    shown: Shown
    contenders: list[Contender]
    sample: Shown
    sampled: list[Contender]
    found: Neighbours
    findings: Findings
    left_out: list[str]


def _looked_at(contenders: Sequence[Contender]) -> Contender:
    """The one whose results are shown in detail."""
    return next((one for one in contenders if one.trained), contenders[0])


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
    csv: Path | str | None = None,
    title: str | None = None,
    introduction: str | None = None,
) -> Path:
    """Write the report of a run, or of several compared.

    Args:
        runs: run folders; the others are compared with the first.
        out: the file; by default ``report.html`` in the run, or next to the first of several.
        names: names of the runs; their folders' names by default.
        limit: maximum number of test images in galleries, the map and pairwise checks, None for all; the results are always
            over the complete test set. split: the split to use.
        root: new folder of the images of all runs; by default the recorded one of each run.
        device: where to embed them. skip_bad: skip those that cannot be read, with a remark.
        overwrite: overwrite a file that recollect did not write. An earlier report is always overwritten.
        csv: also write possible problems in the data to this file, one row per image.
        title: title of the page. introduction: a paragraph below it.

    Returns:
        The file.

    Raises:
        InputError: no run is given, another file exists, or there is nothing to list in ``csv``.
        DataError: a folder is not a run.

    Example:
        >>> write_report(["run"]).name
        'report.html'
    """
    if not runs:
        raise InputError("give at least one run folder.")
    read = [read_run(path) for path in runs]
    chosen = list(names) if names is not None else distinct_names(read)
    if len(chosen) != len(read):
        raise InputError(f"{len(chosen)} names for {len(read)} runs: give one each.")
    read = [replace(run, name=name) for run, name in zip(read, chosen, strict=True)]
    folder = read[0].folder.path
    path = Path(out) if out is not None else (folder if len(read) == 1 else folder.parent) / "report.html"
    check_target(path, overwrite)
    if csv is not None:
        check_list(Path(csv), overwrite)
    place = None if root is None else str(root)
    results: Results = {}
    options: dict[str, Any] = {"split": split, "root": place, "device": device, "skip_bad": skip_bad}
    measured = [
        _measured(run, results=results, beside=[other for other in read if other is not run], **options) for run in read
    ]
    remarks = [f"{run.name}: {remark}" if len(read) > 1 else remark for run in read for remark in run.remarks]
    compared = _side_by_side(read, measured, remarks, limit, place)
    remarks = list(dict.fromkeys(remarks))
    for remark in remarks:
        logger.info(remark)
    if csv is not None:
        if compared is None:
            raise InputError(f"there is nothing to list in {csv}: no images could be compared.")
        sample = compared.sample
        listed = (sample.names, sample.labels, sample.class_names)
        logger.info(f"list       {write_findings(Path(csv), compared.findings, *listed, overwrite=overwrite)}")
    write_text(path, _page(read, compared, remarks, title, introduction))
    logger.info(f"report     {path.stat().st_size / 1e6:.1f} MB")
    return path


def check_target(path: Path, overwrite: bool, generator: str = GENERATOR) -> None:
    """Check before the work that a page can be written: the file is new or written by recollect, and writable.

    Raises:
        InputError: another file exists. StorageError: it cannot be written.
    """
    if path.exists() and not overwrite:
        ours = False
        if path.is_file():
            with path.open("rb") as file:
                ours = f'content="{generator} '.encode() in file.read(4096)
        if not ours:
            raise InputError(
                f"{path} exists and is not a page of {generator!r}: choose another --out, or use --overwrite."
            )
    make_folder_for(path)


def _measured(run: Run, **options: Any) -> Measured | str:
    """The run's results, or why there are none."""
    try:
        return measure(run, **options)
    except RecollectError as error:
        if options.get("root") is not None:
            raise
        return f"No test images for {run.name}: {error}"


def _side_by_side(
    runs: Sequence[Run],
    measured: Sequence[Measured | str],
    remarks: list[str],
    limit: int | None,
    root: str | None,
) -> Compared | None:
    """Everything that can be compared: the common starting weights, if any, and every run on the same images."""
    known: list[tuple[Run, Measured]] = []
    for run, found in zip(runs, measured, strict=True):
        if isinstance(found, str):
            remarks.append(found)
            continue
        known.append((run, found))
    for run, found in known:
        # What is true of all is said once.
        shared = {remark for remark in found.remarks if all(remark in other.remarks for _, other in known)}
        alone = len(runs) == 1
        remarks += [remark if alone or remark in shared else f"{run.name}: {remark}" for remark in found.remarks]
    if not known:
        return None
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
    trained = [found.trained for _, found in same if found.trained is not None]
    contenders += trained if len(runs) > 1 else [replace(one, name=AFTER) for one in trained]
    if not contenders:
        return None
    places = choose(shown.labels, limit)
    sample = shown.subset(places)
    sampled = [one.among(places, sample.labels) for one in contenders]
    looked_at = _looked_at(sampled)
    ranks = looked_at.evaluation.values("first_rank")
    neighbours = in_rank_order(neighbours_of_all(looked_at.vectors), np.arange(len(ranks)), sample.labels, ranks)
    most = min(limit or MOST_READ, MOST_READ)
    # A report on images that were trained on does not compare them with themselves.
    itself = looked_at.seen or shown.split == "train"
    training, trained_on = None, 0
    if shown.images is not None and not itself:
        training, trained_on = training_images(same[0][0], most, root)
    start = next((one for one in sampled if not one.trained), None)
    config = same[0][0].config
    knowing = (
        start is not None and len(sample.names) <= MOST_FOR_MAP and config is not None and is_pretrained(config.model)
    )
    findings = find_all(
        looked_at.vectors,
        sample.labels,
        sample.class_names,
        neighbours,
        sample.images,
        training,
        trained_on=trained_on,
        copies=[] if itself else np.flatnonzero(np.isin(places, same[0][1].copies)).tolist(),
        most=most,
        before=neighbours_of_all(start.vectors, 1) if start is not None and knowing else None,
    )
    left_out = list(dict.fromkeys(reason for _, found in same for reason in found.left_out))
    return Compared(shown, contenders, sample, sampled, neighbours, findings, left_out)


def _page(
    runs: Sequence[Run],
    compared: Compared | None,
    remarks: Sequence[str],
    title: str | None,
    introduction: str | None,
) -> str:
    contenders = [] if compared is None else compared.contenders
    together = {one.name for one in contenders}
    apart = [run for run in runs if len(runs) > 1 and run.name not in together]
    heading = title or _heading(runs, bool(apart))
    shown = None if compared is None else compared.shown
    means = mean_over_seeds(runs, contenders)
    results = outcome_tables.results(runs, contenders, means, shown)
    parts: list[tuple[str, str, Child]] = [("results", "Results", results)]
    atlases: list[Atlas] = []
    if compared is not None and shown is not None:
        sample, findings, looked_at = compared.sample, compared.findings, _looked_at(compared.sampled)
        names = [sample.class_names[label] for label in sample.labels.tolist()]
        atlas = Atlas(sample.images, sample.names, names, "a", BUDGET)
        training = _training_atlas(findings)
        atlases = [atlas] if training is None else [atlas, training]
        twins = findings.twins()
        confusions = confused_pairs(sample.labels, compared.found)
        of = looked_at.name if len(contenders) > 2 else None
        pictured = one_per_setting(runs, compared.sampled)
        classes = sections.class_section(one_per_setting(runs, contenders), _looked_at(contenders), shown)
        note = _of_sample(len(sample.names), len(shown.names))
        parts += [
            (
                "failures",
                "Where it fails",
                join(note, failures_section(confusions, looked_at, sample, atlas, twins, of)),
            ),
            ("data", "Data to check", join(note, data_section(findings, compared.found, sample, atlas, training, of))),
            ("map", "Map", join(note, map_section(pictured, sample, findings.small))),
            ("gallery", "Gallery", join(note, gallery.gallery_section(pictured, looked_at, sample, atlas, twins))),
            ("classes", "Classes", classes),
            ("similarities", "Similarities", join(note, plots.similarity_charts(pictured, sample))),
        ]
    parts.append(("curves", "Curves", plots.curves(runs)))
    parts.append(("speed", "Speed", plots.speed(runs)))
    parts.append(("settings", "Settings", sections.settings(runs)))
    states = element(
        "p", f"{_states(runs)} Written by recollect {__version__} on {datetime.now():%-d %B %Y}.", class_="note"
    )
    body = join(
        element("h1", heading),
        element("p", introduction, class_="introduction") if introduction else None,
        outcome_tables.headline(means),
        verdict_section(runs, means, shown, [] if compared is None else compared.left_out, apart),
        states,
        element("ul", [element("li", _on_page(remark)) for remark in remarks], class_="remarks") if remarks else None,
        [element("section", element("h2", name), content, id=key, aria_label=name) for key, name, content in parts],
    )
    return document(
        heading,
        body,
        [(key, name) for key, name, _ in parts],
        tools=None if shown is None else _filter(shown),
        style="\n".join(atlas.style() for atlas in atlases),
        script=packaged("page.js"),
    )


def _of_sample(images: int, whole: int) -> Markup | None:
    """That a part of the page is about a sample; nothing if it has all images."""
    if images == whole:
        return None
    said = f"This part uses a sample: {images:,} of the {whole:,} images, whole classes where possible. A search among fewer"
    return element("p", f"{said} images is easier than the one of the results above. All: --images 0.", class_="note")


def _on_page(remark: str) -> str:
    """A remark without what sets a warning apart in a terminal: the page sets all of them apart."""
    return remark.replace("WARNING: ", "", 1)


def _heading(runs: Sequence[Run], apart: bool) -> str:
    """The names of one or two settings; those of more are just below it. ``apart``: not all are compared."""
    names = [name if len(group) == 1 else f"{name} ({len(group)} seeds)" for name, group in settings_of(runs)]
    if len(names) == 1:
        return f"Report of {names[0]}"
    what = "Report" if apart else "Comparison"
    return f"{what} of {names[0]} and {names[1]}" if len(names) == 2 else f"{what} of {len(names)} settings"


def _training_atlas(findings: Findings) -> Atlas | None:
    trained = findings.training_images
    if trained is None:
        return None
    names = [trained.class_names[label] for label in trained.labels.tolist()]
    return Atlas(trained, trained.names, names, "t", BUDGET // 4)


def _states(runs: Sequence[Run]) -> str:
    if len(runs) == 1:
        return f"This run is {runs[0].status}."
    if all(run.finished for run in runs):
        return "All runs are finished."
    return " ".join(f"{run.name} is {run.status}." for run in runs)


def _filter(shown: Shown) -> Markup:
    """A field that filters rows by class; hidden without the script."""
    offered = sorted({shown.class_names[label] for label in shown.labels.tolist()})[:_CLASSES_OFFERED]
    field = element("input", id="filter", type="search", list="offered", placeholder="class", autocomplete="off")
    return element(
        "form",
        element("label", "Only class ", field),
        element("datalist", [element("option", value=name) for name in offered], id="offered"),
        element("output", id="filtered", aria_live="polite"),
        class_="filter",
        role="search",
        hidden=True,
    )


def packaged(name: str) -> str:
    """A file of this package as text."""
    return resources.files("recollect.report").joinpath(name).read_text(encoding="utf-8")


def document(
    title: str,
    body: Markup,
    contents: Sequence[tuple[str, str]] = (),
    generator: str = GENERATOR,
    *,
    tools: Markup | None = None,
    style: str = "",
    script: str | None = None,
) -> str:
    """A complete HTML file around ``body``.

    Args:
        title: of the page. contents: ids and names of its sections, for the bar on top.
        generator: which command wrote it.
        tools: next to the contents. style: rules besides the package's own. script: the page's only script.
    """
    rules = packaged("style.css") + style
    policy = f"default-src 'none'; img-src data:; style-src '{_digest(rules)}'"
    policy += "" if script is None else f"; script-src '{_digest(script)}'"
    links = element("ul", [element("li", element("a", name, href=f"#{key}")) for key, name in contents])
    return "<!DOCTYPE html>\n" + element(
        "html",
        element(
            "head",
            element("meta", charset="utf-8"),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
            element("meta", name="generator", content=f"{generator} {__version__}"),
            element("meta", name="color-scheme", content="light dark"),
            element("title", title),
            element("style", Markup(rules)),
        ),
        element(
            "body",
            element("a", "Skip to the content", href="#content", class_="skip"),
            element("nav", links, tools, aria_label="Contents") if contents else None,
            element("main", body, id="content", tabindex="-1"),
            None if script is None else element("script", Markup(script)),
        ),
        lang="en",
    )


def _digest(text: str) -> str:
    """A text's name in a content security policy."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}"
