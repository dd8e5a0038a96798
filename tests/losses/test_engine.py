"""The engine's edges: labels of every kind, second derivatives, state."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.nn.functional import normalize

from recollect.losses import RecallAtK, Roadmap, SmoothAP, SupAP, create
from recollect.losses.average_precision import BinnedAP, BlackboxAP

ALL = [RecallAtK, SmoothAP, SupAP, Roadmap]


def _batch(count: int = 12, per_class: int = 3, dim: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    return normalize(torch.randn(count, dim), dim=1), torch.arange(count) // per_class


def test_a_loss_shows_its_settings() -> None:
    assert "k=(1, 2), tau1=1.0, tau2=0.02, simix=False, step=Sigmoid(tau=0.02)" in repr(RecallAtK(k=(1, 2), tau2=0.02))


def test_default_k_is_the_papers() -> None:
    assert RecallAtK().k == (1, 2, 4, 8, 16)
    assert RecallAtK(simix=True).k == (1, 2, 4, 8, 12, 16, 20, 24, 28, 32)
    assert RecallAtK(k=[3], simix=True).k == (3,)


@pytest.mark.parametrize("name", ["recall_at_k", "contrastive", "arcface"])
def test_labels_of_any_integer_type(name: str) -> None:
    loss = create(name, **({"num_classes": 4, "dim": 8} if name == "arcface" else {}))
    embeddings, labels = _batch()
    types = (torch.int64, torch.uint8, torch.int8, torch.int32, torch.uint16, torch.uint32, torch.uint64)
    assert len({loss(embeddings, labels.to(dtype)).item() for dtype in types}) == 1


@pytest.mark.parametrize("loss", ALL)
def test_singletons_are_not_averaged_over(loss: type) -> None:
    embeddings, labels = _batch()
    # A singleton that is behind everything changes no rank, so the mean over the others must not move.
    flat = torch.cat([embeddings.abs(), torch.zeros(12, 1)], dim=1)
    flat = normalize(flat, dim=1)
    single = torch.zeros(1, 9)
    single[0, 8] = 1.0
    options = {} if loss is not Roadmap else {"calibration_weight": 0.0}
    with_singleton = loss(**options)(torch.cat([flat, -single]), torch.cat([labels, torch.tensor([99])]))
    torch.testing.assert_close(with_singleton, loss(**options)(flat, labels), atol=1e-5, rtol=0)


@pytest.mark.parametrize("loss", [RecallAtK, SmoothAP, BinnedAP, BlackboxAP])
@pytest.mark.parametrize("simix", [False, True])
def test_no_positive_at_all(loss: type, simix: bool) -> None:
    embeddings = normalize(torch.randn(5, 4), dim=1).requires_grad_()
    with pytest.warns(UserWarning, match="has a positive"):
        value = loss(simix=simix)(embeddings, torch.arange(5))
    value.backward()
    assert value == 0
    assert torch.equal(embeddings.grad, torch.zeros_like(embeddings))


def test_that_warning_comes_once() -> None:
    embeddings, loss = normalize(torch.randn(5, 4), dim=1), RecallAtK()
    with warnings.catch_warnings(record=True) as seen:
        warnings.resetwarnings()
        warnings.simplefilter("default")
        for _ in range(3):
            loss(embeddings, torch.arange(5))
    assert len(seen) == 1


@pytest.mark.parametrize("loss", [RecallAtK, BinnedAP])
def test_second_backward_is_refused_in_words(loss: type) -> None:
    embeddings, labels = _batch()
    embeddings.requires_grad_()
    (grad,) = torch.autograd.grad(loss()(embeddings, labels), embeddings, create_graph=True)
    with pytest.raises(RuntimeError, match="not supported"):
        torch.autograd.grad(grad.square().sum(), embeddings)


def test_autocast_does_not_lower_precision() -> None:
    embeddings, labels = _batch(64, 4, 32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = RecallAtK(simix=True, generator=torch.Generator().manual_seed(0))(embeddings, labels)
    assert inside == RecallAtK(simix=True, generator=torch.Generator().manual_seed(0))(embeddings, labels)


def test_no_gradient_is_computed_under_no_grad() -> None:
    embeddings, labels = _batch()
    embeddings.requires_grad_()
    with torch.no_grad():
        assert not RecallAtK()(embeddings, labels).requires_grad


def test_only_the_references_may_need_a_gradient() -> None:
    embeddings, labels = _batch()
    references = normalize(torch.randn(12, 8), dim=1).requires_grad_()
    RecallAtK(tau2=0.1)(embeddings, labels, references, labels).backward()
    assert float(references.grad.abs().sum()) > 0


def test_generator_state_travels_with_the_loss() -> None:
    embeddings, labels = _batch(16, 4)
    loss = RecallAtK(simix=True, generator=torch.Generator().manual_seed(3))
    loss(embeddings, labels)
    state = loss.state_dict()
    expected = [float(loss(embeddings, labels)) for _ in range(2)]
    resumed = RecallAtK(simix=True, generator=torch.Generator())
    resumed.load_state_dict(state)
    assert [float(resumed(embeddings, labels)) for _ in range(2)] == expected
