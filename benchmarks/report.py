"""A report of many test images, from start to end: time, memory and the size of the page.

    python -m benchmarks.report                         # 100,000 test images in 2,000 classes; 500 MB of disk
    python -m benchmarks.report --classes 400           # 20,000
    python -m benchmarks.report --folder F              # keeps images, run and vectors in F, and uses them again

Pictures of 32 pixels in classes of 50, 4,000 more for training, and a run of one step of the network ``tiny`` with 64
dimensions. Its features in the store of vectors are made up, before training more scattered than after, so that no time is
spent in a network. Measured is the command ``recollect report RUN --images 0`` as a process of its own; with
``OMP_NUM_THREADS=1`` on a busy machine, where threads that wait for each other cost processor time.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.timing import report
from recollect.config.resolve import resolve
from recollect.data import load, test_transform
from recollect.inference.models import load_initial_model, open_model
from recollect.inference.store import PART, VectorStore, content_keys
from recollect.inference.vectors import _provenance
from recollect.training.trainer import train

EACH = 50
SIDE = 32
DIM = 64
TRAINING = 80  # classes of training images
SCATTER = {"before": 2.0, "after": 1.2}  # deviation of an image from the centre of its class, whose own is 1


def make_images(folder: Path, classes: int, seed: int) -> None:
    """``classes`` folders of ``EACH`` pictures: a coarse pattern per class, and noise."""
    random = np.random.default_rng(seed)
    for number in range(classes):
        place = folder / f"{folder.name}-{number:04d}"
        place.mkdir(parents=True)
        pattern = np.kron(random.integers(0, 256, (4, 4, 3)), np.ones((SIDE // 4, SIDE // 4, 1)))
        for image in range(EACH):
            noisy = pattern + random.normal(0, 60, pattern.shape)
            Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(place / f"{image:02d}.png", compress_level=1)


def make_run(folder: Path, classes: int) -> None:
    """Images, a run and the vectors of its test images before and after training."""
    make_images(folder / "images" / "train", TRAINING, 0)
    make_images(folder / "images" / "test", classes, 1)
    settings = {
        "data.name": "folder",
        "data.root": str(folder / "images"),
        "model.init": "tiny",
        "model.image_size": SIDE,
        "model.dim": DIM,
        "batch.size": 160,
        "run.epochs": 1,
        "batch.batches_per_epoch": 1,
        "run.device": "cpu",
    }
    config = resolve(None, settings)
    train(config, folder / "run")
    images = load("folder", str(folder / "images"), "test")
    keys = content_keys(images)
    for name, opened in (("before", load_initial_model(config)), ("after", open_model(folder / "run"))):
        embedder = opened.embedder
        random = np.random.default_rng(2)
        centres = random.standard_normal((classes, embedder.feature_dim), dtype=np.float32)
        scatter = random.standard_normal((len(images), embedder.feature_dim), dtype=np.float32)
        rows = centres[images.labels] + np.float32(SCATTER[name]) * scatter
        store = VectorStore(_provenance(embedder, test_transform(embedder.preprocessing), "pooling"))
        for start in range(0, len(images), PART):
            store.write(keys[start : start + PART], rows[start : start + PART])


def measure(folder: Path) -> dict[str, object]:
    """One row of the table: the command in a process of its own."""
    run = folder / "run"
    command = [sys.executable, "-m", "recollect", "report", str(run), "--images", "0"]
    start = time.perf_counter()
    with subprocess.Popen(command) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"recollect report ended with {process.returncode}.")
    page = run / "report.html"
    queries = re.search(r"([\d,]+) queries", page.read_text(encoding="utf-8"))
    return {
        "queries": queries.group(1) if queries else "?",
        "processor s": used.ru_utime + used.ru_stime,
        "clock s": time.perf_counter() - start,
        "peak MiB": used.ru_maxrss / 1024,
        "page MB": page.stat().st_size / 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--classes", type=int, default=2000)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        os.environ["RECOLLECT_CACHE"] = str(folder / "cache")
        if not (folder / "run").exists():
            make_run(folder, options.classes)
        report("report", [measure(folder)])


if __name__ == "__main__":
    main()
