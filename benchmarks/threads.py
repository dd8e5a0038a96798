"""Small work beside two processes that keep two cores busy: what waiting threads cost, and what the rule makes of it.

Each figure is taken in a process of its own, first alone, then beside the busy ones. Columns: *all* is every thread torch
would use, *one* a single thread, *rule* what ``recollect.common.machine`` chooses, *command line* the rule and threads that
soon sleep (``spin_briefly``), as ``recollect`` sets it. "alone" means alone for this benchmark: run it on an idle machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

WORK = ("last layer 160", "last layer 800", "tiny 160", "evaluate 1000", "evaluate 5000", "search 4 in 20000")
WAYS = ("all", "one", "rule", "command line")
SECONDS = 3.0


def main() -> None:
    from benchmarks.timing import report  # imports torch, which a measured process does at its own time

    rows: list[dict[str, object]] = []
    for work in WORK:
        alone = {way: _measure(work, way) for way in WAYS}
        with _busy(os.cpu_count() or 1):
            beside = {way: _measure(work, way) for way in WAYS}
        # The yardstick is the fastest that this work can be on an idle machine.
        best = min(alone.values())
        row: dict[str, object] = {"work": work}
        for way in WAYS:
            row |= {f"{way}: alone ms": 1e3 * alone[way], f"{way}: busy ×": beside[way] / best}
        rows.append(row)
        print(f"{work}: " + ", ".join(f"{way} {1e3 * alone[way]:.1f} ms, {beside[way] / best:.1f} ×" for way in WAYS))
    report("threads", rows)


@contextmanager
def _busy(count: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def _measure(work: str, way: str) -> float:
    """Seconds of one step, in a fresh process."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    command = [sys.executable, "-m", "benchmarks.threads", work, way]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    seconds: float = json.loads(done.stdout.splitlines()[-1])
    return seconds


def _run(work: str, way: str) -> None:
    from recollect.common.machine import limited_threads, spin_briefly

    if way == "command line":
        spin_briefly()
    import torch

    from recollect.common import machine

    if way in ("all", "one"):
        machine.WORTH_A_THREAD = 1e-9  # the rule gives all there are
        torch.set_num_threads(1 if way == "one" else torch.get_num_threads())
    step, count = _step(work)
    with limited_threads(count) if count else nullcontext():
        for _ in range(3):
            step()
        times: list[float] = []
        while sum(times) < SECONDS or len(times) < 5:
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
    # The mean: on a busy machine the slow steps are what is asked for.
    print(json.dumps(sum(times) / len(times)))


def _step(work: str) -> tuple[Callable[[], object], int]:
    """One step of the work, and how many threads the loop around it sets; 0 where the step does so itself."""
    import numpy as np
    import torch
    from torch import nn

    from recollect import Embedder, RecallAtK, evaluate, large_batch_step
    from recollect.search.exact import nearest
    from recollect.step.large_batch import step_threads

    torch.manual_seed(0)
    if work.startswith("evaluate"):
        count = int(work.split()[-1])
        labels = np.arange(count) // 5
        vectors = nn.functional.normalize(
            torch.randn(count // 5, 128)[torch.from_numpy(labels)] + torch.randn(count, 128)
        )
        return lambda: evaluate(vectors, labels, ks=(1, 10, 100)), 0
    if work.startswith("search"):
        gallery = torch.randn(20_000, 128).numpy()
        return lambda: nearest(gallery[:4], gallery, k=10), 0
    size = int(work.split()[-1])
    batch_labels = torch.arange(size) // 4
    network: nn.Module
    if work.startswith("last layer"):
        network = nn.Sequential(nn.Linear(1280, 512), nn.LayerNorm(512))
        inputs = torch.randn(size // 4, 1280)[batch_labels] + torch.randn(size, 1280)
    else:
        network = Embedder.create("tiny")
        inputs = torch.randint(0, 256, (size, 3, 48, 48), dtype=torch.uint8)
    loss, optimizer = RecallAtK(), torch.optim.AdamW(network.parameters(), 1e-4)

    def step() -> None:
        optimizer.zero_grad()
        large_batch_step(network, loss, inputs, batch_labels, size)
        optimizer.step()

    return step, step_threads(network, inputs, size, size)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _run(*sys.argv[1:])
    else:
        main()
