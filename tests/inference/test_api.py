"""``load``, ``embed`` and ``evaluate_model``; and that ``import recollect`` imports nothing heavy."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import recollect
from recollect.common.errors import ConfigError, DataError, DataWarning
from recollect.data import load as load_images
from recollect.inference.api import embed, evaluate_model, load


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    for label in range(4):
        for number in range(3):
            path = tmp_path / "photos" / f"class{label}" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(random.integers(0, 256, (30, 30, 3), dtype=np.uint8)).save(path)
    return tmp_path / "photos"


def test_a_model_is_loaded_used_and_measured(tmp_path: Path, photos: Path) -> None:
    made = recollect.Embedder.create("tiny", size=24).eval()
    made.save(tmp_path / "model")
    embedder = load(tmp_path / "model")
    vectors = embed(embedder, photos, progress=False)
    assert vectors.shape == (12, 128)
    one = embed(tmp_path / "model", [photos / "class0" / "0.png"], progress=False)
    assert torch.allclose(one[0], vectors[0], atol=1e-5)
    images = load_images("folder", photos, "all")
    expected = recollect.evaluate(embed(embedder, images, progress=False), images.labels, ks=[1]).metrics["r@1"]
    for data in (images, str(photos)):
        found = evaluate_model(embedder, data, split="all", ks=[1])
        assert found.metrics["r@1"] == pytest.approx(expected)
    assert "mine" in evaluate_model(embedder, images, metrics=[mine]).metrics


def mine(ranks: torch.Tensor, positives: torch.Tensor) -> torch.Tensor:
    return (ranks[:, 0] == 1).double()


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such"):
        load(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="--data"):
        evaluate_model(recollect.Embedder.create("tiny"))


def test_import_recollect_is_lazy() -> None:
    heavy = ("torch", "torchvision", "timm", "numpy", "PIL", "yaml", "matplotlib", "typer", "rich")
    code = (
        f"import sys, recollect; recollect.__all__; dir(recollect); print([m for m in {heavy!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", [name for name in recollect.__all__ if name != "__version__"])
def test_every_public_name_is_documented_and_typed(name: str) -> None:
    thing = getattr(recollect, name)
    assert len(thing.__doc__) > 20
    if not isinstance(thing, type):
        assert thing.__annotations__


def test_several_folders_are_embedded_as_by_the_command(photos: Path) -> None:
    embedder = recollect.Embedder.create("tiny", size=24).eval()
    one, other = photos / "class0", photos / "class1"
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # vectors have no labels, so nothing is said of them
        both = embed(embedder, [one, other / "1.png", other], progress=False)
    assert both.shape == (6, 128), "an image that is given twice has one row"
    assert torch.allclose(both[3], embed(embedder, other / "1.png", progress=False)[0], atol=1e-5)


def test_a_result_on_trained_classes_comes_with_a_warning(photos: Path, tmp_path: Path) -> None:
    """Visible without any configuration of logging."""
    settings = {"data.root": str(photos), "model.init": "tiny", "run.steps": 1, "run.epochs": None, "batch.size": 8}
    outcome = recollect.train("folder", tmp_path / "run", settings=settings)
    with pytest.warns(DataWarning, match="2 classes were trained on"):
        evaluate_model(outcome.folder, split="train")
