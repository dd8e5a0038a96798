"""A frozen part: features once, the rest trained on them, an ordinary embedder at the end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from small_runs import final_weights, losses, make_images, same_bits, small_config, train_until

from recollect.common.errors import ConfigError, DataError, ImageError
from recollect.common.images import BadImage
from recollect.config.automatic import resolve_auto
from recollect.config.resolve import resolve
from recollect.data import ImageSet, load
from recollect.evaluation import evaluate
from recollect.inference.vectors import SetRows
from recollect.models import Embedder
from recollect.training import trainer
from recollect.training.batches import FeatureBatches
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
    config = small_config(root, **{**FROZEN, "run.checkpoint_steps": 3, "run.checkpoint_minutes": 60})
    train(config, tmp_path / "whole")
    train_until(5, config, tmp_path / "killed")
    train(resume=tmp_path / "killed")
    assert losses(tmp_path / "killed") == losses(tmp_path / "whole")
    assert same_bits(final_weights(tmp_path / "killed"), final_weights(tmp_path / "whole"))


def test_a_folder_on_a_cpu_starts_frozen_and_says_so(root: Path) -> None:
    images = load("folder", root, "train")
    config = resolve("folder", {"data.root": str(root)})
    settled, choices = resolve_auto(config, images, torch.device("cpu"), pretrained=True)
    assert (settled.model.freeze, settled.batch.size, settled.data.augmentation) == ("pooling", "all", "none")
    assert settled.optimizer.lr == 1e-4
    assert any("only the last layer is trained" in str(choice) for choice in choices)
    settled, _ = resolve_auto(config, images, torch.device("cuda"), pretrained=True)
    assert (settled.model.freeze, settled.batch.size, settled.data.augmentation) == ("none", 48, "crop")
    assert settled.optimizer.lr == 1e-4
    settled, _ = resolve_auto(config, images, torch.device("cpu"), pretrained=False)
    assert settled.model.freeze == "none"
    # 98 classes of 82 images are 5e9 comparisons, ten seconds a step: batches then.
    many = ImageSet("many", [str(i) for i in range(8036)], np.arange(8036) % 98, list(map(str, range(98))), root=root)
    settled, _ = resolve_auto(config, many, torch.device("cpu"), pretrained=True)
    assert (settled.model.freeze, settled.batch.size, settled.run.epochs) == ("pooling", 392, 8)
    cropped = resolve("folder", {"data.root": str(root), "data.augmentation": "crop"})
    assert resolve_auto(cropped, images, torch.device("cpu"), pretrained=True)[0].model.freeze == "none"


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


def test_in_a_batch_another_image_of_the_class_takes_the_place() -> None:
    labels = np.repeat(np.arange(3), 4)
    rows = np.arange(12, dtype=np.float32)[:, None].repeat(2, 1)
    rows[[1, 4, 5, 6, 7]] = np.nan
    skipped = [BadImage(place, str(place), "broken") for place in (1, 4, 5, 6, 7)]
    features = SetRows(rows, np.zeros((12, 16), np.uint8), skipped)
    source = FeatureBatches(features, labels)
    (batch,) = source.stream([np.array([0, 1, 4, 5, 8, 9])], 0)
    assert batch.labels.tolist() == [0, 0, 2, 2], "no image of the second class can be read"
    assert batch.indices[0] == 0
    assert batch.indices[1] in (2, 3)
    assert torch.isfinite(batch.images).all()  # type: ignore[arg-type]
    assert [batch.indices.tolist() for batch in source.sequential(5)] == [[0, 2, 3, 8, 9], [10, 11]]
    with pytest.raises(DataError, match="whole batch"):
        next(source.stream([np.array([4, 5])], 0))
    source = FeatureBatches(features, labels, replaces=False)
    assert next(source.stream([np.arange(12)], 0)).indices.tolist() == [0, 2, 3, 8, 9, 10, 11]
