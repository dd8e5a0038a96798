"""``recollect reproduce``: the paper's claims, measured on available images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from recollect.cli.app import app
from recollect.cli.options import (
    Jobs,
    Minutes,
    Quiet,
)


@app.command()
def reproduce(
    claim: Annotated[
        str,
        typer.Argument(
            help="losses, batch, simix, initialisation, k-sets, tau1, count-query, asymmetric, or all.",
        ),
    ],
    budget: Annotated[Literal["small", "full"], typer.Option(help="Length of each run.")] = "small",
    data: Annotated[
        Path | None, typer.Option(help="A folder that holds cars196_96px and omniglot; without it, embedded images.")
    ] = None,
    bench: Annotated[list[str] | None, typer.Option(help="Use only this bench, e.g. glyphs; may be repeated.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the runs and the page.")] = Path("runs/reproduce"),
    page: Annotated[Path | None, typer.Option(help="Where to write the page. Default: OUT/page.")] = None,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Number of seeds.")] = 3,
    jobs: Jobs = None,
    minutes: Minutes = None,
    earlier: Annotated[
        Path | None,
        typer.Option(help="runs.jsonl of an earlier page: its runs count as done where settings are the same."),
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Print what would be run, and stop.")] = False,
    quiet: Quiet = False,
) -> None:
    """Measure the paper's claims: a matrix of ordinary, resumable runs; then a page with the paper's numbers.

    recollect reproduce losses                        on the embedded characters
    recollect reproduce all --data DIR --minutes 60   for an hour; the same command resumes
    """
    import recollect

    chosen: dict[str, Any] = {"budget": budget, "data": data, "benches": bench, "out": out, "seeds": seeds}
    if plan:
        for line in recollect.plan_reproduction(claim, **chosen):
            typer.echo(line)
        if earlier is not None:
            typer.echo(f"earlier    a plan imports nothing: runs of {earlier} are counted as not done")
        return
    typer.echo(recollect.reproduce(claim, **chosen, page=page, jobs=jobs, minutes=minutes, earlier=earlier))
