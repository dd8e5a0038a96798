"""The last layer starts as a whitening of training images."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml

from faults.trials import start_team
from recollect.common.errors import ConfigError, InputError
from recollect.config.resolve import as_mapping
from recollect.models.whitening import pairs_of_classes
from recollect.step.distributed import Processes
from recollect.training.build import Training, build, prepare
from recollect.training.head import whiten_last_layer, whitening_images
from recollect.training.trainer import train
from training.small_runs import final_weights, make_images, small_config


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_images(tmp_path_factory.mktemp("whitening"), classes=40, each=4)
    return make_images(root, classes=2, each=2, split="test")


def whiten(training: Training) -> None:
    chosen = whitening_images(training.config, training.sets.train)
    assert chosen is not None
    whiten_last_layer(training, chosen)


def test_differences_within_classes_become_white(images: Path, tmp_path: Path) -> None:
    config = small_config(images, **{"model.whitening": 160, "model.dim": 192, "model.layer_norm": False})
    training = build(prepare(config, torch.device("cpu"), Processes.of()))
    try:
        whiten(training)
        train_set, embedder = training.sets.train, training.embedder
        features = embedder.embed([train_set.read(i) for i in range(160)], before_head=True)
        linear = embedder.head.linear
        assert linear is not None
        with torch.no_grad():
            projected = linear(features).double()
        queries, positives = pairs_of_classes(torch.from_numpy(train_set.labels))
        differences = projected[queries] - projected[positives]
        covariance = differences.T @ differences / len(queries)
        varying = covariance.diagonal() > 0.5  # a dead feature has no variance to whiten
        assert varying.sum() > 100
        assert torch.allclose(covariance[varying][:, varying], torch.eye(int(varying.sum())).double(), atol=0.02)
    finally:
        training.close()


def test_only_at_the_start(images: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = {"model.whitening": 160, "run.epochs": None, "run.steps": 2, "batch.batches_per_epoch": None}
    caplog.set_level("INFO", "recollect")
    config = small_config(images, **settings, **{"run.checkpoint_steps": 1})
    train(config, tmp_path / "run")
    assert "whitening  the last layer starts from 160 training images" in caplog.messages
    manifest = (tmp_path / "run" / "manifest.json").read_text()
    (tmp_path / "run" / "manifest.json").write_text(manifest.replace('"outcome"', '"earlier"'))
    caplog.clear()
    train(resume=tmp_path / "run")
    assert any(line.startswith("resumed") for line in caplog.messages)
    assert not any(line.startswith("whitening") for line in caplog.messages)


def test_impossible_wishes(images: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"needs a last layer: set model\.dim"):
        small_config(images, **{"model.whitening": 160, "model.dim": None})
    with pytest.raises(ConfigError, match=r"model\.whitening is 0"):
        small_config(images, **{"model.whitening": 0})
    training = build(prepare(small_config(images, **{"model.whitening": 40}), torch.device("cpu"), Processes.of()))
    with pytest.raises(InputError, match=r"60 pairs .*192 features"):
        whiten(training)
    training.close()


@pytest.mark.slow
def test_two_processes_start_and_go_on_as_one(images: Path, tmp_path: Path) -> None:
    settings = {"model.whitening": 160, "run.epochs": None, "run.steps": 2, "batch.chunk": 8, "loss.options": {}}
    config = small_config(images, **settings)
    train(config, tmp_path / "one")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(as_mapping(config)))
    command = ["train", str(tmp_path / "config.yaml"), "--out", str(tmp_path / "two")]
    ended = [process.wait() for process in start_team(command, tmp_path, 2)]
    assert [one.code for one in ended] == [0, 0], ended
    one, two = final_weights(tmp_path / "one"), final_weights(tmp_path / "two")
    for name, tensor in one.items():
        assert torch.allclose(tensor, two[name], rtol=1e-3, atol=1e-4), name
