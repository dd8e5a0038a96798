"""Small steps run on one thread, and validation between them does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import losses, make_images, small_config
from torch import nn

from recollect.models import Embedder
from recollect.step.large_batch import step_threads
from recollect.training import trainer
from recollect.training.trainer import train


@pytest.fixture(autouse=True)
def _four_threads() -> Iterator[None]:
    """Whatever this machine has."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def test_a_last_layer_on_features() -> None:
    network, inputs = nn.Linear(1280, 512), torch.zeros(1, 1280)
    assert step_threads(network, inputs, batch=160, chunk=160) == 1
    assert step_threads(network, inputs, batch=16_000, chunk=16_000) == 4
    assert step_threads(network, inputs, batch=16_000, chunk=10) == 1, "many small products"
    torch.set_num_threads(2)
    assert step_threads(network, inputs, batch=16_000, chunk=16_000) == 2


def test_a_network_on_images() -> None:
    network, inputs = Embedder.create("tiny"), torch.zeros(1, 3, 48, 48, dtype=torch.uint8)
    assert step_threads(network, inputs, batch=400, chunk=400) == 4
    assert step_threads(network, inputs, batch=400, chunk=1) == 1, "one image at once is small work, many times"
    assert step_threads(network, inputs, batch=4, chunk=4) == 1


def test_steps_are_limited_and_validation_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_images(tmp_path / "images")
    seen: dict[str, set[int]] = {"step": set(), "validation": set()}

    def watch(name: str, kind: str) -> None:
        original = getattr(trainer, name)

        def watched(*arguments: Any, **options: Any) -> Any:
            seen[kind].add(torch.get_num_threads())
            return original(*arguments, **options)

        monkeypatch.setattr(trainer, name, watched)

    watch("take_step", "step")
    watch("evaluate_watched", "validation")
    config = small_config(root, **{"data.validation": "random"})
    train(config, tmp_path / "four")
    assert seen == {"step": {1}, "validation": {4}}
    assert torch.get_num_threads() == 4
    torch.set_num_threads(1)
    train(config, tmp_path / "one")
    assert losses(tmp_path / "four") == losses(tmp_path / "one"), "small steps do not depend on the number of cores"
