"""The paper's claims measured as a matrix of ordinary runs, then a page: ``python -m experiments claims``.

Runs of an earlier study can be imported from the ``runs.jsonl`` of its page instead of being run again. A record counts only
for the cell, seed and learning rate that it names, and only if that run would have the same settings today: runs of a bench
that has changed since (such as another image size) are left out. Settings that are found automatically are compared as
found. The page marks runs that another version of the program made.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from experiments.benches import BENCHES, Budget
from experiments.claims import CLAIMS, Claim
from experiments.claims_page import RECORD, write_page
from recollect.common.errors import ConfigError, DataError
from recollect.common.files import make_folder_for, write_json, write_text
from recollect.common.reading import read_json
from recollect.common.text import in_words
from recollect.config.automatic import choose_device, is_pretrained, resolve_auto
from recollect.config.resolve import as_mapping, from_mapping, resolve
from recollect.config.schema import Config
from recollect.data import ImageSet, load
from recollect.studies.protocol import Matrix, Run
from recollect.studies.runner import run_matrix

_ASIDE = {
    "data": ("root", "workers", "prefetch_mb"),
    "data.options": ("class_split",),  # a bench's folder has train and test, so no rule divides its classes
    "run": ("device", "checkpoint_minutes"),
}
"""Settings that affect where and how fast a run is done, not its result."""


def reproduce(
    claim: str,
    *,
    budget: Budget = "small",
    data: Path | None = None,
    benches: Sequence[str] = (),
    out: Path = Path("runs/claims"),
    page: Path | None = None,
    seeds: int = 3,
    jobs: int | None = None,
    minutes: float | None = None,
    earlier: Path | None = None,
    plan: bool = False,
) -> Path | None:
    """Measure claims of the paper: a matrix of ordinary, resumable runs, then a page with the paper's numbers.

    Args:
        claim: one of ``CLAIMS``, or ``all``.
        budget: the length of each run.
        data: a folder that contains cars196_96px and omniglot; without it, embedded images.
        benches: use only these.
        out: the study's folder. page: where to write the page; by default ``page`` in ``out``.
        seeds: how many.
        jobs: runs at a time; by default one per core, one with a GPU.
        minutes: start no new run after this many minutes; 0 only writes the page.
        earlier: ``runs.jsonl`` of an earlier page, whose runs count as done if their settings are the same.
        plan: print what would be run, and stop; nothing is imported.

    Returns:
        The page. The next call continues with runs that are not done.
    """
    claims, skipped = choose_claims(claim, benches, data, budget)
    matrix = Matrix(out, tuple(range(1, seeds + 1)), {"budget": budget})
    cells = [cell for claim in claims for cell in claim.cells()]
    if not plan:
        matrix.open()
        _check_benches(out)
    if earlier is not None and not plan:
        taken, left = take_over(matrix, claims, earlier)
        print(f"earlier    {taken} runs imported from {earlier}; {left} have other settings or are not needed")
    print("\n".join(describe(matrix, claims, skipped)))
    if plan:
        return None
    if not run_matrix(matrix, cells, jobs=jobs, minutes=minutes):
        print("left       some runs are not done: the same command resumes them")
    # The page covers all runs of this folder, so that one claim's command does not drop another's results.
    every = [make(BENCHES[place].lasting(budget)) for make, places in CLAIMS.values() for place in places]
    words = ["python -m experiments claims", claim, "--budget", budget, *(["--data DIR"] if data else [])]
    words += [*(f"--bench {bench}" for bench in benches), "--seeds", str(seeds)]  # without this machine's paths
    return write_page(matrix, every, page or out / "page", " ".join(words))


def choose_claims(
    name: str, benches: Sequence[str], data: Path | None, budget: Budget = "small"
) -> tuple[list[Claim], list[str]]:
    """The claims of that name (or all) on the benches whose images are available, and the skipped ones with the reason.

    Raises:
        ConfigError: nothing can be run.
        DataError: a bench was requested by name and its images are missing.
    """
    claims, skipped = [], []
    for claim in CLAIMS if name == "all" else [name]:
        make, places = CLAIMS[claim]
        for place in places:
            if benches and place not in benches:
                continue
            try:
                claims.append(make(BENCHES[place].lasting(budget).using(data)))
            except DataError as error:
                if benches:
                    raise
                skipped.append(f"{claim} on {place}: {error}")
    if not claims:
        raise ConfigError(f"nothing in {name!r} can be run: " + (" ".join(skipped) or "no such bench for it."))
    return claims, skipped


def describe(matrix: Matrix, claims: Sequence[Claim], skipped: Sequence[str]) -> list[str]:
    """The plan: claims, budgets, the number of runs, and the approximate time of those that are not done."""
    lines = [f"claim      {claim.title}, on {claim.bench.name}: {len(claim.cells())} cells" for claim in claims]
    benches = {claim.bench.name: claim.bench for claim in claims}
    lines += [f"budget     {name}: {bench.budget}" for name, bench in benches.items()]
    runs = matrix.runs(cell for claim in claims for cell in claim.cells())
    left = [run for run in runs if not run.done]
    lines.append(f"runs       {len(runs)} in total, {len(runs) - len(left)} already done")
    if left:
        seconds = sum(benches[run.cell.bench.name].cost for run in left)
        lines.append(f"time       about {in_words(seconds)} of one core, by runs on a server's processor")
    return [*lines, *(f"left out   {text}" for text in skipped)]


def _check_benches(out: Path) -> None:
    """Runs of a bench whose definition has changed must not be mixed with new ones on one page."""
    file = out / "benches.json"
    now = {
        name: json.loads(json.dumps({"recipe": bench.recipe, **bench.settings}, default=list))
        for name, bench in BENCHES.items()
    }
    for name, before in read_json(file, dict).items() if file.exists() else ():
        if name in now and before != now[name] and (out / "runs" / name).exists():
            changed = [key for key in {**before, **now[name]} if before.get(key) != now[name].get(key)]
            raise ConfigError(
                f"{out / 'runs' / name} has runs of an earlier definition of {name} ({', '.join(changed)}): choose another "
                "--out, or remove that folder."
            )
    write_json(file, now)


def take_over(matrix: Matrix, claims: Sequence[Claim], file: Path) -> tuple[int, int]:
    """Import the matching records of ``runs.jsonl``; returns how many were imported and how many did not match."""
    records = {record["run"]: record for record in map(json.loads, file.read_text(encoding="utf-8").splitlines())}
    cells = [cell for claim in claims for cell in claim.cells()]
    taken = 0
    while True:  # a finished search determines further runs
        left = [run for run in matrix.runs(cells) if not run.done and run.ready]
        named = [(run, records.get(run.folder.relative_to(matrix.out / "runs").as_posix())) for run in left]
        new = [(run, record) for run, record in named if record is not None and _fits(run, record)]
        if not new:
            return taken, len(records) - taken
        for run, record in new:
            _import(run, record)
        taken += len(new)


def _import(run: Run, record: Mapping[str, Any]) -> None:
    """Write what a study reads of a run: its outcome and, of a search, its best evaluation."""
    make_folder_for(run.folder / RECORD)
    outcome = {name: record.get(name) for name in ("seconds", "chosen_step", "metrics")}
    manifest = {
        "outcome": {"steps": record["settings"]["run"]["steps"] or 0, **outcome},
        "versions": record["versions"],
    }
    if run.searches and (best := best_in(record)) is not None:
        manifest["plan"] = {"batch": best["batch"]}
        # The best of several evaluations is at the limit if it is the last; any earlier one stands for the others.
        lines = [{"step": 0, "r@1": 0.0}] if best["at_the_limit"] else []
        evaluations = [{"kind": "evaluation", "split": "val", **line} for line in [*lines, best]]
        write_text(run.folder / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in evaluations))
    write_json(run.folder / RECORD, record)
    write_json(run.folder / "manifest.json", manifest)


def best_in(record: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The best evaluation of a search, as its record has it; None where it cannot be known.

    Pages of version 0.1.0 kept the metrics of the last evaluation only, which is the best one if its step was chosen.
    """
    if "best" in record:
        return dict(record["best"])
    steps, batch = record["settings"]["run"]["steps"], record["settings"]["batch"]
    if record["chosen_step"] != steps:
        return None
    several = steps > (batch["batches_per_epoch"] or 1)
    return {"step": steps, "r@1": record["metrics"]["val"]["r@1"], "batch": batch["size"], "at_the_limit": several}


def _fits(run: Run, record: Mapping[str, Any]) -> bool:
    """Whether the run would have the record's settings today."""
    if run.searches and best_in(record) is None:
        return False  # the search would go on from another rate than it did
    bench = run.cell.bench
    images = _training_images(bench.recipe, json.dumps(dict(bench.settings)))
    try:
        before = from_mapping(record["settings"], "an earlier run")
        return _plain(resolve(bench.recipe, run.settings()), images) == _plain(before, images)
    except (ConfigError, KeyError, TypeError, ValueError):
        return False


@cache
def _training_images(recipe: str, settings: str) -> ImageSet:
    data = resolve(recipe, json.loads(settings)).data
    return load(data.name, data.root, data.train_split, **data.options)


def _plain(config: Config, images: ImageSet) -> dict[str, Any]:
    """The settings of a run as plain values, automatic ones as found, without those that do not change its result."""
    settled, _ = resolve_auto(config, images, choose_device(config.run.device), is_pretrained(config.model))
    groups = {name: dict(values) for name, values in as_mapping(settled).items() if isinstance(values, Mapping)}
    groups["data.options"] = groups["data"].pop("options")
    compared = {
        group: {name: value for name, value in values.items() if name not in _ASIDE.get(group, ())}
        for group, values in groups.items()
        if group != "published"
    }
    return dict(json.loads(json.dumps(compared, default=list)))
