"""Twenty steps whose losses are known: a change of any part of the journey of a batch shows here.

The images are made by numpy from a seed, so no font or file enters. Machines' sums differ in their last bits, and Adam
and the soft ranks amplify that over the steps: between one and two threads, and between chunks of 6 and 48 images, the
losses differ by up to 2e-5. ``TOLERANCE`` leaves room for other processors.
To renew after a deliberate change: ``RENEW_GOLDEN=1 pytest tests/training/test_golden.py``, and say why in the commit.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from small_runs import losses, make_images, small_config

from recollect.training.trainer import train

GOLDEN = Path(__file__).parent / "golden_losses.json"
TOLERANCE = 5e-4


@pytest.mark.slow
def test_twenty_steps_give_the_known_losses(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    root = make_images(make_images(tmp_path / "images"), classes=4, split="test", seed=1)
    settings = {"batch.size": 48, "batch.chunk": 20, "batch.batches_per_epoch": 5, "run.epochs": 4}
    train(small_config(root, **settings), tmp_path / "run")
    found = losses(tmp_path / "run")
    if os.environ.get("RENEW_GOLDEN"):
        GOLDEN.write_text(json.dumps([round(value, 6) for value in found]) + "\n")
    expected = json.loads(GOLDEN.read_text())
    assert len(found) == 20
    assert found == pytest.approx(expected, abs=TOLERANCE)
    assert found[-1] < 0.8 * found[0], "and it learns"
