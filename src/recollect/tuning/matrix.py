"""A matrix of trainings, each an ordinary run, done once and skipped ever after.

    OUT/study.json                            the budget this folder is for
    OUT/runs/BENCH/CELL/search/lr-RATE        seed 0, trained on half of the training classes, measured on the others
    OUT/runs/BENCH/CELL/lr-RATE-steps-N/seed-S    all training classes, as the search chose, measured on test once
    OUT/runs/BENCH/CELL/init-seed-S.json      a cell that trains nothing

The search walks: it begins with the bench's learning rates and goes on, by factors of about three, while the best lies
at an end, so that no cell is judged by a rate that a lower or a higher one would have beaten.

What is done is read off the folders alone: a run with an outcome in its manifest is finished, one without is resumed.
Runs of a search never load a test image. Several runs go on at a time in processes of their own, a share of the cores
each; stopping (Ctrl-C, ``minutes``) loses nothing but time.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from recollect.common.errors import ConfigError, RecollectError
from recollect.common.files import read_json, write_json
from recollect.common.progress import ProgressLine
from recollect.tuning.benches import Bench, Budget
from recollect.tuning.claims import Cell, Claim

SEEDS = (1, 2, 3)
"""Seeds of the runs that are reported; the search uses 0."""
LADDER = tuple(float(f"{digit}e{power}") for power in range(-7, 1) for digit in (1, 3))
"""Learning rates that a search can come to."""
SECONDS_TO_SAVE = 60
"""What a run has to save its state when the study was killed."""
MOST_RATES = 7
"""A search that has not turned back by then takes the best it has."""


@dataclass(frozen=True)
class Matrix:
    """Where runs lie and how large they are."""

    out: Path
    budget: Budget
    data: Path | None = None
    seeds: Sequence[int] = SEEDS

    def open(self) -> None:
        """Make the folder, or check that it is one of this budget.

        Raises:
            ConfigError: it holds something else.
        """
        file = self.out / "study.json"
        if file.exists():
            known = read_json(file)
            if known.get("budget") != self.budget:
                raise ConfigError(f"{self.out} holds runs of the {known.get('budget')} budget: choose another --out.")
        elif self.out.exists() and any(self.out.iterdir()):
            raise ConfigError(f"{self.out} is not empty and holds no study: choose another --out.")
        else:
            self.out.mkdir(parents=True, exist_ok=True)
            write_json(file, {"budget": self.budget})

    def folder(self, bench: Bench, cell: Cell) -> Path:
        """Where a cell's runs lie."""
        return self.out / "runs" / bench.name / cell.name

    def searches(self, bench: Bench, cell: Cell) -> dict[float, Path]:
        """The runs that choose a cell's learning rate, as far as is known by now: those done and those to do next."""
        folder, rates = self.folder(bench, cell) / "search", list(bench.rates)
        while True:
            paths = {rate: folder / f"lr-{rate:g}" for rate in rates}
            choice = _best(paths)
            further = None if choice is None or len(rates) >= MOST_RATES else beyond(rates, choice.rate)
            if further is None:
                return paths
            rates = sorted([*rates, further])

    def choice(self, bench: Bench, cell: Cell) -> Choice | None:
        """The learning rate and the number of steps that validation classes chose; None while the search goes on."""
        return _best(self.searches(bench, cell))

    def final(self, bench: Bench, cell: Cell, choice: Choice, seed: int) -> Path:
        """The run that is reported. Its folder says what was chosen: another choice is another run."""
        return self.folder(bench, cell) / f"lr-{choice.rate:g}-steps-{choice.steps}" / f"seed-{seed}"

    def untrained(self, bench: Bench, cell: Cell, seed: int) -> Path:
        """The measurement of a cell that trains nothing; random weights differ by seed."""
        return self.folder(bench, cell) / f"init-seed-{seed}.json"

    def settings(self, bench: Bench, cell: Cell, *, seed: int, rate: float, steps: int | None) -> dict[str, Any]:
        """Settings of one run; without ``steps`` it is one of the search."""
        searching = steps is None
        root = bench.root(self.data)
        return {
            **bench.settings,
            **({} if root is None else {"data.root": root}),
            **cell.settings,
            **bench.budget.settings(self.budget, cell.batch, searching=searching, steps=steps),
            "batch.size": cell.batch,
            "optimiser.lr": rate,
            "run.epochs": None,
            "run.seed": seed,
            "run.evaluate_every": 1,
            "run.evaluate_first": False,
            "data.validation": "paper" if searching else "none",
            "run.watch_test": not searching,
        }


@dataclass(frozen=True)
class Choice:
    """What a search run found at its best evaluation."""

    rate: float
    steps: int
    value: float
    at_the_limit: bool
    """The last of several evaluations was the best: more steps might be better still."""


def _best(searches: dict[float, Path]) -> Choice | None:
    found = [best_of(path, rate) for rate, path in searches.items()]
    known = [choice for choice in found if choice is not None]
    return max(known, key=lambda choice: choice.value) if len(known) == len(found) else None


def beyond(rates: Sequence[float], best: float) -> float | None:
    """The next learning rate to try when the best lies at an end of those tried; None when it does not.

    Example:
        >>> beyond([1e-4, 3e-4], 3e-4), beyond([1e-4, 3e-4], 1e-4), beyond([1e-4, 3e-4, 1e-3], 3e-4)
        (0.001, 3e-05, None)
    """
    place = LADDER.index(best)
    if best == max(rates):
        return LADDER[place + 1] if place + 1 < len(LADDER) else None
    return LADDER[place - 1] if best == min(rates) and place else None


def best_of(run: Path, rate: float) -> Choice | None:
    """The best evaluation of a finished search run; None for one that is not finished. A run that failed counts 0."""
    if (run / "failed.json").exists():
        return Choice(rate, 1, 0.0, False)
    outcome = _outcome(run)
    if outcome is None:
        return None
    from recollect.training.run_folder import RunFolder

    evaluations = [line for line in RunFolder(run).read_metrics() if line.get("split") == "val"]
    best = max(evaluations, key=lambda line: (line["r@1"], -line["step"]))
    last = len(evaluations) > 1 and best["step"] == outcome["steps"]
    return Choice(rate, int(best["step"]), float(best["r@1"]), last)


def result_of(run: Path) -> dict[str, float] | None:
    """Test metrics of a finished run, as fractions."""
    outcome = _outcome(run)
    return None if outcome is None else dict(outcome["metrics"].get("test", {}))


def _outcome(run: Path) -> dict[str, Any] | None:
    manifest = run / "manifest.json"
    return dict(found) if manifest.exists() and (found := read_json(manifest).get("outcome")) else None


@dataclass(frozen=True)
class Task:
    """One run to do, in words that another process understands."""

    folder: Path
    recipe: str
    settings: dict[str, Any]
    trains: bool = True


def tasks(matrix: Matrix, claim: Claim) -> Iterator[Task]:
    """What can be done now for a claim and is not done; seeds follow once their cell's search is finished."""
    bench = claim.bench
    for cell in claim.cells():
        if not cell.trains:
            root = bench.root(matrix.data)
            place = {} if root is None else {"data.root": root}
            for seed in matrix.seeds:
                given = {**bench.settings, **place, **cell.settings, "model.dim": None, "run.seed": seed}
                if not (file := matrix.untrained(bench, cell, seed)).exists():
                    yield Task(file, bench.recipe, given, False)
            continue
        choice = matrix.choice(bench, cell)
        if choice is None:
            for rate, path in matrix.searches(bench, cell).items():
                if best_of(path, rate) is None:
                    given = matrix.settings(bench, _fitting(matrix, bench, cell), seed=0, rate=rate, steps=None)
                    yield Task(path, bench.recipe, given)
            continue
        for seed in matrix.seeds:
            path = matrix.final(bench, cell, choice, seed)
            if not _settled(path):
                given = matrix.settings(bench, cell, seed=seed, rate=choice.rate, steps=choice.steps)
                yield Task(path, bench.recipe, given)


def _fitting(matrix: Matrix, bench: Bench, cell: Cell) -> Cell:
    """The cell with the largest batch that half of the training classes can fill."""
    settings = {**bench.settings, "data.root": bench.root(matrix.data)}
    return replace(cell, batch=min(cell.batch, _largest_batch(bench.recipe, json.dumps(settings))))


@cache
def _largest_batch(recipe: str, settings: str) -> int:
    from recollect.data import class_disjoint_split, load
    from recollect.training.recipes import resolve

    config = resolve(recipe, json.loads(settings))
    train = load(config.data.name, config.data.root, config.data.train_split, **config.data.options)
    half, _ = class_disjoint_split(train, "paper", 0)
    m = config.batch.samples_per_class
    return m * int((half.class_sizes >= m).sum())


def run_matrix(
    matrix: Matrix,
    claims: Sequence[Claim],
    *,
    jobs: int | None = None,
    minutes: float | None = None,
    say: Callable[[str], None] = print,
) -> bool:
    """Do what is left of the claims, in their order; whether everything is done.

    Args:
        matrix: where and how large.
        claims: what to measure.
        jobs: runs at a time; by default one for every core.
        minutes: start no new run after so many.
        say: receives what goes wrong, a line each.
    """
    matrix.open()
    cores = int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)
    jobs = jobs or cores
    end = None if minutes is None else time.monotonic() + 60 * minutes
    threads = max(1, cores // jobs)
    context = multiprocessing.get_context("spawn")
    running: dict[Future[str | None], Task] = {}
    runs = pending(matrix, claims)
    with ProcessPoolExecutor(jobs, context, end_with_parent) as pool, ProgressLine("runs", len(runs), "runs") as line:
        line.advance(sum(run.done for run in runs))
        while True:
            late = end is not None and time.monotonic() > end
            busy = {task.folder for task in running.values()}
            free = (task for claim in claims for task in tasks(matrix, claim) if task.folder not in busy)
            for task in [] if late else _first(free, jobs - len(running)):
                running[pool.submit(_do, task, threads)] = task
            if not running:
                break
            finished, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                task = running.pop(future)
                if (trouble := _result(future)) is not None:
                    say(f"{task.folder.relative_to(matrix.out)}: {trouble}")
                line.advance()
    return not any(True for claim in claims for _ in tasks(matrix, claim))


def end_with_parent() -> None:
    """In each process of the pool: stop, saved, when the process that asked for the runs is no more."""

    def watch(parent: BaseProcess) -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)  # the run saves its state and stops
        time.sleep(SECONDS_TO_SAVE)
        os._exit(1)

    if (parent := multiprocessing.parent_process()) is not None:
        threading.Thread(target=watch, args=(parent,), daemon=True).start()


def _result(future: Future[str | None]) -> str | None:
    try:
        return future.result()
    except BrokenProcessPool as error:
        raise ConfigError(
            "a run's process was killed, perhaps for want of memory: the same command goes on; try a smaller --jobs."
        ) from error


def _first(found: Iterator[Task], count: int) -> list[Task]:
    chosen: dict[Path, Task] = {}
    while len(chosen) < count and (task := next(found, None)) is not None:
        chosen[task.folder] = task
    return list(chosen.values())


@dataclass(frozen=True)
class Pending:
    """A run of a study, and whether it is done."""

    bench: Bench
    folder: Path
    done: bool


def pending(matrix: Matrix, claims: Sequence[Claim]) -> list[Pending]:
    """Every run of the claims, once; how far the searches will walk is known only when they have."""
    found: dict[Path, Pending] = {}
    for claim in claims:
        bench = claim.bench
        for cell in claim.cells():
            folder = matrix.folder(bench, cell)
            if not cell.trains:
                files = [matrix.untrained(bench, cell, seed) for seed in matrix.seeds]
                found.update({file: Pending(bench, file, file.exists()) for file in files})
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


def _settled(run: Path) -> bool:
    """Whether a run is over, well or not."""
    return _outcome(run) is not None or (run / "failed.json").exists()


def _do(task: Task, threads: int) -> str | None:
    """One run, in a process of its own; what went wrong, if it is the run's fault."""
    import torch

    from recollect.common.quiet import set_quiet

    torch.set_num_threads(threads)
    set_quiet(True)
    try:
        if task.trains:
            _train(task)
        else:
            _measure_untrained(task)
    except RecollectError as error:
        from recollect.training.trainer import TrainingStoppedError

        if isinstance(error, TrainingStoppedError) and error.exit_code > 128:
            raise  # asked to stop: saved, and resumed by the next call
        task.folder.mkdir(parents=True, exist_ok=True)
        write_json(task.folder / "failed.json", {"why": str(error)})
        return str(error)
    return None


def _train(task: Task) -> None:
    from recollect.data import only_splits
    from recollect.training.recipes import resolve
    from recollect.training.trainer import train

    if (task.folder / "config.yaml").exists():
        train(resume=task.folder, say=_silent)
        return
    with contextlib.suppress(OSError):  # a folder left by a run that was killed before its first file
        task.folder.rmdir()
    config = resolve(task.recipe, task.settings)
    # A run of the search has no way to the test set, whatever its settings say.
    sealed = contextlib.nullcontext() if config.run.watch_test else only_splits(config.data.train_split)
    with sealed:
        train(config, task.folder, say=_silent)


def _measure_untrained(task: Task) -> None:
    """Features as they are before any training: the paper's *init* rows."""
    from recollect.data import load
    from recollect.evaluation import evaluate
    from recollect.report.vectors import embed
    from recollect.training.parts import make_embedder
    from recollect.training.recipes import as_mapping, resolve

    config = resolve(task.recipe, task.settings)
    images = load(config.data.name, config.data.root, config.data.test_split, **config.data.options)
    vectors = embed(make_embedder(config.model, config.run.seed), images, None)
    metrics = evaluate(vectors, images.labels, ks=(1, 2, 4, 8), metrics=("r@k",)).metrics
    task.folder.parent.mkdir(parents=True, exist_ok=True)
    write_json(
        task.folder, {"metrics": metrics, "fingerprint": images.fingerprint, "model": as_mapping(config)["model"]}
    )


def _silent(line: str) -> None:
    """What single runs say; their folders keep it."""
