"""A frozen part: features once, the rest trained on them, an ordinary embedder at the end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from small_runs import final_weights, losses, make_images, resumes_exactly, small_config

from recollect.common.errors import ConfigError, ImageError
from recollect.data import load
from recollect.evaluation import evaluate
from recollect.models import Embedder
from recollect.training import trainer
from recollect.training.run import RunFolder
from recollect.training.trainer import train

FROZEN = {
    "data.augmentation": "none",
    "model.freeze": "backbone",
    "batch.size": "all",
    "batch.chunk": "auto",
    "batch.batches_per_epoch": None,
    "loss.options": {},
    "optimizer.lr": 1e-2,
    "run.epochs": 8,
}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("upto", ["backbone", "pooling"])
def test_only_the_rest_learns_and_the_result_is_an_ordinary_embedder(root: Path, tmp_path: Path, upto: str) -> None:
    config = small_config(root, **{**FROZEN, "model.freeze": upto, "run.watch_test": True})
    outcome = train(config, tmp_path / "run")
    assert outcome.steps == 8
    torch.manual_seed(0)
    start = Embedder.create("tiny", dim=16, size=24).state_dict()
    end = final_weights(tmp_path / "run")
    changed = {name.split(".")[0] for name in start if not torch.equal(start[name], end[name])}
    assert changed == ({"head", "pooling"} if upto == "backbone" else {"head"})
    values = losses(tmp_path / "run")
    assert values[-1] < values[0]
    # The embedder on pixels finds what the rest found on features.
    images = load("folder", root, "test")
    embeddings = Embedder.load(outcome.folder / "model").embed(
        list(map(images.path, range(len(images)))), progress=False
    )
    assert evaluate(embeddings, images.labels, ks=(1,)).metrics["r@1"] == outcome.metrics["test"]["r@1"]


def test_lower_blocks_are_locked_while_photos_are_augmented(root: Path, tmp_path: Path) -> None:
    """Nothing is stored: the frozen part sees other crops in every step, and is the same at the end."""
    changes = {"data.augmentation": "crop", "model.freeze": "block2", "batch.size": 16, "run.epochs": 6}
    config = small_config(root, **{**FROZEN, **changes})
    plan = "\n".join(trainer.plan(config).lines())
    assert "frozen up to block2, whose features are computed in every step" in plan
    outcome = train(config, tmp_path / "run")
    torch.manual_seed(0)
    start = Embedder.create("tiny", dim=16, size=24).state_dict()
    end = final_weights(tmp_path / "run")
    changed = {name for name in start if not torch.equal(start[name], end[name])}
    assert {name.split(".")[2] for name in changed if name.startswith("backbone.")} == {"block3", "block4"}
    assert not list((tmp_path / "cache").rglob("*.rows*"))
    values = losses(outcome.folder)
    assert min(values[-3:]) < values[0]


def test_resuming_on_features_is_exact(root: Path, tmp_path: Path) -> None:
    settings = {**FROZEN, "run.checkpoint_steps": 3, "run.checkpoint_minutes": 60}
    assert resumes_exactly(small_config(root, **settings), tmp_path)


def test_an_unknown_stage_is_refused_with_those_there_are(root: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no stage 'layer9'"):
        train(small_config(root, **{**FROZEN, "model.freeze": "layer9"}), tmp_path / "run")
    assert not RunFolder(tmp_path / "run").path.exists()


def test_a_plan_does_not_wait_for_features(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: object, **options: object) -> None:
        raise AssertionError("features were computed")

    monkeypatch.setattr("recollect.training.batches.part_rows", never)
    plan = trainer.plan(small_config(root, **{**FROZEN, "run.watch_test": True}))
    assert plan.images == 72
    assert any("frozen up to" in line for line in plan.lines())


@pytest.mark.parametrize("size", ["all", 16])
def test_unreadable_photos_cost_no_more_than_themselves(tmp_path: Path, size: int | str) -> None:
    """The first of the set, two with the same contents, and one of the watched set."""
    root = make_images(make_images(tmp_path / "images"), classes=6, split="test", seed=1)
    for name in ("train/train-00/0.png", "train/train-03/1.png", "train/train-03/2.png", "test/test-02/3.png"):
        (root / name).write_bytes(b"not an image")
    config = small_config(root, **{**FROZEN, "batch.size": size, "run.watch_test": True, "run.epochs": 3})
    with pytest.raises(ImageError, match=r"train-00/0\.png"):
        train(config, tmp_path / "stops")
    config = replace(config, data=replace(config.data, on_bad_image="skip"))
    outcome = train(config, tmp_path / "run")
    manifest = RunFolder(tmp_path / "run").read_manifest()
    assert [Path(bad["name"]).name for bad in manifest["skipped"]] == ["0.png", "1.png", "2.png", "3.png"]
    assert {bad["kind"] for bad in manifest["skipped"]} == {"not an image"}
    assert all(np.isfinite(losses(tmp_path / "run")))
    images = load("folder", root, "test")
    places = [place for place in range(len(images)) if not images.names[place].endswith("test-02/3.png")]
    vectors = Embedder.load(outcome.folder / "model").embed([images.path(place) for place in places], progress=False)
    assert evaluate(vectors, images.labels[places], ks=(1,)).metrics["r@1"] == outcome.metrics["test"]["r@1"]
