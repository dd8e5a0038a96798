from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import assume, given, strategies as st
from tiled_inputs import unit, value_and_gradients
from torch import Tensor

from oracles import baselines as reference
from recollect.common.errors import ConfigError, InputError
from recollect.losses.other_ap import BinnedAP


def away_from_kinks(similarities: Tensor, loss: BinnedAP) -> bool:
    """Whether every similarity is well inside a bin: on a centre AP has no derivative, and beside it a rounded one."""
    width = (loss.high - loss.low) / (loss.bins - 1)
    u = (loss.high - similarities.detach()) / width
    return bool((u - u.round()).abs().min() > 1e-5)


@given(
    labels=st.lists(st.integers(-3, 6), min_size=3, max_size=24),
    ref_labels=st.none() | st.lists(st.integers(-3, 6), min_size=1, max_size=20),
    dim=st.integers(2, 6),
    bins=st.sampled_from([2, 3, 10, 25]),
    low=st.sampled_from([-1.0, 0.0, 0.3]),
    tiny_tiles=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_equals_its_equation(
    labels: list[int], ref_labels: list[int] | None, dim: int, bins: int, low: float, tiny_tiles: bool, seed: int
) -> None:
    loss = BinnedAP(bins, low, memory=100 if tiny_tiles else 2**29)
    y = torch.tensor(labels)
    E = unit(len(labels), dim, seed).requires_grad_()
    if ref_labels is None:
        inputs, arguments, S = (E,), (E, y), (E @ E.T)[~torch.eye(len(y), dtype=torch.bool)]
        positives = (y[:, None] == y).sum() > len(y)
    else:
        R, z = unit(len(ref_labels), dim, seed + 1).requires_grad_(), torch.tensor(ref_labels)
        inputs, arguments, S = (E, R), (E, y, R, z), E @ R.T
        positives = (y[:, None] == z).any()
    assume(bool(positives))
    assume(away_from_kinks(S, loss))
    got = value_and_gradients(loss(*arguments), *inputs)
    wanted = value_and_gradients(reference.binned_ap(*arguments, bins=bins, low=low), *inputs)
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


def test_gradcheck() -> None:
    y = torch.tensor([0, 1, 0, 2, 1, 0, 3])
    E, R = unit(7, 4, 5).requires_grad_(), unit(6, 4, 6).requires_grad_()
    z = torch.tensor([0, 0, 1, 4, 2, 2])
    assert torch.autograd.gradcheck(lambda e: BinnedAP()(e, y), (E,), eps=1e-7)
    assert torch.autograd.gradcheck(lambda e, r: BinnedAP(bins=10)(e, y, r, z), (E, R), eps=1e-7)


def test_released_layout_with_saturated_ends() -> None:
    """25 bins on [0, 1], each the lower of two lines; the outer line of either end bin is constant 1."""
    y = torch.arange(24) // 3
    E = unit(24, 3, 1)
    S = E @ E.T
    assert (S < 0).any()
    slope = 24.0
    centres = torch.linspace(1, 0, 25, dtype=torch.float64)
    rising = 1 + slope * (S[:, :, None] - centres)
    falling = 1 - slope * (S[:, :, None] - centres)
    falling[..., 0] = 1
    rising[..., -1] = 1
    weights = torch.minimum(rising, falling).clamp(min=0)
    weights[torch.arange(24), torch.arange(24)] = 0
    torch.testing.assert_close(weights.sum(-1), 1 - torch.eye(24, dtype=torch.float64))
    same = (y[:, None] == y)[:, :, None]
    h, h_pos = weights.sum(1), (weights * same).sum(1)
    precision = h_pos.cumsum(1) / (h.cumsum(1) + 1e-16)
    wanted = 1 - (precision * h_pos / 2).sum(1).mean()
    torch.testing.assert_close(BinnedAP(low=0.0)(E, y), wanted, rtol=0, atol=1e-12)


def test_known_values() -> None:
    y = torch.tensor([0, 0, 1, 1])
    apart = torch.tensor([[1.0, 0], [1, 0], [-1, 0], [-1, 0]])
    assert BinnedAP()(apart, y).item() == pytest.approx(0.0, abs=1e-7)
    # Everything in one bin: the precision everywhere is 1 positive of 3.
    assert BinnedAP()(torch.tensor([[1.0, 0]]).repeat(4, 1), y).item() == pytest.approx(2 / 3)
    # Inverted: the positive comes after two negatives.
    crossed = torch.tensor([[1.0, 0], [-1, 0], [1, 0], [-1, 0]])
    assert BinnedAP()(crossed, y).item() == pytest.approx(2 / 3)


def test_tile_size_never_changes_the_result() -> None:
    E, y = unit(60, 8, 2).requires_grad_(), torch.randint(0, 12, (60,))
    wanted = value_and_gradients(BinnedAP()(E, y), E)
    for memory in (1, 10_000, 50_000):
        for one, other in zip(value_and_gradients(BinnedAP(memory=memory)(E, y), E), wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-13)


def test_no_tile_is_larger_than_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    E, y = unit(200, 4, 2).float(), torch.arange(200) // 4
    seen = []
    rows = BinnedAP.rows
    monkeypatch.setattr(
        BinnedAP, "rows", lambda self, tile: (seen.append(tile.similarities.shape), rows(self, tile))[1]
    )
    BinnedAP(memory=200 * 48 * 7)(E, y)
    assert max(shape[0] for shape in seen) == 7
    assert sum(shape[0] for shape in seen) == 200


def test_the_batch_as_its_own_reference_set_leaves_the_query_out() -> None:
    E, y = unit(12, 4, 4), torch.arange(12) // 3
    assert BinnedAP()(E, y, E, y) == BinnedAP()(E, y)
    assert BinnedAP()(E, y, E.clone(), y) < BinnedAP()(E, y)


def test_singletons_are_not_averaged_over() -> None:
    E = unit(9, 4, 8)
    y = torch.tensor([0, 0, 0, 1, 1, 1, 2, 3, 4])
    per_query = []
    for q in range(6):
        others = torch.arange(9) != q
        per_query.append(BinnedAP()(E[q : q + 1], y[q : q + 1], E[others], y[others]))
    torch.testing.assert_close(BinnedAP()(E, y), torch.stack(per_query).mean())


def test_batch_of_singletons_is_zero_with_a_zero_gradient() -> None:
    E = unit(5, 4, 9).requires_grad_()
    with pytest.warns(UserWarning, match=r"No image .*positive"):
        loss = BinnedAP()(E, torch.arange(5))
    assert loss.item() == 0
    loss.backward()
    assert E.grad is not None
    assert not E.grad.any()


def test_without_gradient_no_gradient_is_computed() -> None:
    E, y = unit(8, 4, 10).requires_grad_(), torch.arange(8) // 2
    with torch.no_grad():
        quiet = BinnedAP()(E, y)
    assert not quiet.requires_grad
    assert quiet == BinnedAP()(E, y).detach()


def test_double_backward_is_refused() -> None:
    E, y = unit(8, 4, 11).requires_grad_(), torch.arange(8) // 2
    (grad,) = torch.autograd.grad(BinnedAP()(E, y), E, create_graph=True)
    with pytest.raises(RuntimeError, match="not supported"):
        torch.autograd.grad(grad.square().sum(), E)


@pytest.mark.parametrize(
    ("E", "y", "message"),
    [
        (torch.full((4, 2), torch.nan), torch.zeros(4).long(), "NaN"),
        (torch.tensor([[1.0], [torch.inf]]), torch.zeros(2).long(), "row 1"),
        (torch.zeros(4), torch.zeros(4).long(), "embeddings must be"),
        (torch.zeros(4, 2).long(), torch.zeros(4).long(), "embeddings must be"),
        (torch.zeros(4, 2), torch.zeros(3).long(), "4 .* 3"),
        (torch.zeros(4, 2), torch.zeros(4), "integers"),
        (torch.zeros(0, 2), torch.zeros(0).long(), "empty"),
    ],
)
def test_bad_input(E: Tensor, y: Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        BinnedAP()(E, y)


def test_bad_reference_set() -> None:
    E, y = unit(4, 3, 1), torch.tensor([0, 0, 1, 1])
    with pytest.raises(InputError, match="ref_labels"):
        BinnedAP()(E, y, E.clone())
    with pytest.raises(InputError, match="dimension"):
        BinnedAP()(E, y, unit(4, 2, 1), y)


def test_bad_options() -> None:
    with pytest.raises(ConfigError, match="bins must be"):
        BinnedAP(bins=1)
    with pytest.raises(ConfigError, match="below high"):
        BinnedAP(low=1.0)
    with pytest.raises(ConfigError, match="memory must be"):
        BinnedAP(memory=0)(unit(4, 3, 1), torch.tensor([0, 0, 1, 1]))


def test_gradient_descent_separates_classes() -> None:
    E = unit(24, 6, 12).requires_grad_()
    y = torch.arange(24) // 4
    optimizer = torch.optim.Adam([E], lr=0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(100):
            loss = BinnedAP()(torch.nn.functional.normalize(E, dim=1), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert loss.item() < 0.05
