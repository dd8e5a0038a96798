"""A training small enough to repeat in a test: coloured patterns in a folder, the tiny network, six steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from recollect.config.resolve import resolve
from recollect.config.schema import Config
from recollect.step.distributed import Processes
from recollect.training import build, callbacks, trainer
from recollect.training.run import RunFolder


def make_images(
    root: Path, classes: int = 12, each: int = 6, size: int = 24, split: str = "train", seed: int = 0
) -> Path:
    """``root/split/class/image.png``: every class has a pattern of its own, every image its own noise."""
    random = np.random.default_rng(seed)
    for number in range(classes):
        pattern = random.integers(0, 256, (4, 4, 3))
        folder = root / split / f"{split}-{number:02d}"
        folder.mkdir(parents=True)
        for image in range(each):
            noisy = np.kron(pattern, np.ones((size // 4, size // 4, 1))) + random.normal(0, 60, (size, size, 3))
            Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(folder / f"{image}.png")
    return root


def small_config(root: Path, **settings: Any) -> Config:
    """Two epochs of three batches of 16: crops, SiMix and a cosine, so that every state counts."""
    small = {
        "data.name": "folder",
        "data.root": str(root),
        "data.workers": 0,
        "data.augmentation": "crop",
        "model.init": "tiny",
        "model.image_size": 24,
        "model.dim": 16,
        "loss.options": {"simix": True},
        "batch.size": 16,
        "batch.chunk": 6,
        "batch.batches_per_epoch": 3,
        "optimizer.lr": 1e-3,
        "optimizer.schedule": "cosine",
        "run.epochs": 2,
        "run.device": "cpu",
        "run.checkpoint_minutes": 0,
    }
    return resolve(None, {**small, **settings})


def final_weights(folder: Path) -> dict[str, torch.Tensor]:
    from recollect.models import Embedder

    return {name: tensor.clone() for name, tensor in Embedder.load(RunFolder(folder).model).state_dict().items()}


def same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def losses(folder: Path) -> list[float]:
    return [record["loss"] for record in RunFolder(folder).read_metrics() if record["kind"] == "step"]


class Killed(BaseException):
    """A process that ends here."""


def train_until(step: int, config: Config, folder: Path) -> Path:
    """A run that is killed after the record of a step is written; after the last one, before the model is."""

    def end(*_: object) -> None:
        raise Killed

    def killing(self: callbacks.Log, **values: Any) -> None:
        record(self, **values)
        if values["step"] == step:
            end()

    record = callbacks.Log.step
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(callbacks.Log, "step", killing)
        patch.setattr(trainer.Trainer, "_finish", end)
        with pytest.raises(Killed):
            trainer.train(config, folder)
    return folder


def resumes_exactly(config: Config, folder: Path, step: int = 5) -> bool:
    """Whether a run that is killed after ``step`` and resumed has the losses and the weights of one that is not."""
    torch.set_num_threads(1)
    trainer.train(config, folder / "whole")
    train_until(step, config, folder / "killed")
    torch.manual_seed(99)  # the new process begins with other random states
    trainer.train(resume=folder / "killed")
    whole, killed = folder / "whole", folder / "killed"
    return losses(killed) == losses(whole) and same_bits(final_weights(killed), final_weights(whole))


@contextmanager
def built(config: Config, passed: build.PassedObjects | None = None) -> Iterator[build.Training]:
    """A training before its first step."""
    with closing(build.build(build.prepare(config, torch.device("cpu"), Processes(), passed))) as training:
        yield training
