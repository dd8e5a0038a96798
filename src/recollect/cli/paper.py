"""``recollect paper``: the paper's tables and figures, next to your own runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recollect.cli.app import app
from recollect.cli.options import Quiet


@app.command()
def paper(
    runs: Annotated[
        list[Path] | None, typer.Argument(help="Run folders to show next to the published rows of their recipes.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("paper.html"),
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Overwrite the file even if recollect paper did not write it.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Write one page with the paper's tables, bar plots and figures; evaluated runs are shown next to their rows."""
    from recollect import write_paper

    typer.echo(write_paper(runs or [], out, overwrite=overwrite))
