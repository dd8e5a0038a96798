"""The plan: what it counts is what happens, and making it changes nothing. How good its times are: benchmarks/estimates.py."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import make_images, small_config
from torch import nn

from recollect.common.machine import resident_bytes
from recollect.step.chunking import GraphWeight
from recollect.step.team import Team
from recollect.training import build, trainer
from recollect.training.estimate import DataFigures, LengthFigures, NetworkFigures, TimeFigures, estimate
from recollect.training.probes import (
    NetworkProbe,
    both_at_once,
    passing_bytes,
    probe_loss,
    probe_network,
    probe_ranking,
)
from recollect.training.run_folder import RunFolder

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_images(tmp_path_factory.mktemp("images"))


@pytest.mark.parametrize(
    "settings",
    [
        {"run.epochs": 2},
        {"run.epochs": 3, "run.evaluate_every": 2},
        {"run.epochs": 2, "run.evaluate_first": False},
        {"run.epochs": None, "run.steps": 4, "run.evaluate_every": 1},
        {"run.epochs": None, "run.steps": 6, "run.evaluate_every": 5},
    ],
)
def test_evaluations_are_counted_as_they_happen(root: Path, tmp_path: Path, settings: dict[str, Any]) -> None:
    trainer.train(small_config(root, **{"data.validation": "paper", "batch.size": 8, **settings}), tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    happened = sum(record["kind"] == "evaluation" for record in run.read_metrics())
    assert run.read_manifest()["plan"]["evaluations"] == happened


def test_making_a_plan_leaves_no_trace(root: Path) -> None:
    made = build.build(small_config(root, **{"data.validation": "paper", "batch.size": 8}), CPU, Team())
    try:
        before = {name: tensor.clone() for name, tensor in made.network.embedder.state_dict().items()}
        drawn, sampler = torch.get_rng_state(), made.batches.sampler.state_dict()
        loss = made.trained.loss.generator.get_state()  # type: ignore[union-attr, operator]
        plan = estimate(made)
        assert torch.equal(torch.get_rng_state(), drawn)
        assert made.batches.sampler.state_dict() == sampler
        assert torch.equal(made.trained.loss.generator.get_state(), loss)  # type: ignore[union-attr, operator]
        assert all(torch.equal(before[name], tensor) for name, tensor in made.network.embedder.state_dict().items())
        assert all(parameter.grad is None for parameter in made.network.embedder.parameters())
        assert made.network.trained.training
    finally:
        made.close()
    time, steps = plan.time, plan.length.steps
    parts = (time.seconds_features, time.seconds_whitening, steps * time.seconds_per_step, time.seconds_saving)
    assert time.seconds == pytest.approx(sum(parts) + time.evaluations * time.seconds_per_evaluation)
    assert time.seconds_per_evaluation > 0
    assert time.seconds_features == time.seconds_whitening == 0


def test_the_plan_has_the_figures_of_the_training(root: Path) -> None:
    (root / "train" / "single").mkdir(exist_ok=True)
    shutil.copy(root / "train" / "train-00" / "0.png", root / "train" / "single" / "0.png")
    by_epochs, _ = trainer.plan(small_config(root))
    by_steps, _ = trainer.plan(small_config(root, **{"run.epochs": None, "run.steps": 4}))
    frozen = {"model.freeze": "pooling", "data.augmentation": "none", "batch.batches_per_epoch": None}
    whole_set, _ = trainer.plan(small_config(root, **frozen, **{"batch.size": "all"}))
    shutil.rmtree(root / "train" / "single")
    assert (by_epochs.data.images, by_epochs.data.classes, by_epochs.data.classes_used) == (73, 13, 12)
    assert (by_epochs.batch.batch, by_epochs.batch.classes_per_batch, by_epochs.batch.longer_side) == (16, 4, 0)
    assert (whole_set.batch.batch, whole_set.batch.classes_per_batch) == (73, 13)
    assert by_epochs.length == LengthFigures(6, 2, 3)
    assert by_steps.length == LengthFigures(4, 4 / 3, 3)
    # This process, which holds the network already, and a little more.
    assert 0.7 < by_epochs.machine.memory_mb / (resident_bytes() / 2**20) < 2
    assert by_epochs.time.seconds_choosing == 0


def test_features_and_whitening_are_in_the_plan(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path))
    frozen = {
        "model.freeze": "pooling",
        "data.augmentation": "none",
        "batch.size": "all",
        "batch.batches_per_epoch": None,
    }
    made = build.build(small_config(root, **frozen), CPU, Team())
    assert estimate(made).time.seconds_features > 0
    made.prepare()
    assert estimate(made).time.seconds_features == 0  # they are there
    made.close()
    plan, _ = trainer.plan(small_config(root, **{"model.whitening": 40}))
    assert plan.time.seconds_whitening > 0


def test_the_plan_in_words() -> None:
    time = TimeFigures(1000.0, 600.0, 0.0, 1.25, 10, 25.0, 1.0, 2.0)
    assert time.lines(100) == ["time       about 17 min: features 10 min, steps (1.2 s each) 2 min, evaluations 4 min"]
    assert TimeFigures(0.4, 0.0, 0.2, 0.0, 0, 0.0, 0.2, 0.0).lines(0) == ["time       about a second"]
    trials = TimeFigures(40.0, 10.0, 0.0, 0.1, 0, 0.0, 0.0, 0.0, seconds_choosing=20.0)
    assert trials.lines(100) == [
        "time       about 40 s: features 10 s, choosing the learning rate 20 s, steps (0.1 s each) 10 s"
    ]
    assert LengthFigures(3000, 3000.0, 1).lines() == ["length     3,000 steps: 3,000 epochs of 1 batch"]
    assert LengthFigures(100, 2.5, 40).lines() == ["length     100 steps: 2.5 epochs of 40 batches"]
    data = {"data": "d", "images": 5, "classes": 3, "classes_used": 3, "validation_classes": 2, "validation_queries": 0}
    data |= {"left_out": {}, "held_out_classes": 0, "held_out_images": 0, "all_classes": False}
    assert "400 validation queries are few" in DataFigures(**data, validation_images=400).lines()[1]
    assert len(DataFigures(**data, validation_images=500).lines()) == 1
    assert "smaller photos are enlarged" in NetworkFigures("n", 224, 5, 1, "pooling", own_size=True).lines()[1]
    assert len(NetworkFigures("n", 96, 5, 1, "pooling", own_size=False).lines()) == 1


def test_all_but_the_last_chunk_are_embedded_twice() -> None:
    probe = NetworkProbe(GraphWeight(0.0, 1.0), passing=1.0, forward=1.0, both=3.0)
    assert probe.step(images=10, chunk=10) == 30
    assert probe.step(images=10, chunk=4) == 36


@pytest.mark.parametrize(("precision", "dtype"), [(None, torch.float32), (torch.float16, torch.float16)])
def test_a_network_is_measured_as_it_will_be_trained(precision: torch.dtype | None, dtype: torch.dtype) -> None:
    """In the precision of the run, and although a parameter takes no part in the result."""
    network, seen = nn.Sequential(nn.Flatten(), nn.Linear(12, 5)), set()
    network.register_parameter("unused", nn.Parameter(torch.zeros(3)))
    network[1].register_forward_hook(lambda layer, given, made: seen.add(made.dtype))
    probe = probe_network(network, torch.zeros(1, 3, 2, 2), 4, build.Machine(CPU, precision, Team()))
    assert seen == {dtype}
    assert probe.passing == 12 * 4 + 12 * 4, "into and out of the first layer"
    assert min(probe.forward, probe.both) > 0


def test_what_a_pass_holds() -> None:
    network = nn.Sequential(nn.Linear(2, 100), nn.ReLU(), nn.Linear(100, 1))
    assert passing_bytes(network, lambda: network(torch.zeros(5, 2))) == 5 * 200 * 4  # into and out of the ReLU
    assert not any(module._forward_hooks for module in network.modules())


def test_reading_and_computing_share_a_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recollect.training.probes.CORES", torch.get_num_threads())
    assert both_at_once(2.0, 1.0, CPU) == 3.0
    assert both_at_once(2.0, 1.0, torch.device("cuda")) == 2.0
    monkeypatch.setattr("recollect.training.probes.CORES", torch.get_num_threads() + 1)
    assert both_at_once(2.0, 1.0, CPU) == 2.0


def test_large_work_is_measured_in_small_and_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    """All pairs are compared, so ten times the images take a hundred times as long."""
    monkeypatch.setattr("recollect.training.probes.seconds_of", lambda work, wait=None: (work(), 1.0)[1])
    labels = torch.arange(5000).repeat_interleave(4).numpy()
    assert probe_ranking(labels, 4, CPU) == pytest.approx(100.0)
    config = small_config(Path(), **{"loss.options": {}})
    assert probe_loss(config, labels[:8000], 2000, 4, CPU) == pytest.approx(100.0)
    assert probe_loss(config, labels[:80], 20, 4, CPU) == pytest.approx(1.0)
