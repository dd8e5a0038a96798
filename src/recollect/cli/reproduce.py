"""``recollect reproduce``: the paper's claims, measured on images at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from recollect.cli.app import app
from recollect.cli.options import Quiet, finite, remark


@app.command()
def reproduce(
    claim: Annotated[
        str,
        typer.Argument(
            help="losses, batch, simix, initialisation, k-sets, tau1, count-query, asymmetric, or all.",
        ),
    ],
    budget: Annotated[Literal["small", "full"], typer.Option(help="How long each run trains.")] = "small",
    data: Annotated[
        Path | None, typer.Option(help="A folder that holds cars196_96px and omniglot; without it, embedded images.")
    ] = None,
    bench: Annotated[list[str] | None, typer.Option(help="Only on these, e.g. glyphs. May be repeated.")] = None,
    out: Annotated[Path, typer.Option(help="The study's folder: runs and page.")] = Path("runs/reproduce"),
    page: Annotated[Path | None, typer.Option(help="Where to write the page. Default: OUT/page.")] = None,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="How many seeds.")] = 3,
    jobs: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Runs at a time. Default: one per core; one with a GPU.")
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0, max=10**7, callback=finite, help="Start no new run after so many minutes; 0 only writes the page."
        ),
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Print what would be run, and stop.")] = False,
    quiet: Quiet = False,
) -> None:
    """Measure the paper's claims: a matrix of ordinary runs, done once, resumable; then a page beside the paper's.

    recollect reproduce losses                        on the embedded characters
    recollect reproduce all --data DIR --minutes 60   as far as an hour goes; the same command goes on
    """
    from recollect.studies.claims_page import write_page
    from recollect.studies.claims_plan import choose_claims, describe, every_claim
    from recollect.studies.matrix import Matrix
    from recollect.studies.matrix_runs import run_matrix

    claims, left_out = choose_claims(claim, bench, data)
    matrix = Matrix(out, budget, data, tuple(range(1, seeds + 1)))
    for line in describe(matrix, claims, left_out):
        (typer.echo if plan else remark)(line)
    if plan:
        return
    complete = run_matrix(matrix, claims, jobs=jobs, minutes=minutes)
    if not complete:
        remark("left       some runs are not done: the same command resumes them")
    # The page is of all that was ever run in this folder, so that one claim's command does not drop another's results.
    typer.echo(write_page(matrix, every_claim(), page or out / "page", _command(claim, budget, data, bench, seeds)))


def _command(claim: str, budget: str, data: Path | None, benches: list[str] | None, seeds: int) -> str:
    """The command as it can be typed anywhere: without this machine's paths."""
    words = ["recollect reproduce", claim, "--budget", budget]
    words += ["--data DIR"] if data is not None else []
    words += [f"--bench {bench}" for bench in benches or ()]
    return " ".join([*words, "--seeds", str(seeds)])
