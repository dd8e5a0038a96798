"""``recollect data``: list the data sets, and ``recollect data verify``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from recollect.cli.app import app
from recollect.cli.options import AllowOutside, AsJson, MaxPixels, Quiet, complete_data, print_json
from recollect.common.words import printable

data = typer.Typer(help="List the data sets, or check a copy of one.")
app.add_typer(data, name="data")


@data.callback(invoke_without_command=True)
def list_sources(context: typer.Context, as_json: AsJson = False) -> None:
    """List the data sets: what they are, their published counts, where to get them, their terms."""
    if context.invoked_subcommand is not None:
        return
    from recollect.common.doors import installed
    from recollect.data import available

    if as_json:
        keys = ("name", "title", "splits", "test_splits", "layout", "homepage", "licence", "needs_root", "options")
        rows = [
            {**{key: getattr(source, key) for key in keys}, "published": _published(source.published)}
            for source in available().values()
        ]
        print_json(rows)
        return
    for source in available().values():
        typer.echo(f"{source.name:<13}{source.title}")
        counts = [f"{split} {count}" for split, count in source.published.items()]
        for label, text in (
            ("counts", "; ".join(counts)),
            ("files", source.layout),
            ("from", source.homepage),
            ("terms", source.licence),
        ):
            if text:
                typer.echo(f"{'':<13}{label:<8}{text}")
    for name, point in installed("data set").items():
        typer.echo(f"{name:<13}of the package {point.dist.name if point.dist else '?'} ({point.value})")
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
    allow_outside: AllowOutside = False,
    max_pixels: MaxPixels = None,
    workers: Annotated[int | None, typer.Option(min=1, max=1024, help="Number of reading threads.")] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Check every file of a data set: counts, missing, unreadable, identical, class sizes.

    The exit code is 0 when all is well, and 1 when counts differ from the
    published ones, files are missing or cannot be read, or identical images are
    in both train and test.
    """
    from recollect.data.verify import verify as check

    options: dict[str, Any] = {}
    if csv is not None:
        options["csv"] = csv
    if allow_outside:
        options["allow_outside"] = True
    report = check(name, root, samples_per_class=samples_per_class, workers=workers, **options)
    if as_json:
        print_json(report.as_dict())
    else:
        typer.echo(printable(report.as_text()))  # file names need not be valid text
    if not report.ok:
        raise typer.Exit(1)


def _published(published: Any) -> dict[str, dict[str, int | None]]:
    return {split: {"images": count.images, "classes": count.classes} for split, count in published.items()}
