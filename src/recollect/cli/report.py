"""``recollect report``: runs to one HTML page, and the method's figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recollect.cli.app import app
from recollect.cli.options import Device, MaxPixels, Quiet, refuse_unused, remarks_aside


@app.command()
def report(
    runs: Annotated[list[Path] | None, typer.Argument(help="Run folders; several are compared with the first.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The file to write (with --method: the folder). Default: report.html in the run."),
    ] = None,
    csv: Annotated[
        Path | None, typer.Option(help="Also write the images to check (labels, near-duplicates, …) as CSV.")
    ] = None,
    method: Annotated[bool, typer.Option("--method", help="Draw the figures of the method instead.")] = False,
    images: Annotated[
        int, typer.Option(min=0, max=10**9, help="Maximum number of images in galleries, map and checks; 0 for all.")
    ] = 4000,
    split: Annotated[str | None, typer.Option(help="The split to report on. Default: the run's test split.")] = None,
    root: Annotated[Path | None, typer.Option(help="New folder of the images, if they moved.")] = None,
    device: Device = None,
    max_pixels: MaxPixels = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad/--no-skip-bad", help="Skip images that cannot be read, and list them.")
    ] = True,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Overwrite the file even if recollect did not write it.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Write report.html: whether training helped, where it fails, what to check in the data.

    With a map, a gallery, classes, curves and settings. Test images are embedded
    before and after training; vectors that are in the store are not computed
    again. The page needs no network and no other file.
    """
    from recollect.common.errors import ConfigError

    if method:
        if runs:
            raise ConfigError("--method draws figures of the loss and takes no runs: remove them.")
        unused = ("csv", "images", "split", "root", "device", "max_pixels", "skip_bad")
        refuse_unused(True, "with --method", *unused)
        from recollect import draw_method

        for path in draw_method(out or Path("figures"), overwrite=overwrite):
            typer.echo(path)
        return
    if not runs:
        raise ConfigError("give at least one run folder, or use --method.")
    from recollect import write_report

    remarks_aside()
    typer.echo(
        write_report(
            runs,
            out,
            limit=images or None,
            split=split,
            root=root,
            device=device,
            skip_bad=skip_bad,
            overwrite=overwrite,
            csv=csv,
        )
    )
