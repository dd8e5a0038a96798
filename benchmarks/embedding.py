"""``Embedder.embed`` against a bare timm loop on the same decoded images, and the speed of ``tiny``.

    python -m benchmarks.embedding [--images 128] [--size 128] [--repeats 15]

One thread, one process, repeats of all sides interleaved; a ratio is the median over repeats of neighbouring times, a
speed is that of the best repeat. The bare loop is what one
would write without recollect: the timm model in channels-last, batches of the same uint8 tensor normalized, forward,
results collected. The target is a ratio of at least 0.95.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from recollect.common.files import write_json
from recollect.models import Embedder

RESULTS = Path(__file__).parent / "results" / "embedding.json"
BATCH = 64


def bare_loop(model: torch.nn.Module, images: Tensor) -> Tensor:
    mean = std = torch.tensor(0.5)
    vectors = []
    with torch.inference_mode():
        for batch in images.split(BATCH):
            x = batch.contiguous(memory_format=torch.channels_last).float().div_(255).sub_(mean).div_(std)
            vectors.append(torch.nn.functional.normalize(model(x)))
    return torch.cat(vectors)


Times = dict[str, list[tuple[float, float]]]


def interleaved(sides: dict[str, Callable[[], object]], repeats: int) -> Times:
    """Wall-clock and processor seconds of each side, in every repeat; the order turns with the repeats."""
    times: Times = {name: [] for name in sides}
    for side in sides.values():
        side()  # warm up
    names = list(sides)
    for repeat in range(repeats):
        for name in names[repeat % len(names) :] + names[: repeat % len(names)]:
            wall, cpu = time.perf_counter(), time.process_time()
            sides[name]()
            times[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    return times


def ratio(times: Times, name: str, base: str, clock: int) -> float:
    """The median over repeats of base time / time: neighbours in time share whatever else the machine is doing."""
    return statistics.median(b[clock] / t[clock] for t, b in zip(times[name], times[base], strict=True))


def embedding(count: int, size: int, repeats: int) -> list[dict[str, object]]:
    images = torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8)
    features = Embedder.create("lite0-in1k", dim=None, size=size).eval()
    headed = Embedder.create("lite0-in1k", size=size).eval()
    # One network for all sides, so that only the loops differ; the controls show what is noise and what a copy costs.
    model = headed.backbone = features.backbone
    twin = copy.deepcopy(model)
    separate = list(images)
    sides: dict[str, Callable[[], object]] = {
        "bare timm loop": lambda: bare_loop(model, images),
        "control: the same loop again": lambda: bare_loop(model, images),
        "control: the loop on a copy": lambda: bare_loop(twin, images),
        "embed, features, one tensor": lambda: features.embed(images, batch_size=BATCH, progress=False),
        "embed, features, list of tensors": lambda: features.embed(separate, batch_size=BATCH, progress=False),
        "embed, GeM + LayerNorm + Linear": lambda: headed.embed(images, batch_size=BATCH, progress=False),
    }
    difference = float(
        (bare_loop(model, images) - features.embed(images, batch_size=BATCH, progress=False)).abs().max()
    )
    assert difference < 1e-5, f"the two sides do not compute the same: {difference}"
    times = interleaved(sides, repeats)
    return [
        {
            "what": name,
            "images/s": count / min(wall for wall, _ in times[name]),
            "ratio": ratio(times, name, "bare timm loop", 0),
            "ratio (processor time)": ratio(times, name, "bare timm loop", 1),
        }
        for name in sides
    ]


def tiny(repeats: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for name in ("tiny", "tiny-grey"):
        for size in (32, 48, 64):
            embedder = Embedder.create(name, size=size)
            images = torch.randint(0, 256, (BATCH, 3, size, size), dtype=torch.uint8)

            def step(embedder: Embedder = embedder, images: Tensor = images) -> None:
                embedder(images).square()[:, 0].sum().backward()
                embedder.zero_grad()

            def forward(embedder: Embedder = embedder, images: Tensor = images) -> None:
                embedder.embed(images, batch_size=BATCH, progress=False)

            times = interleaved({"forward/s": forward, "forward+backward/s": step}, repeats)
            row: dict[str, object] = {"what": name, "px": size}
            row |= {what: BATCH / min(wall for wall, _ in each) for what, each in times.items()}
            rows.append(row)
    return rows


def show(rows: list[dict[str, object]]) -> None:
    def cell(title: str, value: object) -> str:
        if isinstance(value, float):
            return f"{value:.3f}" if title.startswith("ratio") else f"{value:.0f}"
        return str(value)

    titles = list(rows[0])
    table = [titles] + [[cell(title, row[title]) for title in titles] for row in rows]
    widths = [max(len(line[i]) for line in table) for i in range(len(titles))]
    for line in table:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)), flush=True)
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    compared = embedding(options.images, options.size, options.repeats)
    print(f"EfficientNet-Lite0, {options.images} images of {options.size} px, batches of {BATCH}, one thread")
    show(compared)
    print("tiny, batches of 64, one thread")
    small = tiny(min(options.repeats, 7))
    show(small)
    write_json(RESULTS, {"options": vars(options), "torch": torch.__version__, "embedding": compared, "tiny": small})
    print(f"written to {RESULTS}")


if __name__ == "__main__":
    main()
