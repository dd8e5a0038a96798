"""A bench so small that a study of it takes seconds, and searches whose results are made up."""

from __future__ import annotations

import json
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from recollect.studies import runner
from recollect.studies.protocol import Bench, Cell, EqualImages, Matrix
from training.small_runs import make_images

SMALL: dict[str, Any] = {
    "name": "small",
    "recipe": "glyphs",
    "budget": EqualImages(48),
    "rates": (1e-3, 3e-3),
    "settings": {
        "data.name": "folder",
        "data.workers": 0,
        "data.augmentation": "crop",
        "model.image_size": 24,
        "model.dim": 16,
        "batch.chunk": 8,
        "run.device": "cpu",
    },
}
BENCH = Bench(**SMALL)


def make_patterns(folder: Path) -> Path:
    make_images(folder)
    make_images(folder, classes=6, split="test", seed=1)
    return folder


def two_cells(bench: Bench, batch: int = 16) -> list[Cell]:
    """RS@k with two steps."""
    return [
        Cell(bench, step, step, batch, {"loss.name": "recall_at_k", "loss.options": {"step": step}})
        for step in ("sigmoid", "asymmetric")
    ]


def run_here(patch: pytest.MonkeyPatch) -> None:
    """Execute runs in this process."""
    patch.setenv("OMP_NUM_THREADS", "1")
    patch.setattr(runner, "ProcessPoolExecutor", InProcess)


class InProcess(Executor):
    """Stands for the pool of processes."""

    _processes = None

    def __init__(self, *_: object) -> None: ...

    def submit(self, work, *arguments):
        future: Future[object] = Future()
        future.set_result(work(*arguments))
        return future


def searched(study: Matrix, cell: Cell, found: dict[float, float], steps: int = 3) -> None:
    """Searches that came out as given: r@1 by learning rate."""
    for rate, value in found.items():
        run = study.folder(cell) / "search" / f"lr-{rate:g}"
        run.mkdir(parents=True, exist_ok=True)
        outcome = {"steps": steps, "seconds": 1.0, "chosen_step": steps, "metrics": {}}
        (run / "manifest.json").write_text(json.dumps({"outcome": outcome}))
        record = {"kind": "evaluation", "split": "val", "step": steps, "r@1": value}
        (run / "metrics.jsonl").write_text(json.dumps(record) + "\n")
