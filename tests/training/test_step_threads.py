"""Small steps run on one thread, and validation between them does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import losses, make_images, small_config

from recollect.training import trainer
from recollect.training.trainer import train


@pytest.fixture(autouse=True)
def _four_threads() -> Iterator[None]:
    """Whatever this machine has."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


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
