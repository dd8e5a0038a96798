"""Matryoshka against its equation in float64, gradients included, alone and in everything that calls a loss."""

from __future__ import annotations

import pytest
import torch
from batches import assert_same, batches, unit, value_and_grads
from hypothesis import given, settings, strategies as st

from oracles import losses as plain
from recollect.common.errors import ConfigError
from recollect.losses import Matryoshka, RecallAtK, SmoothAP, create
from recollect.losses.matryoshka import unit_prefix


@settings(max_examples=25, deadline=None)
@given(batches(dim=9), st.sets(st.integers(1, 9), min_size=1, max_size=4))
def test_it_equals_its_equation(batch, dims: set[int]) -> None:
    fast = value_and_grads(lambda E: Matryoshka(RecallAtK(), list(dims))(E, batch.labels), batch.embeddings)
    slow = value_and_grads(lambda E: plain.matryoshka(plain.recall_at_k, E, batch.labels, dims), batch.embeddings)
    if not batch.has_ties:
        assert_same(fast, slow, 1e-9)


def test_references_are_shortened_too() -> None:
    E, y, R, z = unit(12, 8), torch.arange(12) // 3, unit(20, 8, 1), torch.arange(20) % 4
    assert Matryoshka(SmoothAP(), [4])(E, y, E, y) == Matryoshka(SmoothAP(), [4])(E, y), "the batch is one set"
    fast = value_and_grads(lambda e, r: Matryoshka(SmoothAP(), [3, 5])(e, y, r, z), E, R)
    slow = value_and_grads(lambda e, r: plain.matryoshka(plain.smooth_ap, e, y, {3, 5}, r, z), E, R)
    assert_same(fast, slow, 1e-9)
    assert bool((fast[1][1][:, 5:] != 0).any()), "the whole vectors count as well"


@pytest.mark.parametrize("make", [RecallAtK, lambda: create("triplet"), lambda: lambda e, y: (e @ e.T).mean()])
def test_shares_add_up(make) -> None:
    E, y = unit(30, 8), torch.arange(30) // 3
    loss = Matryoshka(make(), [2, 4])
    whole = value_and_grads(lambda e: loss(e, y), E)
    parts = [value_and_grads(lambda e, rank=rank: loss.share(e, y, rank, 3), E) for rank in range(3)]
    torch.testing.assert_close(sum(part[0] for part in parts), whole[0])
    torch.testing.assert_close(sum(part[1][0] for part in parts), whole[1][0], rtol=0, atol=1e-10)


def test_a_loss_for_each_length_keeps_parameters_of_its_own() -> None:
    parts = [create("proxy_nca", num_classes=4, dim=dim) for dim in (4, 8)]
    loss = Matryoshka(parts, [4])
    assert sorted(p.shape[1] for p in loss.parameters()) == [4, 8]
    loss(unit(8, 8).float(), torch.arange(8) // 2).backward()
    assert all(parameter.grad is not None for parameter in loss.parameters())
    assert set(loss.state_dict()) == {f"loss_{i}.loss.proxies" for i in range(2)}


def test_a_prefix_without_direction_has_no_gradient() -> None:
    E = torch.tensor([[0.0, 0.0, 1.0], [0.6, 0.0, 0.8]], requires_grad=True)
    short = unit_prefix(E, 2)
    short.sum().backward()
    assert short.tolist() == [[0, 0], [1, 0]]
    assert bool(E.grad.isfinite().all())
    assert not E.grad[0].any()


@pytest.mark.parametrize("dims", [[], 64, [0], [4.5], ["a"], [9]])
def test_impossible_lengths_are_refused(dims) -> None:
    with pytest.raises(ConfigError, match="dims"):
        Matryoshka(RecallAtK(), dims)(unit(4, 8), torch.arange(4) // 2)
    with pytest.raises(ConfigError, match="3 losses"):
        Matryoshka([RecallAtK()] * 3, [4])(unit(4, 8), torch.arange(4) // 2)
