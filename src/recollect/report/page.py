"""``write_report``: a self-contained HTML report of one or several runs.

It needs no network and has one script: a content security policy in the page allows style sheet and script by their hashes
and forbids everything else, so that nothing injected by a file name can run. The page also works without its script.
Reads as a table of contents; what each part shows is in ``tables.py``, ``galleries.py``, ``checks.py``, ``map.py`` and
``charts.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from recollect.common.errors import InputError, RecollectError
from recollect.common.files import make_folder_for, write_text
from recollect.config.automatic import is_pretrained
from recollect.report import charts, checks, galleries, results, tables
from recollect.report.map import BUDGET, Atlas, map_section
from recollect.report.markup import Child, Markup, check_replaceable, packaged, render
from recollect.report.results import LIMIT, ModelResult, ReportImages, Run, RunResults
from recollect.search.exact import Neighbours

logger = logging.getLogger(__name__)
GENERATOR = "recollect report"
_CLASSES_OFFERED = 2000  # names that the filter suggests


@dataclass(frozen=True)
class Comparison:
    """Everything evaluated on the same images, and a sample of these for pictures and pairwise checks.

    Attributes:
        images, models: of all test images. sample, sampled: of those in pictures and checks.
        neighbours, findings: neighbours in the sample, and what they and its pictures tell.
    """

    images: ReportImages
    models: list[ModelResult]
    sample: ReportImages
    sampled: list[ModelResult]
    neighbours: Neighbours
    findings: checks.Findings
    excluded: list[str]


def write_report(
    runs: Sequence[Path | str],
    out: Path | str | None = None,
    *,
    names: Sequence[str] | None = None,
    limit: int | None = LIMIT,
    split: str | None = None,
    root: Path | str | None = None,
    device: str | None = None,
    on_bad_image: str = "skip",
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
        device: where to embed them.
        on_bad_image: ``"error"`` stops at images that cannot be read, ``"skip"`` continues with a remark.
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
    read = [results.read_run(path) for path in runs]
    names = list(names) if names is not None else results.distinct_names(read)
    if len(names) != len(read):
        raise InputError(f"{len(names)} names for {len(read)} runs: give one each.")
    read = [replace(run, name=name) for run, name in zip(read, names, strict=True)]
    folder = read[0].folder.path
    path = Path(out) if out is not None else (folder if len(read) == 1 else folder.parent) / "report.html"
    check_target(path, overwrite)
    if csv is not None:
        check_replaceable(Path(csv), overwrite, ",".join(checks.COLUMNS), "a list of findings")
    place = None if root is None else str(root)
    cache: results.EvaluationCache = {}
    options: dict[str, Any] = {"split": split, "root": place, "device": device, "on_bad_image": on_bad_image}
    remarks = [f"{run.name}: {remark}" if len(read) > 1 else remark for run in read for remark in run.remarks]
    evaluated: list[tuple[Run, RunResults]] = []
    for run in read:
        others = [other for other in read if other is not run]
        try:
            evaluated.append((run, results.evaluate_run(run, cache=cache, other_runs=others, **options)))
        except RecollectError as error:
            if root is not None:
                raise
            remarks.append(f"No test images for {run.name}: {error}")
    compared = _compare(evaluated, len(read) == 1, remarks, limit, place) if evaluated else None
    remarks = list(dict.fromkeys(remarks))
    for remark in remarks:
        logger.info(remark)
    if csv is not None:
        if compared is None:
            raise InputError(f"there is nothing to list in {csv}: no images could be compared.")
        checks.write_findings(Path(csv), compared.findings, compared.sample)
        logger.info(f"list       {csv}")
    write_text(path, _page(read, compared, remarks, title, introduction))
    logger.info(f"report     {path.stat().st_size / 1e6:.1f} MB")
    return path


def check_target(path: Path, overwrite: bool, generator: str = GENERATOR) -> None:
    """Check before the work that a page can be written: the file is new or written by recollect, and writable.

    Raises:
        InputError: another file exists. StorageError: it cannot be written.
    """
    check_replaceable(path, overwrite, f'content="{generator} ', f"a page of {generator!r}")
    make_folder_for(path)


def _compare(
    evaluated: Sequence[tuple[Run, RunResults]], single: bool, remarks: list[str], limit: int | None, root: str | None
) -> Comparison | None:
    """Everything that can be compared: the common starting weights, if any, and every run on the same images."""
    for run, one in evaluated:
        # A remark about all runs appears once.
        shared = {remark for remark in one.remarks if all(remark in other.remarks for _, other in evaluated)}
        remarks += [remark if single or remark in shared else f"{run.name}: {remark}" for remark in one.remarks]
    images = next((one.images for _, one in evaluated if one.images.images is not None), evaluated[0][1].images)
    same = [(run, one) for run, one in evaluated if one.images.same_as(images)]
    for run, one in evaluated:
        if not one.images.same_as(images):
            data = one.images.data
            remarks.append(f"{run.name} was tested on other images ({data}), so its queries are not compared.")
    first_run, first = same[0]
    models = []
    if len({one.init_key for _, one in same}) == 1 and first.init is not None:
        models.append(first.init)
    trained = [one.trained for _, one in same if one.trained is not None]
    models += [replace(model, name=results.AFTER) for model in trained] if single else trained
    if not models:
        return None
    places = results.choose(images.labels, limit)
    sample = images.subset(places)
    sampled = [one.among(places, sample.labels) for one in models]
    primary = results.primary_of(sampled)
    ranks = primary.evaluation.values("first_rank")
    nearest = checks.neighbours_of_all(primary.vectors)
    neighbours = galleries.in_rank_order(nearest, np.arange(len(ranks)), sample.labels, ranks)
    most = min(limit or checks.MOST_READ, checks.MOST_READ)
    # A report on images that were trained on does not compare them with themselves.
    itself = primary.seen or images.split == "train"
    training, trained_on = None, 0
    if images.images is not None and not itself:
        training, trained_on = results.training_images(first_run, most, root)
    start, config = next((one for one in sampled if not one.trained), None), first_run.config
    pretrained, few = config is not None and is_pretrained(config.model), len(places) <= results.MOST_FOR_MAP
    before = checks.neighbours_of_all(start.vectors, 1) if start is not None and pretrained and few else None
    copies = [] if itself else np.flatnonzero(np.isin(places, first.copies)).tolist()
    findings = checks.find_all(
        primary.vectors, sample, neighbours, training, trained_on=trained_on, copies=copies, most=most, before=before
    )
    excluded = list(dict.fromkeys(reason for _, one in same for reason in one.excluded))
    return Comparison(images, models, sample, sampled, neighbours, findings, excluded)


def _page(
    runs: Sequence[Run],
    compared: Comparison | None,
    remarks: Sequence[str],
    title: str | None,
    introduction: str | None,
) -> str:
    models, images = ([], None) if compared is None else (compared.models, compared.images)
    means = results.mean_over_seeds(runs, models)
    apart = [run for run in runs if len(runs) > 1 and run.name not in {one.name for one in models}]
    heading = title or _heading(runs, bool(apart))
    parts: list[tuple[str, str, Child]] = [("results", "Results", tables.results(runs, models, means, images))]
    sample = None
    atlases: list[Atlas] = []
    if compared is not None and images is not None:
        sample, findings, primary = compared.sample, compared.findings, results.primary_of(compared.sampled)
        atlas, training = atlases = [Atlas(sample.images), Atlas(findings.training_images, "t", BUDGET // 4)]
        twins, confusions = findings.twins(), galleries.confused_pairs(sample.labels, compared.neighbours)
        of = primary.name if len(models) > 2 else None
        pictured = results.one_per_setting(runs, compared.sampled)
        failures = galleries.failures_section(confusions, primary, sample, atlas, twins, of)
        to_check = checks.data_section(findings, compared.neighbours, sample, atlas, training, of)
        by_class = tables.class_section(results.one_per_setting(runs, models), results.primary_of(models), images)
        parts += [
            ("failures", "Where it fails", failures),
            ("data", "Data to check", to_check),
            ("map", "Map", map_section(pictured, sample, findings.small)),
            ("gallery", "Gallery", galleries.gallery_section(pictured, primary, sample, atlas, twins)),
            ("classes", "Classes", by_class),
            ("similarities", "Similarities", charts.similarity_charts(pictured, sample)),
        ]
    parts += [
        ("curves", "Curves", charts.curves(runs)),
        ("speed", "Speed", charts.speed(runs)),
        ("settings", "Settings", tables.settings(runs)),
    ]
    excluded = [] if compared is None else compared.excluded
    classes = [] if images is None else sorted({images.class_names[label] for label in images.labels.tolist()})
    body = render(
        "report.html",
        heading=heading,
        introduction=introduction,
        headline=tables.headline(means),
        verdict=tables.verdict_section(runs, means, images, excluded, apart),
        runs=runs,
        remarks=remarks,
        parts=parts,
        images=images,
        sample=sample,
    )
    return document(
        heading,
        body,
        [(key, name) for key, name, _ in parts],
        tools=None if images is None else render("filter.html", names=classes[:_CLASSES_OFFERED]),
        style="\n".join(filter(None, (atlas.style() for atlas in atlases))),
        script=packaged("page.js"),
    )


def _heading(runs: Sequence[Run], apart: bool) -> str:
    """The names of one or two settings; those of more are just below it. ``apart``: not all are compared."""
    names = [name if len(group) == 1 else f"{name} ({len(group)} seeds)" for name, group in results.settings_of(runs)]
    if len(names) == 1:
        return f"Report of {names[0]}"
    what = "Report" if apart else "Comparison"
    return f"{what} of {names[0]} and {names[1]}" if len(names) == 2 else f"{what} of {len(names)} settings"


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
    return render(
        "document.html",
        title=title,
        body=body,
        contents=contents,
        generator=generator,
        tools=tools,
        style=Markup(packaged("style.css") + style),
        script=None if script is None else Markup(script),
    )
