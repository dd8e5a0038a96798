from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, strategies as st
from tiled_inputs import unit, value_and_gradients

from oracles import baselines as reference
from recollect.common.errors import ConfigError, InputError
from recollect.losses.other_ap import BlackboxAP


@given(
    labels=st.lists(st.integers(-3, 6), min_size=3, max_size=24),
    ref_labels=st.none() | st.lists(st.integers(-3, 6), min_size=1, max_size=20),
    dim=st.integers(2, 6),
    lambda_val=st.sampled_from([0.05, 0.5, 4.0, 100.0]),
    margin=st.sampled_from([0.0, 0.02, 0.3]),
    tiny_tiles=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_equals_its_definition(
    labels: list[int],
    ref_labels: list[int] | None,
    dim: int,
    lambda_val: float,
    margin: float,
    tiny_tiles: bool,
    seed: int,
) -> None:
    loss = BlackboxAP(lambda_val, margin, memory=100 if tiny_tiles else 2**29)
    y = torch.tensor(labels)
    E = unit(len(labels), dim, seed).requires_grad_()
    if ref_labels is None:
        inputs, arguments = (E,), (E, y)
        positives = (y[:, None] == y).sum() > len(y)
    else:
        R, z = unit(len(ref_labels), dim, seed + 1).requires_grad_(), torch.tensor(ref_labels)
        inputs, arguments = (E, R), (E, y, R, z)
        positives = (y[:, None] == z).any()
    assume(bool(positives))
    got = value_and_gradients(loss(*arguments), *inputs)
    definition = reference.blackbox_ap(*arguments, lambda_val=lambda_val, margin=margin)
    wanted = value_and_gradients(definition, *inputs)
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


def test_value_is_the_exact_average_precision() -> None:
    E, y = unit(30, 4, 1), torch.randint(0, 6, (30,))
    expected = []
    for q in range(30):
        order = [z for z in (E @ E[q]).argsort(descending=True).tolist() if z != q]
        hits = [place for place, z in enumerate(order, start=1) if y[z] == y[q]]
        if hits:
            expected.append(1 - sum(n / place for n, place in enumerate(hits, start=1)) / len(hits))
    assert BlackboxAP(margin=0.0)(E, y).item() == pytest.approx(sum(expected) / len(expected), abs=1e-12)


def test_gradient_by_hand() -> None:
    """One query, one positive at rank 3 of 3 similarities 0.9, 0.8, 0.7; a step of λg = 0.15 lifts it by one place."""
    query = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    R = torch.tensor([[0.9, 0.0], [0.8, 0.0], [0.7, 0.0]], dtype=torch.float64).requires_grad_()
    y, z = torch.tensor([1]), torch.tensor([0, 2, 1])
    # loss = 1 − rk⁺/rk = 2/3; ∂loss/∂(rk/3) = 3 · 1/3² = 1/3, so λ = 0.45 moves the positive to 0.85: rank 2.
    value, gradient = value_and_gradients(BlackboxAP(lambda_val=0.45, margin=0.0)(query, y, R, z), R)
    assert value.item() == pytest.approx(2 / 3)
    wanted = torch.tensor([0.0, 1.0, -1.0], dtype=torch.float64) / 3 / 0.45
    torch.testing.assert_close(gradient[:, 0], wanted)


def test_margin_makes_a_narrow_win_a_loss() -> None:
    query, y = torch.tensor([[1.0, 0.0]]), torch.tensor([1])
    R, z = torch.tensor([[0.51, 0.0], [0.5, 0.0]]), torch.tensor([1, 0])
    assert BlackboxAP(margin=0.0)(query, y, R, z).item() == 0
    assert BlackboxAP(margin=0.02)(query, y, R, z).item() == 0.5


def test_scaling_the_loss_scales_the_gradient() -> None:
    E, y = unit(20, 4, 2).requires_grad_(), torch.arange(20) // 4
    _, once = value_and_gradients(BlackboxAP()(E, y), E)
    _, scaled = value_and_gradients(BlackboxAP()(E, y) * 1024, E)
    torch.testing.assert_close(scaled, once * 1024)


def test_tile_size_never_changes_the_result() -> None:
    E, y = unit(60, 8, 3).requires_grad_(), torch.randint(0, 12, (60,))
    wanted = value_and_gradients(BlackboxAP()(E, y), E)
    for memory in (1, 10_000, 50_000):
        for one, other in zip(value_and_gradients(BlackboxAP(memory=memory)(E, y), E), wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-13)


def test_singletons_and_batches_of_singletons() -> None:
    E = unit(7, 4, 8).requires_grad_()
    y = torch.tensor([0, 0, 0, 1, 1, 2, 3])
    assert BlackboxAP()(E, y).item() == pytest.approx(reference.blackbox_ap(E, y).item(), abs=1e-12)
    with pytest.warns(UserWarning, match=r"No image .*positive"):
        loss = BlackboxAP()(E, torch.arange(7))
    loss.backward()
    assert loss.item() == 0
    assert E.grad is not None
    assert not E.grad.any()


def test_equal_embeddings_give_finite_numbers() -> None:
    E = torch.ones(8, 4).requires_grad_()
    loss = BlackboxAP()(E, torch.arange(8) // 2)
    loss.backward()
    assert 0 < loss.item() < 1
    assert E.grad is not None
    assert E.grad.isfinite().all()


def test_bad_input_and_options() -> None:
    with pytest.raises(InputError, match="NaN"):
        BlackboxAP()(torch.full((4, 2), torch.nan), torch.zeros(4).long())
    with pytest.raises(ConfigError, match="lambda_val must be"):
        BlackboxAP(lambda_val=0)
    with pytest.raises(ConfigError, match="margin"):
        BlackboxAP(margin=-0.1)


def test_gradient_descent_separates_classes() -> None:
    E = unit(24, 6, 12).requires_grad_()
    y = torch.arange(24) // 4
    optimizer = torch.optim.Adam([E], lr=0.05)
    for _ in range(150):
        loss = BlackboxAP()(torch.nn.functional.normalize(E, dim=1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05
