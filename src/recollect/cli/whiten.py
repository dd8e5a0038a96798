"""``recollect whiten``: a whitening as the last layer of a network that was trained without one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recollect.cli.options import (
    Device,
    Download,
    MaxPixels,
    Overwrite,
    Quiet,
    SkipBad,
    app,
    complete_data,
    complete_model,
    refuse_unused,
)


@app.command("whiten")
def whiten(
    model: Annotated[
        str,
        typer.Argument(
            autocompletion=complete_model, help="A run, a saved embedder, or an initialisation, without a last layer."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The folder of the embedder to write.")],
    pairs: Annotated[
        Path | None, typer.Option(help="Learn from the whitening pairs of SfM-120k in this folder.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            autocompletion=complete_data, help="Learn from a data set or a folder: two images of one class are a pair."
        ),
    ] = None,
    root: Annotated[Path | None, typer.Option(help="The folder of the data set.")] = None,
    split: Annotated[str, typer.Option(help="The split to use.")] = "train",
    dim: Annotated[int | None, typer.Option(min=1, max=2**16, help="Leading dimensions to keep. Default: all.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Random seed.")] = 0,
    multiscale: Annotated[
        bool,
        typer.Option("--multiscale", help="Learn from descriptors averaged over three scales, for eval --multiscale."),
    ] = False,
    device: Device = None,
    download: Download = False,
    max_pixels: MaxPixels = None,
    skip_bad: SkipBad = False,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Learn a whitening and add it as the last layer.

    recollect whiten runs/landmarks --pairs /data/sfm --out runs/landmarks-whitened
    recollect whiten lite0-in1k --data photos/ --out whitened
    """
    import recollect

    refuse_unused(data is None, "without --data", "root", "split", "seed")
    typer.echo(
        recollect.whiten(
            model,
            out,
            pairs=pairs,
            data=data,
            root=root,
            split=split,
            dim=dim,
            seed=seed,
            multiscale=multiscale,
            device=device,
            download=download,
            on_bad_image="skip" if skip_bad else "error",
            overwrite=overwrite,
        )
    )
