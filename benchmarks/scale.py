"""A batch divided among many processes: what its loss and its exchanges cost, counted, so that large clusters can be reckoned.

    python -m benchmarks scale                                              # the loss of one of 64 processes
    unshare -n sh -c "ip link set lo up; torchrun --nproc-per-node 4 -m benchmarks.scale"   # bytes on the wire

The first prints multiply-adds, bytes written and peak memory per pair of a query and a gallery image, which do not depend on
the size of the batch. The second takes steps on real processes and compares what the loopback device carried with the
formula; without ``unshare`` other programs' traffic is counted too.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import normalize
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.device import Calls, embeddings_of
from benchmarks.timing import peak_mib, processor_name, reset_peak
from recollect.losses import RecallAtK
from recollect.step import large_batch_step
from recollect.step.distributed import shard, start, stop

DIM = 512


def loss_of_one(images: int, processes: int) -> str:
    """The share of the first process, and its gradient."""
    embeddings, labels = embeddings_of(images, DIM, torch.device("cpu"))
    loss, pairs = RecallAtK(), images * images / processes
    before = reset_peak()
    with FlopCounterMode(display=False) as products, Calls(torch.device("cpu")) as calls:
        loss.share(embeddings, labels, 0, processes).backward()
    held = 2**20 * (peak_mib() - before)
    return (
        f"M = {images:,} on {processes}: {products.get_total_flops() / 2 / pairs / DIM:.2f} × d multiply-adds and "
        f"{calls.bytes / pairs:.1f} bytes written per pair, {held / images / DIM / 4:.1f} × M × d floats at the peak"
    )


def sent_bytes() -> int:
    """What the loopback device has carried so far."""
    line = next(each for each in Path("/proc/net/dev").read_text().splitlines() if each.strip().startswith("lo:"))
    return int(line.split(":")[1].split()[0])


def bytes_of_step(images: int, divided: bool) -> str:
    """A step on all processes, beside what its exchanges should send."""
    torch.manual_seed(0)
    processes = start()
    size, mine = processes.size, images // processes.size
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 4096), nn.GELU(), nn.Linear(4096, DIM), Unit())
    count = sum(parameter.numel() for parameter in model.parameters())
    if divided:
        shard(model, [model[1]], processes)
    pixels, labels = torch.randn(mine, 3, 4, 4), (torch.arange(mine) + processes.rank * mine) // 4

    def step() -> None:
        large_batch_step(model, RecallAtK(), pixels, labels, mine // 2, group=processes)
        processes.barrier()

    step()
    before = sent_bytes()
    for _ in range(5):
        step()
    measured = (sent_bytes() - before) / 5
    # Each of W processes gets what the others have, and a sum takes as much twice.
    formula = (size - 1) * (images * (4 * DIM + 8) + 2 * 4 * images * DIM + 2 * 4 * count)
    what = "divided" if divided else "whole"
    return f"{size} processes, {what} model: {measured / 1e6:.1f} MB, formula {formula / 1e6:.1f} ({measured / formula:.3f})"


class Unit(nn.Module):
    """Vectors of length 1."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return normalize(x, dim=1)


if __name__ == "__main__":
    if "WORLD_SIZE" in os.environ:
        for divided in (False, True):
            text = bytes_of_step(2048, divided)
            if os.environ["RANK"] == "0":
                print(text, flush=True)
        stop()
    else:
        print(processor_name())
        for images, processes in ((16_384, 16), (32_768, 64), (65_536, 64)):
            print(loss_of_one(images, processes), flush=True)
