"""What finished runs say: means and deviations over seeds, and a verdict for every comparison.

A comparison is made seed by seed: runs of one seed share their batches and, from scratch, their first weights, so their
difference says more than the difference of two means. Its 90 % interval (Student's t, seeds − 1 degrees of freedom)
decides: above zero it holds, below it does not, otherwise it is undecided. With three seeds that is a strict judge.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Literal

from recollect.common.files import read_json
from recollect.tuning.claims import Cell, Claim, Contrast
from recollect.tuning.matrix import Choice, Matrix, result_of

Verdict = Literal["holds here", "does not hold here", "undecided", "not run"]

# Two-sided 90 % of Student's t by degrees of freedom; beyond ten the normal's value is near enough.
_T90 = {1: 6.314, 2: 2.920, 3: 2.353, 4: 2.132, 5: 2.015, 6: 1.943, 7: 1.895, 8: 1.860, 9: 1.833, 10: 1.812}


@dataclass(frozen=True)
class CellResult:
    """r@1 of a cell in percent, by seed, and how it was trained."""

    cell: Cell
    by_seed: dict[int, float]
    choice: Choice | None

    @property
    def mean(self) -> float | None:
        """Over seeds."""
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
    """A comparison with its differences, in points of r@1."""

    contrast: Contrast
    differences: tuple[float, ...]
    verdict: Verdict

    @property
    def shown(self) -> str:
        """The mean difference with its interval."""
        if not self.differences:
            return "–"
        middle, half = interval(self.differences)
        around = "" if math.isinf(half) else f" ± {half:.1f}"
        return f"{middle:+.1f}{around}"

    @property
    def words(self) -> str:
        """The verdict in plain words."""
        if self.contrast.claimed or self.verdict in ("undecided", "not run"):
            return self.verdict
        return "yes, here" if self.verdict == "holds here" else "no: the other way round here"


def collect(matrix: Matrix, claim: Claim) -> dict[str, CellResult]:
    """Results of a claim's cells by name, as far as there are any."""
    found = {}
    for cell in claim.cells():
        choice = matrix.choice(claim.bench, cell) if cell.trains else None
        results: dict[int, dict[str, float] | None] = {}
        for seed in matrix.seeds:
            if choice is not None:
                results[seed] = result_of(matrix.final(claim.bench, cell, choice, seed))
            elif not cell.trains and (file := matrix.untrained(claim.bench, cell, seed)).exists():
                results[seed] = read_json(file)["metrics"]
        by_seed = {seed: 100 * metrics["r@1"] for seed, metrics in results.items() if metrics}
        found[cell.name] = CellResult(cell, by_seed, choice)
    return found


def judge(contrast: Contrast, results: dict[str, CellResult]) -> Judged:
    """A comparison over the seeds that all its cells have."""
    cells = [(sign, results[cell.name]) for sign, cell in contrast.terms]
    seeds = sorted(set.intersection(*(set(result.by_seed) for _, result in cells)))
    differences = tuple(sum(sign * result.by_seed[seed] for sign, result in cells) for seed in seeds)
    return Judged(contrast, differences, verdict(differences))


def verdict(differences: Sequence[float]) -> Verdict:
    """Whether differences are above zero.

    Example:
        >>> verdict([2.0, 2.2, 1.9]), verdict([2.0, -1.0, 0.5]), verdict([])
        ('holds here', 'undecided', 'not run')
    """
    if not differences:
        return "not run"
    middle, half = interval(differences)
    if middle - half > 0:
        return "holds here"
    return "does not hold here" if middle + half < 0 else "undecided"


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """The mean and half the width of its 90 % interval; infinite for a single value."""
    count = len(differences)
    if count < 2:
        return differences[0], math.inf
    return mean(differences), _T90.get(count - 1, 1.7) * stdev(differences) / math.sqrt(count)
