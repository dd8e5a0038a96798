"""``recollect search``: the images of an index, or of a file of vectors, that are most similar to given ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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
from recollect.search.stores import NEIGHBOURS


@app.command()
def search(
    index: Annotated[str, typer.Argument(help="An index (a file or an address), or an .npz of recollect embed.")],
    queries: Annotated[list[str], typer.Argument(help="Image files, folders of images, or ids (in an .npz, names).")],
    top: Annotated[int, typer.Option(min=1, max=10**6, help="Results per query.")] = NEIGHBOURS,
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
    from recollect.search.index import Index
    from recollect.search.queries import search_images

    remarks_aside()
    refuse_unused(html is None, "without --html", "overwrite")
    refuse_unused(not index.endswith(".npz"), "on an index, which knows its images", "root")
    if html is not None:
        from recollect.report.page import check_target
        from recollect.report.search_page import GENERATOR, write_search_page

        check_target(html, overwrite, GENERATOR)  # before the work begins
    with Index.open(index, model, dim=dim, root=root, weights=weights, device=device) as opened:
        conditions = parse_pairs(where, "--where") if where else None
        policy = "skip" if skip_bad else "error"
        results = search_images(opened, queries, top, where=conditions, exact=exact, on_bad_image=policy)
        if html is not None:
            write_search_page(html, results, opened, overwrite=overwrite)
    if as_json:
        print_json([result.as_dict() for result in results])
    else:
        for result in results:
            typer.echo(printable(str(result.query)))
            if not result.matches:
                typer.echo("      no other image, or none that passes the filter")
            for number, match in enumerate(result.matches, 1):
                level = "" if match.level is None else f"  {match.level:<7}"
                label = f"  ({match.metadata['label']})" if "label" in match.metadata else ""
                typer.echo(printable(f"{number:>4}  {match.similarity:.4f}{level}  {match.id}{label}"))
    if html is not None:
        typer.echo(html, err=as_json)
