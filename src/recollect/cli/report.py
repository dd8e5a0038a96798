"""What others see of a run: ``recollect report`` writes one HTML page, ``recollect publish`` a repository of the Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recollect.cli.options import Device, Dim, MaxPixels, Quiet, app, refuse_unused, remarks_aside


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders; several are compared with the first.")],
    out: Annotated[Path | None, typer.Option(help="The file to write. Default: report.html in the run.")] = None,
    csv: Annotated[
        Path | None, typer.Option(help="Also write the images to check (labels, near-duplicates, …) as CSV.")
    ] = None,
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
            on_bad_image="skip" if skip_bad else "error",
            overwrite=overwrite,
            csv=csv,
        )
    )


@app.command("publish")
def publish_command(
    run: Annotated[Path, typer.Argument(help="A finished run.")],
    to: Annotated[str | None, typer.Option(help="The repository to upload to: user/name.")] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Write the files into this new folder; without --to, nothing is uploaded.")
    ] = None,
    dim: Dim = None,
    private: Annotated[bool, typer.Option("--private", help="Make a new repository private.")] = False,
    licence: Annotated[
        str | None, typer.Option(help="Licence of the model. Default: that of its starting weights.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Publish a run on the Hugging Face Hub, with a model card made from the run.

    recollect publish RUN --folder OUT         write the files for inspection; no network
    recollect publish RUN --to user/name       write, check and upload

    Others can then load it by its address: recollect eval hf://user/name --data photos --download
    """
    from recollect import publish

    refuse_unused(to is None, "without --to", "private")
    done = publish(run, to, folder, dim=dim, private=private, licence=licence)
    typer.echo(done.address or folder)
