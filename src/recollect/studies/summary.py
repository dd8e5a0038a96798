"""Results of studies as plain records: the trials of a search, and the cells and pairs of a comparison.

A search is read from its database only, so that every participating machine can write the whole report. ``pages.py`` and
the command line show these records; ``trials.csv``, ``study.json`` and ``comparison.json`` contain them.

Losses are compared seed by seed: runs of one seed share their batches and, from scratch, their first weights, so their
paired difference varies less than the difference of two means. Its 90 % interval (Student's t, seeds − 1 degrees of freedom)
decides; with fewer than three seeds nothing is decided.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from recollect._version import __version__
from recollect.common.errors import DataError
from recollect.common.files import write_json, write_text
from recollect.common.text import in_decimals, in_words, number_of
from recollect.config.schema import Config
from recollect.studies.protocol import Cell, Matrix, Protocol, RateChoice, Run, failure_of, outcome_of
from recollect.studies.runner import TrialQueue, is_abandoned
from recollect.training.run import RunFolder

_STATES = {"COMPLETE": "done", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running", "WAITING": "queued"}
MIN_FOR_IMPORTANCE = 20
"""Trials below which the importance of parameters is noise."""
BEST_SHARE = 0.3
"""Share of best trials that are compared with all. A tenth of 20 would be two, and anything these two have in common
would appear important."""
MIN_SEEDS = 3
# Two-sided 90 % of Student's t for 1, 2, … degrees of freedom; beyond the last it is a little too wide.
_T90 = [
    *(6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812),
    *(1.796, 1.782, 1.771, 1.761, 1.753, 1.746, 1.740, 1.734, 1.729, 1.725),
]


@dataclass(frozen=True)
class TrialRecord:
    """One trial. ``value`` is the best validation metric as a fraction; values that are not known yet are None."""

    number: int
    state: str
    drawn: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    value: float | None = None
    best_epoch: float | None = None
    best_step: int | None = None
    map_at_r: float | None = None
    steps: int = 0
    seconds: float = 0.0
    images: int = 0
    host: str = ""
    failure: str = ""
    curve: list[tuple[float, float]] = field(default_factory=list)

    @property
    def merit(self) -> tuple[float, float, int]:
        """The key for comparing trials: the validation metric; among equals mAP@R, then the earlier trial."""
        return self.value or 0.0, self.map_at_r or 0.0, -self.number


@dataclass(frozen=True)
class StudyResults:
    """A study.

    Attributes:
        name: name of the study. recipe: the tuned recipe. select: the validation metric.
        space: parameter → its range, as text.
        trials: by number. chosen: the number of the best, None as long as there is none.
        importance: parameter → share; empty with few trials.
        seconds, images: cost of the search, over all trials.
        final: the training on all classes and its test, once done.
        protocol: classes and images of both halves, remarks.
    """

    name: str
    folder: str
    recipe: str
    data: str
    select: str
    sampler: str
    seed: int
    space: dict[str, str]
    trials: list[TrialRecord]
    chosen: int | None
    importance: dict[str, float]
    seconds: float
    images: int
    final: dict[str, Any] | None
    protocol: dict[str, Any]

    @property
    def best(self) -> TrialRecord | None:
        """The chosen trial."""
        return next((trial for trial in self.trials if trial.number == self.chosen), None)

    def count(self, *states: str) -> int:
        """How many trials are in one of these states."""
        return sum(trial.state in states for trial in self.trials)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as in ``study.json``."""
        return {"written_by": f"recollect {__version__}", **asdict(self)}


def read_results(queue: TrialQueue, protocol: Protocol, final: dict[str, Any] | None = None) -> StudyResults:
    """Everything the database contains about a study."""
    trials = [_record(slot, trial) for slot, trial in queue.slots().items()]
    best = best_trial(trials)
    base = protocol.base
    return StudyResults(
        name=queue.study.study_name,
        folder=str(queue.folder),
        recipe=base.name,
        data=base.data.title,
        select=base.run.select,
        sampler=queue.sampler,
        seed=queue.seed,
        space=protocol.ranges,
        trials=trials,
        chosen=None if best is None else best.number,
        importance=importance(queue.study, [name for name, parameter in protocol.space.items() if not parameter.fixed]),
        seconds=round(sum(trial.seconds for trial in trials), 1),
        images=sum(trial.images for trial in trials),
        final=final,
        protocol={
            "train": dict(protocol.train),
            "validation": dict(protocol.validation),
            "fingerprints": dict(protocol.fingerprints),
            "batch": protocol.batch,
            "final_batch": base.batch.size,
            "remarks": list(protocol.remarks),
            "published": dict(base.published),
        },
    )


def _record(slot: int, trial: Any) -> TrialRecord:
    facts = {key: value for key, value in trial.user_attrs.items() if key in TrialRecord.__dataclass_fields__}
    facts["curve"] = [(float(epoch), float(value)) for epoch, value in facts.get("curve", [])]
    if trial.state.name == "FAIL":
        facts["value"] = None
    return TrialRecord(
        slot,
        "queued" if is_abandoned(trial) else _STATES[trial.state.name],
        host=trial.user_attrs.get("owner", {}).get("host", ""),
        **facts,
    )


def best_trial(trials: list[TrialRecord]) -> TrialRecord | None:
    """The completed trial with the highest validation metric; among equals see ``TrialRecord.merit``."""
    done = [trial for trial in trials if trial.state == "done" and trial.value is not None]
    return max(done, key=lambda trial: trial.merit, default=None)


def importance(study: Any, names: list[str]) -> dict[str, float]:
    """PED-ANOVA: how far the best trials' values of a parameter differ from all values. Needs no other package.

    Returns:
        Parameter → share; empty with fewer than ``MIN_FOR_IMPORTANCE`` finished trials, or if all have one value.
    """
    done = [trial for trial in study.get_trials(deepcopy=False) if trial.state.name == "COMPLETE"]
    if len(done) < MIN_FOR_IMPORTANCE or not names or len({trial.value for trial in done}) < 2:
        return {}
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    evaluator = PedAnovaImportanceEvaluator(target_quantile=BEST_SHARE)
    importances = get_param_importances(study, evaluator=evaluator, params=names)
    shares = {str(name): round(float(value), 4) for name, value in importances.items()}
    return shares if math.isfinite(sum(shares.values())) else {}


def write_tables(folder: Path, results: StudyResults) -> None:
    """Write ``trials.csv`` and ``study.json``."""
    write_json(folder / "study.json", results.as_dict())
    keys = list(dict.fromkeys(key for trial in results.trials for key in trial.settings))
    head = ["trial", "state", "chosen", results.select, "map@r", "best_epoch", "steps", "seconds", "images"]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*head, *keys, "host", "failure"])
    for trial in results.trials:
        best = "yes" if trial.number == results.chosen else ""
        values = [trial.value, trial.map_at_r, trial.best_epoch, trial.steps, trial.seconds, trial.images]
        settings = [trial.settings.get(key) for key in keys]
        settings = [" ".join(map(str, value)) if isinstance(value, list) else value for value in settings]
        writer.writerow([trial.number, trial.state, best, *values, *settings, trial.host, trial.failure])
    write_text(folder / "trials.csv", text.getvalue())


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean and half the width of its 90 % interval; infinite for a single value."""
    count = len(values)
    if count < 2:
        return values[0], math.inf
    return mean(values), _T90[min(count - 1, len(_T90)) - 1] * stdev(values) / math.sqrt(count)


def decided(differences: Sequence[float]) -> bool:
    """Whether the 90 % interval of the mean difference excludes zero, from three seeds on.

    Examples:
        >>> decided([2.0, 2.2, 1.9]), decided([2.0, -1.0, 0.5]), decided([2.0, 2.0])
        (True, False, False)
    """
    if len(differences) < MIN_SEEDS:
        return False
    middle, half = interval(differences)
    return abs(middle) > half


def in_points(differences: Sequence[float]) -> str:
    """The mean difference with its interval, ``+0.5 ± 0.2``; a dash without any."""
    if not differences:
        return "–"
    middle, half = interval(differences)
    return in_decimals(middle, 1, plus=True) + ("" if math.isinf(half) else f" ± {half:.1f}")


@dataclass(frozen=True)
class CellResult:
    """Results of a cell on the test set, by seed, and how it was trained."""

    cell: Cell
    tested: Mapping[int, Mapping[str, float]]
    """Every metric in percent, for each seed."""
    choice: RateChoice | None
    steps: int | None = None
    """Steps of the final runs."""
    failures: tuple[str, ...] = ()
    """Why seeds have no result."""
    processor_seconds: float | None = None
    """Processor seconds of a final run, mean over seeds."""
    searched_seconds: float | None = None
    """Processor seconds of the whole search."""

    @property
    def by_seed(self) -> dict[int, float]:
        """r@1 in percent."""
        return {seed: metrics["r@1"] for seed, metrics in self.tested.items()}

    @property
    def metrics(self) -> dict[str, float]:
        """Mean over seeds of every metric that all of them have, in percent."""
        every = list(self.tested.values())
        names = [name for name in (every[0] if every else ()) if all(name in metrics for metrics in every)]
        return {name: mean(metrics[name] for metrics in every) for name in names}

    @property
    def mean(self) -> float | None:
        """Of r@1 over seeds."""
        return self.metrics.get("r@1")

    @property
    def half_width(self) -> float | None:
        """Half of the 90 % interval of r@1; None for a single value, and without a step if every seed has the same."""
        values = list(self.by_seed.values())
        if len(values) < 2 or not (self.cell.trains or len(set(values)) > 1):
            return None
        return interval(values)[1]

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        choice = self.choice
        return {
            "loss": self.cell.label,
            "r@1": self.mean,
            "half_width_90": self.half_width,
            "by_seed": self.by_seed,
            "metrics": self.metrics,
            "learning_rate": None if choice is None else choice.rate,
            "steps": self.steps,
            "batch": self.cell.batch,
            "search_batch": None if choice is None else choice.batch,
            "images": None if self.steps is None else self.steps * self.cell.batch,
            "processor_seconds": self.processor_seconds,
            "searched_processor_seconds": self.searched_seconds,
            "failures": list(self.failures),
        }


def collect(matrix: Matrix, cells: Iterable[Cell]) -> dict[str, CellResult]:
    """Results of the cells by name; cells without finished runs are empty."""
    return {cell.name: _result(matrix, cell) for cell in cells}


def _result(matrix: Matrix, cell: Cell) -> CellResult:
    runs = matrix.reported(cell)
    if not runs:
        return CellResult(cell, {}, None)
    finished = [(run, outcome) for run in runs if (outcome := outcome_of(run.folder))]
    return CellResult(
        cell,
        {run.seed: _tested(run, outcome) for run, outcome in finished},
        matrix.choice(cell) if cell.trains else None,
        int(finished[0][1]["steps"]) if finished else None,
        tuple(f"seed {run.seed}: {why}" for run in runs if (why := failure_of(run.folder))),
        _processor_seconds(run.folder for run, _ in finished) / len(finished) if finished else None,
        _processor_seconds(matrix.searches(cell).values() if cell.trains else ()),
    )


def _tested(run: Run, outcome: Mapping[str, Any]) -> Mapping[str, float]:
    """Test metrics of a finished run, in percent."""
    metrics: Mapping[str, float] = (outcome.get("metrics") or {}).get("test") or {}
    if "r@1" not in metrics:
        raise DataError(f"{run.folder}: its manifest has no r@1 on the test set. Remove the folder to train it again.")
    return {name: 100 * value for name, value in metrics.items()}


def _processor_seconds(runs: Iterable[Path]) -> float:
    return sum(float(RunFolder(run).read_manifest().get("processor_seconds", 0.0)) for run in runs)


@dataclass(frozen=True)
class PairOfLosses:
    """Two losses and the differences of their r@1 in points, by seed."""

    first: str
    second: str
    differences: tuple[float, ...]

    @property
    def sentence(self) -> str:
        """The result in plain words."""
        a, b = self.first, self.second
        if not self.differences:
            return f"{a} and {b} have no finished seeds in common yet."
        middle, half = interval(self.differences)
        low, high = middle - half, middle + half
        difference, lowest, highest = (in_decimals(points, 1, plus=True) for points in (middle, low, high))
        seeds = number_of(len(self.differences), "seed")
        if len(self.differences) < MIN_SEEDS:
            return f"{a} and {b} differ by {difference} points of r@1 over {seeds}: too few seeds to decide."
        if not decided(self.differences):
            return (
                f"{a} and {b} cannot be distinguished here: the difference is {difference} points of r@1, 90 % interval "
                f"{lowest} to {highest}, {seeds}."
            )
        if middle < 0:
            a, b, low, high = b, a, -high, -low
        return (
            f"{a} finds more than {b}: {abs(middle):.1f} points of r@1, 90 % interval {low:.1f} to {high:.1f}, {seeds}."
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        middle, half = interval(self.differences) if self.differences else (None, None)
        return {
            "first": self.first,
            "second": self.second,
            "difference": middle,
            "half_width_90": None if half is None or math.isinf(half) else half,
            "by_seed": list(self.differences),
            "sentence": self.sentence,
        }


@dataclass(frozen=True)
class PlannedComparison:
    """The plan of a comparison.

    Attributes:
        matrix: the folder of the runs. cells: what is trained and measured. pairs: what is compared.
        config: resolved settings of the first loss.
        train_images, train_classes: how many there are.
        run_seconds: approximate time of a run, mean over the losses.
        feature_seconds: approximate time to compute the features of the training images, which is done once.
    """

    matrix: Matrix
    cells: Sequence[Cell]
    pairs: Sequence[tuple[Cell, Cell]]
    config: Config
    train_images: int
    train_classes: int
    run_seconds: float = 0.0
    feature_seconds: float = 0.0

    @property
    def batches(self) -> str:
        """The batch sizes of the runs and of their search, in words."""
        cell = self.cells[0]
        smaller = f"; {cell.search_batch:,} in the search, as half of the training classes fill no more"
        return f"{cell.batch:,} images{smaller if cell.search_batch < cell.batch else ''}"

    def lines(self) -> list[str]:
        """The plan in words, one line each."""
        bench, model, plan = self.cells[0].bench, self.config.model, self.as_dict()
        once = ", computed once" if self.config.trains_on_features else ""
        frozen = "the whole network is trained" if model.freeze == "none" else f"frozen up to {model.freeze}{once}"
        lines = [
            f"data       {plan['data']}: {self.train_images:,} training images of {self.train_classes:,} classes",
            f"network    {model.init}, {frozen}",
            f"losses     {', '.join(plan['losses'])}",
            f"batch      {self.batches}",
            f"budget     {bench.budget}",
            f"rates      {' and '.join(f'{rate:g}' for rate in bench.rates)} first; more while the best is at an end",
            f"runs       {plan['runs']} in total, {plan['runs_done']} already done",
        ]
        if plan["runs_done"] < plan["runs"]:
            lines.append(f"time       about {in_words(plan['seconds'])} of one core, measured on a few images")
        if self.feature_seconds > 1:
            lines.append(f"features   about {in_words(self.feature_seconds)}, once before training")
        return lines

    def as_dict(self) -> dict[str, Any]:
        """Plain values, e.g. for ``--json``."""
        bench, runs = self.cells[0].bench, self.matrix.runs(self.cells)
        done = sum(run.done for run in runs)
        return {
            "data": self.config.data.title,
            "train": {"classes": self.train_classes, "images": self.train_images},
            "init": self.config.model.init,
            "freeze": self.config.model.freeze,
            "losses": [cell.label for cell in self.cells if cell.trains],
            "batch": self.cells[0].batch,
            "budget": str(bench.budget),
            "first_rates": list(bench.rates),
            "runs": len(runs),
            "runs_done": done,
            "seconds": (len(runs) - done) * self.run_seconds,
            "seconds_features": self.feature_seconds,
        }


@dataclass(frozen=True)
class LossComparison:
    """The results of a comparison, as far as runs are finished.

    Attributes:
        planned: the plan. complete: whether every run is done.
        results: one per loss, one for the closed form if the last layer starts from it, and one for the network without
            training if it is pre-trained.
        pairs: every pair of losses, each loss and what it starts from, and the closed form and the network without training.
        page: the HTML page.
    """

    planned: PlannedComparison
    complete: bool
    results: Sequence[CellResult]
    pairs: Sequence[PairOfLosses]
    page: Path

    @classmethod
    def of(cls, planned: PlannedComparison, complete: bool) -> LossComparison:
        """Read the results from the run folders."""
        results, pairs = collect(planned.matrix, planned.cells), []
        for first, second in planned.pairs:
            one, two = results[first.name].by_seed, results[second.name].by_seed
            differences = tuple(one[seed] - two[seed] for seed in one if seed in two)
            pairs.append(PairOfLosses(first.label, second.label, differences))
        return cls(planned, complete, list(results.values()), pairs, planned.matrix.out / "comparison.html")

    def as_dict(self) -> dict[str, Any]:
        """Plain values, e.g. for ``--json``."""
        return {
            "complete": self.complete,
            "page": str(self.page),
            "losses": [result.as_dict() for result in self.results],
            "pairs": [pair.as_dict() for pair in self.pairs],
        }
