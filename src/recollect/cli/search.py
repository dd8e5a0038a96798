"""``recollect search``: the images of an index, or of a file of vectors, that are most similar to given ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from recollect.cli.app import app
from recollect.cli.options import AsJson, Device, Dim, MaxPixels, Quiet, SkipBad, print_json, remark_aside
from recollect.common.words import printable


@app.command()
def search(
    index: Annotated[str, typer.Argument(help="An index (a file or an address), or an .npz of recollect embed.")],
    queries: Annotated[list[str], typer.Argument(help="Image files, folders of images, or ids of the index.")],
    top: Annotated[int, typer.Option(min=1, max=10**6, help="Results per query.")] = 10,
    where: Annotated[
        list[str] | None,
        typer.Option(help="Only images with this metadata, e.g. label=shoe; repeat a name to allow several values."),
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Search exactly even if approximate search was built.")
    ] = False,
    dim: Dim = None,
    html: Annotated[Path | None, typer.Option(help="Also write a page with the results.")] = None,
    as_json: AsJson = False,
    model: Annotated[str | None, typer.Option(help="New folder of the model, if it moved.")] = None,
    weights: Annotated[str | None, typer.Option(help="Weights file or folder of an initialisation.")] = None,
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
    """Find the most similar images, with the model that made the vectors."""
    from recollect.common.errors import InputError
    from recollect.report.page import check_target
    from recollect.report.search_page import GENERATOR, write_search_page

    if html is not None:
        check_target(html, overwrite, GENERATOR)
    if index.endswith(".npz"):
        answers, shown, count = _in_vectors(index, root, queries, top, dim, model, weights, device, skip_bad)
    elif dim is not None:
        raise InputError(
            f"an index has vectors of one length: make one of {dim} numbers with recollect index --dim {dim}."
        )
    else:
        answers, shown, count = _in_index(index, queries, top, where or [], exact, model, weights, device, skip_bad)
    _show(answers, as_json)
    if html is not None:
        path = write_search_page(html, shown, count, overwrite=overwrite)
        typer.echo(path, err=as_json)


def _in_vectors(
    file: str,
    root: Path | None,
    images: list[str],
    top: int,
    dim: int | None,
    model: str | None,
    weights: str | None,
    device: str | None,
    skip_bad: bool,
) -> tuple[list[dict[str, Any]], list[Any], int]:
    from recollect.report.catalogue import read_catalogue
    from recollect.report.catalogue import search as search_in
    from recollect.report.search_page import from_catalogue

    catalogue = read_catalogue(file, root)
    read, found = search_in(
        catalogue, images, top, dim=dim, model=model, weights=weights, device=device, skip_bad=skip_bad
    )
    shown = from_catalogue(catalogue, read, found)
    answers = []
    for image, asked in zip(read, shown, strict=True):
        results = [
            {
                "name": result.name,
                "similarity": round(result.similarity, 6),
                **({} if result.title == result.name else {"label": result.title}),
            }
            for result in asked.results
        ]
        answers.append({"query": image, "results": results})
    return answers, shown, len(catalogue.names)


def _in_index(
    address: str,
    queries: list[str],
    top: int,
    where: list[str],
    exact: bool,
    model: str | None,
    weights: str | None,
    device: str | None,
    skip_bad: bool,
) -> tuple[list[dict[str, Any]], list[Any], int]:
    from recollect.report.search_page import Asked, ShownResult
    from recollect.search import Index
    from recollect.search.queries import ask, parse_pairs

    with Index.open(address, model, device=device, **({} if weights is None else {"weights": weights})) as index:
        found, remark = ask(index, queries, top, parse_pairs(where, "--where"), exact=exact, skip_bad=skip_bad)
        if remark is not None:
            remark_aside(remark)
        shown = []
        for answer in found:
            results = [
                ShownResult(m.id, m.metadata.get("label") or m.id, m.similarity, index.picture(m.id), m.verdict)
                for m in answer.matches
            ]
            shown.append(Asked(Path(answer.query).name, answer.picture, results))
        count = len(index)
    answers = []
    for answer in found:
        rows = []
        for match in answer.matches:
            row: dict[str, Any] = {"id": match.id, "similarity": round(match.similarity, 6)}
            if match.verdict is not None:
                row["verdict"] = match.verdict
            rows.append({**row, **({"label": match.metadata["label"]} if "label" in match.metadata else {}),
                         "metadata": dict(match.metadata)})  # fmt: skip
        answers.append({"query": answer.query, "results": rows})
    return answers, shown, count


def _show(answers: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json(answers)
        return
    for answer in answers:
        typer.echo(printable(answer["query"]))
        for number, result in enumerate(answer["results"], 1):
            label = f"  ({result['label']})" if "label" in result else ""
            verdict = f"  {result['verdict']:<7}" if "verdict" in result else ""
            name = result["id"] if "id" in result else result["name"]
            typer.echo(printable(f"{number:>4}  {result['similarity']:.4f}{verdict}  {name}{label}"))
