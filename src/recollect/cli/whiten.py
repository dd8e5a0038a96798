"""``recollect whiten``: a whitening as the last layer of a network that was trained without one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recollect.cli.app import app
from recollect.cli.options import (
    AllowOutside,
    Device,
    Download,
    MaxPixels,
    Overwrite,
    Quiet,
    complete_data,
    complete_model,
    remark,
)


@app.command("whiten")
def whiten(
    model: Annotated[
        str,
        typer.Argument(
            autocompletion=complete_model, help="A run, a saved embedder, or an initialisation, without a last layer."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The folder of the embedder to write.")],
    pairs: Annotated[
        Path | None, typer.Option(help="Learn from the whitening pairs of SfM-120k in this folder.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            autocompletion=complete_data, help="Learn from a data set or a folder: two images of one class are a pair."
        ),
    ] = None,
    root: Annotated[Path | None, typer.Option(help="The folder of the data set.")] = None,
    split: Annotated[str, typer.Option(help="The split to use.")] = "train",
    dim: Annotated[int | None, typer.Option(min=1, max=2**16, help="Leading dimensions to keep. Default: all.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Random seed.")] = 0,
    device: Device = None,
    download: Download = False,
    allow_outside: AllowOutside = False,
    max_pixels: MaxPixels = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Learn a whitening and add it as the last layer.

    recollect whiten runs/landmarks --pairs /data/sfm --out runs/landmarks-whitened
    recollect whiten lite0-in1k --data photos/ --out whitened
    """
    from recollect.common.errors import ConfigError
    from recollect.common.files import make_folder_for
    from recollect.data import load
    from recollect.inference import open_model
    from recollect.inference.test_sets import choose_test
    from recollect.inference.whitening_sets import WhiteningSet, add_last_layer, labelled_set
    from recollect.models.saving import refuse_saved

    if (pairs is None) == (data is None):
        raise ConfigError("say what to learn from: --pairs FOLDER (SfM-120k), or --data NAME.")
    refuse_saved(out, overwrite)  # before the images are embedded, not after
    make_folder_for(out / "embedder.json" if out.is_dir() else out)
    opened = open_model(model, download=download, device=device)
    if opened.remark is not None:
        remark(opened.remark)
    if pairs is not None:
        chosen = WhiteningSet.from_sfm(pairs, allow_outside=allow_outside)
    else:
        choice = choose_test(None, data=data, root=root, split=split)
        outside = {"allow_outside": True} if allow_outside else {}
        chosen = labelled_set(load(choice.data, choice.root, split, **outside))
    remark(f"learning from {len(chosen):,} images")
    made = add_last_layer(opened.embedder, chosen, dim, seed)
    made.save(out, overwrite=overwrite)
    typer.echo(out)
