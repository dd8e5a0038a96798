"""``recollect calibrate``: the similarity threshold above which two images are the same."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recollect.cli.options import (
    AsJson,
    Device,
    Download,
    MaxPixels,
    Quiet,
    Wait,
    Weights,
    app,
    finite,
    given,
    is_index,
    print_json,
    refuse_unused,
    remark_aside,
)


@app.command()
def calibrate(
    target: Annotated[str, typer.Argument(help="A run, a saved embedder, or an index.")],
    data: Annotated[
        str | None,
        typer.Option(help="Labelled images of classes not trained on: a folder, a .csv, or a data set by name."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="New folder of the model, if it moved; for an index.")] = None,
    root: Annotated[Path | None, typer.Option(help="The folder of a data set.")] = None,
    split: Annotated[str, typer.Option(help="The split to use, if there are splits.")] = "test",
    false_match_rate: Annotated[
        float,
        typer.Option(min=1e-12, max=0.5, callback=finite, help="Share of different pairs that may be called the same."),
    ] = 1e-3,
    similar_rate: Annotated[
        float,
        typer.Option(min=1e-12, max=0.5, callback=finite, help="Share of different pairs that may be called similar."),
    ] = 5e-2,
    wait: Wait = 0.0,
    weights: Weights = None,
    device: Device = None,
    download: Download = False,
    max_pixels: MaxPixels = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Measure the similarity at which two images are the same, with its error rates, and store it.

    recollect search and recollect serve then say same, similar or unknown.
    """
    from recollect import calibrate_target

    refuse_unused(data is None, "without --data", "root", "split", "max_pixels")
    refuse_unused(not is_index(target), "on a model, which has no other writers", "wait")
    found, remarks = calibrate_target(
        target,
        data,
        model=model,
        root=root,
        split=split,
        same_rate=false_match_rate,
        similar_rate=similar_rate,
        wait=wait,
        **given(weights=weights, device=device, download=download),
    )
    for sentence in remarks:
        remark_aside(str(sentence))
    if as_json:
        print_json(found.as_dict())
        return
    typer.echo(f"{found.images:,} images of {found.classes:,} classes: {found.same_pairs:,} pairs of one class, "
               f"{found.other_pairs:,} of two")  # fmt: skip
    typer.echo(f"{'':<9}{'similarity':>11}{'false matches':>15}{'misses':>9}")
    for name, row in (("same", found.same), ("similar", found.similar)):
        typer.echo(f"{name:<9}{row.similarity:>11.4f}{row.false_match_rate:>15.2g}{row.miss_rate:>9.1%}")
    typer.echo("At other rates:")
    for row in found.curve:
        typer.echo(f"{'':<9}{row.similarity:>11.4f}{row.false_match_rate:>15.2g}{row.miss_rate:>9.1%}")
