"""ONNX: the embedder as one file that other runtimes read, checked against torch before it is kept.

The graph takes uint8 pixels and gives unit vectors; scaling and normalization are inside it. What has to be done to an
image before (resize, crop, interpolation) stands in the file's metadata as JSON under ``recollect.preprocessing``.
"""

from __future__ import annotations

import inspect
import json
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch

from recollect._version import __version__
from recollect.common.errors import DataError, RecollectError
from recollect.common.files import atomic_write, make_folder_for
from recollect.common.imports import require
from recollect.models.embedder import Embedder
from recollect.models.saving import config_as_dict

TOLERANCE = 1e-4
OPSET = 17


def export_onnx(
    embedder: Embedder, path: str | Path, *, overwrite: bool = False, tolerance: float = TOLERANCE
) -> float:
    """Write ``embedder`` as ONNX and compare the two on random images.

    Input ``pixels`` is N×3×H×W uint8, any N; H and W are the model's size, or any for one that keeps images whole.
    Output ``embedding`` is N×dim float32.

    Returns:
        The largest absolute difference between torch and the exported file.

    Raises:
        RecollectError: the difference is above ``tolerance``; the file is not kept.
        DataError: ``path`` exists and ``overwrite`` is not set.
        MissingExtraError: onnx or onnxruntime is not installed.
    """
    onnx = require("onnx", "export", "ONNX export")
    require("onnxruntime", "export", "the parity check of ONNX export")
    path = Path(path)
    if path.exists() and not overwrite:
        raise DataError(f"{path}: already exists. Choose another name or overwrite it with --overwrite.")
    was_training, device = embedder.training, embedder.device
    embedder.eval().cpu()
    try:
        make_folder_for(path)
        with tempfile.TemporaryDirectory(prefix="recollect-onnx-") as folder:
            temporary = Path(folder) / "model.onnx"
            _write(embedder, temporary)
            model = onnx.load(str(temporary))
            onnx.helper.set_model_props(model, _metadata(embedder))
            onnx.checker.check_model(model)
            onnx.save(model, str(temporary))
            difference = parity(embedder, temporary)
            if not difference <= tolerance:
                raise RecollectError(
                    f"{path}: the exported file differs from the model by {difference:.2e}, above {tolerance:.0e}; it "
                    "was not kept. Please report the model and the versions of torch and onnxruntime."
                )
            size = temporary.stat().st_size
            with temporary.open("rb") as source, atomic_write(path, size=size) as file:
                shutil.copyfileobj(source, file)
    finally:
        embedder.train(was_training).to(device)
    return difference


def parity(embedder: Embedder, path: Path) -> float:
    """Largest difference between torch and the ONNX file on seeded random images, in batches of 1 and of 3."""
    runtime = require("onnxruntime", "export", "the parity check of ONNX export")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    generator = torch.Generator().manual_seed(0)
    largest = 0.0
    for count in (1, 3):
        size = embedder.preprocessing.size
        shape = (count, 3, size, size) if embedder.preprocessing.resize is not None else (count, 3, size, size + 32)
        pixels = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
        with torch.inference_mode():
            ours = embedder(pixels)
        theirs = torch.from_numpy(session.run(["embedding"], {"pixels": pixels.numpy()})[0])
        largest = max(largest, float((ours - theirs).abs().max()))
    return largest


def _write(embedder: Embedder, path: Path) -> None:
    size = embedder.preprocessing.size
    axes: dict[int, str] = {0: "images"}
    if embedder.preprocessing.resize is None:
        axes |= {2: "height", 3: "width"}
    options: dict[str, Any] = {}
    if "dynamo" in inspect.signature(torch.onnx.export).parameters:
        options["dynamo"] = False  # the tracing exporter needs no package beyond onnx
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # tracing warns of every Python branch; the parity check is what counts
        torch.onnx.export(
            embedder,
            (torch.zeros(2, 3, size, size, dtype=torch.uint8),),
            str(path),
            input_names=["pixels"],
            output_names=["embedding"],
            dynamic_axes={"pixels": axes, "embedding": {0: "images"}},
            opset_version=OPSET,
            **options,
        )


def _metadata(embedder: Embedder) -> dict[str, str]:
    provenance = embedder.config.provenance
    return {
        "recollect.version": __version__,
        "recollect.preprocessing": json.dumps(embedder.preprocessing.as_dict()),
        "recollect.input": "pixels: uint8 RGB 0-255, images x 3 x height x width; normalization is inside the graph",
        "recollect.embedder": json.dumps(config_as_dict(embedder.config)),
        "recollect.licence": provenance.licence + (" (non-commercial)" if provenance.non_commercial else ""),
    }
