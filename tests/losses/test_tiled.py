"""What the losses that go tile by tile have in common."""

from __future__ import annotations

import pytest
import torch
from tiled_inputs import unit, value_and_gradients

from recollect.losses.binned_ap import BinnedAP
from recollect.losses.blackbox_ap import BlackboxAP
from recollect.losses.tiled import TiledLoss

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
