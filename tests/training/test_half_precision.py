"""Half precision on a CPU is tried in a child process before recollect computes in it (``common/processor.py``)."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small_runs import make_images, small_config
from torch import nn

from recollect import Embedder, large_batch_step
from recollect.common import processor
from recollect.common.errors import ConfigError
from recollect.losses import SmoothAP
from recollect.training.trainer import plan, train


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise ConfigError("this processor fails")

    monkeypatch.setattr(processor, "prepare_half_precision", refuse)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_images(tmp_path_factory.mktemp("images"))


@pytest.mark.usefixtures("broken")
def test_a_training_asks_first(root: Path, tmp_path: Path) -> None:
    config = small_config(root, **{"run.precision": "bf16"})
    with pytest.raises(ConfigError, match="this processor fails"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="this processor fails"):
        plan(config)
    plan(small_config(root))  # float32 asks nothing


@pytest.mark.usefixtures("broken")
def test_a_step_asks_first() -> None:
    model, images, labels = nn.Linear(8, 4), torch.randn(8, 8), torch.arange(8) // 2
    with pytest.raises(ConfigError, match="this processor fails"):
        large_batch_step(model, SmoothAP(), images, labels, 4, autocast=torch.bfloat16)
    with pytest.raises(ConfigError, match="this processor fails"), torch.autocast("cpu", torch.bfloat16):
        large_batch_step(model, SmoothAP(), images, labels, 4)
    large_batch_step(model, SmoothAP(), images, labels, 4)


@pytest.mark.usefixtures("broken")
def test_embedding_asks_first() -> None:
    embedder, images = Embedder.create("tiny"), torch.zeros(2, 3, 48, 48, dtype=torch.uint8)
    embedder.embed(images)
    with pytest.raises(ConfigError, match="this processor fails"), torch.autocast("cpu", torch.bfloat16):
        embedder.embed(images)
    with pytest.raises(ConfigError, match="this processor fails"):
        embedder.bfloat16().embed(images)


@pytest.mark.skipif(sys.platform == "win32", reason="a process cannot send itself SIGILL on Windows")
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="oneDNN's limits are of x86 processors")
def test_train_on_a_broken_processor(root: Path, tmp_path: Path) -> None:
    """``recollect train --precision bf16`` where a child dies of SIGILL unless AVX2 is the limit: the run is made with it.

    That the limit holds shows that nothing was multiplied before the trial.
    """
    script = """
from recollect.common import processor
processor._CHILD = (
    "import os, signal; os.environ.get('ONEDNN_MAX_CPU_ISA') == 'AVX2' or os.kill(os.getpid(), signal.SIGILL)"
)
from recollect.cli import main
main()
"""
    package = Path(processor.__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(package), "RECOLLECT_CACHE": str(tmp_path / "cache")}
    environment.pop(processor.VARIABLE, None)
    out = tmp_path / "run"
    options = [
        "--init",
        "tiny",
        "--image-size",
        "24",
        "--batch-size",
        "16",
        "--steps",
        "1",
        "--precision",
        "bf16",
        "--device",
        "cpu",
    ]
    command = [sys.executable, "-c", script, "train", "--data", str(root / "train"), *options, "--out", str(out)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads((out / "manifest.json").read_text())["machine"]["instructions"] == "AVX2"
