"""``recollect duplicates``: near-duplicates in an index or a folder."""

from __future__ import annotations

from typing import Annotated

import typer

from recollect.cli.options import (
    AsJson,
    Device,
    Download,
    MaxPixels,
    Quiet,
    Weights,
    app,
    complete_model,
    finite,
    given,
    is_index,
    print_json,
    refuse_unused,
    remark_aside,
)
from recollect.common.text import number_of, printable


@app.command()
def duplicates(
    target: Annotated[str, typer.Argument(help="An index, or a folder or .csv of images.")],
    similarity: Annotated[
        float,
        typer.Option(min=-1, max=1, callback=finite, help="Pairs at least this similar are near-duplicates."),
    ] = 0.95,
    model: Annotated[
        str, typer.Option(autocompletion=complete_model, help="For a folder: a run, an embedder or an initialisation.")
    ] = "lite0-in1k",
    top: Annotated[int, typer.Option(min=0, max=10**9, help="Number of groups to show; 0 for all.")] = 50,
    weights: Weights = None,
    device: Device = None,
    download: Download = False,
    max_pixels: MaxPixels = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Find near-duplicates by exact search, in groups, also between train and test folders."""
    from recollect import find_duplicates

    unused = ("model", "weights", "device", "download", "max_pixels")
    refuse_unused(is_index(target), "on an index, whose vectors are compared", *unused)
    refuse_unused(as_json, "with --json, which has all groups", "top")
    remarks: list[str] = []
    groups, count = find_duplicates(
        target,
        threshold=similarity,
        model=model,
        remarks=remarks,
        **given(weights=weights, device=device, download=download),
    )
    for sentence in remarks:
        remark_aside(sentence)
    if as_json:
        print_json(
            {
                "images": count,
                "similarity": similarity,
                "groups": [
                    {
                        "ids": [item.id for item in group.items],
                        "similarity": round(group.similarity, 6),
                        "identical": group.identical,
                        "crosses": group.crosses,
                        "labels": group.labels,
                    }
                    for group in groups
                ],
            }
        )
        return
    images = sum(len(group.items) for group in groups)
    crossing, mixed = sum(group.crosses for group in groups), sum(len(group.labels) > 1 for group in groups)
    typer.echo(
        f"{number_of(count, 'image')}: {number_of(len(groups), 'group')} of near-duplicates with "
        f"{number_of(images, 'image')}; {number_of(crossing, 'is/are')} in both train and test, "
        f"{number_of(mixed, 'has/have')} more than one label"
    )
    for group in groups[: top or None]:
        marks = ["identical"] * group.identical + ["in both train and test"] * group.crosses
        marks += [f"labels {', '.join(group.labels)}"] * (len(group.labels) > 1)
        typer.echo(
            f"{group.similarity:.4f}  {len(group.items)} images{'  ' if marks else ''}{printable('; '.join(marks))}"
        )
        for item in group.items:
            typer.echo(f"        {printable(item.id)}")
    if top and len(groups) > top:
        typer.echo(f"… and {len(groups) - top:,} more groups (--top 0 shows all)")
