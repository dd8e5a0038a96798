"""What one call asks of a device: ``python -m benchmarks device [--json]``.

Prints, per call: kernels (operations that compute or copy), synchronisations (the host waits for the device), bytes written,
seconds and, on a GPU, peak memory. A change that adds a stall shows here before anyone has to time it. On a GPU
synchronisations are torch's own warnings (``torch.cuda.set_sync_debug_mode``); on a CPU there are none.

With ``torchrun --nproc-per-node 8 -m benchmarks.device --json`` only the step is measured, shared by all processes.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import normalize
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.timing import processor_name
from recollect.common.machine import seconds_of
from recollect.evaluation import evaluate
from recollect.losses import RecallAtK
from recollect.models import Embedder
from recollect.step import large_batch_step
from recollect.step.distributed import start, stop

_READS = ("_local_scalar_dense", "nonzero", "_unique2", "bincount", "equal")
"""Operations whose result, or its size, is a number for the host."""


class Calls(TorchDispatchMode):
    """Counts the operations on a device inside the block."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device, self.kernels, self.synchronisations, self.bytes = device, 0, 0, 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = op(*args, **(kwargs or {}))
        tensors = [value for value in tree_leaves((args, kwargs, result)) if isinstance(value, torch.Tensor)]
        if op.is_view or not any(tensor.device.type == self.device.type for tensor in tensors):
            return result
        self.kernels += 1
        self.bytes += sum(
            t.nbytes for t in tree_leaves(result) if isinstance(t, torch.Tensor) and t.device.type == self.device.type
        )
        name, devices = op.overloadpacket.__name__, {tensor.device.type for tensor in tensors if tensor.ndim}
        pinned = all(tensor.is_pinned() for tensor in tensors if tensor.device.type == "cpu")
        self.synchronisations += name in _READS or (name in ("copy_", "_to_copy") and len(devices) > 1 and not pinned)
        return result


def measure(name: str, work: Callable[[], object], device: torch.device) -> dict[str, Any]:
    """One row of the table; the first call, which copies constants and fills caches, is not counted."""
    work()
    gpu = device.type == "cuda" and torch.version.cuda is not None
    with Calls(device) as calls, warnings.catch_warnings(record=True) as waits:
        warnings.simplefilter("always")
        if gpu:
            torch.cuda.reset_peak_memory_stats(device)
            torch.cuda.set_sync_debug_mode("warn")
        work()
        if gpu:
            torch.cuda.set_sync_debug_mode("default")
    synchronisations = calls.synchronisations if device.type != "cpu" else 0
    if gpu:
        synchronisations = sum("synchronizing" in str(wait.message) for wait in waits)
    row = {"name": name, "kernels": calls.kernels, "synchronisations": synchronisations, "bytes": calls.bytes}
    if gpu:
        row["peak_bytes"] = torch.cuda.max_memory_allocated(device)
    return {**row, "seconds": seconds_of((lambda: (work(), torch.cuda.synchronize())) if gpu else work)}


def embeddings_of(images: int, dim: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Classes of four around random centres."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(images) // 4
    centres = torch.randn(len(labels.unique()), dim, generator=generator)
    vectors = normalize(centres[labels] + 1.5 * torch.randn(images, dim, generator=generator), dim=1)
    return vectors.to(device).requires_grad_(), labels


def of_loss(name: str, images: int, dim: int, device: torch.device, **options: Any) -> dict[str, Any]:
    """A loss and its gradient."""
    embeddings, labels = embeddings_of(images, dim, device)
    loss, on_device = RecallAtK(**options), labels.to(device)
    return measure(f"{name}, M = {images}", lambda: loss(embeddings, on_device).backward(), device)


def of_evaluation(images: int, dim: int, device: torch.device) -> dict[str, Any]:
    """All metrics of a test set that is its own gallery."""
    embeddings, labels = embeddings_of(images, dim, device)
    return measure(f"evaluate, {images} vectors", lambda: evaluate(embeddings.detach(), labels), device)


def of_step(init: str, size: int, images: int, device: torch.device, processes: Any) -> dict[str, Any]:
    """A large-batch step without the optimizer; pixels are on the host, as from the pipeline."""
    model = Embedder.create(init, weights="none").to(device).train()
    mine = images // processes.size
    pixels = torch.randint(256, (mine, 3, size, size), dtype=torch.uint8)
    labels = (torch.arange(mine) + processes.rank * mine) // 4
    dtype, loss = torch.bfloat16 if device.type == "cuda" else None, RecallAtK()

    def work() -> None:
        model.zero_grad()
        large_batch_step(model, loss, pixels, labels, autocast=dtype, group=processes)

    return measure(f"step, {init}, M = {images} on {processes.size} processes", work, device)


if __name__ == "__main__":
    on_gpu = torch.cuda.is_available()
    group = start("cuda" if on_gpu else "cpu")
    place = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if on_gpu else torch.device("cpu")
    large = on_gpu and "--small" not in sys.argv
    rows = []
    if group.size == 1:
        dim = 512 if large else 64
        rows += [of_loss("RS@k", count, dim, place) for count in ((4000, 16384) if large else (1000, 4000))]
        rows.append(of_loss("RS@k with SiMix", 4000 if large else 400, dim, place, simix=True))
        rows.append(of_evaluation(60_502 if large else 4000, dim, place))
    rows.append(of_step(*(("vit-b16-in21k", 224, 4000) if large else ("tiny", 48, 64)), place, group))
    if group.rank == 0:
        name = torch.cuda.get_device_name(place) if on_gpu else processor_name()
        if "--json" in sys.argv:
            print(
                json.dumps(
                    {"device": name, "torch": torch.__version__, "processes": group.size, "calls": rows}, indent=1
                )
            )
        else:
            print(f"{name}, torch {torch.__version__}")
            for row in rows:
                print(
                    "  ".join(
                        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
                        for key, value in row.items()
                    )
                )
    stop()
