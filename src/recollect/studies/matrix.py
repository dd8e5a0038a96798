"""A matrix of trainings. Each is an ordinary run; a finished one is never repeated.

    OUT/study.json                            the budget this folder is for
    OUT/runs/BENCH/CELL/search/lr-RATE        seed 0, trained on half of the training classes, measured on the others
    OUT/runs/BENCH/CELL/lr-RATE-steps-N/seed-S    all training classes, as the search chose, measured on test once
    OUT/runs/BENCH/CELL/init/seed-S           a cell that takes no step

The search starts with the bench's learning rates and continues, by factors of about three, while the best rate is the
lowest or the highest tried, so that no cell is judged by a rate that a lower or a higher one would have beaten.

The folders are the only record of progress: a run with an outcome in its manifest is finished, one that diverged has a
``failed.json``, any other is started or resumed. ``matrix_runs.py`` executes them.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from recollect.common.errors import ConfigError, DataError
from recollect.common.files import remove_strays, write_json
from recollect.common.reading import read_json
from recollect.config.free_settings import differences
from recollect.studies.benches import BENCHES, Bench, Budget
from recollect.studies.claims import Cell, Claim

RECORD = "record.json"
"""In a run's folder: what the page of an earlier study says of it (``earlier_runs.py``), instead of the run itself."""
SEEDS = (1, 2, 3)
"""Seeds of the runs that are reported; the search uses 0."""
LADDER = tuple(float(f"{digit}e{power}") for power in range(-7, 1) for digit in (1, 3))
"""Learning rates that a search may try."""
MOST_RATES = 7
"""A search stops after this many rates and takes the best of them."""


@dataclass(frozen=True)
class Matrix:
    """The folder and the budget of the runs."""

    out: Path
    budget: Budget
    data: Path | None = None
    seeds: Sequence[int] = SEEDS
    about: Mapping[str, Any] = field(default_factory=dict)
    """Further common properties of this folder's runs, as plain values: runs of other data must not be mixed with them."""

    def open(self) -> None:
        """Create the folder, or check that it belongs to this study.

        Raises:
            ConfigError: it contains something else.
        """
        file = self.out / "study.json"
        with contextlib.suppress(OSError):  # a killed start may have left a temporary file, or there is no folder yet
            remove_strays(self.out)
        if file.exists():
            known = read_json(file, dict)
            if known.get("budget") != self.budget:
                raise ConfigError(
                    f"{self.out} contains runs of the {known.get('budget')} budget: choose another --out."
                )
            self._check_about(known)
            if not self.about:
                self._check_benches(known)
        elif self.out.exists() and any(self.out.iterdir()):
            raise ConfigError(f"{self.out} is not empty and contains no study: choose another --out.")
        else:
            self.out.mkdir(parents=True, exist_ok=True)
            shared = {"about": dict(self.about)} if self.about else {"benches": _benches()}
            write_json(file, {"budget": self.budget, **shared})

    def _check_about(self, known: dict[str, Any]) -> None:
        """Runs of different data or settings must not be mixed on one page."""
        if found := differences(known.get("about", {}), self.about):
            raise ConfigError(
                f"{self.out} is a comparison with other settings: {'; '.join(found[:3])}. Choose another --out, or use the "
                "same settings."
            )

    def _check_benches(self, known: dict[str, Any]) -> None:
        """Runs of a bench whose definition has changed must not be mixed with new ones on one page."""
        before, now = known.get("benches", {}), _benches()
        for name, settings in now.items():
            there = self.out / "runs" / name
            if name in before and before[name] != settings and there.exists():
                changed = [key for key in {**before[name], **settings} if before[name].get(key) != settings.get(key)]
                raise ConfigError(
                    f"{there} has runs of an earlier definition of {name} ({', '.join(changed)}): choose another --out, or "
                    "remove that folder."
                )
        write_json(self.out / "study.json", {**known, "benches": now})

    def folder(self, bench: Bench, cell: Cell) -> Path:
        """The folder of a cell's runs."""
        return self.out / "runs" / bench.name / cell.name

    def searches(self, bench: Bench, cell: Cell) -> dict[float, Path]:
        """The runs that choose a cell's learning rate: those done so far and those to do next."""
        folder, rates = self.folder(bench, cell) / "search", list(bench.rates)
        while True:
            paths = {rate: folder / f"lr-{rate:g}" for rate in rates}
            choice = _best(paths, bench.rates)
            further = None if choice is None or len(rates) >= MOST_RATES else beyond(rates, choice.rate)
            if further is None:
                return paths
            rates = sorted([*rates, further])

    def choice(self, bench: Bench, cell: Cell) -> RateChoice | None:
        """The learning rate and the number of steps chosen on validation classes; None before the search is finished."""
        searches = self.searches(bench, cell)
        choice = _best(searches, bench.rates)
        if choice is None or min(searches) < choice.rate < max(searches):
            return choice
        return replace(choice, at_the_end=True)

    def final(self, bench: Bench, cell: Cell, choice: RateChoice, seed: int) -> Path:
        """The run that is reported. Its folder is named after the choice, so another choice is another run."""
        return self.folder(bench, cell) / f"lr-{choice.rate:g}-steps-{choice.steps}" / f"seed-{seed}"

    def untrained(self, bench: Bench, cell: Cell, seed: int) -> Path:
        """The run of a cell that takes no step; random weights and the choice of a shrinkage differ by seed."""
        return self.folder(bench, cell) / "init" / f"seed-{seed}"

    def search_batch(self, bench: Bench, cell: Cell) -> int:
        """The batch size of a search: the cell's, or as many images as half of the training classes can fill."""
        return min(cell.batch, _largest_batch(bench.recipe, json.dumps(bench.settings_with(self.data))))

    def settings(self, bench: Bench, cell: Cell, *, seed: int, rate: float, steps: int | None) -> dict[str, Any]:
        """Settings of one run; without ``steps`` it is one of the search."""
        searching = steps is None
        batch = self.search_batch(bench, cell) if searching else cell.batch
        return {
            **bench.settings_with(self.data),
            **cell.settings,
            **bench.budget.settings(self.budget, batch, searching=searching, steps=steps),
            "batch.size": batch,
            "optimizer.lr": rate,
            "run.epochs": None,
            "run.seed": seed,
            "run.evaluate_every": 1,
            "run.evaluate_first": False,
            "data.validation": "paper" if searching else "none",
            "run.watch_test": not searching,
            "run.verdict": False,  # it would read test classes, and the study compares by itself
        }


def _benches() -> dict[str, dict[str, Any]]:
    """The fixed settings of every bench, as plain values."""
    return {
        name: dict(json.loads(json.dumps({"recipe": bench.recipe, **bench.settings}, default=list)))
        for name, bench in BENCHES.items()
    }


@dataclass(frozen=True)
class RateChoice:
    """The best evaluation of a search run."""

    rate: float
    steps: int
    value: float
    batch: int
    """Batch size of the search; half of the classes may not fill the cell's own."""
    at_the_limit: bool = False
    """The last of several evaluations was the best: more steps might be better still."""
    at_the_end: bool = False
    """The best rate is the lowest or highest tried: one beyond it might be better still."""


def _best(searches: dict[float, Path], own: Sequence[float]) -> RateChoice | None:
    """The best of finished searches; if equal, the one nearest to the bench's ``own`` rates. None before all are finished."""
    found = [best_of(path, rate) for rate, path in searches.items()]
    known = [choice for choice in found if choice is not None]

    def steps_away(rate: float) -> int:
        return min(abs(LADDER.index(rate) - LADDER.index(start)) for start in own)

    if len(known) < len(found):
        return None
    return max(known, key=lambda choice: (choice.value, -steps_away(choice.rate)))


def beyond(rates: Sequence[float], best: float) -> float | None:
    """The next learning rate to try if the best is the lowest or highest so far; otherwise None.

    Examples:
        >>> beyond([1e-4, 3e-4], 3e-4), beyond([1e-4, 3e-4], 1e-4), beyond([1e-4, 3e-4, 1e-3], 3e-4)
        (0.001, 3e-05, None)
    """
    place = LADDER.index(best)
    if best == max(rates):
        return LADDER[place + 1] if place + 1 < len(LADDER) else None
    return LADDER[place - 1] if best == min(rates) and place else None


def best_of(run: Path, rate: float) -> RateChoice | None:
    """The best evaluation of a finished search run; None for one that is not finished. One that diverged counts 0."""
    outcome = outcome_of(run)
    if outcome is None:
        return RateChoice(rate, 1, 0.0, 0) if failure_of(run) else None
    if (record := record_of(run)) is not None:
        if (best := chosen_in(record)) is None:
            raise DataError(f"{run / RECORD}: the value of its best step is missing. Remove {run} to train it again.")
        return RateChoice(rate, int(best["step"]), float(best["r@1"]), int(best["batch"]), bool(best["at_the_limit"]))
    from recollect.training.run_folder import RunFolder

    folder = RunFolder(run)
    evaluations = [line for line in folder.read_metrics() if line.get("split") == "val" and "r@1" in line]
    if not evaluations:
        raise DataError(f"{folder.metrics_file}: no evaluation of a finished run. Remove {run} to train it again.")
    best = max(evaluations, key=lambda line: (line["r@1"], -line["step"]))
    last = len(evaluations) > 1 and best["step"] == outcome["steps"]
    batch = int(folder.read_manifest().get("plan", {}).get("batch", 0))
    return RateChoice(rate, int(best["step"]), float(best["r@1"]), batch, last)


def outcome_of(run: Path) -> dict[str, Any] | None:
    """The outcome in a finished run's manifest."""
    from recollect.training.run_folder import RunFolder

    if (record := record_of(run)) is not None:
        kept = {name: record.get(name) for name in ("seconds", "chosen_step", "metrics")}
        return {"steps": record["settings"]["run"]["steps"] or 0, **kept}
    found = RunFolder(run).read_manifest().get("outcome")
    return {"steps": 0, **found} if found else None


def record_of(run: Path) -> dict[str, Any] | None:
    """The record of a run imported from an earlier study's page."""
    return dict(read_json(run / RECORD, dict)) if (run / RECORD).exists() else None


def chosen_in(record: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The best evaluation of a search, as the record of an imported run has it; None where it cannot be known.

    Pages of earlier versions kept the metrics of the last evaluation only, which is the best one if its step was chosen.
    """
    if "best" in record:
        return dict(record["best"])
    steps, batch = record["settings"]["run"]["steps"], record["settings"]["batch"]
    if record["chosen_step"] != steps:
        return None
    several = steps > (batch["batches_per_epoch"] or 1)
    return {"step": steps, "r@1": record["metrics"]["val"]["r@1"], "batch": batch["size"], "at_the_limit": several}


def version_of(run: Path) -> str:
    """The version of recollect that made a finished run."""
    from recollect.training.run_folder import RunFolder

    kept = record_of(run) or RunFolder(run).read_manifest()
    return str((kept.get("versions") or {}).get("recollect", "unknown"))


def processor_seconds_of(run: Path) -> float | None:
    """Processor seconds that a run took, including reading images and evaluations; None if they were not measured."""
    from recollect.training.run_folder import RunFolder

    found = RunFolder(run).read_manifest().get("processor_seconds")
    return None if found is None else float(found)


def failure_of(run: Path) -> str | None:
    """Why a run failed for good: its loss became NaN or infinite."""
    file = run / "failed.json"
    return str(read_json(file, dict).get("why", "it diverged")) if file.exists() else None


def _settled(run: Path) -> bool:
    return outcome_of(run) is not None or failure_of(run) is not None


@dataclass(frozen=True)
class Task:
    """One run to do, as plain values that can be sent to another process."""

    folder: Path
    recipe: str
    settings: dict[str, Any]
    trains: bool = True
    """A training, perhaps of 0 steps; otherwise a measurement of the features."""


def tasks(matrix: Matrix, claim: Claim) -> Iterator[Task]:
    """Runs of a claim that are not done and can be started now; seeds follow once their cell's search is finished."""
    bench = claim.bench
    for cell in claim.cells():
        if not cell.trains:
            for seed in matrix.seeds:
                given = {**bench.settings_with(matrix.data), **cell.settings, "run.seed": seed}
                if not _settled(path := matrix.untrained(bench, cell, seed)):
                    yield Task(path, bench.recipe, given, "model.dim" not in cell.settings)
            continue
        choice = matrix.choice(bench, cell)
        if choice is None:
            for rate, path in matrix.searches(bench, cell).items():
                if not _settled(path):
                    given = matrix.settings(bench, cell, seed=0, rate=rate, steps=None)
                    yield Task(path, bench.recipe, given)
            continue
        for seed in matrix.seeds:
            path = matrix.final(bench, cell, choice, seed)
            if not _settled(path):
                given = matrix.settings(bench, cell, seed=seed, rate=choice.rate, steps=choice.steps)
                yield Task(path, bench.recipe, given)


def first_searches(matrix: Matrix, claim: Claim) -> list[Task]:
    """The first run of each cell's search, done or not: what a run of the claim is like."""
    bench, rate = claim.bench, claim.bench.rates[0]
    return [
        Task(
            matrix.searches(bench, cell)[rate],
            bench.recipe,
            matrix.settings(bench, cell, seed=0, rate=rate, steps=None),
        )
        for cell in claim.cells()
        if cell.trains
    ]


@cache
def _largest_batch(recipe: str, settings: str) -> int:
    from recollect.config.overrides import resolve
    from recollect.data import class_disjoint_split, load

    config = resolve(recipe, json.loads(settings))
    train = load(config.data.name, config.data.root, config.data.train_split, **config.data.options)
    half, _ = class_disjoint_split(train, "paper", 0)
    m = config.batch.samples_per_class
    needed = m if config.batch.small_classes == "drop" else 1
    return m * int((half.class_sizes >= needed).sum())


@dataclass(frozen=True)
class Pending:
    """A run of a study, and whether it is done."""

    bench: Bench
    folder: Path
    done: bool


def pending(matrix: Matrix, claims: Sequence[Claim]) -> list[Pending]:
    """Every run of the claims, once; how many rates a search tries is known only when it is finished."""
    found: dict[Path, Pending] = {}
    for claim in claims:
        bench = claim.bench
        for cell in claim.cells():
            folder = matrix.folder(bench, cell)
            if not cell.trains:
                paths = [matrix.untrained(bench, cell, seed) for seed in matrix.seeds]
                found.update({path: Pending(bench, path, _settled(path)) for path in paths})
                continue
            searches = matrix.searches(bench, cell)
            found.update({path: Pending(bench, path, _settled(path)) for path in searches.values()})
            if len(searches) == len(bench.rates):  # one end or the other will be tried
                found[folder / "search"] = Pending(bench, folder / "search", False)
            choice = matrix.choice(bench, cell)
            for seed in matrix.seeds:
                path = folder / f"seed-{seed}" if choice is None else matrix.final(bench, cell, choice, seed)
                found[path] = Pending(bench, path, _settled(path))
    return list(found.values())
