"""The world in which faults happen: images, a recipe, a finished and an interrupted run, vectors and results."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from small_runs import make_images

from faults.trials import Running, run

RECIPE = """
data: {name: folder, root: %s, workers: 0, augmentation: crop, validation: paper}
model: {init: tiny, image_size: 24, dim: 16}
loss: {options: {simix: true}}
batch: {size: 16, chunk: 8, batches_per_epoch: 3}
optimizer: {lr: 1.0e-3, schedule: cosine}
run: {epochs: 8, evaluate_every: 2, device: cpu, checkpoint_minutes: 0}
"""


@dataclass(frozen=True)
class World:
    """Where everything lies. Trials work on copies below ``folder``."""

    folder: Path
    recipe: Path
    images: Path
    finished: Path
    interrupted: Path
    vectors: Path
    disk: Path | None
    """A small disk of its own, where the tests may mount one."""

    def copy(self, name: str, source: Path) -> Path:
        """A fresh copy of a run or a file."""
        place = self.folder / name
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        if source.is_dir():
            return Path(shutil.copytree(source, place / source.name, symlinks=True))
        return Path(shutil.copy(source, place))


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    # Imported before anything is forked; nothing is computed here, since threads do not survive a fork.
    import recollect.cli.app
    import recollect.inference.features
    import recollect.report.page
    import recollect.training.trainer  # noqa: F401

    folder = tmp_path_factory.mktemp("faults")
    before = {name: os.environ.get(name) for name in ("RECOLLECT_CACHE", "COLUMNS")}
    os.environ.update({"RECOLLECT_CACHE": str(folder / "cache"), "COLUMNS": "200"})
    images = make_images(make_images(folder / "images", classes=8), classes=4, split="test", seed=1)
    recipe = folder / "small.yaml"
    recipe.write_text(RECIPE % images)
    finished, interrupted = folder / "finished", folder / "interrupted"
    _do(folder, "train", str(recipe), "--out", str(finished))
    _do(folder, "eval", str(finished))
    _do(folder, "report", str(finished))
    _do(folder, "embed", str(finished), str(images / "test"), "--out", str(folder / "vectors.npz"))
    _interrupt(recipe, interrupted, folder)
    disk = _mounted(folder / "disk")
    yield World(folder, recipe, images, finished, interrupted, folder / "vectors.npz", disk)
    if disk is not None:
        subprocess.run(["umount", str(disk)], check=True)
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})


def _do(folder: Path, *arguments: str) -> None:
    ended = run(arguments, folder)
    assert ended.code == 0, ended


def _interrupt(recipe: Path, place: Path, folder: Path) -> None:
    """A run that was asked to stop in its middle."""
    for _ in range(20):
        shutil.rmtree(place, ignore_errors=True)
        running = Running(["train", str(recipe), "--out", str(place)], folder)
        while not running.over() and not list(place.glob("checkpoints/best-[369]*.pt")):
            time.sleep(0.005)
        if not running.over():
            running.send(signal.SIGTERM)
        if running.wait().code == 143 and (place / "checkpoints" / "last.pt").exists():
            return
    pytest.fail("no run could be interrupted")


def _mounted(place: Path) -> Path | None:
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "recollect-faults", str(place)]
    try:
        return place if subprocess.run(command, capture_output=True, check=False).returncode == 0 else None
    except FileNotFoundError:
        return None
