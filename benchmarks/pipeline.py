"""Images per second, the interpreter's lock and peak memory of the pipeline, against torchvision's ImageFolder + DataLoader.

Run from the root of the repository:  python -m benchmarks.pipeline  [--images 1600] [--repeats 5] [--workers N]

Every way to load does the same epoch over the same JPEG files (500×375, made here, in the system's file cache for all)
with the same transforms: random resized crop to 224, horizontal flip, uint8; the DataLoader has as many processes as the
pipeline has workers. The ways take turns, and the median of the repeats counts. The lock: how long a thread that only counts
waits for it, per image that one worker reads; the reciprocal is the most that a process can load, however many processors
there are. Peak memory is a process of its own that streams batches of 4,000 and reports its largest resident size, interpreter
and torch included. Prints a table and writes benchmarks/results/pipeline.json.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from recollect.common.images import Preprocessing
from recollect.common.machine import fix_torchvision
from recollect.data.image_set import ImageSet
from recollect.data.pipeline import Pipeline, processors
from recollect.data.transforms import train_transform

BATCH = 400
LARGE_BATCH, LARGE_BATCHES = 4000, 3
LIMIT_GB, COLD_TARGET, RAM_TARGET = 2.2, 1.0, 4.0
RESULTS = Path(__file__).parent / "results" / "pipeline.json"


def make_photos(root: Path, count: int) -> ImageSet:
    """Files that cost about what photographs cost: coarse colour, some texture, 500×375, quality 90."""
    random = np.random.default_rng(0)
    names = [f"{number % 20:02}/{number:05}.jpg" for number in range(count)]
    texture = random.normal(0, 12, (375, 500, 3))
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(random.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize((500, 375), 3)
        pixels = np.clip(np.asarray(coarse) + np.roll(texture, random.integers(0, 300), 0), 0, 255)
        Image.fromarray(pixels.astype(np.uint8)).save(root / name, quality=90)
    order = sorted(names)
    return ImageSet("photos", order, [int(n[:2]) for n in order], [f"{c:02}" for c in range(20)], root=root)


def batches(count: int, epoch: int) -> list[np.ndarray]:
    shuffled = np.random.default_rng(epoch).permutation(count)
    return [shuffled[start : start + BATCH] for start in range(0, count, BATCH)]


def plain_torchvision(images: ImageSet, workers: int) -> Callable[[int], int]:
    fix_torchvision()
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    transform = v2.Compose([v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(), v2.PILToTensor()])
    loader = torch.utils.data.DataLoader(
        ImageFolder(str(images.root), transform), BATCH, shuffle=True, num_workers=workers, persistent_workers=True
    )
    return lambda epoch: sum(len(pixels) for pixels, _ in loader)


def our_pipeline(images: ImageSet, workers: int, kernel: str, **options: object) -> Callable[[int], int]:
    options = {"worker_type": "threads", **options}
    pipeline = Pipeline(images, train_transform(Preprocessing(), kernel=kernel), workers, **options)  # type: ignore[arg-type]
    return lambda epoch: sum(len(b.images) for b in pipeline.stream(batches(len(images), epoch), epoch))


def lock_milliseconds(images: ImageSet, worker_type: str) -> float:
    """Milliseconds per image in which loading holds the interpreter's lock.

    Linux says how long a thread ran, and how long it was ready without a processor. A thread that counts waits for nothing
    else, so the rest is the lock. Two processors must be free: without them, waiting for the lock is waiting for a processor.
    """
    waits: list[int] = []
    loaded = threading.Event()

    def count() -> None:
        statistics_file = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")

        def waited() -> int:
            ran, ready, _ = map(int, statistics_file.read_text().split())
            return time.perf_counter_ns() - ran - ready

        start = waited()
        while not loaded.is_set():
            pass
        waits.append(waited() - start)

    interval = sys.getswitchinterval()
    with Pipeline(images, train_transform(Preprocessing()), 1, worker_type=worker_type) as pipeline:
        pipeline.load(np.arange(16))  # starts the process
        sys.setswitchinterval(1e-5)
        thread = threading.Thread(target=count)
        thread.start()
        number = sum(len(batch.images) for batch in pipeline.stream(batches(len(images), 0)))
        loaded.set()
        thread.join()
        sys.setswitchinterval(interval)
    return waits[0] / number / 1e6


def throughput(images: ImageSet, workers: int, repeats: int) -> dict[str, float]:
    ways = {
        "torchvision ImageFolder + DataLoader": plain_torchvision(images, workers),
        "pipeline, no cache": our_pipeline(images, workers, "torch"),
        "pipeline, processes": our_pipeline(images, workers, "torch", worker_type="processes"),
        "pipeline, no cache, PIL kernel": our_pipeline(images, workers, "pil"),
        "pipeline, RAM cache": our_pipeline(images, workers, "torch", cache="ram"),
        "pipeline, RAM cache, PIL kernel": our_pipeline(images, workers, "pil", cache="ram"),
        "pipeline, disk cache": our_pipeline(images, workers, "torch", cache="disk"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(repeats + 1):
        for name, run in ways.items():
            start = time.perf_counter()
            assert run(repeat) == len(images)
            if repeat:  # the first epoch starts workers and fills caches
                seconds[name].append(time.perf_counter() - start)
    return {name: len(images) / statistics.median(times) for name, times in seconds.items()}


def large_batches(root: Path, workers: int) -> None:
    """In a process of its own: stream batches of 4,000 at 224 px and print the peak resident size in bytes."""
    names = sorted(str(path.relative_to(root)) for path in root.rglob("*.jpg"))
    images = ImageSet("photos", names, [int(name[:2]) for name in names], [f"{c:02}" for c in range(20)], root=root)
    random = np.random.default_rng(0)
    with Pipeline(images, train_transform(Preprocessing()), workers) as pipeline:
        for batch in pipeline.stream(random.integers(0, len(images), (LARGE_BATCHES, LARGE_BATCH))):
            assert batch.images.shape == (LARGE_BATCH, 3, 224, 224)
            time.sleep(1)  # a step in which the workers run ahead as far as they may
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def peak_memory(images: ImageSet, workers: int) -> int:
    command = [sys.executable, "-m", "benchmarks.pipeline", "--large", str(images.root), "--workers", str(workers)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return int(subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1600)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workers", type=int, default=min(16, processors()))
    parser.add_argument("--large", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.large:
        large_batches(options.large, options.workers)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        os.environ["RECOLLECT_CACHE"] = str(folder / "cache")
        images = make_photos(folder / "photos", options.images)
        rates = throughput(images, options.workers, options.repeats)
        lock = {
            kind: statistics.median(lock_milliseconds(images, kind) for _ in range(options.repeats))
            for kind in ("threads", "processes")
        }
        peak = peak_memory(images, options.workers) / 1e9
    base = rates["torchvision ImageFolder + DataLoader"]
    print(
        f"{options.images} JPEG files of 500×375, to 224 px, {options.workers} workers, median of {options.repeats}\n"
    )
    for name, rate in rates.items():
        print(f"{name:40}{rate:8.0f} images/s{rate / base:8.2f}×")
    for kind, milliseconds in lock.items():
        print(
            f"\n{kind}: {milliseconds:.3f} ms of the lock per image: at most {1000 / milliseconds:,.0f} images/s",
            end="",
        )
    cold, cached = rates["pipeline, no cache"] / base, rates["pipeline, RAM cache"] / base
    print(f"\n\npeak memory, batches of {LARGE_BATCH:,} at 224 px: {peak:.2f} GB all told")
    met = {
        f"no cache >= {COLD_TARGET}x": cold >= COLD_TARGET,
        f"RAM cache >= {RAM_TARGET}x": cached >= RAM_TARGET,
        f"peak memory <= {LIMIT_GB} GB": peak <= LIMIT_GB,
    }
    for target, reached in met.items():
        print(f"{'met   ' if reached else 'MISSED'}  {target}")
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    result = {
        "workers": options.workers,
        "images_per_second": rates,
        "lock_ms": lock,
        "peak_memory_gb": peak,
        "targets": met,
    }
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")
    sys.exit(not all(met.values()))


if __name__ == "__main__":
    main()
