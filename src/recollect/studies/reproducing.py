"""``reproduce``: the paper's claims measured as a matrix of ordinary runs, then a page. Used by ``recollect reproduce``."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from recollect.studies.benches import Budget
from recollect.studies.claims_page import write_page
from recollect.studies.claims_plan import choose_claims, describe, every_claim
from recollect.studies.earlier_runs import take_over
from recollect.studies.matrix import Matrix
from recollect.studies.matrix_runs import run_matrix

logger = logging.getLogger(__name__)


def reproduce(
    claim: str = "all",
    *,
    budget: Budget = "small",
    data: Path | None = None,
    benches: Sequence[str] | None = None,
    out: Path | str = "runs/reproduce",
    page: Path | None = None,
    seeds: int = 3,
    jobs: int | None = None,
    minutes: float | None = None,
    earlier: Path | None = None,
) -> Path:
    """Measure claims of the paper: a matrix of ordinary, resumable runs, then a page with the paper's numbers.

    Args:
        claim: ``losses``, ``batch``, ``simix``, ``initialisation``, ``k-sets``, ``tau1``, ``count-query``, ``asymmetric`` or
            ``all``.
        budget: ``small`` or ``full``: the length of each run.
        data: a folder that contains cars196_96px and omniglot; without it, embedded images.
        benches: use only these, e.g. ``["glyphs"]``.
        out: the study's folder. page: where to write the page; by default ``page`` in ``out``.
        seeds: how many.
        jobs: runs at a time; by default one per core, one with a GPU.
        minutes: start no new run after this many minutes; 0 only writes the page.
        earlier: ``runs.jsonl`` of an earlier page, whose runs count as done if their settings are the same.

    Returns:
        The page. The next call continues with runs that are not done.

    Example:
        It takes hours; with ``minutes=0`` it only writes the page::

            page = recollect.reproduce("simix", benches=["glyphs"], seeds=3)
    """
    out = Path(out)
    claims, left_out = choose_claims(claim, list(benches) if benches else None, data)
    matrix = Matrix(out, budget, data, tuple(range(1, seeds + 1)))
    if earlier is not None:
        matrix.open()
        taken, left = take_over(matrix, claims, earlier)
        logger.info(f"earlier    {taken} runs imported from {earlier}; {left} have other settings or are not needed")
    for line in describe(matrix, claims, left_out):
        logger.info(line)
    if not run_matrix(matrix, claims, jobs=jobs, minutes=minutes):
        logger.info("left       some runs are not done: the same command resumes them")
    # The page covers all runs of this folder, so that one claim's command does not drop another's results.
    return write_page(matrix, every_claim(), page or out / "page", _command(claim, budget, data, benches, seeds))


def plan_reproduction(
    claim: str = "all",
    *,
    budget: Budget = "small",
    data: Path | None = None,
    benches: Sequence[str] | None = None,
    out: Path | str = "runs/reproduce",
    seeds: int = 3,
) -> list[str]:
    """What ``reproduce`` would run with these arguments, in lines of text.

    Args:
        claim, budget, data, benches, out, seeds: as for ``reproduce``.

    Example:
        >>> lines = plan_reproduction("simix", benches=["glyphs"])
    """
    claims, left_out = choose_claims(claim, list(benches) if benches else None, data)
    return describe(Matrix(Path(out), budget, data, tuple(range(1, seeds + 1))), claims, left_out)


def _command(claim: str, budget: Budget, data: Path | None, benches: Sequence[str] | None, seeds: int) -> str:
    """The command without this machine's paths."""
    words = ["recollect reproduce", claim, "--budget", budget]
    words += ["--data DIR"] if data is not None else []
    words += [f"--bench {bench}" for bench in benches or ()]
    return " ".join([*words, "--seeds", str(seeds)])
