"""``recollect embed``: images to vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recollect.cli.options import (
    BatchSize,
    Device,
    Dim,
    Download,
    MaxPixels,
    Overwrite,
    Quiet,
    SkipBad,
    Weights,
    app,
    complete_model,
    remark,
    remark_aside,
)


@app.command()
def embed(
    model: Annotated[
        str,
        typer.Argument(
            autocompletion=complete_model, help="A run, a saved embedder's folder, or an initialisation by name."
        ),
    ],
    images: Annotated[
        list[str], typer.Argument(help="Folders (one folder per class gives labels), image files, .txt lists of paths.")
    ],
    out: Annotated[Path, typer.Option(help="The .npz to write.")] = Path("vectors.npz"),
    weights: Weights = None,
    dim: Dim = None,
    batch_size: BatchSize = 64,
    device: Device = None,
    skip_bad: SkipBad = False,
    max_pixels: MaxPixels = None,
    download: Download = False,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Embed images and write their vectors, for recollect search and recollect eval."""
    from recollect import embed_catalogue
    from recollect.data import summary

    made = embed_catalogue(
        model,
        images,
        out,
        weights=weights,
        dim=dim,
        batch_size=batch_size,
        device=device,
        on_bad_image="skip" if skip_bad else "error",
        download=download,
        overwrite=overwrite,
    )
    count, dim = made.embeddings.shape
    if left_out := made.source.get("left_out"):
        remark_aside(summary(count, left_out))
    classes = ""
    if made.labels is not None:
        alone = made.labels.count("")
        classes = f", {len(set(made.labels) - {''}):,} classes" + (f", {alone:,} without a class" if alone else "")
    remark(f"{out}: {count:,} vectors of {dim} dimensions{classes}")
