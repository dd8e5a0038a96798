"""The engine's edges: labels of every kind, bad input, second derivatives, memory."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.nn.functional import normalize

import recollect
from recollect.losses import RecallAtK, Roadmap, SmoothAP, SupAP
from recollect.losses.engine.soft_rank import SoftRank
from recollect.losses.engine.steps import Sigmoid
from recollect.losses.engine.tile_loop import LabelLayout, TileRun

ALL = [RecallAtK, SmoothAP, SupAP, Roadmap]


def _batch(count: int = 12, per_class: int = 3, dim: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    return normalize(torch.randn(count, dim), dim=1), torch.arange(count) // per_class


def test_public_names() -> None:
    assert recollect.RecallAtK is RecallAtK
    assert recollect.SmoothAP is SmoothAP
    assert recollect.SupAP is SupAP
    assert recollect.Roadmap is Roadmap


def test_a_loss_shows_its_settings() -> None:
    assert "k=(1, 2), tau1=1.0, tau2=0.02, simix=False, step=Sigmoid(tau=0.02)" in repr(RecallAtK(k=(1, 2), tau2=0.02))


def test_default_k_is_the_papers() -> None:
    assert RecallAtK().k == (1, 2, 4, 8, 16)
    assert RecallAtK(simix=True).k == (1, 2, 4, 8, 12, 16, 20, 24, 28, 32)
    assert RecallAtK(k=[3], simix=True).k == (3,)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_labels_of_any_integer_type(dtype: torch.dtype) -> None:
    embeddings, labels = _batch()
    assert RecallAtK()(embeddings, labels.to(dtype)) == RecallAtK()(embeddings, labels)


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


@pytest.mark.parametrize("loss", [RecallAtK, SmoothAP, SupAP])
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


@pytest.mark.parametrize("loss", ALL)
@pytest.mark.parametrize(
    ("embeddings", "labels", "message"),
    [
        (torch.full((4, 3), float("nan")), torch.arange(4), "NaN or infinite"),
        (torch.full((4, 3), float("inf")), torch.arange(4), "NaN or infinite"),
        (torch.randn(4), torch.arange(4), "must be a matrix"),
        (torch.randn(2, 2, 2), torch.arange(2), "must be a matrix"),
        (torch.randn(4, 3), torch.arange(5), "4 embeddings but 5 labels"),
        (torch.randn(4, 3), torch.arange(4.0), "vector of integers"),
        (torch.randn(4, 3), torch.zeros(4, 1, dtype=torch.int64), "vector of integers"),
        (torch.ones(4, 3, dtype=torch.int64), torch.arange(4), "floating point"),
        (torch.randn(0, 3), torch.arange(0), "empty"),
    ],
)
def test_bad_input_gets_a_sentence(loss: type, embeddings: torch.Tensor, labels: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        loss()(embeddings, labels)


def test_bad_reference_sets() -> None:
    embeddings, labels = _batch()
    with pytest.raises(ValueError, match="ref_labels is missing"):
        RecallAtK()(embeddings, labels, embeddings)
    with pytest.raises(ValueError, match=r"8 dimensions .*ref_emb 5"):
        RecallAtK()(embeddings, labels, torch.randn(3, 5), torch.arange(3))
    with pytest.raises(ValueError, match=r"3 ref_emb .*4 ref_labels"):
        RecallAtK()(embeddings, labels, torch.randn(3, 8), torch.arange(4))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RecallAtK(k=(0,)), "k must be"),
        (lambda: RecallAtK(k=(1, -2)), "k must be"),
        (lambda: RecallAtK(k=(1.5,)), "k must be"),
        (lambda: RecallAtK(k=()), "k must be"),
        (lambda: RecallAtK(tau1=0), "tau1 must be"),
        (lambda: RecallAtK(tau2=-0.01), "tau2 must be"),
        (lambda: RecallAtK(tau2=float("nan")), "tau2 must be"),
        (lambda: RecallAtK(step="cubic"), "'cubic' is unknown"),
        (lambda: SmoothAP(tau=0), "tau must be"),
        (lambda: SupAP(rho=0), "rho must be"),
        (lambda: SupAP(delta=-1), "delta must be"),
        (lambda: Roadmap(calibration_weight=2), "from 0 to 1"),
        (lambda: RecallAtK(memory=0), "memory must be"),
        (lambda: RecallAtK(simix=True, max_pairs=0), "max_pairs must be"),
        (lambda: RecallAtK().share(*_batch(), 3, 2), "not one of 2 shares"),
    ],
)
def test_bad_options_get_a_sentence(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("loss", ALL)
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


def test_memory_budget_sets_the_tile() -> None:
    term = SoftRank(lambda ranks: ranks.all.sum(0), Sigmoid())
    embeddings, labels = torch.randn(1000, 4), torch.arange(1000) // 4
    layout = LabelLayout.of(labels, labels)
    widths = [term.width(TileRun(embeddings, embeddings, term, layout, memory, True)) for memory in (1, 2**20, 2**29)]
    assert widths[0] == 1
    assert widths[0] < widths[1] < widths[2]
    assert RecallAtK().options.memory == 512 * 2**20, "as the documentation says"
