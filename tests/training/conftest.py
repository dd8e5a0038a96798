"""Images and an uninterrupted run, for tests of whole trainings."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small_runs import make_images, small_config

from recollect.training.trainer import train


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_images(tmp_path_factory.mktemp("images"))
    return make_images(root, classes=6, split="test", seed=1)


@pytest.fixture(scope="module")
def whole(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    torch.set_num_threads(1)
    train(small_config(root, **{"data.validation": "random"}), folder)
    return folder
