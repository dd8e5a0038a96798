"""One way to open a run, an embedder or an initialisation; one rule for runs that are not finished."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from recollect.common.errors import ConfigError, DataError, WeightsError
from recollect.inference.opening import make_embedder, open_model, open_start
from recollect.inference.run_files import RunFiles
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
    assert model.source["sha256"] == opened.source["sha256"]


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
    start = open_start(config)
    assert "random weights" in start.weights
    torch.manual_seed(config.run.seed)
    assert torch.equal(vectors(start.embedder), vectors(Embedder.create("tiny", dim=16, size=24)))
