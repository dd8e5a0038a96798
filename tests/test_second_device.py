"""Losses, the step and evaluation on a device that is not the CPU: the same numbers, gradients included, and few stalls."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.utils import backend_registration

from recollect.losses import HierarchicalAP, RecallAtK, Roadmap, SmoothAP, SupAP
from recollect.losses.average_precision import BinnedAP, BlackboxAP
from recollect.losses.rank_loss import TiledLoss

if not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
    pytest.skip("a device of one's own needs a newer torch", allow_module_level=True)

from second_device import DEVICE

SECOND = torch.device("second")


def _batch(count: int = 48, per_class: int = 4, dim: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return normalize(torch.randn(count, dim, generator=generator), dim=1), torch.arange(count) // per_class


def _of_loss(loss: TiledLoss, device: torch.device) -> tuple[Tensor, Tensor]:
    """Value and gradient."""
    torch.manual_seed(7)
    embeddings, labels = _batch()
    embeddings = embeddings.to(device).requires_grad_()
    value = loss(embeddings, labels.to(device))
    value.backward()
    assert value.device.type == embeddings.grad.device.type == device.type
    return value.detach().cpu(), embeddings.grad.cpu()


@pytest.mark.parametrize("simix", [False, True])
@pytest.mark.parametrize("kind", [RecallAtK, SmoothAP, SupAP, Roadmap, BinnedAP, BlackboxAP, HierarchicalAP])
def test_a_loss_has_the_same_value_and_gradient(kind: type[TiledLoss], simix: bool) -> None:
    options: dict[str, Any] = {"coarse": [0] * 6 + [1] * 6} if kind is HierarchicalAP else {}
    loss = kind(simix=simix, **options)
    for ours, expected in zip(_of_loss(loss, SECOND), _of_loss(loss, torch.device("cpu")), strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("simix", [False, True])
def test_a_rank_loss_waits_for_the_device_once_per_call_not_per_tile(simix: bool) -> None:
    embeddings, labels = _batch()
    embeddings = embeddings.to(SECOND).requires_grad_()
    for memory in (2**20, 2**14):
        loss = RecallAtK(simix=simix, memory=memory)
        loss(embeddings, labels)  # the first call copies its constants to the device
        DEVICE.reset()
        loss(embeddings, labels).backward()
        assert sum(DEVICE.waits.values()) == 1, DEVICE.waits
    assert DEVICE.operations > 1000, "the small memory makes many tiles"
