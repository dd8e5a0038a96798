"""What a plan promises and what happens: time and memory of five different trainings, each in a process of its own.

By two clocks. *wall*: as users meet it; the plan is compared with the same process in the minutes right after it, so that
a busy machine is about as busy for both. *processor*: plan and training on one thread, both by the time of the processor,
which says how good the plan is whatever else the machine does.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.timing import in_fresh_process, peak_mib, report

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "last layer on photos": ("folder", {}),
    "whole network on photos": (
        "folder",
        {"model.freeze": "none", "model.image_size": 128, "batch.size": 40, "run.epochs": None, "run.steps": 6},
    ),
    "tiny network from scratch": ("glyphs", {"run.epochs": None, "run.steps": 100}),
    "larger batch with SiMix": (
        "glyphs",
        {"batch.size": 1000, "loss.options": {"simix": True}, "run.epochs": None, "run.steps": 12},
    ),
    "validation each epoch": (
        "glyphs",
        {"data.validation": "random", "batch.batches_per_epoch": 15, "run.epochs": 4, "run.evaluate_every": 1},
    ),
}


def make_photos(root: Path, classes: int = 20, each: int = 15) -> None:
    """Smooth noise as JPEG files of 400 × 300 pixels, one folder per class."""
    random = np.random.default_rng(0)
    for number in range(classes):
        folder = root / f"class-{number:02d}"
        folder.mkdir(parents=True)
        pattern = random.integers(0, 256, (6, 8, 3))
        for image in range(each):
            noisy = np.clip(pattern + random.normal(0, 40, pattern.shape), 0, 255).astype(np.uint8)
            Image.fromarray(noisy).resize((400, 300), Image.Resampling.BICUBIC).save(folder / f"{image}.jpg")


class _Clock(logging.Handler):
    """Starts when the plan is told."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("time "):
            self.wall, self.processor = time.perf_counter(), time.process_time()


def measure(name: str, kind: str) -> dict[str, float]:
    """One training: what its plan said, and what it took."""
    import torch

    from recollect.common import machine
    from recollect.config.resolve import resolve
    from recollect.training import plan as plans
    from recollect.training.run import RunFolder
    from recollect.training.trainer import train

    if kind == "processor":
        torch.set_num_threads(1)
        machine.clock, plans.CORES = time.process_time, 1
    recipe, settings = CASES[name]
    clock, library = _Clock(), logging.getLogger("recollect")
    library.setLevel(logging.INFO)
    library.addHandler(clock)
    with tempfile.TemporaryDirectory() as folder:
        if recipe == "folder":
            os.environ["RECOLLECT_CACHE"] = folder  # features are not there yet
            make_photos(Path(folder) / "photos")
            settings = {"data.root": str(Path(folder) / "photos"), **settings}
        outcome = train(resolve(recipe, {"run.device": "cpu", **settings}), Path(folder) / "run")
        wall, processor = time.perf_counter() - clock.wall, time.process_time() - clock.processor
        plan = RunFolder(outcome.folder).read_manifest()["plan"]
    return {
        "planned": plan["seconds"], "taken": wall if kind == "wall" else processor, "wall": wall,
        "processor": processor, "planned_mb": plan["memory_mb"], "peak_mb": peak_mib(),
    }  # fmt: skip


def main(repeats: int = 2) -> None:
    """Each case several times, interleaved; a row for each run."""
    rows: list[dict[str, object]] = []
    for _ in range(repeats):
        for name in CASES:
            for kind in ("wall", "processor"):
                result = in_fresh_process("benchmarks.estimates", name, kind)
                if result is None:
                    sys.exit(f"{name} failed: run python -m benchmarks.estimates {name!r} {kind}")
                rows.append(
                    {
                        "training": name,
                        "clock": kind,
                        "planned s": result["planned"],
                        "wall s": result["wall"],
                        "processor s": result["processor"],
                        "taken / planned": result["taken"] / result["planned"],
                        "planned MB": int(result["planned_mb"]),
                        "peak MB": int(result["peak_mb"]),
                        "peak / planned": result["peak_mb"] / result["planned_mb"],
                    }
                )
    report("estimates", sorted(rows, key=lambda row: (list(CASES).index(str(row["training"])), str(row["clock"]))))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "wall")))
    else:
        main()
