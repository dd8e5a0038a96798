"""ONNX export: the embedder as one file for other runtimes, checked against torch before it is kept.

The graph takes uint8 pixels and returns unit vectors; scaling and normalization are inside it. The steps before —
decoding, EXIF orientation, resizing, cropping — are in a Python file next to it that needs only numpy and Pillow: a copy of
``common/pixels.py``, which recollect itself runs, with the model's settings. It is a file rather than a module of this
package, because deployments of ONNX should need neither torch nor recollect. It is not inside the graph, because ONNX's
Resize does not round as Pillow does.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch

from recollect._version import __version__
from recollect.common import pixels
from recollect.common.errors import DataError, RecollectError, require
from recollect.common.files import atomic_write, make_folder_for, write_text
from recollect.common.images import Preprocessing
from recollect.models.embedder import Embedder
from recollect.models.saving import config_as_dict

TOLERANCE = 1e-4
OPSET = 17


def export_onnx(
    embedder: Embedder, path: str | Path, *, overwrite: bool = False, tolerance: float = TOLERANCE
) -> float:
    """Write ``embedder`` as ONNX and compare the two on random images.

    Input ``pixels`` is N×3×H×W uint8, any N; H and W are the model's size, or any for one that keeps images whole.
    Output ``embedding`` is N×dim float32. The file of ``reference_path`` is written next to it: its ``preprocess``
    returns exactly the pixels that recollect computes.

    Args:
        embedder: what to write.
        path: the file.
        overwrite: replace existing files.
        tolerance: the largest difference allowed.

    Returns:
        The largest absolute difference between torch and the exported file.

    Raises:
        RecollectError: the difference is above ``tolerance``; the file is not kept.
        DataError: ``path`` exists and ``overwrite`` is not set.
        MissingExtraError: onnx or onnxruntime is not installed.

    Example:
        >>> from recollect.models import Embedder
        >>> export_onnx(Embedder.create("tiny"), "model.onnx") < TOLERANCE
        True
    """
    onnx = require("onnx", "export", "ONNX export")
    require("onnxruntime", "export", "the parity check of ONNX export")
    path = Path(path)
    reference = reference_path(path)
    for file in (path, reference):
        if file.exists() and not overwrite:
            raise DataError(f"{file} already exists: choose another name, or overwrite it with --overwrite.")
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
            write_text(reference, _reference(embedder, path))
            with temporary.open("rb") as source, atomic_write(path) as target:
                shutil.copyfileobj(source, target)
    finally:
        embedder.train(was_training).to(device)
    return difference


def reference_path(path: Path | str) -> Path:
    """The Python file next to an ONNX file: ``photos.onnx`` has ``photos_preprocess.py``."""
    path = Path(path)
    return path.with_name(re.sub(r"\W", "_", path.stem) + "_preprocess.py")


_REFERENCE = '''

SETTINGS: dict[str, Any] = {settings!r}


def preprocess(source: Any) -> NDArray[np.uint8]:
    """An image file, its bytes, or a PIL image as the input of {name}: 3 x height x width, uint8."""
    if isinstance(source, bytes):
        source = io.BytesIO(source)
    image = source.copy() if isinstance(source, Image.Image) else Image.open(source)
    if (shorter := SETTINGS["resize"]) is not None:
        image.draft("RGB", (2 * shorter, 2 * shorter))  # a large JPEG is decoded at a fraction of its size
    return channels_first(fitted(upright(image), **SETTINGS))


def embed(session: Any, sources: Any) -> NDArray[np.float32]:
    """Vectors of images, one row each, by an onnxruntime.InferenceSession of {name}."""
    return np.concatenate([session.run(["embedding"], {{"pixels": preprocess(source)[None]}})[0] for source in sources])
'''


def _reference(embedder: Embedder, path: Path) -> str:
    source = Path(pixels.__file__).read_text(encoding="utf-8")
    body = source.split('"""', 2)[2].lstrip()  # without the docstring, which is for recollect's developers
    title = (
        f'"""Pixels for {path.name}, as recollect {__version__} computes them. Needs numpy and Pillow.\n\n'
        "``preprocess(image)`` returns the model's input; normalization is inside the model. Written by recollect export\n"
        'and free to copy (Apache-2.0).\n"""\n\n'
    )
    body = body.replace("from collections.abc", "import io\nfrom collections.abc", 1)
    return title + body + _REFERENCE.format(settings=_steps(embedder.preprocessing), name=path.name)


def _steps(preprocessing: Preprocessing) -> dict[str, Any]:
    """The preprocessing before the graph; normalization is inside it."""
    steps = preprocessing.as_dict()
    return {name: steps[name] for name in ("size", "resize", "interpolation", "max_side")}


def parity(embedder: Embedder, path: Path) -> float:
    """Largest difference between torch and the ONNX file on random images (fixed seed), in batches of 1 and 3."""
    runtime = require("onnxruntime", "export", "the parity check of ONNX export")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    generator = torch.Generator().manual_seed(0)
    largest = 0.0
    for count in (1, 3):
        size = embedder.preprocessing.size
        shape = (count, 3, size, size) if embedder.preprocessing.resize is not None else (count, 3, size, size + 32)
        images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
        with torch.inference_mode():
            ours = embedder(images)
        theirs = torch.from_numpy(session.run(["embedding"], {"pixels": images.numpy()})[0])
        largest = max(largest, float((ours - theirs).abs().max()))
    return largest


def _write(embedder: Embedder, path: Path) -> None:
    size = embedder.preprocessing.size
    axes: dict[int, str] = {0: "images"}
    if embedder.preprocessing.resize is None:
        axes |= {2: "height", 3: "width"}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # tracing warns about every Python branch; the parity check decides
        torch.onnx.export(
            embedder,
            (torch.zeros(2, 3, size, size, dtype=torch.uint8),),
            str(path),
            input_names=["pixels"],
            output_names=["embedding"],
            dynamic_axes={"pixels": axes, "embedding": {0: "images"}},
            opset_version=OPSET,
            dynamo=False,  # the tracing exporter needs no package beyond onnx
        )


def _metadata(embedder: Embedder) -> dict[str, str]:
    provenance = embedder.config.provenance
    config = config_as_dict(embedder.config)
    return {
        "recollect.version": __version__,
        "recollect.preprocessing": json.dumps(_steps(embedder.preprocessing)),
        "recollect.input": "pixels: uint8 RGB 0-255, images x 3 x height x width; normalization is inside the graph",
        "recollect.embedder": json.dumps({key: value for key, value in config.items() if key != "preprocessing"}),
        "recollect.licence": provenance.licence + (" (non-commercial)" if provenance.non_commercial else ""),
    }
