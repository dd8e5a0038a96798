from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from recollect.common.errors import InputError
from recollect.models import Embedder
from recollect.models.whitening import (
    Whitening,
    pairs_of_classes,
    whitening_from_classes,
    whitening_from_labels,
    whitening_from_pairs,
    whitening_from_pca,
)

# Values of the instance-search benchmark's own whitening code on the data below; only what does not depend on the
# signs of eigenvectors: the mean, the first row of PᵀP and Gram matrices of whitened vectors (‖x‖ + 1e-6 norm).
PAIRS_MEAN = [0.254433412336, -0.061684793321, -0.235160515436, -0.180471013771, 0.057809799841, 0.092212781524]
PAIRS_PTP = [9.357345994558, 3.116982905771, 0.600159345923, -11.302756662937, 6.945429800892, 1.320205152171]
PAIRS_GRAM_3 = [
    [0.999998757695, -0.222205348942, 0.980938853205, -0.273382350428],
    [-0.222205348942, 0.999998665867, -0.136643791629, -0.105510394221],
    [0.980938853205, -0.136643791629, 0.999998364003, -0.116259203097],
    [-0.273382350428, -0.105510394221, -0.116259203097, 0.999996358128],
]
PCA_MEAN = [0.210530241274, -0.020552410433, -0.211196773393, -0.208537241433, 0.042604420369, 0.109099398975]
PCA_PTP = [22.35590837358, 8.087054264885, 2.146349394954, -26.6549925812, 16.514254226075, 2.962628643431]
PCA_GRAM = [
    [0.999999245727, -0.056274380516, 0.603165993723, 0.337782197261],
    [-0.056274380516, 0.999999139925, 0.040602522186, -0.172411781984],
    [0.603165993723, 0.040602522186, 0.999999101761, -0.298372159542],
    [0.337782197261, -0.172411781984, -0.298372159542, 0.99999906419],
]


def golden_data() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(5)
    A = rng.standard_normal((6, 6))
    X = A @ rng.standard_normal((6, 200)) + rng.standard_normal((6, 1))
    X /= np.linalg.norm(X, axis=0)
    q, p = rng.permutation(200)[:80], rng.permutation(200)[:80]
    return torch.from_numpy(X.T.copy()), torch.from_numpy(q), torch.from_numpy(p)


def check_golden(whitening: Whitening, X: torch.Tensor, mean: list, ptp: list, gram: list, dim: int | None) -> None:  # type: ignore[type-arg]
    def close(ours: torch.Tensor, golden: list) -> None:  # type: ignore[type-arg]
        torch.testing.assert_close(ours, torch.tensor(golden, dtype=torch.float64), atol=2e-11, rtol=2e-11)

    close(whitening.mean, mean)
    close((whitening.projection.T @ whitening.projection)[0], ptp)
    vectors = whitening(X[:4], dim)
    close(vectors @ vectors.T, gram)


def test_whitening_has_the_benchmarks_values() -> None:
    X, q, p = golden_data()
    check_golden(whitening_from_pairs(X, q, p), X, PAIRS_MEAN, PAIRS_PTP, PAIRS_GRAM_3, 3)
    check_golden(whitening_from_pca(X), X, PCA_MEAN, PCA_PTP, PCA_GRAM, None)


def test_it_initialises_the_last_layer_of_an_embedder() -> None:
    embedder = Embedder.create("tiny", dim=16, layer_norm=False, l2_before_head=True).eval()
    images = torch.randint(0, 256, (60, 3, 32, 32), dtype=torch.uint8)
    features = embedder.embed(images, before_head=True, progress=False)
    torch.testing.assert_close(features.norm(dim=1), torch.ones(60), atol=1e-4, rtol=0)
    whitening = whitening_from_labels(features, torch.arange(60) // 6, shrinkage=0.2)
    embedder.set_whitening(whitening)
    expected = torch.nn.functional.normalize(whitening(features.double(), 16)).float()
    torch.testing.assert_close(embedder.embed(images, progress=False), expected, atol=1e-4, rtol=1e-4)
    with pytest.raises(InputError, match="before_head"):
        embedder.set_whitening(whitening_from_pca(torch.randn(50, 8)))


def test_dead_and_duplicate_dimensions() -> None:
    X, q, p = golden_data()
    deficient = torch.cat([X, torch.full((200, 1), 1e-6), X[:, :1]], dim=1)  # a dead feature and a copied one
    whitening = whitening_from_pairs(deficient, q, p)
    assert torch.isfinite(whitening.projection).all()
    # Between whitened points nothing changes: the added dimensions carry no information of their own.
    ours, plain = whitening(deficient), whitening_from_pairs(X, q, p)(X)
    torch.testing.assert_close(ours @ ours.T, plain @ plain.T, atol=1e-3, rtol=1e-3)
    with pytest.raises(InputError, match="6 of 8 dimensions"):
        whitening_from_pca(deficient)
    assert whitening_from_pca(deficient, dim=6).projection.shape == (6, 8)
    assert torch.isfinite(whitening_from_pca(deficient, shrinkage=0.1).projection).all()
    few, halves = torch.nn.functional.normalize(torch.randn(40, 32)), (torch.arange(20), torch.arange(20, 40))
    with pytest.raises(InputError, match=r"20 pairs .*32 dimensions.*shrinkage"):
        whitening_from_pairs(few, *halves)
    assert torch.isfinite(whitening_from_pairs(few, *halves, shrinkage=0.1).projection).all()
    with pytest.raises(InputError, match="shrinkage"):
        whitening_from_classes(few, torch.arange(40) // 2, 0.0)
    assert torch.isfinite(whitening_from_classes(few, torch.arange(40) // 2, 0.1).projection).all()


def test_input_that_cannot_be_whitened() -> None:
    X, q, p = golden_data()
    with pytest.raises(InputError, match="NaN"):
        whitening_from_pca(torch.full((5, 2), torch.nan))
    with pytest.raises(InputError, match="of equal length"):
        whitening_from_pairs(X, q, p[:-1])
    with pytest.raises(InputError, match="same descriptor"):
        whitening_from_pairs(X, q, q)
    with pytest.raises(InputError, match="between 0 and 1"):
        whitening_from_pca(X, shrinkage=2)
    with pytest.raises(InputError, match="N×D"):
        whitening_from_pca(X[0])
    for from_labels in (whitening_from_labels, whitening_from_classes):
        with pytest.raises(InputError, match="no class has two"):
            from_labels(X, torch.arange(200))
    with pytest.raises(InputError, match=r"6 dimensions.*7"):
        whitening_from_pairs(X, q, p).linear(7)


@given(labels=st.lists(st.integers(0, 5), min_size=2, max_size=40))
def test_pairs_are_all_pairs_of_a_class(labels: list[int]) -> None:
    expected = {(i, j) for i in range(len(labels)) for j in range(i + 1, len(labels)) if labels[i] == labels[j]}
    if not expected:
        return
    q, p = pairs_of_classes(torch.tensor(labels))
    assert len(q) == len(expected)
    assert set(zip(q.tolist(), p.tolist(), strict=True)) == expected
    few = pairs_of_classes(torch.tensor(labels), max_pairs=3, seed=1)
    drawn = set(zip(few[0].tolist(), few[1].tolist(), strict=True))
    assert len(drawn) == min(3, len(expected))
    assert drawn <= expected


@pytest.mark.parametrize("shrinkage", [0.1, 0.3, 1.0])
def test_whitening_from_classes_is_the_equation(shrinkage: float) -> None:
    """Plain loops and an ordinary generalised eigenproblem, in float64, against the function."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(6), [2, 9, 5, 1, 7, 3])
    X = rng.standard_normal((27, 8)) @ rng.standard_normal((8, 8)) + 3 * rng.standard_normal((6, 8))[labels]
    m, within, total = X.mean(0), np.zeros((8, 8)), np.zeros((8, 8))
    for x, label in zip(X, labels, strict=True):
        d = x - X[labels == label].mean(0)
        within += np.outer(d, d) / len(X)
        total += np.outer(x - m, x - m) / len(X)
    shrunk = (1 - shrinkage) * within + shrinkage * np.trace(within) / 8 * np.eye(8)
    values, vectors = np.linalg.eig(np.linalg.solve(shrunk, total))  # S⁻¹ T v = λ v
    vectors = vectors.real[:, np.argsort(-values.real)]
    vectors /= np.sqrt(np.einsum("ij,ik,kj->j", vectors, shrunk, vectors))  # vᵀ S v = 1
    whitening = whitening_from_classes(torch.from_numpy(X), torch.from_numpy(labels), shrinkage)
    assert np.allclose(whitening.mean.numpy(), m, atol=1e-12)
    signs = np.sign(np.sum(whitening.projection.numpy() * vectors.T, axis=1, keepdims=True))
    assert np.allclose(whitening.projection.numpy() * signs, vectors.T, atol=1e-9)


def test_a_whitened_layer_learns_as_fast_as_a_new_one() -> None:
    """An optimizer's steps are as large as its learning rate: weights of another size would learn slower or faster."""
    features, labels = torch.randn(400, 24, dtype=torch.float64) * 1e-3, torch.arange(400) // 5
    plain = whitening_from_classes(features, labels, 0.2)
    layer = plain.as_layer()
    new = torch.nn.Linear(24, 2000).weight.detach()
    assert float(layer.projection.square().mean()) == pytest.approx(float(new.square().mean()), rel=0.02)
    torch.testing.assert_close(layer(features), plain(features), rtol=0, atol=1e-3)
