"""``recollect export RUN --onnx OUT``: a trained embedder for other runtimes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recollect.cli.options import Dim, Download, Overwrite, Quiet, app


@app.command("export")
def export(
    run: Annotated[str, typer.Argument(help="A run, a saved embedder's folder, or hf://user/name.")],
    onnx: Annotated[Path, typer.Option("--onnx", help="The ONNX file to write.")],
    dim: Dim = None,
    download: Download = False,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Write a trained embedder as ONNX, checked against the original.

    Also writes a Python file with the preprocessing, which needs numpy and Pillow but not torch.
    """
    from recollect import export_onnx

    export_onnx(run, onnx, dim=dim, download=download, overwrite=overwrite)
