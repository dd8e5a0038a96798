"""The world in which faults happen: images, a recipe, a finished and an interrupted run, vectors and results."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from small_runs import make_images

from faults.moments import signal_after
from faults.trials import Tally, called, prepare, run
from recollect.models import Embedder

RECIPE = """
data: {name: folder, root: %s, workers: 0, augmentation: crop, validation: paper}
model: {init: tiny, image_size: 24, dim: 16}
loss: {options: {simix: true}}
batch: {size: 16, chunk: 16, batches_per_epoch: 2}
optimizer: {lr: 1.0e-3, schedule: cosine}
run: {epochs: 4, evaluate_every: 2, device: cpu, checkpoint_minutes: 0}
"""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One table of the whole campaign, whichever processes did its parts."""
    tally = Tally()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "call":  # the report on tearing down has them again
                tally.update(*(json.loads(value) for name, value in report.user_properties if name == "tally"))
    if tally.trials:
        terminalreporter.write_line(f"\n{tally}")


@dataclass(frozen=True)
class World:
    """Where everything lies. Trials work on copies below ``folder``."""

    folder: Path
    recipe: Path
    images: Path
    finished: Path
    interrupted: Path
    headless: Path
    """A saved embedder without a last layer."""
    many: Path
    """Images with as many pairs as its features: enough for a whitening."""
    vectors: Path
    index: Path
    disk: Path | None
    """A small disk of its own, where the tests may mount one."""

    @property
    def image(self) -> Path:
        """One of the images."""
        return self.images / "test" / "test-01" / "3.png"

    def copied(self, source: Path, place: Path) -> Path:
        """A fresh copy of a run or a file."""
        if source.is_dir():
            return Path(shutil.copytree(source, place, symlinks=True))
        return Path(shutil.copy(source, place))


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
    seconds = _do(folder, "train", str(recipe), "--out", str(finished))
    _do(folder, "eval", str(finished))
    _do(folder, "report", str(finished))
    _do(folder, "embed", str(finished), str(images / "test"), "--out", str(folder / "vectors.npz"))
    _do(folder, "index", str(folder / "index.db"), str(images / "test"), "--model", str(finished))
    _interrupt(recipe, interrupted, folder, seconds)
    headless = folder / "headless"
    assert called(lambda: Embedder.create("tiny", size=24, dim=None).save(headless))[0] is None
    disk = _mounted(folder / "disk")
    many = make_images(folder / "many", classes=4, each=12)
    vectors, index = folder / "vectors.npz", folder / "index.db"
    yield World(folder, recipe, images, finished, interrupted, headless, many, vectors, index, disk)
    if disk is not None:
        subprocess.run(["umount", str(disk)], check=True)
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})


def _do(folder: Path, *arguments: str) -> float:
    ended = run(arguments, folder)
    assert ended.code == 0, ended
    return ended.seconds


def _interrupt(recipe: Path, place: Path, folder: Path, seconds: float) -> None:
    """A run that was asked to stop in its middle."""
    for share in (0.7, 0.75, 0.8, 0.65, 0.85, 0.6, 0.9):
        shutil.rmtree(place, ignore_errors=True)
        arguments = ["train", str(recipe), "--out", str(place)]
        ended = run(arguments, folder, signal_after(share * seconds, signal.SIGTERM))
        if ended.code == 143 and (place / "checkpoints" / "last.pt").exists():
            return
    pytest.fail(f"no run could be interrupted: {ended}")


def _mounted(place: Path) -> Path | None:
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "recollect-faults", str(place)]
    try:
        return place if subprocess.run(command, capture_output=True, check=False).returncode == 0 else None
    except FileNotFoundError:
        return None
