from __future__ import annotations

import pytest
import torch

from recollect.losses.engine.simix import draw_mixing


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
