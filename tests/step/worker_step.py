"""One of four processes: takes steps on its part of a batch, with all, one or none of the others; writes the outcome.

One start of the processes serves every size of processes.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from training_toys import Noisy, NPair, PlainRecall, Proxies, SharedProxies, UnequalProxies, batch, convnet, gradients

from recollect.step import distributed, large_batch_step
from recollect.step.distributed import Processes, start, stop

LOSSES = {
    "recall": PlainRecall,
    "npair": NPair,
    "proxies": lambda: Proxies(5, 6),
    "unequal": lambda: UnequalProxies(5, 6),
    "shared": lambda: SharedProxies(5, 6),
    "noisy": Noisy,
}
SENDING = (
    "all_gather_into_tensor", "all_gather", "all_reduce", "reduce_scatter_tensor", "broadcast", "reduce", "gather",
    "scatter", "all_to_all", "barrier", "all_gather_object", "broadcast_object_list", "send", "recv",
    "all_gather_single", "reduce_scatter_single",
)  # fmt: skip


def count_collectives() -> Counter[str]:
    calls: Counter[str] = Counter()

    def counted(name: str, call: Any) -> Any:
        def counting(*args: Any, **options: Any) -> Any:
            calls[name] += 1
            return call(*args, **options)

        return counting

    for name in SENDING:
        if hasattr(dist, name):  # the last two are those of FSDP in recent versions
            setattr(dist, name, counted(name, getattr(dist, name)))
    return calls


def steps(name: str, processes: Processes, calls: Counter[str], uneven: bool = False) -> dict[str, Any]:
    torch.manual_seed(0)
    model, loss = convnet().double(), LOSSES[name]().double()
    model.register_parameter("unused", torch.nn.Parameter(torch.zeros(3, dtype=torch.float64)))
    images, labels = batch()
    bounds = [len(labels) * rank // processes.size for rank in range(processes.size + 1)]
    if uneven:
        bounds[1:-1] = [bound + 1 for bound in bounds[1:-1]]
    mine = slice(bounds[processes.rank], bounds[processes.rank + 1])
    optimizer = torch.optim.Adam([*model.parameters(), *loss.parameters()], lr=1e-2, weight_decay=0.1)
    first: list[torch.Tensor | None] = []
    for _ in range(3):
        optimizer.zero_grad()
        value = large_batch_step(model, loss, images[mine], labels[mine], 3, group=processes.group)
        # A second step without zero_grad adds to the first: what was reduced before must not be reduced again.
        before = Counter(calls)
        large_batch_step(model, loss, images[mine], labels[mine], 3, group=processes.group)
        first = first or gradients(model, loss)
        optimizer.step()
    return {
        "loss": value,
        "gradients": [g for g in first if g is not None],
        "missing": sum(g is None for g in first),
        "weights": [p.detach() for p in (*model.parameters(), *loss.parameters())],
        "queries": getattr(loss, "queries_seen", None),
        "collectives": dict(calls - before),
    }


def sharded_step(processes: Processes, calls: Counter[str], chunk: int) -> dict[str, Any]:
    """Two backward passes of a model whose parameters are divided among the processes."""
    torch.manual_seed(0)
    model, loss = convnet().double().to(memory_format=torch.channels_last), LOSSES["recall"]()
    distributed.shard(model, [model[3]], processes)
    images, labels = batch()
    mine = slice(len(labels) * processes.rank // processes.size, len(labels) * (processes.rank + 1) // processes.size)
    for _ in range(2):
        before = Counter(calls)
        value = large_batch_step(model, loss, images[mine], labels[mine], chunk, group=processes.group)
    counted = dict(calls - before)
    return {
        "loss": value,
        "gradients": distributed.whole([p.grad for p in model.parameters()]),
        "collectives": counted,
        "part": sum(p.to_local().numel() for p in model.parameters()) / sum(p.numel() for p in model.parameters()),
    }


def threads() -> list[str]:
    """Their names, where the system tells them."""
    return [task.joinpath("comm").read_text().strip() for task in Path("/proc/self/task").glob("*")]


def main(rank: int, port: int, folder: Path) -> None:
    """What the process of this rank does."""
    torch.set_num_threads(1)  # threads of the test's process do not survive the fork
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 4, "LOCAL_WORLD_SIZE": 4, "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in numbers.items()} | {"MASTER_ADDR": "127.0.0.1"}
    everyone = start()
    import_module("torch.distributed.nn.functional")  # as other libraries do: the group is a default argument there
    calls = count_collectives()
    groups = {"one": dist.new_group([0]), "two": dist.new_group([0, 1]), "four": None}
    for form in ("one", "two", "four", "uneven"):
        if form == "uneven":
            distributed.BUCKET = 40  # fewer numbers than the largest parameter has: several reductions
        if everyone.rank < {"one": 1, "two": 2}.get(form, 4):
            processes = Processes.of(groups.get(form))
            results = {name: steps(name, processes, calls, form == "uneven") for name in LOSSES}
            torch.save(results, folder / f"{form}-{processes.rank}.pt")
    sharded = {chunk: sharded_step(everyone, calls, chunk) for chunk in (1, 3, 100)}
    torch.save(sharded, folder / f"sharded-{everyone.rank}.pt")
    done = 0
    for _ in range(8):  # one after the other, with processes that arrive at different times
        time.sleep(0.02 * everyone.rank)
        everyone.run_on_rank_zero(lambda: None)
        done += 1
    torch.save(done, folder / f"alone-{everyone.rank}.pt")
    before = threads()
    del groups, processes
    stop()
    torch.save([before, threads()], folder / f"threads-{everyone.rank}.pt")
