"""Results of finished runs: means and standard deviations over seeds, and a verdict for every comparison.

A comparison is made seed by seed: runs of one seed share their batches and, from scratch, their first weights, so their
paired difference varies less than the difference of two means. Its 90 % interval (Student's t, seeds − 1 degrees of freedom)
decides: entirely above zero it holds, entirely below it does not; otherwise, and with fewer than three seeds, it is undecided.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal

from recollect.common.errors import DataError
from recollect.common.words import in_decimals
from recollect.studies.benches import Bench
from recollect.studies.claims import Cell, Claim, Contrast
from recollect.studies.matrix import (
    Matrix,
    RateChoice,
    failure_of,
    outcome_of,
    processor_seconds_of,
    version_of,
)

Verdict = Literal["holds here", "does not hold here", "undecided", "not run"]

MIN_SEEDS = 3
# Two-sided 90 % of Student's t for 1, 2, … degrees of freedom; beyond the last it is a little too wide.
_T90 = [
    *(6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812),
    *(1.796, 1.782, 1.771, 1.761, 1.753, 1.746, 1.740, 1.734, 1.729, 1.725),
]


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
    versions: frozenset[str] = frozenset()
    """Versions of recollect that made the runs."""
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
        return mean(self.by_seed.values()) if self.by_seed else None

    @property
    def deviation(self) -> float | None:
        """Standard deviation over seeds; None for fewer than two."""
        return stdev(self.by_seed.values()) if len(self.by_seed) > 1 else None

    @property
    def shown(self) -> str:
        """``84.1 ± 0.3``, or a dash."""
        if self.mean is None:
            return "–"
        return f"{self.mean:.1f}" + ("" if self.deviation is None else f" ± {self.deviation:.1f}")


@dataclass(frozen=True)
class Judged:
    """A comparison with its differences by seed, in points."""

    contrast: Contrast
    differences: tuple[float, ...]
    verdict: Verdict
    two_versions: bool = False
    """Its runs were made by more than one version of recollect."""

    @property
    def shown(self) -> str:
        """The mean difference with its interval."""
        if not self.differences:
            return "–"
        middle, half = interval(self.differences)
        around = "" if math.isinf(half) else f" ± {half:.1f}"
        return in_decimals(middle, 1, plus=True) + around

    @property
    def words(self) -> str:
        """The verdict in plain words."""
        found: str = self.verdict
        if not self.contrast.claimed and self.verdict in ("holds here", "does not hold here"):
            found = "yes, here" if self.verdict == "holds here" else "no: the other way round here"
        return f"{found} (runs of two versions)" if self.two_versions and self.differences else found


def collect(matrix: Matrix, claim: Claim) -> dict[str, CellResult]:
    """Results of a claim's cells by name; cells without finished runs are empty."""
    return {cell.name: _result(matrix, claim.bench, cell) for cell in claim.cells()}


def _result(matrix: Matrix, bench: Bench, cell: Cell) -> CellResult:
    choice = matrix.choice(bench, cell) if cell.trains else None
    if cell.trains and choice is None:
        return CellResult(cell, {}, None)
    runs = {
        seed: matrix.untrained(bench, cell, seed) if choice is None else matrix.final(bench, cell, choice, seed)
        for seed in matrix.seeds
    }
    outcomes = {seed: found for seed, run in runs.items() if (found := outcome_of(run))}
    tested = {seed: _tested(runs[seed], outcome) for seed, outcome in outcomes.items()}
    steps = next((int(outcome["steps"]) for outcome in outcomes.values()), None)
    failures = tuple(f"seed {seed}: {why}" for seed, run in runs.items() if (why := failure_of(run)))
    searched = () if choice is None else matrix.searches(bench, cell).values()
    return CellResult(
        cell,
        tested,
        choice,
        steps,
        failures,
        versions=frozenset(version_of(runs[seed]) for seed in outcomes),
        processor_seconds=_total(runs[seed] for seed in outcomes) / len(outcomes) if outcomes else None,
        searched_seconds=_total(searched),
    )


def _tested(run: Path, outcome: Mapping[str, Any]) -> Mapping[str, float]:
    """Test metrics of a finished run, in percent."""
    found: Mapping[str, float] = (outcome.get("metrics") or {}).get("test") or {}
    if "r@1" not in found:
        raise DataError(f"{run}: its manifest has no r@1 on the test set. Remove the folder to train it again.")
    return {name: 100 * value for name, value in found.items()}


def _total(runs: Iterable[Path]) -> float:
    return sum(processor_seconds_of(run) or 0.0 for run in runs)


def judge(contrast: Contrast, results: dict[str, CellResult]) -> Judged:
    """A comparison over the seeds for which all its cells have its metric."""
    terms = [
        (sign, {seed: found[contrast.metric] for seed, found in tested.items() if contrast.metric in found})
        for sign, tested in ((sign, results[cell.name].tested) for sign, cell in contrast.terms)
    ]
    seeds = sorted(set.intersection(*(set(values) for _, values in terms)))
    differences = tuple(sum(sign * values[seed] for sign, values in terms) for seed in seeds)
    two_versions = len(frozenset[str]().union(*(results[cell.name].versions for _, cell in contrast.terms))) > 1
    return Judged(contrast, differences, verdict(differences), two_versions)


def verdict(differences: Sequence[float]) -> Verdict:
    """Whether differences are above zero.

    Examples:
        >>> verdict([2.0, 2.2, 1.9]), verdict([2.0, -1.0, 0.5]), verdict([])
        ('holds here', 'undecided', 'not run')
    """
    if not differences:
        return "not run"
    middle, half = interval(differences)
    if len(differences) < MIN_SEEDS:
        return "undecided"
    if middle - half > 0:
        return "holds here"
    return "does not hold here" if middle + half < 0 else "undecided"


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """The mean and half the width of its 90 % interval; infinite for a single value."""
    count = len(differences)
    if count < 2:
        return differences[0], math.inf
    return mean(differences), _T90[min(count - 1, len(_T90)) - 1] * stdev(differences) / math.sqrt(count)
