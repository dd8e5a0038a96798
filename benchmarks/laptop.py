"""Commands without a GPU, against the same work without what makes them fast there.

    python -m benchmarks laptop           all of it
    python -m benchmarks.laptop "embed 640 px" step    some of it

Each figure comes from a process of its own, without the time to import torch; the two ways take turns, and medians count.
``embed`` is from files to vectors; ``index``, ``train`` (a last layer on features) and ``demo`` are whole commands. *before*
is the system's allocator (``RECOLLECT_MALLOC=default``), batches of 64 images and JPEGs decoded in full size; *now* is what
a user gets. Seconds are processor time in user and in system mode, which other processes disturb less than the clock; the
ratio is that of their sums, and ``clock ×`` that of the time on the clock. Goals: embedding 2 × at 640 px and 3 × at
4,000 px, a step 1.2 ×, and system time below a tenth of user time.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPEATS = 3
CHUNK = 96  # the whole batch of a step at once
IMAGES = {"embed 640 px": 256, "embed 4000 px": 96, "index 640 px": 256, "step": 96, "step, auto": 96, "train": 256}
DEMO_STEPS = 30


def main(works: list[str]) -> None:
    from benchmarks.timing import in_fresh_process, report  # torch is imported by a measured process at its own time

    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        make_photos(Path(folder) / "640", 256, 640)
        make_photos(Path(folder) / "4000", 96, 4000)
        for work in works or [*IMAGES, "demo"]:
            taken: dict[str, list[dict[str, float]]] = {"before": [], "now": []}
            for _ in range(REPEATS):
                for way, results in taken.items():
                    result = in_fresh_process("benchmarks.laptop", "--one", work, way, folder)
                    if result is None:
                        sys.exit(f"{work} failed: python -m benchmarks.laptop --one {work!r} {way} FOLDER shows why")
                    results.append(result)
            rows.append(_row(work, taken))
            print(rows[-1], flush=True)
    report("laptop", rows)


def _row(work: str, taken: dict[str, list[dict[str, float]]]) -> dict[str, object]:
    middle = {
        way: {name: statistics.median(result[name] for result in results) for name in results[0]}
        for way, results in taken.items()
    }
    row: dict[str, object] = {"work": work}
    for way, seconds in middle.items():
        if work in IMAGES:
            row[f"{way}: images/s"] = IMAGES[work] / seconds["clock"]
        row |= {f"{way}: {name}": seconds[name] for name in ("user", "system", "peak MiB")}
    before, now = middle["before"], middle["now"]
    row["×"] = (before["user"] + before["system"]) / (now["user"] + now["system"])
    row["clock ×"] = before["clock"] / now["clock"]
    row["system/user"] = now["system"] / now["user"]
    return row


def make_photos(root: Path, count: int, width: int) -> None:
    """Files that cost about what photographs cost: coarse colour, some texture, 4:3, quality 90, 16 classes."""
    import numpy as np
    from PIL import Image

    random, size = np.random.default_rng(0), (width, width * 3 // 4)
    # Of half the size: a camera's single pixels are not noise. 3 MB at 4,000 px.
    fine = Image.fromarray(random.normal(0, 12, (size[1] // 2, size[0] // 2)).astype(np.float32))
    texture = np.asarray(fine.resize(size, Image.Resampling.BICUBIC))[..., None]
    for number in range(count):
        coarse = Image.fromarray(random.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize(
            size, Image.Resampling.BICUBIC
        )
        pixels = np.clip(np.asarray(coarse) + np.roll(texture, random.integers(0, 300), 0), 0, 255).astype(np.uint8)
        file = root / f"{number % 16:02}" / f"{number:05}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(file, quality=90)


def run_one(work: str, way: str, folder: str) -> None:
    """Do the work once and print what it took."""
    from recollect.common.machine import spin_briefly

    spin_briefly()
    from benchmarks.timing import peak_mib
    from recollect.common.images import Preprocessing
    from recollect.common.machine import keep_freed_memory
    from recollect.models import Embedder

    if way == "before":
        os.environ["RECOLLECT_MALLOC"] = "default"
        Embedder.images_at_once = 128  # type: ignore[assignment]
        Preprocessing.at_least = None  # type: ignore[assignment]
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as out:
        os.environ["RECOLLECT_CACHE"] = f"{out}/cache"
        run = _prepared(work, Path(folder) / ("4000" if "4000" in work else "640"), out)
        before, clock = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        run()
        clock, after = time.perf_counter() - clock, resource.getrusage(resource.RUSAGE_SELF)
    seconds = {"user": after.ru_utime - before.ru_utime, "system": after.ru_stime - before.ru_stime, "clock": clock}
    print("\n" + json.dumps(seconds | {"peak MiB": peak_mib()}))


def _prepared(work: str, photos: Path, out: str) -> Callable[[], object]:
    """The work, with everything imported and done once at a small size."""
    import torch

    from recollect import Embedder, RecallAtK, cli, large_batch_step
    from recollect.inference.vectors import embed_files

    if work.startswith("embed"):
        embedder, files = Embedder.create("lite0-in1k"), sorted(photos.rglob("*.jpg"))
        embed_files(embedder, files[:2], keep=False)
        return lambda: embed_files(embedder, files, keep=False)
    if work.startswith("step"):
        model, labels = Embedder.create("lite0-in1k").train(), torch.arange(96) // 4
        images = torch.randint(0, 256, (96, 3, 224, 224), dtype=torch.uint8)
        chunk: Any = "auto" if work == "step, auto" else CHUNK
        large_batch_step(model, RecallAtK(), images, labels, chunk)
        return lambda: large_batch_step(model, RecallAtK(), images, labels, chunk)

    def command() -> None:
        sys.argv = ["recollect", "--quiet", *{
            "index": ["index", f"{out}/photos.index", str(photos), "--model", "lite0-in1k"],
            "train": ["train", "--data", str(photos), "--out", f"{out}/run", "--steps", "20"],
            "demo": ["demo", "--out", f"{out}/demo", "--steps", str(DEMO_STEPS)],
        }[work.split()[0]]]  # fmt: skip
        try:
            cli.main()
        except SystemExit as ended:
            if ended.code:
                raise

    return command


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        run_one(*sys.argv[2:])
    else:
        main(sys.argv[1:])
