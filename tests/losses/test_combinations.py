"""Combinations of parts that stand alone elsewhere: a rank loss with a memory, class vectors in the large-batch step."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from batches import unit
from torch import Tensor, nn

from oracles import losses as reference
from recollect.common.errors import ConfigError
from recollect.losses import Matryoshka, RecallAtK, create
from recollect.losses.cross_batch_memory import CrossBatchMemory
from recollect.step.large_batch import large_batch_step

RANKED = {
    "recall_at_k": ({}, reference.recall_at_k),
    "smooth_ap": ({"tau": 0.05}, lambda *a: reference.smooth_ap(*a, tau=0.05)),
    "sup_ap": (
        {},
        lambda *a: reference.smooth_ap(*a, step=reference.asymmetric_step(), step_positives=reference.heaviside_step),
    ),
    "hierarchical_ap": (
        {"coarse": [0, 0, 1, 1]},
        lambda *a: reference.hierarchical_ap(*a, coarse=torch.tensor([0, 0, 1, 1])),
    ),
}


def against_memory(equation, queries: Tensor, labels: Tensor, stored: Tensor, stored_labels: Tensor, own) -> Tensor:
    """Each query against the memory without its own copy; the mean over queries with a positive."""
    values = []
    for q in range(len(queries)):
        others = torch.ones(len(stored), dtype=torch.bool)
        if own is not None:
            others[own[q]] = False
        if bool((stored_labels[others] == labels[q]).any()):
            one = slice(q, q + 1)
            values.append(equation(queries[one], labels[one], stored[others], stored_labels[others]))
    return torch.stack(values).mean()


@pytest.mark.parametrize("name", RANKED)
@pytest.mark.parametrize("memory_size", [8, 20])
def test_a_rank_loss_against_a_memory(name: str, memory_size: int) -> None:
    options, equation = RANKED[name]
    loss = CrossBatchMemory(5, memory_size, name, options).double()
    stored, stored_labels = torch.empty(0, 5, dtype=torch.float64), torch.empty(0, dtype=torch.int64)
    for step in range(5):
        batch, labels = unit(8, 5, 30 + step), (torch.arange(8) + step) % 4
        stored, stored_labels = torch.cat([stored, batch]), torch.cat([stored_labels, labels])
        stored, stored_labels = stored[-memory_size:], stored_labels[-memory_size:]
        own = torch.arange(len(stored) - 8, len(stored))
        fast, plain = batch.clone().requires_grad_(), batch.clone().requires_grad_()
        value, expected = loss(fast, labels), against_memory(equation, plain, labels, stored, stored_labels, own)
        results = [(v.detach(), *torch.autograd.grad(v, leaf)) for v, leaf in ((value, fast), (expected, plain))]
        torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-10)
    assert loss.filled == min(memory_size, 40)
    loss.eval()
    queries = unit(4, 5, 99)
    expected = against_memory(equation, queries, torch.arange(4), stored, stored_labels, None)
    torch.testing.assert_close(loss(queries, torch.arange(4)), expected, rtol=0, atol=1e-10)


def test_a_memory_takes_a_rank_loss_of_one_s_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from recollect.losses import SmoothAP\n\nclass Mine(SmoothAP):\n    pass\n\n"
        "class Other(__import__('torch').nn.Module):\n    pass\n"
    )
    batch, labels = unit(8, 5, 1), torch.arange(8) // 2
    mine, built_in = (CrossBatchMemory(5, 8, name) for name in (f"{tmp_path}/mine.py:Mine", "smooth_ap"))
    torch.testing.assert_close(mine(batch, labels), built_in(batch, labels))
    for other in (f"{tmp_path}/mine.py:Other", "fast_ap", "cross_batch_memory", 3):
        with pytest.raises(ConfigError, match=r"cannot use a memory: choose one of recall_at_k, .*hierarchical_ap"):
            CrossBatchMemory(5, 8, other)  # type: ignore[arg-type]


STEPPED: dict[str, Callable[[], nn.Module]] = {
    "proxies": lambda: create("proxy_anchor", num_classes=4, dim=5),
    "class vectors": lambda: create("arcface", num_classes=4, dim=5),
    "memory": lambda: create("cross_batch_memory", dim=5, memory_size=32, loss="recall_at_k"),
    "prefixes": lambda: Matryoshka(RecallAtK(), [2, 4]),
}


@pytest.mark.parametrize("name", STEPPED)
def test_in_the_large_batch_step(name: str) -> None:
    """In chunks, gradients of network and loss are those of ordinary backward passes; a memory stores each image once."""
    pytest.importorskip("pytorch_metric_learning")
    both = nn.ModuleList([nn.Sequential(nn.Linear(7, 5), nn.LayerNorm(5)), STEPPED[name]()]).double()
    plain = copy.deepcopy(both)
    for step in range(3):
        images, labels = unit(8, 7, step), torch.arange(8) // 2
        value = large_batch_step(*both, images, labels, chunk_size=3)
        expected = plain[1](plain[0](images), labels)
        expected.backward()
        torch.testing.assert_close(value, expected.detach(), rtol=0, atol=1e-12)
    for one, other in zip(both.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=1e-10)
    for one, other in zip(both.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
