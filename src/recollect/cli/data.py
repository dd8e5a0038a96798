"""``recollect data``: list the data sets, and ``recollect data verify``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recollect.cli.app import Commands, app
from recollect.cli.options import AsJson, MaxPixels, Quiet, complete_data, given, print_json
from recollect.common.errors import InputError
from recollect.common.text import printable

if TYPE_CHECKING:
    from recollect.data.registry import Source

data = Commands(help="List the data sets, or check a copy of one.")
app.add_typer(data, name="data")


@data.callback(invoke_without_command=True)
def list_sources(context: typer.Context, as_json: AsJson = False) -> None:
    """List the data sets: what they are, their published counts, where to get them, their terms."""
    if context.invoked_subcommand is not None:
        if as_json:
            raise InputError(f"give --json after {context.invoked_subcommand}.")
        return
    from recollect import available_data
    from recollect.common.plugins import added

    if as_json:
        print_json([*(_summary(source) for source in available_data().values()), *added("data set")])
        return
    for source in available_data().values():
        _show(source)
    for row in added("data set"):
        typer.echo(f"{row['name']:<13}from the package {row['package']} ({row['reference']})")
    typer.echo("\nCheck a copy with  recollect data verify NAME ROOT")


@data.command()
def verify(
    name: Annotated[str, typer.Argument(autocompletion=complete_data, help="The data set, e.g. sop or folder.")],
    root: Annotated[
        Path | None, typer.Argument(help="The folder of the data set; for folder, also a CSV file.")
    ] = None,
    samples_per_class: Annotated[
        int,
        typer.Option("--samples-per-class", "-m", min=1, max=10**6, help="Images per class in a batch."),
    ] = 4,
    csv: Annotated[str | None, typer.Option(help="For folder: the CSV file, relative to ROOT.")] = None,
    nested: Annotated[
        bool,
        typer.Option("--nested", help="For folder: the folders of ROOT are the classes, though they contain folders."),
    ] = False,
    max_pixels: MaxPixels = None,
    workers: Annotated[int | None, typer.Option(min=1, max=1024, help="Number of reading threads.")] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Check every file of a data set: counts, missing, unreadable, identical, class sizes.

    The exit code is 0 if there are no problems, and 1 if counts differ from the
    published ones, files are missing or cannot be read, or identical images are
    in both train and test.
    """
    from recollect import verify_data

    chosen = given(csv=csv, nested=nested or None)
    report = verify_data(name, root, samples_per_class=samples_per_class, workers=workers, **chosen)
    if as_json:
        print_json(report.as_dict())
    else:
        typer.echo(printable(report.as_text()))  # file names need not be valid text
    if not report.ok:
        raise typer.Exit(1)


def _summary(source: Source) -> dict[str, Any]:
    keys = ("name", "title", "splits", "test_splits", "layout", "homepage", "licence", "needs_root", "options")
    published = {split: {"images": count.images, "classes": count.classes} for split, count in source.published.items()}
    return {**{key: getattr(source, key) for key in keys}, "published": published}


def _show(source: Source) -> None:
    typer.echo(f"{source.name:<13}{source.title}")
    counts = "; ".join(f"{split} {count}" for split, count in source.published.items())
    rows = {"counts": counts, "files": source.layout, "from": source.homepage, "terms": source.licence}
    for label, text in rows.items():
        if text:
            typer.echo(f"{'':<13}{label:<8}{text}")
