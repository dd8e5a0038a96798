"""Speed and memory of the rank losses against what no exact method can avoid: ``python -m benchmarks.losses``.

The unit of work is three matrix products: ``E Eᵀ``, ``G E`` and ``Gᵀ E``. Ratios are of medians of interleaved rounds in
one process, by the clock and in processor time; memory is the growth of the peak in a fresh process.
"""

from __future__ import annotations

import json
import sys

import torch
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks.timing import Seconds, in_fresh_process, interleaved, peak_mib, processor_name, report, reset_peak
from recollect.losses import RecallAtK, SmoothAP

SPREADS = {"well separated": 1, "middling": 2, "hard": 4}


def batch(images: int, dim: int, noise: float, per_class: int = 4) -> tuple[Tensor, Tensor]:
    """Class centre + noise × a random direction."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(images) // per_class
    centres = normalize(torch.randn(images // per_class, dim, generator=generator), dim=1)
    directions = normalize(torch.randn(images, dim, generator=generator), dim=1)
    return normalize(centres[labels] + noise * directions, dim=1).requires_grad_(), labels


def step(loss: torch.nn.Module, embeddings: Tensor, labels: Tensor) -> None:
    embeddings.grad = None
    loss(embeddings, labels).backward()


def one_query_at_a_time(embeddings: Tensor, labels: Tensor, all_items: bool) -> Tensor:
    """RS@k as a loop over queries in Python.

    With ``all_items`` each query ranks every item of the batch (M × M differences) and picks its positives from that, as
    the loss is commonly written and as its authors' code does; without, only its positives (P × M).
    """
    k = (1, 2, 4, 8, 16)
    similarities = embeddings @ embeddings.T
    total = embeddings.new_zeros(())
    for q in range(len(labels)):
        positive = (labels == labels[q]).nonzero()[:, 0]
        positive = positive[positive != q]
        items = torch.arange(len(labels)) if all_items else positive
        s = similarities[q]
        ahead = torch.sigmoid((s[None, :] - s[items][:, None]) / 0.01)
        keep = torch.ones_like(ahead)
        keep[:, q] = 0
        keep[torch.arange(len(items)), items] = 0
        rank = 1 + (ahead * keep).sum(1)
        rank = rank[positive] if all_items else rank
        for cut in k:
            hits = torch.sigmoid(cut - rank).sum().clamp(max=cut)
            total = total + 1 - hits / min(cut, len(positive))
    return total / (len(labels) * len(k))


def speed() -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for name, noise in SPREADS.items():
        embeddings, labels = batch(4000, 512, noise)
        e, g = embeddings.detach(), torch.randn(4000, 4000)
        virtual, g_virtual = torch.randn(10000, 512), torch.randn(10000, 4000)
        seconds = interleaved(
            {
                "unit": lambda e=e, g=g: (e @ e.T, g @ e, g.T @ e),
                "RS@k": lambda x=embeddings, y=labels: step(RecallAtK(), x, y),
                "Smooth-AP": lambda x=embeddings, y=labels: step(SmoothAP(), x, y),
                "RS@k without pruning": lambda x=embeddings, y=labels: step(RecallAtK(prune=False), x, y),
            }
        )
        for case in ("RS@k", "RS@k without pruning", "Smooth-AP"):
            target = "≤ 1.8" if case == "RS@k" else ""
            rows.append(_row(f"{case}, M=4000, {name}", seconds[case], seconds["unit"], target))
        seconds = interleaved(
            {
                "unit": lambda v=virtual, e=e, g=g_virtual: (v @ e.T, g @ e, g.T @ v),
                "SiMix": lambda x=embeddings, y=labels: step(RecallAtK(simix=True), x, y),
            },
            repeats=3,
        )
        rows.append(_row(f"RS@k + SiMix, 4000 → 10000, {name}", seconds["SiMix"], seconds["unit"], "≤ 4"))
    embeddings, labels = batch(1000, 512, 2)
    seconds = interleaved(
        {
            "all": lambda: one_query_at_a_time(embeddings, labels, True).backward(),
            "positives": lambda: one_query_at_a_time(embeddings, labels, False).backward(),
            "fast": lambda: step(RecallAtK(), embeddings, labels),
        },
        repeats=3,
    )
    for name, case, target in (
        ("all", "a loop over queries ranking all items, M=1000, in units of RS@k", "≥ 100"),
        ("positives", "a loop over queries ranking positives only, M=1000, in units of RS@k", ""),
    ):
        rows.append(_row(case, seconds[name], seconds["fast"], target))
    return rows


def _row(case: str, seconds: Seconds, unit: Seconds, target: str) -> dict[str, object]:
    return {
        "case": case,
        "wall s": seconds.wall,
        "unit wall s": unit.wall,
        "wall ratio": seconds.wall / unit.wall,
        "processor s": seconds.processor,
        "unit processor s": unit.processor,
        "processor ratio": seconds.processor / unit.processor,
        "target": target,
    }


def memory() -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for case, images, dim, target in (
        ("recall_at_k", 4096, 128, ""),
        ("recall_at_k", 16384, 128, "≤ 768 MiB"),
        ("recall_at_k+simix", 16384, 128, ""),
        ("smooth_ap", 4000, 512, "≤ 512 MiB"),
        ("pytorch-metric-learning's smooth_ap", 500, 512, ""),
        ("pytorch-metric-learning's smooth_ap", 1000, 512, ""),
        ("pytorch-metric-learning's smooth_ap", 2000, 512, "fails above 20 GiB"),
    ):
        result = in_fresh_process("benchmarks.losses", "--memory", case, str(images), str(dim))
        extra = "out of memory" if result is None else f"{result['extra_mib']:.0f} MiB"
        rows.append({"case": case, "images": images, "dim": dim, "extra memory": extra, "target": target})
    return rows


def _measure_memory(case: str, images: int, dim: int) -> None:
    """In a process of its own: the growth of the peak over a step, beyond the embeddings and their gradient."""
    if case.startswith("pytorch"):
        import resource

        # 20 GiB of address space: beyond that the allocation fails instead of troubling the machine.
        resource.setrlimit(resource.RLIMIT_AS, (20 * 2**30, 20 * 2**30))
        from pytorch_metric_learning.losses import SmoothAPLoss

        loss: torch.nn.Module = SmoothAPLoss()
    else:
        loss = {"recall_at_k": RecallAtK, "recall_at_k+simix": lambda: RecallAtK(simix=True), "smooth_ap": SmoothAP}[
            case
        ]()
    small, small_labels = batch(64, dim, 2)
    step(loss, small, small_labels)  # what libraries allocate once
    embeddings, labels = batch(images, dim, 2)
    before = reset_peak()
    step(loss, embeddings, labels)
    own = embeddings.numel() * 4 / 2**20  # the gradient
    print(json.dumps({"extra_mib": peak_mib() - before - own, "own_mib": own}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--memory"]:
        _measure_memory(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        print(f"{processor_name()}, {torch.get_num_threads()} threads, torch {torch.__version__}")
        print("Speed: value and gradient, in units of the three products no exact method can avoid")
        report("losses", speed())
        print("\nMemory beside the embeddings and their gradient")
        report("losses_memory", memory())
