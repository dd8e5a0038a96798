"""The world in which faults happen: images, a recipe, a finished and an interrupted run, vectors and an index."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from killed import signal_at
from safetensors import safe_open
from small_runs import make_images

from faults.trials import prepare, run

RECIPE = """
data: {name: folder, root: %s, workers: 0, augmentation: crop, validation: paper}
model: {init: tiny, image_size: 24, dim: 16}
loss: {options: {simix: true}}
batch: {size: 16, chunk: 16, batches_per_epoch: 2}
optimizer: {lr: 1.0e-3, schedule: cosine}
run: {epochs: 4, evaluate_every: 2, device: cpu, checkpoint_minutes: 0}
"""


@dataclass(frozen=True)
class World:
    """Where everything lies. Tests work on copies."""

    folder: Path
    recipe: Path
    images: Path
    finished: Path
    interrupted: Path
    vectors: Path
    index: Path

    @property
    def image(self) -> Path:
        """One of the images."""
        return self.images / "test" / "test-01" / "3.png"

    def copied(self, source: Path, place: Path) -> Path:
        """A fresh copy of a run or a file."""
        copy = shutil.copytree if source.is_dir() else shutil.copy
        return Path(copy(source, place))


def weights(folder: Path) -> bytes:
    """Every weight of an embedder."""
    with safe_open(folder / "model.safetensors", "numpy") as tensors:
        return b"".join(name.encode() + tensors.get_tensor(name).tobytes() for name in sorted(tensors.keys()))


@pytest.fixture(scope="session")
def prepared() -> None:
    """Commands may be run in forks of this process."""
    prepare()


@pytest.fixture(scope="session")
def world(prepared: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("faults")
    before = {name: os.environ.get(name) for name in ("RECOLLECT_CACHE", "COLUMNS")}
    os.environ.update({"RECOLLECT_CACHE": str(folder / "cache"), "COLUMNS": "200"})
    images = make_images(make_images(folder / "images", classes=8, each=4), classes=4, each=4, split="test", seed=1)
    recipe = folder / "small.yaml"
    recipe.write_text(RECIPE % images)
    finished, interrupted = folder / "finished", folder / "interrupted"
    vectors, index = folder / "vectors.npz", folder / "index.db"
    for arguments in (
        ("train", recipe, "--out", finished),
        ("eval", finished),
        ("embed", finished, images / "test", "--out", vectors),
        ("index", index, images / "test", "--model", finished),
    ):
        ended = run([*map(str, arguments)], folder)
        assert ended.code == 0, ended
    ended = run(["train", str(recipe), "--out", str(interrupted)], folder, signal_at("step", 7, signal.SIGTERM))
    assert ended.code == 143, ended
    yield World(folder, recipe, images, finished, interrupted, vectors, index)
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})
