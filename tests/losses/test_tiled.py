"""What the losses on whole lists have in common with all others on the tile loop: shares, SiMix, calibration.

Also covers ``losses/other_ap.py``.
"""

from __future__ import annotations

import pytest
import torch
from tiled_inputs import unit, value_and_gradients

from oracles.losses import calibration, mixed_batch
from recollect.losses.engine.simix import draw_mixing
from recollect.losses.other_ap import BinnedAP, BlackboxAP
from recollect.losses.rank_loss import TiledLoss

LOSSES = pytest.mark.parametrize("make", [BinnedAP, BlackboxAP])


@LOSSES
def test_permuting_the_batch_permutes_the_gradient(make: type[TiledLoss]) -> None:
    E, y = unit(40, 8, 3).requires_grad_(), torch.randint(0, 9, (40,))
    order = torch.randperm(40)
    value, gradient = value_and_gradients(make()(E, y), E)
    shuffled = E.detach()[order].requires_grad_()
    other_value, other_gradient = value_and_gradients(make()(shuffled, y[order]), shuffled)
    torch.testing.assert_close(other_value, value, rtol=0, atol=1e-12)
    torch.testing.assert_close(other_gradient, gradient[order], rtol=0, atol=1e-11)


@LOSSES
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("label_dtype", [torch.int8, torch.uint8, torch.int32, torch.int64])
def test_types(make: type[TiledLoss], dtype: torch.dtype, label_dtype: torch.dtype) -> None:
    E = unit(20, 8, 6).to(dtype).requires_grad_()
    y = torch.arange(20) // 4
    loss = make()(E, y.to(label_dtype))
    loss.backward()
    assert loss.dtype == torch.float32
    assert E.grad is not None
    assert E.grad.dtype == dtype
    assert loss.item() == pytest.approx(make()(E.detach().double(), y).item(), abs=1e-6)


@LOSSES
def test_autocast_does_not_lower_the_precision(make: type[TiledLoss]) -> None:
    E, y = unit(20, 8, 7).float(), torch.arange(20) // 4
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = make()(E, y)
    assert inside == make()(E, y)


@LOSSES
def test_shares_add_up(make: type[TiledLoss]) -> None:
    E, y = unit(50, 8, 3).requires_grad_(), torch.arange(50) // 4
    loss = make(memory=20_000)
    whole = value_and_gradients(loss(E, y), E)
    parts = [value_and_gradients(loss.share(E, y, rank, 3), E) for rank in range(3)]
    for index in range(2):
        torch.testing.assert_close(sum(part[index] for part in parts), whole[index], rtol=0, atol=1e-12)


@LOSSES
def test_simix_equals_embeddings_built_explicitly(make: type[TiledLoss]) -> None:
    E, y = unit(20, 6, 5).requires_grad_(), torch.tensor([0, 1, 2, 3, 3] * 4)
    mixing = draw_mixing(y, generator=torch.Generator().manual_seed(7))
    mixed = value_and_gradients(make()(*mixed_batch(E, y, mixing)), E)
    fast = value_and_gradients(make(simix=True, generator=torch.Generator().manual_seed(7))(E, y), E)
    for one, other in zip(fast, mixed, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-11)


def test_calibration_counts_queries_without_a_positive_too() -> None:
    """Their negatives must be far away as well: nothing else teaches a rank loss about them."""
    E, y = unit(6, 3, 1).requires_grad_(), torch.tensor([0, 0, 1, 1, 7, 7])
    R, z = unit(8, 3, 2), torch.arange(8) % 2
    got = value_and_gradients(BinnedAP(calibration_weight=1.0)(E, y, R, z), E)
    for one, other in zip(got, value_and_gradients(calibration(E, y, R, z), E), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@LOSSES
def test_calibration_can_be_added(make: type[TiledLoss]) -> None:
    E, y = unit(20, 6, 5).requires_grad_(), torch.arange(20) // 5
    wanted = value_and_gradients(0.7 * make()(E, y) + 0.3 * calibration(E, y), E)
    for one, other in zip(value_and_gradients(make(calibration_weight=0.3)(E, y), E), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
