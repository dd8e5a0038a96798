"""Losses, the step and evaluation on a device that is not the CPU: the same numbers, gradients included, and few waits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from training_toys import batch, convnet, difference, gradients

from recollect.common.errors import ConfigError
from recollect.evaluation import evaluate, ranks
from recollect.losses import RecallAtK, create
from recollect.step import StepInfo, large_batch_step
from second_device import DEVICE

SECOND = torch.device("second")


def _batch(count: int = 48, per_class: int = 4, dim: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return normalize(torch.randn(count, dim, generator=generator), dim=1), torch.arange(count) // per_class


def _of_loss(loss: nn.Module, device: torch.device) -> tuple[Tensor, Tensor]:
    """Value and gradient."""
    torch.manual_seed(7)
    embeddings, labels = _batch()
    embeddings = embeddings.to(device).requires_grad_()
    value = loss(embeddings, labels.to(device))
    value.backward()
    assert value.device.type == embeddings.grad.device.type == device.type
    return value.detach().cpu(), embeddings.grad.cpu()


@pytest.mark.parametrize("simix", [False, True])
@pytest.mark.parametrize(
    "name", ["recall_at_k", "smooth_ap", "sup_ap", "roadmap", "binned_ap", "blackbox_ap", "hierarchical_ap"]
)
def test_a_loss_has_the_same_value_and_gradient(name: str, simix: bool) -> None:
    loss = create(name, simix=simix, **({"coarse": [0] * 6 + [1] * 6} if name == "hierarchical_ap" else {}))
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


def test_an_evaluation_has_the_same_ranks_and_waits_at_most_six_times_per_pair_of_tiles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    embeddings, labels = _batch(400, 4, 6)
    embeddings[100:150] = embeddings[100]  # ties, which are settled in float64
    expected = evaluate(embeddings, labels)
    monkeypatch.setattr(ranks, "_SIDE", 48)
    monkeypatch.setattr(ranks, "_DEVICE_SIDES", 1)
    DEVICE.reset()
    result = evaluate(embeddings.to(SECOND), labels)
    assert result.metrics == expected.metrics
    tiles = -(-400 // 48)
    assert sum(DEVICE.waits.values()) <= 6 * tiles * (tiles + 1) / 2, DEVICE.waits


def test_the_step_replays_what_a_dropout_layer_draws_there() -> None:
    loss = RecallAtK(tau2=0.1)
    torch.manual_seed(5)
    model, (images, labels) = convnet(dropout=0.4).double().to(SECOND), batch()
    torch.manual_seed(6)
    host = torch.get_rng_state()
    value = loss(torch.cat([model(part.to(SECOND)) for part in images.split(7)]), labels.to(SECOND))
    value.backward()
    expected, after = gradients(model), DEVICE.get_rng_state()
    model.zero_grad()
    torch.manual_seed(6)
    ours = large_batch_step(model, loss, images, labels, 7)
    assert float(ours) == pytest.approx(float(value.detach()), abs=1e-12)
    assert difference(gradients(model), expected) < 1e-9
    assert torch.equal(DEVICE.get_rng_state(), after)
    assert torch.equal(torch.get_rng_state(), host), "the network draws on its own device"


def test_a_step_waits_no_more_often_with_more_chunks() -> None:
    model, (images, labels) = convnet().double().to(SECOND), batch()
    waits = []
    for chunk in (10, 5, 2):
        info = StepInfo()
        DEVICE.reset()
        large_batch_step(model, RecallAtK(tau2=0.1), images.to(SECOND), labels, chunk, info=info)
        waits.append(sum(DEVICE.waits.values()))
        assert info.reembedded == 20 - chunk
    assert len(set(waits)) == 1, waits


def test_an_accelerator_without_a_random_state_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(type(DEVICE), "get_rng_state")
    model, (images, labels) = convnet().double().to(SECOND), batch()
    with pytest.raises(ConfigError, match="random numbers of second"):
        large_batch_step(model, RecallAtK(), images, labels, 7)
