"""``recollect search``: the images of an index, or of a file of vectors, that are most similar to given ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from recollect.cli.options import (
    AsJson,
    Device,
    Dim,
    MaxPixels,
    Quiet,
    SkipBad,
    Weights,
    app,
    parse_pairs,
    print_json,
    refuse_unused,
    remarks_aside,
)
from recollect.common.text import printable


@app.command()
def search(
    index: Annotated[str, typer.Argument(help="An index (a file or an address), or an .npz of recollect embed.")],
    queries: Annotated[list[str], typer.Argument(help="Image files, folders of images, or ids (in an .npz, names).")],
    top: Annotated[int, typer.Option(min=1, max=10**6, help="Results per query.")] = 10,
    where: Annotated[
        list[str] | None,
        typer.Option(help="Only images with this metadata, e.g. label=shoe; repeat a name to allow several values."),
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Compare with every image, even if the index is searched approximately.")
    ] = False,
    dim: Dim = None,
    html: Annotated[Path | None, typer.Option(help="Also write a page with the results.")] = None,
    as_json: AsJson = False,
    model: Annotated[str | None, typer.Option(help="New folder of the model, if it moved.")] = None,
    weights: Weights = None,
    device: Device = None,
    max_pixels: MaxPixels = None,
    root: Annotated[
        Path | None, typer.Option(help="New folder of the images of an .npz, if they moved; for --html.")
    ] = None,
    skip_bad: SkipBad = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Let --html overwrite a file that recollect did not write.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Find the most similar images, with the model that computed the vectors."""
    from recollect import search_images

    remarks_aside()
    vectors = index.endswith(".npz")
    refuse_unused(html is None, "without --html", "overwrite")
    refuse_unused(vectors, "on a file of vectors", "where", "exact")
    refuse_unused(not vectors, "on an index, which knows its images", "root")
    found = search_images(
        index,
        queries,
        top,
        where=parse_pairs(where or [], "--where"),
        exact=exact,
        dim=dim,
        html=html,
        model=model,
        weights=weights,
        device=device,
        root=root,
        skip_bad=skip_bad,
        overwrite=overwrite,
    )
    _show(found.answers, as_json)
    if found.page is not None:
        typer.echo(found.page, err=as_json)


def _show(answers: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json(answers)
        return
    for answer in answers:
        typer.echo(printable(answer["query"]))
        if not answer["results"]:
            typer.echo("      no other image, or none that passes the filter")
        for number, result in enumerate(answer["results"], 1):
            label = f"  ({result['label']})" if "label" in result else ""
            verdict = f"  {result['verdict']:<7}" if "verdict" in result else ""
            name = result["id"] if "id" in result else result["name"]
            typer.echo(printable(f"{number:>4}  {result['similarity']:.4f}{verdict}  {name}{label}"))
