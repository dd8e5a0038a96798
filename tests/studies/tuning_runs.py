"""Studies small enough for a test: 8 training classes, a network that trains in a second, a test set apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image

from recollect.config.resolve import as_mapping
from recollect.config.schema import Config
from recollect.studies.summary import StudyResults
from recollect.studies.tune import tune
from training.small_runs import small_config

SPACE = ["epochs=1:2", "lr=1e-3:1e-2"]


def make_data(root: Path, *, test: bool = True) -> Path:
    """``root/{train,test}/class/image.png``: faint patterns in strong noise, so that trials differ in their results."""
    random = np.random.default_rng(0)
    for split, classes in (("train", 8), ("test", 4)):
        for number in range(classes):
            pattern = np.kron(random.integers(-45, 46, (3, 3, 3)), np.ones((8, 8, 1)))
            for image in range(6):
                path = root / split / f"{split}-{number:02d}" / f"{image}.png"
                pixels = (128 + pattern + random.normal(0, 90, (24, 24, 3))).clip(0, 255).astype(np.uint8)
                if split == "train" or test:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    Image.fromarray(pixels).save(path)
    return root


def config_of(root: Path, **settings: Any) -> Config:
    # A checkpoint after every step, as in the tests of training, would only wait for the disk here.
    quick = {"batch.batches_per_epoch": 2, "batch.chunk": 16, "loss.options": {}, "run.checkpoint_minutes": 60}
    return small_config(root, **{**quick, **settings})


def study(root: Path, out: Path, **options: Any) -> StudyResults:
    settings = options.pop("settings", {})
    return tune(config_of(root, **settings), out, **{"trials": 3, "space": SPACE, **options})


def as_recipe(config: Config, path: Path) -> Path:
    """A recipe that ``recollect tune`` takes."""
    path.write_text(yaml.safe_dump(as_mapping(config)), encoding="utf-8")
    return path


def outcomes(results: StudyResults) -> list[Any]:
    """The results of a study, without how long it took."""
    return [(t.number, t.state, t.settings, t.value, t.best_epoch, t.steps, t.curve) for t in results.trials]
