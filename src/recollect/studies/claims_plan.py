"""The requested claims and benches, and their cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from recollect.common.errors import ConfigError, DataError
from recollect.common.words import did_you_mean, in_words
from recollect.studies.benches import BENCHES
from recollect.studies.claims import CLAIMS, Claim
from recollect.studies.matrix import Matrix, pending


def choose_claims(name: str, benches: Sequence[str] | None, data: Path | None) -> tuple[list[Claim], list[str]]:
    """The claims of that name (or all) on the benches whose images are available, and the skipped ones with the reason.

    Raises:
        ConfigError: an unknown claim or bench, or nothing can be run.
        DataError: a bench was requested by name and its images are missing.
    """
    if name != "all" and name not in CLAIMS:
        raise ConfigError(
            f"there is no claim {name!r}.{did_you_mean(name, CLAIMS)} The claims are: {', '.join(CLAIMS)}, all."
        )
    for bench in benches or ():
        if bench not in BENCHES:
            raise ConfigError(
                f"there is no bench {bench!r}.{did_you_mean(bench, BENCHES)} The benches are: {', '.join(BENCHES)}."
            )
    chosen, left_out = [], []
    for claim in CLAIMS if name == "all" else [name]:
        make, places = CLAIMS[claim]
        for place in places:
            if benches and place not in benches:
                continue
            try:
                BENCHES[place].root(data)
            except DataError as error:
                if benches:
                    raise
                left_out.append(f"{claim} on {place}: {error}")
                continue
            chosen.append(make(BENCHES[place]))
    if not chosen:
        raise ConfigError(f"nothing in {name!r} can be run: " + (" ".join(left_out) or "no such bench for it."))
    return chosen, left_out


def every_claim() -> list[Claim]:
    """Each claim on each of its benches."""
    return [make(BENCHES[place]) for make, places in CLAIMS.values() for place in places]


def describe(matrix: Matrix, claims: Sequence[Claim], left_out: Sequence[str]) -> list[str]:
    """The plan, one line per claim."""
    lines = []
    for claim in claims:
        lines.append(f"claim      {claim.title}, on {claim.bench.name}: {len(claim.cells())} cells")
    for bench in dict.fromkeys(claim.bench.name for claim in claims):
        lines.append(f"budget     {bench}: {BENCHES[bench].budget.words(matrix.budget)}")
    lines += runs_and_time(matrix, claims, "by runs on a server's processor")
    return [*lines, *(f"left out   {text}" for text in left_out)]


def runs_and_time(matrix: Matrix, claims: Sequence[Claim], source: str) -> list[str]:
    """The number of runs, and the approximate time of those that are not done.

    Args:
        matrix: the study. claims: the requested claims.
        source: how ``Bench.cost`` was measured.
    """
    counted = pending(matrix, claims)
    left = [run for run in counted if not run.done]
    lines = [f"runs       {len(counted)} in total, {len(counted) - len(left)} already done"]
    if left:
        seconds = sum(run.bench.seconds(matrix.budget) for run in left)
        lines.append(f"time       about {in_words(seconds)} of one core, {source}")
    return lines
