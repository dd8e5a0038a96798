"""A bench so small that a study of it takes seconds, and searches whose results are made up."""

from __future__ import annotations

import json
from pathlib import Path

from recollect.studies.benches import Bench, EqualImages
from recollect.studies.claims import Cell
from recollect.studies.matrix import Matrix

BENCH = Bench(
    name="small",
    title="coloured patterns",
    recipe="glyphs",
    budget=EqualImages(small=48, full=96),
    batch=16,
    batches=(8, 16),
    rates=(1e-3, 3e-3),
    settings={
        "data.name": "folder",
        "data.workers": 0,
        "data.augmentation": "crop",
        "model.image_size": 24,
        "model.dim": 16,
        "batch.chunk": 8,
        "run.device": "cpu",
    },
    folder="patterns",
)


class InProcess:
    """Stands for the pool of processes."""

    _processes = None

    def shutdown(self, wait: bool = True, cancel_futures: bool = False) -> None: ...

    def __init__(self, *_: object) -> None: ...

    def __enter__(self) -> InProcess:
        return self

    def __exit__(self, *_: object) -> None: ...

    def submit(self, work, *arguments):  # type: ignore[no-untyped-def]
        from concurrent.futures import Future

        future: Future[object] = Future()
        future.set_result(work(*arguments))
        return future


def final_run(study: Matrix, bench: Bench, cell: Cell, seed: int) -> Path:
    choice = study.choice(bench, cell)
    assert choice is not None
    return study.final(bench, cell, choice, seed)


def searched(study: Matrix, cell: Cell, found: dict[float, float], steps: int = 3) -> None:
    """Searches that came out as given: r@1 by learning rate."""
    for rate, value in found.items():
        run = study.folder(BENCH, cell) / "search" / f"lr-{rate:g}"
        run.mkdir(parents=True, exist_ok=True)
        outcome = {"steps": steps, "seconds": 1.0, "chosen_step": steps, "metrics": {}}
        (run / "manifest.json").write_text(json.dumps({"outcome": outcome}))
        record = {"kind": "evaluation", "split": "val", "step": steps, "r@1": value}
        (run / "metrics.jsonl").write_text(json.dumps(record) + "\n")
