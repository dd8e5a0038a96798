from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from recollect.common.errors import DataError, MissingExtraError, RecollectError
from recollect.common.images import read_image
from recollect.models import Embedder, export_onnx, onnx_export as export

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")


@pytest.mark.parametrize(
    ("init", "options"),
    [
        ("lite0-in1k", {"size": 64, "stages": 2}),
        ("tiny", {"resize": None}),
        pytest.param("timm:vit_tiny_patch16_224.augreg_in21k", {"weights": "none", "size": 64}, marks=pytest.mark.slow),
        pytest.param(
            "timm:resnet18.a1_in1k",
            {"weights": "none", "size": 64, "l2_before_head": True, "pooling": "gem"},
            marks=pytest.mark.slow,
        ),
    ],
)
@pytest.mark.release
def test_the_exported_file_agrees(init: str, options: dict[str, Any], tmp_path: Path) -> None:
    embedder = Embedder.create(init, **options)
    difference = export_onnx(embedder, tmp_path / "deep" / "e.onnx")
    assert difference < 1e-5
    assert embedder.training
    assert sorted(path.name for path in (tmp_path / "deep").iterdir()) == ["e.onnx", "e_preprocess.py"]
    session = runtime.InferenceSession(str(tmp_path / "deep" / "e.onnx"), providers=["CPUExecutionProvider"])
    metadata = session.get_modelmeta().custom_metadata_map
    steps = json.loads(metadata["recollect.preprocessing"])
    assert steps == {key: embedder.preprocessing.as_dict()[key] for key in steps}
    assert set(steps) == {"size", "resize", "interpolation", "max_side"}
    assert json.loads(metadata["recollect.embedder"])["init"] == embedder.config.init


def test_a_difference_is_noticed_and_the_file_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embedder = Embedder.create("tiny", size=32)
    original = export._write

    def write_another(embedder: Embedder, path: Path) -> None:
        original(Embedder.create("tiny", size=32), path)

    monkeypatch.setattr(export, "_write", write_another)
    with pytest.raises(RecollectError, match=r"differs .*above 1e-04"):
        export_onnx(embedder, tmp_path / "e.onnx")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    (tmp_path / "e.onnx").write_text("mine")
    with pytest.raises(DataError, match="already exists"):
        export_onnx(Embedder.create("tiny"), tmp_path / "e.onnx")
    assert (tmp_path / "e.onnx").read_text() == "mine"
    export_onnx(Embedder.create("tiny"), tmp_path / "e.onnx", overwrite=True)
    (tmp_path / "e.onnx").unlink()
    with pytest.raises(DataError, match=r"e_preprocess\.py already exists"):
        export_onnx(Embedder.create("tiny"), tmp_path / "e.onnx")


def test_the_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match=r"recollect\[export\]"):
        export_onnx(Embedder.create("tiny"), tmp_path / "e.onnx")


SCRIPT = """
import importlib.util, sys
for name in ("torch", "torchvision", "recollect"):
    sys.modules[name] = None
import numpy as np, onnxruntime
onnx_file, python_file, out, *images = sys.argv[1:]
spec = importlib.util.spec_from_file_location("reference", python_file)
reference = importlib.util.module_from_spec(spec)
spec.loader.exec_module(reference)
session = onnxruntime.InferenceSession(onnx_file, providers=["CPUExecutionProvider"])
pixels = {f"p{n}": reference.preprocess(image) for n, image in enumerate(images)}
np.savez(out, vectors=reference.embed(session, images), **pixels)
"""


def odd_images(folder: Path) -> list[Path]:
    """Odd sizes, every orientation, palettes, transparency, 16 bits, CMYK, one bit."""
    random = np.random.default_rng(0)
    files: list[Path] = []

    def save(image: Image.Image, suffix: str = "png", **options: Any) -> None:
        files.append(folder / f"{len(files):02}.{suffix}")
        image.save(files[-1], **options)

    def noise(width: int, height: int) -> Image.Image:
        coarse = random.integers(0, 256, (max(2, height // 8), max(2, width // 8), 3), dtype=np.uint8)
        return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)

    for width, height in ((97, 61), (61, 97), (33, 500), (501, 34), (64, 64), (70, 70), (1, 1), (5, 3), (129, 127)):
        save(noise(width, height))
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        save(noise(91, 57), "jpg", exif=exif, quality=95)
    save(noise(400, 300), "jpg", exif=exif, quality=95)  # decoded at half its size
    save(noise(75, 50).convert("P"))
    save(noise(75, 50).convert("P"), transparency=3)
    alpha = noise(80, 47).convert("RGBA")
    alpha.putalpha(Image.fromarray(random.integers(0, 256, (47, 80), dtype=np.uint8)))
    save(alpha)
    save(alpha.convert("LA"))
    save(Image.fromarray(random.integers(0, 65536, (43, 66), dtype=np.uint16)))
    save(noise(60, 41).convert("CMYK"), "jpg")
    save(noise(60, 41).convert("1"))
    save(noise(60, 41).convert("L"))
    return files


@pytest.mark.parametrize(
    "options",
    [{"size": 64, "resize": 75, "interpolation": "bicubic"}, {"size": 80, "resize": None}],
    ids=["resized", "whole"],
)
def test_the_reference_gives_the_same_vectors_without_torch(tmp_path: Path, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    embedder = Embedder.create("tiny", **options).eval()
    export_onnx(embedder, tmp_path / "my-model.onnx")
    images = odd_images(tmp_path)
    if options["size"] == 80:
        # A strip leaves nothing to pool.
        images = [path for path in images if min(size := Image.open(path).size) >= 34 and max(size) < 200]
    out = tmp_path / "out.npz"
    command = [sys.executable, "-I", "-c", SCRIPT, tmp_path / "my-model.onnx", tmp_path / "my_model_preprocess.py", out]
    subprocess.run([*map(str, command), *map(str, images)], check=True)
    with np.load(out) as arrays:
        for number, path in enumerate(images):
            expected = embedder.preprocessing(read_image(path, at_least=embedder.preprocessing.at_least))
            assert np.array_equal(arrays[f"p{number}"], expected.numpy()), f"to the bit: {path.name}"
        ours = embedder.embed(images, progress=False)
        torch.testing.assert_close(torch.from_numpy(arrays["vectors"]), ours, atol=export.TOLERANCE, rtol=0)
