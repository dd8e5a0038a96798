"""Twenty steps whose losses are known: a change of any part of the journey of a batch shows here.

Processors round differently, and Adam and the soft ranks amplify that over the steps: in float32 the losses of two
processors differed by 7e-4. So everything is computed in float64, from weights that numpy draws (torch's normal numbers
depend on the processor's vector instructions) and images that numpy makes. Measured on one processor: between AVX2 and
AVX-512 instructions, one and two threads, and chunks of 6 and 48 images the losses differ by less than 1e-12; without any
vector instructions by 4e-10. ``TOLERANCE`` leaves room for more and is far below what a change of any part makes.
To renew after a deliberate change: ``RENEW_GOLDEN=1 pytest tests/training/test_golden.py``, and say why in the commit.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import losses, make_images, small_config
from torch import nn

from recollect.training import trainer

GOLDEN = Path(__file__).parent / "golden_losses.json"
TOLERANCE = 1e-7


def to_float64(network: nn.Module) -> None:
    """The network in float64, with weights that do not depend on the processor; its optimizer keeps its parameters."""
    network.double()
    random = np.random.default_rng(0)
    for parameter in network.parameters():
        if parameter.ndim > 1:  # norms, biases and GeM's exponent begin with constants
            width = (6 / parameter[0].numel()) ** 0.5
            parameter.data.copy_(torch.from_numpy(random.uniform(-width, width, tuple(parameter.shape))))


@pytest.mark.slow
def test_twenty_steps_give_the_known_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = trainer.build

    def build_in_float64(*arguments: Any) -> Any:
        training = original(*arguments)
        to_float64(training.network)
        return training

    monkeypatch.setattr(trainer, "build", build_in_float64)
    torch.set_num_threads(1)
    root = make_images(make_images(tmp_path / "images"), classes=4, split="test", seed=1)
    settings = {"batch.size": 48, "batch.chunk": 20, "batch.batches_per_epoch": 5, "run.epochs": 4}
    trainer.train(small_config(root, **settings), tmp_path / "run")
    found = losses(tmp_path / "run")
    if os.environ.get("RENEW_GOLDEN"):
        GOLDEN.write_text(json.dumps([round(value, 12) for value in found]) + "\n")
    expected = json.loads(GOLDEN.read_text())
    assert len(found) == 20
    assert found == pytest.approx(expected, abs=TOLERANCE)
    assert found[-1] < 0.8 * found[0], "and it learns"
