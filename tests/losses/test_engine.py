"""The engine's edges: labels of every kind, second derivatives, state, SiMix."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.nn.functional import normalize

from recollect.losses import RecallAtK, SmoothAP, create
from recollect.losses.average_precision import BinnedAP, BlackboxAP
from recollect.losses.engine.simix import draw_mixing


def _batch(count: int = 12, per_class: int = 3, dim: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    return normalize(torch.randn(count, dim), dim=1), torch.arange(count) // per_class


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
    with warnings.catch_warnings(record=True) as messages:
        warnings.resetwarnings()
        warnings.simplefilter("default")
        for _ in range(3):
            loss(embeddings, torch.arange(5))
    assert len(messages) == 1


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


def test_generator_state_travels_with_the_loss() -> None:
    embeddings, labels = _batch(16, 4)
    loss = RecallAtK(simix=True, generator=torch.Generator().manual_seed(3))
    loss(embeddings, labels)
    state = loss.state_dict()
    expected = [float(loss(embeddings, labels)) for _ in range(2)]
    resumed = RecallAtK(simix=True, generator=torch.Generator())
    resumed.load_state_dict(state)
    assert [float(resumed(embeddings, labels)) for _ in range(2)] == expected


@pytest.mark.parametrize(("images", "per_class", "expected"), [(400, 4, 1000), (392, 4, 980), (20, 2, 30), (9, 3, 18)])
def test_sizes_of_the_virtual_batch(images: int, per_class: int, expected: int) -> None:
    assert len(draw_mixing(torch.arange(images) // per_class)) == expected


def test_unequal_classes_give_all_their_pairs() -> None:
    labels = torch.tensor([5, 7, 5, 5, -1, 7, 9, 9, 9, 9])
    mixing = draw_mixing(labels)
    virtual = [(int(a), int(b)) for a, b in zip(mixing.first[10:], mixing.second[10:], strict=True)]
    expected = {(a, b) for a in range(10) for b in range(a + 1, 10) if labels[a] == labels[b]}
    assert {tuple(sorted(pair)) for pair in virtual} == expected
    assert len(virtual) == len(expected)
    assert bool(((mixing.alpha[10:] >= 0) & (mixing.alpha[10:] < 1)).all())
    assert mixing.alpha[10:].unique().numel() == len(virtual), "alpha is drawn a pair"


def test_bound_on_pairs_is_kept_and_said() -> None:
    labels = torch.cat([torch.zeros(30, dtype=torch.int64), torch.ones(3, dtype=torch.int64)])
    with pytest.warns(UserWarning, match=r"30 images .*435 pairs"):
        mixing = draw_mixing(labels, max_pairs=10)
    assert len(mixing) == 33 + 10 + 3
    pairs = {(int(a), int(b)) for a, b in zip(mixing.first[33:], mixing.second[33:], strict=True)}
    assert len(pairs) == 13, "drawn without repetition"
    assert len(draw_mixing(labels, max_pairs=None)) == 33 + 435 + 3


def test_mixing_is_linear_algebra() -> None:
    """mix_rows and unmix_rows are A S and Aᵀ G."""
    mixing = draw_mixing(torch.tensor([0, 1, 0, 0, 1]))
    matrix = torch.zeros(len(mixing), 5, dtype=torch.float64)
    for row in range(len(mixing)):
        matrix[row, mixing.first[row]] += mixing.alpha[row]
        matrix[row, mixing.second[row]] += 1 - mixing.alpha[row]
    similarities = torch.randn(5, 7, dtype=torch.float64)
    gradient = torch.randn(len(mixing), 7, dtype=torch.float64)
    torch.testing.assert_close(mixing.mix_rows(similarities), matrix @ similarities)
    torch.testing.assert_close(mixing.unmix_rows(gradient, 5), matrix.T @ gradient)
