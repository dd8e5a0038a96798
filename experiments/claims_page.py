"""The page of a study: ``README.md`` with figures, ``results.csv`` and ``runs.jsonl`` next to it.

Everything is computed from the run folders, so the page always agrees with them. No path of this machine is
written: runs are named as in ``recollect.studies.protocol``. A claim's figure has the measured cells with error bars and, if
the paper prints its numbers, those beside them: numbers along an axis (batch sizes, τ1) as curves over a logarithmic axis,
names (losses, sets of k) one below the other, so that long ones are readable.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import stdev
from typing import Any, Literal

import matplotlib
from matplotlib.figure import Figure

from experiments.claims import Claim, Contrast
from recollect._version import __version__
from recollect.common.errors import ConfigError
from recollect.common.files import atomic_write, write_text
from recollect.common.reading import read_bytes, read_json, sha256
from recollect.config.resolve import as_mapping
from recollect.studies.protocol import Cell, Matrix, best_of, outcome_of
from recollect.studies.summary import CellResult, collect, decided, in_points
from recollect.training.run import RunFolder

RECORD = "record.json"
"""In the folder of a run that was imported: its line in the ``runs.jsonl`` of an earlier page."""
_COLOURS = ("#1d4ed8", "#b45309", "#047857", "#7c3aed")
_MARKS = ("o", "s", "^", "D")
_TITLE = "# The paper's claims, measured here"


@dataclass(frozen=True)
class Judged:
    """A comparison with its differences by seed, in points."""

    contrast: Contrast
    differences: tuple[float, ...]
    two_versions: bool = False
    """Its runs were made by more than one version of recollect."""

    @property
    def verdict(self) -> Literal["holds here", "does not hold here", "undecided", "not run"]:
        """Whether the differences are above zero."""
        if not self.differences:
            return "not run"
        if not decided(self.differences):
            return "undecided"
        return "holds here" if sum(self.differences) > 0 else "does not hold here"

    @property
    def words(self) -> str:
        """The verdict in plain words."""
        words: str = self.verdict
        if not self.contrast.claimed and decided(self.differences):
            words = "yes, here" if words == "holds here" else "no: the other way round here"
        return f"{words} (runs of two versions)" if self.two_versions and self.differences else words


def judge(contrast: Contrast, results: dict[str, CellResult], versions: dict[str, set[str]]) -> Judged:
    """A comparison over the seeds for which all its cells have its metric.

    Args:
        contrast: the comparison. results: of every cell, by name.
        versions: of recollect that made the runs of a cell.
    """
    terms = [
        (sign, {seed: metrics[contrast.metric] for seed, metrics in tested.items() if contrast.metric in metrics})
        for sign, tested in ((sign, results[cell.name].tested) for sign, cell in contrast.terms)
    ]
    seeds = sorted(set.intersection(*(set(values) for _, values in terms)))
    differences = tuple(sum(sign * values[seed] for sign, values in terms) for seed in seeds)
    return Judged(contrast, differences, len(set().union(*(versions[cell.name] for _, cell in contrast.terms))) > 1)


def write_page(matrix: Matrix, claims: Sequence[Claim], out: Path, command: str) -> Path:
    """Write the page of the claims into ``out``, replacing an earlier page there; the path of ``README.md``.

    Args:
        matrix: the runs.
        claims: the claims of the page; those without runs are listed as not run.
        out: the page's folder.
        command: the command named on the page.

    Raises:
        ConfigError: there is a ``README.md`` of something else.
    """
    page = out / "README.md"
    if page.exists() and not read_bytes(page).startswith(_TITLE.encode()):
        raise ConfigError(f"{page} is not a page of this command and is left alone: choose another --page.")
    out.mkdir(parents=True, exist_ok=True)
    sections, rows, summary, not_run = [], [], [], []
    for claim in claims:
        results = collect(matrix, claim.cells())
        versions = {cell.name: _versions(matrix, cell) for cell in claim.cells()}
        judged = [judge(contrast, results, versions) for contrast in claim.contrasts]
        if not any(result.by_seed for result in results.values()) or (
            judged and not any(item.differences for item in judged)
        ):
            not_run.append(f"- {claim.title}: {claim.bench.name}")
            continue
        drawn = draw_claim(claim, results, out / f"{claim.name}-{claim.bench.name}.svg")
        sections += _section(matrix, claim, results, judged, versions, drawn)
        rows += [_row(claim, result) for result in results.values()]
        summary += [(claim, item) for item in judged if item.differences]
    _write_csv(out / "results.csv", rows)
    runs = list(_runs(matrix))
    write_text(out / "runs.jsonl", "".join(json.dumps(run, ensure_ascii=False) + "\n" for run in runs))
    left = ["## Not run", "", *not_run, ""] if not_run else []
    write_text(page, "\n".join([*_head(matrix, command, runs), *_overview(summary), *sections, *left]).rstrip() + "\n")
    return page


def _versions(matrix: Matrix, cell: Cell) -> set[str]:
    """Versions of recollect that made a cell's finished runs."""
    manifests = [RunFolder(run.folder).read_manifest() for run in matrix.reported(cell) if outcome_of(run.folder)]
    return {str(manifest.get("versions", {}).get("recollect", "unknown")) for manifest in manifests}


def _head(matrix: Matrix, command: str, runs: Sequence[dict[str, Any]]) -> list[str]:
    hours = sum(run["seconds"] or 0 for run in runs) / 3600
    machines = sorted({str(run["machine"]) for run in runs})
    earlier = sum(1 for _ in (matrix.out / "runs").rglob(RECORD))
    imported = f" ({earlier} of them taken over from an earlier page)" if earlier else ""
    return [
        _TITLE,
        "",
        f"Written by `{command}` from {len(runs)} finished runs{imported} of the {matrix.provenance['budget']} budget, "
        f"{hours:.1f} hours of training in all. Machines: " + ("; ".join(machines) or "–") + ".",
        "",
        "- A cell's learning rate (and, where the rule says so, its number of steps) is chosen with seed 0: trained on "
        "the first half of the training classes, measured on the second. The test set is not loaded there. Rates go "
        "1, 3, 10, … and on while the best lies at an end.",
        f"- Then all training classes are trained on with seeds {', '.join(map(str, matrix.seeds))} and the test set is "
        "measured once. Numbers are r@1 in percent on test classes never seen, mean ± standard deviation over seeds; where "
        "a table has further r@k, those are means over seeds.",
        "- Comparisons are made seed by seed; ± is their 90 % interval (Student's t). It decides between *holds here*, "
        "*does not hold here* and *undecided*. Of many comparisons at 90 % a few come out by chance, and that the "
        "settings were chosen by one run is in no interval: small differences deserve little trust. A dash: not run.",
        "- *(limit)*: the last evaluation was the best, longer might be better still. *(end)*: the search gave up at "
        "this rate. *(batch N)*: half of the classes fill no larger batch, so the rate was searched with it.",
        "- A loss's name alone means the form of its own paper, *as released* that of its authors' code.",
        "- Benches whose name ends in *head* train a last layer on features of the network's last layer, as before: all "
        "losses start equal. With features of several stages, the default of `recollect train --data FOLDER` now, r@1 on "
        "Cars196 rises to 54.9 ([training](../training.md#a-frozen-backbone-real-models-on-a-laptop)).",
        "- The paper trains far larger networks for far longer. What is compared with its numbers is the direction, "
        "not the height.",
        "- `results.csv` has every cell and seed, `runs.jsonl` every run with its settings, versions, data fingerprints "
        "and the SHA-256 of its manifest.",
        "",
    ]


def _overview(judged: Sequence[tuple[Claim, Judged]]) -> list[str]:
    rows, last = [], None
    for claim, item in judged:
        title = "" if claim is last else claim.title
        rows.append((title, claim.bench.name, item.contrast.sentence, in_points(item.differences), item.words))
        last = claim
    return ["## In short", "", *_table(("claim", "on", "comparison", "difference", "verdict"), rows), ""]


def _section(
    matrix: Matrix,
    claim: Claim,
    results: dict[str, CellResult],
    judged: Sequence[Judged],
    versions: dict[str, set[str]],
    drawn: bool,
) -> list[str]:
    name = f"{claim.name}-{claim.bench.name}.svg"
    described = "; ".join(f"{result.cell.name} {_mean_cell(result)}" for result in results.values())
    lines = [f"## {claim.title}: {claim.bench.name}", "", claim.words, "", f"*{claim.bench.title}.*", ""]
    lines += [f"Budget: {claim.bench.budget}.", ""]
    if drawn:
        lines += [f"![r@1 by {claim.x_label}: {described}]({name})", ""]
    lines += [*_results_table(claim, results), ""]
    if claim.published is not None:
        metric = "r@1" if len(claim.metrics) == 1 else "r@k"
        lines += [f"The paper ({claim.published.source}), {metric} in percent:", ""]
        lines += [*_table(claim.published.header, claim.published.rows), ""]
    lines += [f"- {item.contrast.sentence}: {in_points(item.differences)} points, **{item.words}**." for item in judged]
    missing = [result.cell.name for result in results.values() if len(result.by_seed) < len(matrix.seeds)]
    if missing:
        lines += ["", f"Not run, or not with every seed: {', '.join(missing)}."]
    for version in sorted(set().union(*versions.values()) - {__version__}):
        lines += [
            "",
            f"Runs of recollect {version}: {', '.join(name for name in results if version in versions[name])}.",
        ]
    lines += [f"- {result.cell.name}, {why}" for result in results.values() for why in result.failures]
    return [*lines, ""]


def _results_table(claim: Claim, results: dict[str, CellResult]) -> list[str]:
    """One row per cell; curves are named only if there are several, further metrics only if the claim has them."""
    several = len(claim.curves) > 1
    mean_of = [*claim.metrics[1:], "mean"] if len(claim.metrics) > 1 else []
    header = [*(["method"] if several else []), claim.x_label, "r@1", *mean_of]
    rows = []
    for curve in claim.curves:
        for x, cell in curve.points:
            value = f"{x:g}" if isinstance(x, int | float) else x
            result = results[cell.name]
            rows.append([*([curve.label] if several else []), value, *_metric_cells(claim, result), *_trained(result)])
    return _table([*header, "seeds", "learning rate", "steps", "images seen"], rows)


def _metric_cells(claim: Claim, result: CellResult) -> list[str]:
    means = [result.metrics.get(name) for name in claim.metrics]
    if len(means) == 1:
        return [_mean_cell(result)]
    known_means = [value for value in means if value is not None]
    average = sum(known_means) / len(known_means) if len(known_means) == len(means) else None
    return [_mean_cell(result), *("–" if value is None else f"{value:.1f}" for value in (*means[1:], average))]


def _mean_cell(result: CellResult) -> str:
    """``84.1 ± 0.3``, mean and standard deviation over seeds, or a dash."""
    if result.mean is None:
        return "–"
    return f"{result.mean:.1f}" + (f" ± {_deviation(result):.1f}" if len(result.by_seed) > 1 else "")


def _deviation(result: CellResult) -> float:
    return stdev(result.by_seed.values()) if len(result.by_seed) > 1 else 0.0


def _trained(result: CellResult) -> list[str]:
    choice, batch, seeds = result.choice, result.cell.batch, str(len(result.by_seed))
    if choice is None or result.steps is None:
        return [seeds, "–", "–", "–"]
    searched = f" (batch {choice.batch})" if choice.batch not in (0, batch) else ""
    rate = f"{choice.rate:g}" + (" (end)" if choice.at_the_end else "") + searched
    steps = f"{result.steps:,}" + (" (limit)" if choice.at_the_limit else "")
    return [seeds, rate, steps, f"{result.steps * batch:,}"]


def _row(claim: Claim, result: CellResult) -> dict[str, Any]:
    choice, metrics = result.choice, result.metrics
    return {
        "claim": claim.name,
        "bench": claim.bench.name,
        "cell": result.cell.name,
        "batch": result.cell.batch,
        "lr": "" if choice is None else f"{choice.rate:g}",
        "steps": "" if result.steps is None else result.steps,
        "mean_r1": "" if result.mean is None else f"{result.mean:.2f}",
        "sd_r1": f"{_deviation(result):.2f}" if len(result.by_seed) > 1 else "",
        **{f"mean_r{k}": f"{metrics[f'r@{k}']:.2f}" if f"r@{k}" in metrics else "" for k in (2, 4, 8, 16)},
        "by_seed": " ".join(f"{seed}:{value:.2f}" for seed, value in result.by_seed.items()),
    }


def _write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]) if rows else ["claim"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, buffer.getvalue())


def _runs(matrix: Matrix) -> Iterator[dict[str, Any]]:
    """A record of every finished run, without paths."""
    records = sorted((matrix.out / "runs").rglob(RECORD))
    yield from (read_json(file, dict) for file in records)
    for file in sorted((matrix.out / "runs").rglob("manifest.json")):
        manifest = RunFolder(file.parent).read_manifest()
        if not manifest.get("outcome") or file.with_name(RECORD) in records:
            continue
        settings = as_mapping(RunFolder(file.parent).read_config())
        settings["data"]["root"] = None
        settings.pop("published", None)
        machine = manifest.get("machine", {})
        record = {
            "run": file.parent.relative_to(matrix.out / "runs").as_posix(),
            "manifest_sha256": sha256(file),
            "started": manifest.get("started"),
            "seconds": manifest["outcome"].get("seconds"),
            "machine": f"{machine.get('gpu') or machine.get('processor')}, {machine.get('threads')} of "
            f"{machine.get('cores')} cores a run",
            "versions": manifest.get("versions"),
            "fingerprints": manifest.get("data", {}).get("fingerprints"),
            "weights": manifest.get("weights", {}).get("sha256"),
            "chosen_step": manifest["outcome"].get("chosen_step"),
            "metrics": manifest["outcome"].get("metrics"),
        }
        # The metrics of a run are those of its last evaluation; a search may have had a better one.
        if file.parent.parent.name == "search" and (best := best_of(file.parent, float(settings["optimizer"]["lr"]))):
            limit = {"batch": best.batch, "at_the_limit": best.at_the_limit}
            record["best"] = {"step": best.steps, "r@1": best.value, **limit}
        yield {**record, "settings": settings}


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"

    return [line(header), line(["---"] * len(header)), *map(line, rows)]


Point = tuple[float | str, float, float]
"""Where on the axis, r@1 in percent, and its standard deviation over seeds."""


def draw_claim(claim: Claim, results: dict[str, CellResult], path: Path) -> bool:
    """Draw a claim into an SVG file.

    Returns:
        Whether there was anything to draw.
    """
    ours: dict[str, list[Point]] = {}
    for curve in claim.curves:
        cells = [(x, results[cell.name]) for x, cell in curve.points]
        ours[curve.label] = [(x, result.mean, _deviation(result)) for x, result in cells if result.mean is not None]
    if not any(ours.values()):
        return False
    panels = {f"measured: {claim.bench.name}": ours}
    if claim.published is not None and claim.published.curves:
        published = claim.published.curves
        paper: dict[str, list[Point]] = {
            label: [(x, value, 0.0) for x, value in published.get(label, ())] for label in ours
        }
        panels[f"the paper: {claim.published.source}"] = paper
    numeric = all(isinstance(x, int | float) for curve in claim.curves for x, _ in curve.points)
    names = max(len({x for points in panel.values() for x, _, _ in points}) for panel in panels.values())
    height = 3.1 if numeric else 1.1 + 0.24 * names
    with matplotlib.rc_context({"svg.hashsalt": "recollect", "svg.fonttype": "none", "font.size": 9}):
        # Without pyplot, which would keep every figure in memory and look for a display.
        drawing = Figure(figsize=(4.6 * len(panels), height), layout="constrained")
        for number, (title, points) in enumerate(panels.items()):
            axes = drawing.add_subplot(1, len(panels), number + 1)
            axes.set_title(title, fontsize=9)
            axes.grid(True, alpha=0.3)
            (_draw_curves if numeric else _draw_names)(axes, points, claim.x_label)
            if len(ours) > 1 and number == 0:
                axes.legend(fontsize=8)
        with atomic_write(path) as file:
            drawing.savefig(file, format="svg", metadata={"Date": None})
    return True


def _draw_curves(axes: Any, curves: dict[str, list[Point]], x_label: str) -> None:
    for number, (label, points) in enumerate(curves.items()):
        if points:
            xs, ys, deviations = zip(*points, strict=True)
            axes.errorbar(xs, ys, yerr=deviations, linestyle="-", **_look(number, label))
    axes.set_xscale("log", base=2 if x_label == "batch" else 10)
    axes.set_xlabel(x_label)
    axes.set_ylabel("r@1 (%)")


def _draw_names(axes: Any, curves: dict[str, list[Point]], x_label: str) -> None:
    """Names from top to bottom, r@1 across; curves a little apart, so that none hides another."""
    names = list(dict.fromkeys(x for points in curves.values() for x, _, _ in points))
    for number, (label, points) in enumerate(curves.items()):
        if points:
            shift = 0.16 * (number - (len(curves) - 1) / 2)
            places = [names.index(x) + shift for x, _, _ in points]
            values, deviations = [value for _, value, _ in points], [deviation for _, _, deviation in points]
            axes.errorbar(values, places, xerr=deviations, linestyle="none", **_look(number, label))
    axes.set_yticks(range(len(names)), _as_text(names))
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlabel("r@1 (%)")
    axes.set_ylabel(x_label)


def _as_text(names: Sequence[float | str]) -> list[str]:
    return [name if isinstance(name, str) else f"{name:g}" for name in names]


def _look(number: int, label: str) -> dict[str, Any]:
    return {
        "label": label,
        "color": _COLOURS[number % len(_COLOURS)],
        "marker": _MARKS[number % len(_MARKS)],
        "capsize": 3,
        "markersize": 4,
    }
