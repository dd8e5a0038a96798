"""``recollect export RUN --onnx OUT``: a trained embedder for other runtimes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recollect.cli.app import app
from recollect.cli.options import Dim, Download, Overwrite, Quiet, remark


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
    from recollect.inference import open_model
    from recollect.models.onnx_export import TOLERANCE, export_onnx, reference_path

    opened = open_model(run, dim=dim, download=download)
    if opened.remark is not None:
        remark(opened.remark)
    difference = export_onnx(opened.embedder, onnx, overwrite=overwrite)
    size = onnx.stat().st_size / 2**20
    remark(f"{onnx}: {size:.1f} MB, differs from the model by at most {difference:.1e} (limit {TOLERANCE:.0e}).")
    remark(f"{reference_path(onnx)}: preprocess() gives the pixels it takes, with numpy and Pillow alone.")
