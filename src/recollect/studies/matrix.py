"""A matrix of trainings: cells × learning rates and seeds. Each is an ordinary run; a finished one is never repeated.

    OUT/study.json                            what this folder's runs have in common
    OUT/runs/BENCH/CELL/search/lr-RATE        seed 0, trained on half of the training classes, measured on the others
    OUT/runs/BENCH/CELL/lr-RATE-steps-N/seed-S    all training classes, as the search chose, measured on test once
    OUT/runs/BENCH/CELL/init/seed-S           a cell that takes no step

The search starts with the bench's learning rates and continues, by factors of about three, while the best rate is the
lowest or the highest tried, so that no cell is judged by a rate that a lower or a higher one would have beaten.

The folders are the only record of progress: a run with an outcome in its manifest is finished, one that diverged has a
``failed.json``, any other is started or resumed. ``matrix_runs.py`` executes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from recollect.common.errors import ConfigError, DataError
from recollect.common.files import write_json
from recollect.common.reading import read_json
from recollect.config.resolve import differences, resolve
from recollect.data import class_disjoint_split, load
from recollect.training.run_folder import RunFolder

LADDER = tuple(float(f"{digit}e{power}") for power in range(-7, 1) for digit in (1, 3))
"""Learning rates that a search may try."""
MOST_RATES = 7
"""A search stops after this many rates and takes the best of them."""


@dataclass(frozen=True)
class EqualImages:
    """Every cell sees the same number of training images, for any batch size; the learning rate follows a cosine.

    A run is a single epoch, so ``optimizer.warm_up`` is a share of the whole: 0.1 is its first tenth.
    """

    images: int

    def settings(self, batch: int, steps: int | None) -> dict[str, Any]:
        """Settings of a run of this batch size."""
        count = max(1, round(self.images / batch))
        return {"run.steps": count, "batch.batches_per_epoch": count, "optimizer.schedule": "cosine"}

    def __str__(self) -> str:
        return (
            f"equal images: every run sees {self.images:,} training images, so a large batch takes few steps. Between batch "
            "sizes it compares cost, not what they come to after convergence"
        )


@dataclass(frozen=True)
class UntilValidation:
    """Every cell trains as long as its validation classes improve, up to a limit; the learning rate is constant."""

    steps: int
    images: int
    evaluations: int = 10

    def settings(self, batch: int, steps: int | None) -> dict[str, Any]:
        """Settings of a run: up to the limit in a search (``steps`` None), then as many steps as it chose."""
        limit = min(self.steps, self.images // batch)
        every = max(1, limit // self.evaluations)
        return {
            "run.steps": every * min(limit, self.evaluations) if steps is None else steps,
            "batch.batches_per_epoch": every if steps is None else steps,
            "optimizer.schedule": "constant",
        }

    def __str__(self) -> str:
        return (
            f"until validation stops improving: the search takes at most {self.steps:,} steps or {self.images:,} images and "
            f"evaluates validation classes {min(self.steps, self.evaluations)} times; the best evaluation gives the number "
            "of steps"
        )


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What the cells of a comparison share: data and network (a recipe with settings), a budget, the first rates."""

    name: str
    recipe: str
    budget: EqualImages | UntilValidation
    rates: tuple[float, ...]
    """Initial learning rates of each cell's search, neighbours on ``LADDER``."""
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    """One configuration to train, at several learning rates and seeds."""

    bench: Bench
    name: str
    label: str
    batch: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    trains: bool = True
    """False: no step is taken, so there is no rate to search. Without a last layer (``model.dim`` None) the network's
    features are evaluated, otherwise the last layer as it starts."""

    @property
    def search_batch(self) -> int:
        """The batch size of a search: the cell's, or as many images as half of the training classes can fill."""
        return min(self.batch, _largest_batch(self.bench.recipe, json.dumps(dict(self.bench.settings))))


@cache
def _largest_batch(recipe: str, settings: str) -> int:
    config = resolve(recipe, json.loads(settings))
    train = load(config.data.name, config.data.root, config.data.train_split, **config.data.options)
    half, _ = class_disjoint_split(train, "paper", 0)
    m = config.batch.samples_per_class
    needed = m if config.batch.small_classes == "drop" else 1
    return m * int((half.class_sizes >= needed).sum())


@dataclass(frozen=True)
class Run:
    """One run of a cell, done or not."""

    cell: Cell
    folder: Path
    seed: int = 0
    rate: float | None = None
    """None: no step is taken, or the search has not chosen yet."""
    steps: int | None = None
    """None: a run of the search, or no step is taken."""

    @property
    def done(self) -> bool:
        """Whether it is finished, or failed for good."""
        return outcome_of(self.folder) is not None or failure_of(self.folder) is not None

    @property
    def ready(self) -> bool:
        """Whether it can be started; seeds wait until their cell's search is finished."""
        return self.rate is not None or not self.cell.trains

    @property
    def searches(self) -> bool:
        """Whether it is one of the search."""
        return self.rate is not None and self.steps is None

    def settings(self) -> dict[str, Any]:
        """Changes to the bench's recipe."""
        cell, bench = self.cell, self.cell.bench
        if not cell.trains:
            return {**bench.settings, **cell.settings, "run.seed": self.seed}
        batch = cell.search_batch if self.searches else cell.batch
        return {
            **bench.settings,
            **cell.settings,
            **bench.budget.settings(batch, self.steps),
            "batch.size": batch,
            "optimizer.lr": self.rate,
            "run.epochs": None,
            "run.seed": self.seed,
            "run.evaluate_every": 1,
            "run.evaluate_first": False,
            "data.validation": "paper" if self.searches else "none",
            "run.watch_test": not self.searches,
            "run.verdict": False,  # it would read test classes, and the study compares by itself
        }


@dataclass(frozen=True)
class Matrix:
    """The folder of the runs."""

    out: Path
    seeds: Sequence[int] = (1, 2, 3)
    """Seeds of the runs that are reported; the search uses 0."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Common properties of this folder's runs, as plain values: runs of other data must not be mixed with them."""

    def open(self) -> None:
        """Create the folder, or check that it belongs to this study.

        Raises:
            ConfigError: it contains something else.
        """
        file = self.out / "study.json"
        if file.exists():
            if found := differences(read_json(file, dict).get("about", {}), self.about):
                raise ConfigError(
                    f"{self.out} has runs with other settings: {'; '.join(found[:3])}. Choose another --out, or use the same "
                    "settings."
                )
            return
        # A killed start may have left a hidden temporary file.
        if self.out.exists() and any(not entry.name.startswith(".") for entry in self.out.iterdir()):
            raise ConfigError(f"{self.out} is not empty and contains no study: choose another --out.")
        self.out.mkdir(parents=True, exist_ok=True)
        write_json(file, {"about": dict(self.about)})

    def folder(self, cell: Cell) -> Path:
        """The folder of a cell's runs."""
        return self.out / "runs" / cell.bench.name / cell.name

    def searches(self, cell: Cell) -> dict[float, Path]:
        """The runs that choose a cell's learning rate: those done so far and those to do next."""
        rates = list(cell.bench.rates)
        while True:
            paths = {rate: self.folder(cell) / "search" / f"lr-{rate:g}" for rate in rates}
            choice = _best(paths, cell.bench.rates)
            further = None if choice is None or len(rates) >= MOST_RATES else beyond(rates, choice.rate)
            if further is None:
                return paths
            rates = sorted([*rates, further])

    def choice(self, cell: Cell) -> RateChoice | None:
        """The learning rate and the number of steps chosen on validation classes; None before the search is finished."""
        searches = self.searches(cell)
        choice = _best(searches, cell.bench.rates)
        if choice is None or min(searches) < choice.rate < max(searches):
            return choice
        return replace(choice, at_the_end=True)

    def reported(self, cell: Cell) -> list[Run]:
        """The runs that are reported, one per seed; none before the search has chosen their rate and steps.

        Folders are named after the choice, so another choice is another run.
        """
        if not cell.trains:  # random weights and the choice of a shrinkage differ by seed
            return [Run(cell, self.folder(cell) / "init" / f"seed-{seed}", seed) for seed in self.seeds]
        choice = self.choice(cell)
        if choice is None:
            return []
        folder = self.folder(cell) / f"lr-{choice.rate:g}-steps-{choice.steps}"
        return [Run(cell, folder / f"seed-{seed}", seed, choice.rate, choice.steps) for seed in self.seeds]

    def runs(self, cells: Iterable[Cell]) -> list[Run]:
        """Every run of the cells, once; how many rates a search tries is known only when it is finished."""
        return list({run.folder: run for cell in cells for run in self._runs_of(cell)}.values())

    def _runs_of(self, cell: Cell) -> Iterator[Run]:
        reported = self.reported(cell)
        if cell.trains:
            searches = self.searches(cell)
            yield from (Run(cell, path, rate=rate) for rate, path in searches.items())
            if not reported and len(searches) == len(cell.bench.rates):  # one end or the other will be tried
                yield Run(cell, self.folder(cell) / "search")
        yield from reported or (Run(cell, self.folder(cell) / f"seed-{seed}", seed) for seed in self.seeds)


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
    outcome, folder = outcome_of(run), RunFolder(run)
    if outcome is None:
        return RateChoice(rate, 1, 0.0, 0) if failure_of(run) else None
    evaluations = [line for line in folder.read_metrics() if line.get("split") == "val" and "r@1" in line]
    if not evaluations:
        raise DataError(f"{folder.metrics_file}: no evaluation of a finished run. Remove {run} to train it again.")
    best = max(evaluations, key=lambda line: (line["r@1"], -line["step"]))
    last = len(evaluations) > 1 and best["step"] == outcome["steps"]
    batch = int(folder.read_manifest().get("plan", {}).get("batch", 0))
    return RateChoice(rate, int(best["step"]), float(best["r@1"]), batch, last)


def outcome_of(run: Path) -> dict[str, Any] | None:
    """The outcome in a finished run's manifest."""
    found = RunFolder(run).read_manifest().get("outcome")
    return {"steps": 0, **found} if found else None


def failure_of(run: Path) -> str | None:
    """Why a run failed for good: its loss became NaN or infinite."""
    file = run / "failed.json"
    return str(read_json(file, dict).get("why", "it diverged")) if file.exists() else None
