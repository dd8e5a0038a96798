from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from recollect.common.errors import DataError, MissingExtraError, RecollectError
from recollect.models import Embedder, export_onnx
from recollect.models import onnx_export as export

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")


@pytest.mark.parametrize(
    ("init", "options"),
    [
        ("lite0-in1k", {"size": 64}),
        ("tiny", {}),
        ("tiny", {"resize": None}),
        pytest.param("timm:vit_tiny_patch16_224.augreg_in21k", {"weights": "none", "size": 64}, marks=pytest.mark.slow),
        pytest.param(
            "timm:resnet18.a1_in1k",
            {"weights": "none", "size": 64, "l2_before_head": True, "pooling": "gem"},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_exported_file_agrees(init: str, options: dict[str, Any], tmp_path: Path) -> None:
    embedder = Embedder.create(init, **options)
    difference = export_onnx(embedder, tmp_path / "deep" / "e.onnx")
    assert difference < 1e-5
    assert embedder.training
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["e.onnx"]
    # Once more, by the file alone.
    session = runtime.InferenceSession(str(tmp_path / "deep" / "e.onnx"), providers=["CPUExecutionProvider"])
    size = embedder.preprocessing.size
    width = size if embedder.preprocessing.resize is not None else size + 17
    pixels = torch.randint(0, 256, (4, 3, size, width), dtype=torch.uint8)
    theirs = torch.from_numpy(session.run(None, {"pixels": pixels.numpy()})[0])
    torch.testing.assert_close(theirs, embedder.embed(pixels, progress=False), atol=1e-5, rtol=1e-4)
    said = session.get_modelmeta().custom_metadata_map
    assert json.loads(said["recollect.preprocessing"]) == embedder.preprocessing.as_dict()
    assert json.loads(said["recollect.embedder"])["init"] == embedder.config.init


def test_a_difference_is_noticed_and_the_file_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embedder = Embedder.create("tiny", size=32)
    original = export._write

    def write_another(embedder: Embedder, path: Path) -> None:
        original(Embedder.create("tiny", size=32), path)

    monkeypatch.setattr(export, "_write", write_another)
    with pytest.raises(RecollectError, match=r"differs from the model by .*above 1e-04"):
        export_onnx(embedder, tmp_path / "e.onnx")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    (tmp_path / "e.onnx").write_text("mine")
    with pytest.raises(DataError, match="already exists"):
        export_onnx(Embedder.create("tiny"), tmp_path / "e.onnx")
    assert (tmp_path / "e.onnx").read_text() == "mine"
    export_onnx(Embedder.create("tiny"), tmp_path / "e.onnx", overwrite=True)


def test_the_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match=r"recollect\[export\]"):
        export_onnx(Embedder.create("tiny"), tmp_path / "e.onnx")
