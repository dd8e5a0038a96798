"""``recollect publish``: a finished run as a repository of the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recollect.cli.app import app
from recollect.cli.options import Dim, Quiet, refuse_unused


@app.command("publish")
def publish_command(
    run: Annotated[Path, typer.Argument(help="A finished run.")],
    to: Annotated[str | None, typer.Option(help="The repository to upload to: user/name.")] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Write the files into this new folder; without --to, nothing is uploaded.")
    ] = None,
    dim: Dim = None,
    private: Annotated[bool, typer.Option("--private", help="Make a new repository private.")] = False,
    licence: Annotated[
        str | None, typer.Option(help="Licence of the model. Default: that of its starting weights.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Publish a run on the Hugging Face Hub, with a model card made from the run.

    recollect publish RUN --folder OUT         write the files for inspection; no network
    recollect publish RUN --to user/name       write, check and upload

    Others can then load it by its address: recollect eval hf://user/name --data photos --download
    """
    from recollect import publish

    refuse_unused(to is None, "without --to", "private")
    done = publish(run, to, folder, dim=dim, private=private, licence=licence)
    typer.echo(done.address or folder)
