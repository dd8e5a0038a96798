"""Runs, embedders and initialisations as they are opened; a run folder as it is read; ``load`` and ``embed``."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

import recollect
from recollect.common.errors import ConfigError, DataError, DataWarning, WeightsError
from recollect.data import load as load_images
from recollect.inference.evaluate import evaluate_model
from recollect.inference.models import RunFiles, embed, load, load_initial_model, make_embedder, open_model
from recollect.models import Embedder
from recollect.training.trainer import train
from training.small_runs import make_images, small_config

PIXELS = torch.randint(0, 256, (3, 3, 24, 24), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("opening")
    root = make_images(folder / "images", classes=6)
    return train(small_config(root, **{"run.epochs": 1}), folder / "run").folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def vectors(embedder: Embedder) -> torch.Tensor:
    with torch.no_grad():
        return embedder.eval()(PIXELS)


def unfinish(run: Path) -> None:
    manifest = json.loads((run / "manifest.json").read_text())
    manifest.pop("outcome")
    (run / "manifest.json").write_text(json.dumps(manifest))
    shutil.rmtree(run / "model")


def test_a_finished_run(run: Path) -> None:
    opened = open_model(run)
    assert opened.remark is None
    assert opened.config is not None
    assert opened.weights.startswith("weights of step")
    assert not opened.embedder.training
    assert torch.equal(vectors(opened.embedder), vectors(Embedder.load(run)))
    assert opened.results == run / "eval"
    model = open_model(str(run / "model"))
    assert model.run is None
    assert torch.equal(vectors(model.embedder), vectors(opened.embedder))
    assert model.provenance["sha256"] == opened.provenance["sha256"]


@pytest.mark.parametrize("name", ["model.safetensors", "embedder.json"])
def test_a_finished_run_is_never_opened_with_other_weights(run: Path, name: str) -> None:
    (run / "model" / name).unlink()
    assert (run / "checkpoints" / "last.pt").is_file()
    with pytest.raises(DataError, match=f"finished, but .*{name} is missing"):
        open_model(run)


def test_an_unfinished_run_says_which_checkpoint_is_used(run: Path) -> None:
    expected = vectors(open_model(run).embedder)
    unfinish(run)
    opened = open_model(run)
    assert opened.remark is not None
    assert "after step 3" in opened.remark
    assert "last.pt" in opened.remark
    assert "unfinished" in opened.weights
    assert torch.equal(vectors(opened.embedder), expected)
    (run / "checkpoints" / "last.pt").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"last\.pt"):
        open_model(run)
    (run / "checkpoints" / "last.pt").unlink()
    with pytest.raises(DataError, match=r"neither .*checkpoint"):
        open_model(run)


def test_settings_of_another_version_do_not_keep_a_finished_model_from_being_opened(run: Path) -> None:
    with (run / "config.yaml").open("a") as file:
        file.write("unheard_of: 1\n")
    opened = open_model(run)
    assert opened.config is None
    unfinish(run)
    with pytest.raises(ConfigError, match="unheard_of"):
        open_model(run)


def test_damage_is_said(run: Path) -> None:
    tensors = run / "model" / "model.safetensors"
    content = bytearray(tensors.read_bytes())
    content[-1] ^= 1
    tensors.write_bytes(content)
    with pytest.raises(WeightsError, match="SHA-256"):
        open_model(run)
    (run / "manifest.json").write_text("[]")
    with pytest.raises(DataError, match="not a dict"):
        open_model(run)


def test_an_initialisation_is_without_a_new_layer() -> None:
    opened = open_model("lite0-in1k")
    assert opened.folder is None
    assert opened.embedder.dim == opened.embedder.feature_dim == 1280
    assert opened.results == Path("runs/init-lite0-in1k/eval")


def test_a_recipe_says_with_which_weights_its_network_is_opened(tmp_path: Path) -> None:
    config = small_config(tmp_path, **{"model.init": "lite0-in1k", "model.weights": "none"})
    opened = open_model("lite0-in1k", recipe=config)
    assert torch.equal(vectors(opened.embedder), vectors(make_embedder(config.model, config.run.seed)))


def test_what_cannot_be_opened_is_a_sentence(tmp_path: Path) -> None:
    for name in (str(tmp_path / "nowhere"), "a/b", tmp_path / "nowhere"):
        with pytest.raises(DataError, match="no such run"):
            open_model(name)
    with pytest.raises(ConfigError, match=r"neither .*initialisation"):
        open_model("nothing-like-it")
    with pytest.raises(ConfigError, match="random weights"):
        open_model("tiny")
    with pytest.raises(DataError, match="neither a run"):
        open_model(tmp_path)


def test_what_a_run_started_from(run: Path) -> None:
    config = RunFiles(run).read_config()
    start = load_initial_model(config)
    assert "random weights" in start.weights
    torch.manual_seed(config.run.seed)
    assert torch.equal(vectors(start.embedder), vectors(Embedder.create("tiny", dim=16, size=24)))


def test_a_run_finds_its_images_from_any_folder_and_when_both_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, run = make_images(tmp_path / "work" / "images", classes=4), Path("runs/one")
    monkeypatch.chdir(tmp_path / "work")
    train(small_config(Path("images"), **{"run.epochs": 1}), run)
    assert yaml.safe_load((run / "config.yaml").read_text())["data"]["root"] == str(images)
    monkeypatch.chdir(tmp_path)
    assert RunFiles("work" / run).read_config().data.root == str(images)
    moved = (tmp_path / "work").rename(tmp_path / "elsewhere")
    assert RunFiles(moved / run).read_config().data.root == str(moved / "images")
    (moved / "images").rename(tmp_path / "photos")
    assert RunFiles(moved / run).read_config().data.root == str(images), "what is not found is named as it was written"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return make_images(tmp_path / "made", classes=4, each=3).joinpath("train").rename(tmp_path / "photos")


def test_a_model_is_loaded_used_and_measured(tmp_path: Path, photos: Path) -> None:
    recollect.Embedder.create("tiny", size=24).save(tmp_path / "model")
    embedder = load(tmp_path / "model")
    vectors = embed(embedder, photos, progress=False)
    assert vectors.shape == (12, 128)
    one = embed(tmp_path / "model", [photos / "train-00" / "0.png"], progress=False)
    assert torch.allclose(one[0], vectors[0], atol=1e-5)
    images = load_images("folder", photos, "all")
    expected = recollect.evaluate(embed(embedder, images, progress=False), images.labels, ks=[1]).metrics["r@1"]
    for data in (images, str(photos)):
        assert evaluate_model(embedder, data, split="all", ks=[1]).metrics["r@1"] == pytest.approx(expected)
    assert "mine" in evaluate_model(embedder, images, metrics=[mine]).metrics


def mine(ranks: torch.Tensor, positives: torch.Tensor) -> torch.Tensor:
    return (ranks[:, 0] == 1).double()


def test_import_recollect_is_lazy() -> None:
    heavy = ("torch", "torchvision", "timm", "numpy", "PIL", "yaml", "matplotlib", "typer", "rich")
    code = (
        f"import sys, recollect; recollect.__all__; dir(recollect); print([m for m in {heavy!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_result_on_trained_classes_comes_with_a_warning(photos: Path, tmp_path: Path) -> None:
    """Visible without any configuration of logging."""
    settings = {"data.root": str(photos), "model.init": "tiny", "run.steps": 1, "run.epochs": None, "batch.size": 8}
    outcome = recollect.train("folder", tmp_path / "run", settings=settings)
    with pytest.warns(DataWarning, match="2 classes were trained on"):
        evaluate_model(outcome.folder, split="train")
