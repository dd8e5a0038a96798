"""Batches are pinned exactly when a CUDA device will take them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small_runs import make_images, small_config

from recollect.data import Pipeline
from recollect.training import build
from recollect.training.batches import make_source


@pytest.mark.parametrize(
    ("device", "there", "pin"),
    [("cpu", False, False), ("cpu", True, False), ("cuda", True, True), ("cuda", False, False)],
)
def test_the_device_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, there: bool, pin: bool
) -> None:
    config = small_config(make_images(tmp_path, classes=2))
    images = build.load_sets(config).train
    embedder: Any = build.make_embedder(config.model, 0)
    standing_in: Any = SimpleNamespace(preprocessing=embedder.preprocessing, device=torch.device(device))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    source = make_source(config, standing_in, images, training=True)
    assert isinstance(source, Pipeline)
    assert source.pin is pin
    source.close()
