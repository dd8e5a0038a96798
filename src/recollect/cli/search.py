"""``recollect search``: the images of a catalogue that are most similar to given ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from recollect.cli.app import app
from recollect.cli.options import AsJson, Device, Quiet, SkipBad, print_json


@app.command()
def search(
    vectors: Annotated[Path, typer.Argument(help="An .npz written by recollect embed.")],
    images: Annotated[list[Path], typer.Argument(help="Image files to search with.")],
    top: Annotated[int, typer.Option(min=1, help="Results per query.")] = 10,
    html: Annotated[Path | None, typer.Option(help="Also write a page that shows them.")] = None,
    as_json: AsJson = False,
    model: Annotated[str | None, typer.Option(help="Where the model is now, if it moved.")] = None,
    weights: Annotated[str | None, typer.Option(help="Weights file or folder of an initialisation.")] = None,
    root: Annotated[Path | None, typer.Option(help="Where the catalogue's images are now, if they moved.")] = None,
    device: Device = None,
    skip_bad: SkipBad = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Overwrite the page even if recollect did not write it.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Find the most similar images, exactly, by the model that made the vectors."""
    from recollect.report.catalogue import read_catalogue
    from recollect.report.catalogue import search as search_in
    from recollect.report.page import check_target
    from recollect.report.search_page import GENERATOR, write_search_page

    if html is not None:
        check_target(html, overwrite, GENERATOR)
    catalogue = read_catalogue(vectors, root)
    queries, found = search_in(catalogue, images, top, model=model, weights=weights, device=device, skip_bad=skip_bad)
    answers: list[dict[str, Any]] = [
        {
            "query": str(image),
            "results": [
                {
                    "name": catalogue.names[index],
                    "similarity": round(similarity, 6),
                    **({} if catalogue.labels is None else {"label": catalogue.labels[index]}),
                }
                for index, similarity in zip(places, values, strict=True)
            ],
        }
        for image, places, values in zip(queries, found.indices.tolist(), found.similarities.tolist(), strict=True)
    ]
    _show(answers, as_json)
    if html is not None:
        path = write_search_page(html, catalogue, queries, found, overwrite=overwrite)
        typer.echo(path, err=as_json)


def _show(answers: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json(answers)
        return
    for answer in answers:
        typer.echo(answer["query"])
        for number, result in enumerate(answer["results"], 1):
            label = f"  ({result['label']})" if "label" in result else ""
            line = f"{number:>4}  {result['similarity']:.4f}  {result['name']}{label}"
            typer.echo(line.encode("utf-8", "replace").decode())
