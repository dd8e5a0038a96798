"""Memory that cannot be had is refused by the plan, before anything that large is tried out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small_runs import make_images, small_config

from recollect.common.errors import ConfigError
from recollect.models import Embedder
from recollect.training import memory_limit
from recollect.training.memory_limit import refuse_chunk, refuse_estimate
from recollect.training.trainer import plan

CPU = torch.device("cpu")


def test_a_layer_that_does_not_fit_is_refused_without_being_computed() -> None:
    network = Embedder.create("tiny", size=24, dim=8)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    inputs = torch.zeros(1, 3, 5000, 5000, dtype=torch.uint8)
    with pytest.raises(ConfigError, match=r"batch\.chunk"):
        refuse_chunk(network, inputs, 100_000, CPU)
    refuse_chunk(network, inputs[..., :24, :24], 100, CPU)
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())


def test_an_estimate_is_refused_beyond_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_limit, "total_memory", lambda: 1000)
    refuse_estimate(1200, CPU)
    with pytest.raises(ConfigError, match="memory"):
        refuse_estimate(1400, CPU)
    monkeypatch.setattr(memory_limit, "total_memory", lambda: None)  # a system that does not tell
    refuse_estimate(1e30, CPU)


def test_a_plan_beyond_the_machine_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_config(make_images(tmp_path / "images"))
    assert plan(config)
    monkeypatch.setattr(memory_limit, "total_memory", lambda: 10 * 2**20)
    with pytest.raises(ConfigError, match="more than this machine has"):
        plan(config)
