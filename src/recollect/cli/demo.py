"""``recollect demo``: the whole job on the embedded data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recollect.cli.app import app
from recollect.cli.options import Quiet


@app.command()
def demo(
    out: Annotated[
        Path | None,
        typer.Option(help="A new folder for runs and report, or an interrupted demo's. Default: runs/demo-<time>."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, max=10**6, help="Steps of each training.")] = 150,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Random seed.")] = 0,
    quiet: Quiet = False,
) -> None:
    """Train on embedded data with RS@k and with the contrastive loss, evaluate on unseen classes, write a report.

    Takes two to three minutes on two cores. The last line is the report's path.
    """
    from recollect import run_demo

    typer.echo(run_demo(out, steps=steps, seed=seed))
