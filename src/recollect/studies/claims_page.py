"""The page of a study: ``README.md`` with figures, ``results.csv`` and ``runs.jsonl`` next to it.

Everything is computed from the run folders, so the page always agrees with them. No path of this machine is
written: runs are named as in ``matrix.py``. ``claims_figure.py`` draws.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from recollect._version import __version__
from recollect.common.errors import ConfigError
from recollect.common.files import sha256, write_text
from recollect.common.reading import read_bytes, read_json
from recollect.studies.claims import Claim
from recollect.studies.claims_figure import draw_claim
from recollect.studies.matrix import RECORD, Matrix, best_of
from recollect.studies.summary import CellResult, Judged, collect, judge

_TITLE = "# The paper's claims, measured here"


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
        results = collect(matrix, claim)
        judged = [judge(contrast, results) for contrast in claim.contrasts]
        if not any(result.by_seed for result in results.values()) or (
            judged and all(item.verdict == "not run" for item in judged)
        ):
            not_run.append(f"- {claim.title}: {claim.bench.name}")
            continue
        drawn = draw_claim(claim, results, out / f"{claim.name}-{claim.bench.name}.svg")
        sections.append("\n".join(_section(matrix, claim, results, judged, drawn)))
        rows += [_row(claim, result) for result in results.values()]
        summary += [(claim, item) for item in judged if item.verdict != "not run"]
    _write_csv(out / "results.csv", rows)
    runs = list(_runs(matrix))
    write_text(out / "runs.jsonl", "".join(json.dumps(run, ensure_ascii=False) + "\n" for run in runs))
    left = ["## Not run", "", *not_run, ""] if not_run else []
    write_text(page, "\n".join([*_head(matrix, command, runs), *_overview(summary), *sections, *left]).rstrip() + "\n")
    return page


def _head(matrix: Matrix, command: str, runs: Sequence[dict[str, Any]]) -> list[str]:
    hours = sum(run["seconds"] or 0 for run in runs) / 3600
    machines = sorted({str(run["machine"]) for run in runs})
    earlier = sum(1 for _ in (matrix.out / "runs").rglob(RECORD))
    imported = f" ({earlier} of them taken over from an earlier page)" if earlier else ""
    return [
        _TITLE,
        "",
        f"Written by `{command}` from {len(runs)} finished runs{imported} of the {matrix.budget} budget, {hours:.1f} hours of "
        "training in all. Machines: " + ("; ".join(machines) or "–") + ".",
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
        "- The paper trains far larger networks for far longer. What is compared with its numbers is the direction, "
        "not the height.",
        "- `results.csv` has every cell and seed, `runs.jsonl` every run with its settings, versions, data fingerprints "
        "and the SHA-256 of its manifest.",
        "",
    ]


def _overview(judged: Sequence[tuple[Claim, Judged]]) -> list[str]:
    rows = [
        (claim.title if first else "", claim.bench.name, item.contrast.sentence, item.shown, item.words)
        for claim, item, first in _with_first(judged)
    ]
    return ["## In short", "", *_table(("claim", "on", "comparison", "difference", "verdict"), rows), ""]


def _with_first(judged: Sequence[tuple[Claim, Judged]]) -> Iterator[tuple[Claim, Judged, bool]]:
    last = None
    for claim, item in judged:
        yield claim, item, (claim.name, claim.bench.name) != last
        last = (claim.name, claim.bench.name)


def _section(
    matrix: Matrix, claim: Claim, results: dict[str, CellResult], judged: Sequence[Judged], drawn: bool
) -> list[str]:
    name = f"{claim.name}-{claim.bench.name}.svg"
    described = "; ".join(f"{result.cell.name} {result.shown}" for result in results.values())
    lines = [f"## {claim.title}: {claim.bench.name}", "", claim.words, "", f"*{claim.bench.title}.*", ""]
    lines += [f"Budget: {claim.bench.budget.words(matrix.budget)}.", ""]
    if drawn:
        lines += [f"![r@1 by {claim.x_label}: {described}]({name})", ""]
    lines += [*_results_table(claim, results), ""]
    if claim.published is not None:
        shown = "r@1" if len(claim.metrics) == 1 else "r@k"
        lines += [f"The paper ({claim.published.source}), {shown} in percent:", ""]
        lines += [*_table(claim.published.header, claim.published.rows), ""]
    lines += [f"- {item.contrast.sentence}: {item.shown} points, **{item.words}**." for item in judged]
    missing = [result.cell.name for result in results.values() if len(result.by_seed) < len(matrix.seeds)]
    if missing:
        lines += ["", f"Not run, or not with every seed: {', '.join(missing)}."]
    for version in sorted({version for result in results.values() for version in result.versions} - {__version__}):
        made = [result.cell.name for result in results.values() if version in result.versions]
        lines += ["", f"Runs of recollect {version}: {', '.join(made)}."]
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
            shown = f"{x:g}" if isinstance(x, int | float) else x
            result = results[cell.name]
            rows.append([*([curve.label] if several else []), shown, *_measured(claim, result), *_trained(result)])
    return _table([*header, "seeds", "learning rate", "steps", "images seen"], rows)


def _measured(claim: Claim, result: CellResult) -> list[str]:
    found = [result.metrics.get(name) for name in claim.metrics]
    if len(found) == 1:
        return [result.shown]
    given = [value for value in found if value is not None]
    average = sum(given) / len(given) if len(given) == len(found) else None
    return [result.shown, *("–" if value is None else f"{value:.1f}" for value in (*found[1:], average))]


def _trained(result: CellResult) -> list[str]:
    choice, batch, seeds = result.choice, result.cell.batch, str(len(result.by_seed))
    if choice is None or result.steps is None:
        return [seeds, "–", "–", "–"]
    searched = f" (batch {choice.batch})" if choice.batch not in (0, batch) else ""
    rate = f"{choice.rate:g}" + (" (end)" if choice.at_the_end else "") + searched
    steps = f"{result.steps:,}" + (" (limit)" if choice.at_the_limit else "")
    return [seeds, rate, steps, f"{result.steps * batch:,}"]


def _row(claim: Claim, result: CellResult) -> dict[str, Any]:
    choice, found = result.choice, result.metrics
    return {
        "claim": claim.name,
        "bench": claim.bench.name,
        "cell": result.cell.name,
        "batch": result.cell.batch,
        "lr": "" if choice is None else f"{choice.rate:g}",
        "steps": "" if result.steps is None else result.steps,
        "mean_r1": "" if result.mean is None else f"{result.mean:.2f}",
        "sd_r1": "" if result.deviation is None else f"{result.deviation:.2f}",
        **{f"mean_r{k}": f"{found[f'r@{k}']:.2f}" if f"r@{k}" in found else "" for k in (2, 4, 8, 16)},
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
    from recollect.config.overrides import as_mapping
    from recollect.training.run_folder import RunFolder

    for file in sorted((matrix.out / "runs").rglob(RECORD)):
        yield read_json(file, dict)
    for file in sorted((matrix.out / "runs").rglob("manifest.json")):
        manifest = RunFolder(file.parent).read_manifest()
        if not manifest.get("outcome"):
            continue
        settings = as_mapping(RunFolder(file.parent).read_config())
        settings["data"]["root"] = None
        settings.pop("published", None)
        machine = manifest.get("machine", {})
        yield {
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
            **_best(file.parent, settings),
            "settings": settings,
        }


def _best(run: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The best evaluation of a search; the metrics of a run are those of its last one."""
    if run.parent.name != "search":
        return {}
    found = best_of(run, float(settings["optimizer"]["lr"]))
    if found is None:
        return {}
    return {
        "best": {
            "step": found.steps,
            "r@1": found.value,
            "batch": found.batch,
            "at_the_limit": found.at_the_limit,
        }
    }


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"

    return [line(header), line(["---"] * len(header)), *map(line, rows)]
