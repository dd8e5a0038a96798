"""The plan: what it counts is what happens, and making it changes nothing. How good its times are: benchmarks/estimates.py."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import built, make_images, small_config

from recollect.common import machine
from recollect.common.errors import ConfigError
from recollect.losses import RecallAtK
from recollect.training import build, trainer
from recollect.training.plan import make_plan
from recollect.training.run import RunFolder


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_images(tmp_path_factory.mktemp("images"))


@pytest.mark.parametrize(
    "settings",
    [
        {"run.epochs": 3, "run.evaluate_every": 2},
        {"run.epochs": 2, "run.evaluate_first": False},
        {"run.epochs": None, "run.steps": 4, "run.evaluate_every": 1},
    ],
)
def test_evaluations_are_counted_as_they_happen(root: Path, tmp_path: Path, settings: dict[str, Any]) -> None:
    trainer.train(small_config(root, **{"data.validation": "paper", "batch.size": 8, **settings}), tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    happened = sum(record["kind"] == "evaluation" for record in run.read_metrics())
    assert run.read_manifest()["plan"]["evaluations"] == happened


def test_making_a_plan_leaves_no_trace(root: Path) -> None:
    loss, settings = RecallAtK(simix=True), {"data.validation": "paper", "batch.size": 8}
    with built(small_config(root, **settings), build.PassedObjects(loss=loss)) as training:
        before = {name: tensor.clone() for name, tensor in training.embedder.state_dict().items()}
        drawn, of_loss = torch.get_rng_state(), loss.generator.get_state()  # type: ignore[union-attr]
        plan = make_plan(training)
        assert torch.equal(torch.get_rng_state(), drawn)
        assert torch.equal(loss.generator.get_state(), of_loss)  # type: ignore[union-attr]
        assert all(torch.equal(before[name], tensor) for name, tensor in training.embedder.state_dict().items())
        assert all(parameter.grad is None for parameter in training.embedder.parameters())
        assert training.network.training
    total = plan.steps * plan.seconds_per_step + plan.evaluations * plan.seconds_per_evaluation
    assert plan.seconds == pytest.approx(total)
    assert plan.seconds_per_evaluation > 0
    assert plan.seconds_features == plan.seconds_whitening == plan.seconds_choosing == 0


def test_the_plan_has_the_figures_of_the_training(root: Path) -> None:
    (root / "train" / "single").mkdir(exist_ok=True)
    shutil.copy(root / "train" / "train-00" / "0.png", root / "train" / "single" / "0.png")
    by_epochs = trainer.plan(small_config(root))
    by_steps = trainer.plan(small_config(root, **{"run.epochs": None, "run.steps": 4}))
    frozen = {"model.freeze": "pooling", "data.augmentation": "none", "batch.batches_per_epoch": None}
    whole_set = trainer.plan(small_config(root, **frozen, **{"batch.size": "all"}))
    shutil.rmtree(root / "train" / "single")
    assert (by_epochs.images, by_epochs.classes, by_epochs.classes_used) == (73, 13, 12)
    assert (by_epochs.batch, by_epochs.classes_per_batch, by_epochs.longer_side) == (16, 4, 0)
    assert (whole_set.batch, whole_set.classes_per_batch) == (73, 13)
    assert (by_epochs.steps, by_epochs.epochs, by_epochs.batches_per_epoch) == (6, 2, 3)
    assert (by_steps.steps, by_steps.epochs, by_steps.batches_per_epoch) == (4, 4 / 3, 3)


def test_the_plan_in_words(root: Path) -> None:
    plan = trainer.plan(small_config(root))

    def rows(**changes: Any) -> dict[str, str]:
        changed = copy.copy(plan)
        vars(changed).update(changes)
        return dict(changed.rows())

    times = {"seconds_features": 600.0, "seconds_per_step": 1.25, "evaluations": 10, "seconds_per_evaluation": 25.0}
    assert rows(seconds=1000.0, steps=100, **times)["time"] == (
        "about 17 min: features 10 min, steps (1.2 s each) 2 min, evaluations 4 min"
    )
    assert rows(seconds=0.4)["time"] == "about a second"
    assert rows(steps=3000, epochs=3000.0, batches_per_epoch=1)["length"] == "3,000 steps: 3,000 epochs of 1 batch"
    assert rows(steps=100, epochs=2.5, batches_per_epoch=40)["length"] == "100 steps: 2.5 epochs of 40 batches"
    assert "400 validation queries are few" in rows(validation_images=400)["note"]
    assert "note" not in rows(validation_images=500)
    assert "smaller photos are enlarged" in rows(frozen="pooling", cached=True, own_size=True)["size"]
    assert "size" not in rows(frozen="pooling", own_size=False)


def test_a_plan_beyond_the_machine_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_config(root)
    monkeypatch.setattr(machine, "total_memory", lambda: None)  # a system that does not tell
    assert trainer.plan(config).memory_mb > 10
    monkeypatch.setattr(machine, "total_memory", lambda: 10 * 2**20)
    with pytest.raises(ConfigError, match=r"more than this machine has. Lower batch\.chunk"):
        trainer.plan(config)
