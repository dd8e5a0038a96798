"""The large-batch step against one plain step that holds the whole graph: time and memory.

    python -m benchmarks.large_batch               both tables
    python -m benchmarks.large_batch --threads 1   on a busy machine: one thread, and its own processor time
    python -m benchmarks.large_batch --quick       small, for a smoke test: its figures mean nothing

Time: both steps on the same images in one process, turn by turn; the median of their ratios. With a backward pass of
two forwards the limit of an exact two-pass method is 4/3; the target is ≤ 1.40. On a CPU a graph of hundreds of images
is slow in itself (it misses the cache and faults its pages in), so a third step is timed as well: ordinary gradient
accumulation over the same chunks, which computes no loss across chunks. Against it the second forward shows alone.

Memory: peak resident memory of a process of its own per batch size, above what it held before the step; images (uint8)
and embeddings are listed apart. The loss is a cheap one, so that the network is what is measured; losses have their own
benchmark.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "large_batch.json"


def make_model():
    from recollect.common.machine import fix_torchvision

    fix_torchvision()
    import timm
    import torch
    from torch import nn

    class Lite0(nn.Module):
        """EfficientNet-Lite0, BatchNorm frozen, to 128 numbers; uint8 in."""

        def __init__(self) -> None:
            super().__init__()
            self.backbone = timm.create_model("tf_efficientnet_lite0", pretrained=False, num_classes=0)
            self.head = nn.Linear(self.backbone.num_features, 128)

        def forward(self, images):
            floats = images.float().div_(127.5).sub_(1)
            return nn.functional.normalize(self.head(self.backbone(floats)), dim=1)

    torch.manual_seed(0)
    model = Lite0().train()
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    # Random weights behind untouched statistics let signals die out; then gradients are nothing but rounding.
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        model(make_batch(16, 96)[0])
    for norm in norms:
        norm.eval()
    return model


def cheap_loss(embeddings, labels):
    similarities = embeddings @ embeddings.T / 0.1
    return similarities.logsumexp(dim=1).mean()


def make_batch(count: int, size: int):
    import torch

    images = torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8)
    return images, torch.arange(count) // 4


def time_ratios(count: int, size: int, chunks: list[int | str], repeats: int, threads: int) -> list[dict[str, object]]:
    import torch

    from recollect.step import StepInfo, large_batch_step

    if threads:
        torch.set_num_threads(threads)
    clock = time.process_time if threads == 1 else time.perf_counter
    model, (images, labels) = make_model(), make_batch(count, size)
    info = StepInfo()

    def plain() -> None:
        model.zero_grad()
        cheap_loss(model(images), labels).backward()

    def accumulated(chunk: int) -> None:
        model.zero_grad()
        for part in images.split(chunk):
            model(part).square().sum().backward()

    def ours(chunk: int | str) -> None:
        model.zero_grad()
        large_batch_step(model, cheap_loss, images, labels, chunk, info=info)

    def seconds(step, *arguments) -> float:
        start = clock()
        step(*arguments)
        return clock() - start

    plain()
    expected = torch.cat([p.grad.flatten() for p in model.parameters()])
    rows = []
    for chunk in chunks:
        ours(chunk)
        actual = torch.cat([p.grad.flatten() for p in model.parameters()])
        error = float((actual - expected).norm() / expected.norm())
        assert error < 1e-3, f"gradients differ by {error:.1e} of their norm"
        size_found = info.chunk_size
        turns = [(seconds(plain), seconds(accumulated, size_found), seconds(ours, chunk)) for _ in range(repeats)]
        rows.append(
            {
                "chunk": chunk,
                "chunk_size": info.chunk_size,
                "plain_s": min(plain for plain, _, _ in turns),
                "accumulated_s": min(accumulated for _, accumulated, _ in turns),
                "step_s": min(ours for _, _, ours in turns),
                "ratio": statistics.median(ours / plain for plain, _, ours in turns),
                "ratio_to_accumulated": statistics.median(ours / other for _, other, ours in turns),
                "gradient_error": error,
            }
        )
    return rows


def peak_memory(count: int, size: int, chunk: int, plain: bool) -> None:
    """In a process of its own: print the peak above what was held before the step, in bytes."""
    import torch

    from recollect.step import large_batch_step

    model, (images, labels) = make_model(), make_batch(count, size)
    with torch.no_grad():
        model(images[:2])  # what is allocated once, whatever the batch
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if plain:
        cheap_loss(model(images), labels).backward()
    else:
        # The loss is O(M²) here, which is not the step's: leave it out of the measure.
        large_batch_step(model, lambda embeddings, labels: embeddings.square().sum(), images, labels, chunk)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"batch": count, "images": images.nbytes, "embeddings": count * 128 * 4, "extra": peak - before}))


def memory_rows(counts: list[int], size: int, chunk: int) -> list[dict[str, object]]:
    rows = []
    for count, plain in [*((count, False) for count in counts), (counts[0], True)]:
        command = [
            sys.executable,
            "-m",
            "benchmarks.large_batch",
            "--one",
            str(count),
            str(size),
            str(chunk),
            str(int(plain)),
        ]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        rows.append({**json.loads(output.splitlines()[-1]), "step": "plain" if plain else f"chunks of {chunk}"})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--threads", type=int, default=0, help="torch's threads; 0 leaves them alone")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--one", nargs=4, type=int, metavar=("COUNT", "SIZE", "CHUNK", "PLAIN"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        count, size, chunk, plain = arguments.one
        peak_memory(count, size, chunk, bool(plain))
        return
    size, repeats = (32, 2) if arguments.quick else (96, arguments.repeats)
    count, large = (64, 256) if arguments.quick else (392, 4000)
    print(f"time: lite0, {count} images of {size} px, frozen BatchNorm; one plain step = 1")
    print(f"{'chunk':>8} {'images':>7} {'plain s':>8} {'accum. s':>8} {'ours s':>8} {'/plain':>7} {'/accum.':>7}")
    times = time_ratios(count, size, [count // 12, count // 4, "auto", count], repeats, arguments.threads)
    for row in times:
        times_text = " ".join(f"{row[key]:>8.2f}" for key in ("plain_s", "accumulated_s", "step_s"))
        times_text += f" {row['ratio']:>7.2f} {row['ratio_to_accumulated']:>7.2f}"
        print(f"{row['chunk']!s:>8} {row['chunk_size']:>7} {times_text}")
    print("\nmemory: peak above the state before the step, MiB")
    print(f"{'batch':>6} {'step':>14} {'extra':>8}   {'images':>7} {'embeddings':>10}  (held besides)")
    memory = memory_rows([count, large], size, 98 if not arguments.quick else 32)
    mib = 2**20
    for row in memory:
        print(
            f"{row['batch']:>6} {row['step']:>14} {row['extra'] / mib:>8.0f}   {row['images'] / mib:>7.0f} "
            f"{row['embeddings'] / mib:>10.1f}"
        )
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"time": times, "memory": memory}, indent=2) + "\n")
    print(f"\nwritten: {RESULTS}")


if __name__ == "__main__":
    main()
