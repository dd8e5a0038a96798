"""What binned and Blackbox-AP promise beyond their equations, which ``test_rank_losses.py`` holds them to."""

from __future__ import annotations

import pytest
import torch
from batches import unit

from recollect.losses.average_precision import BinnedAP, BlackboxAP


def test_binned_ap_of_extreme_batches() -> None:
    y = torch.tensor([0, 0, 1, 1])
    separate = torch.tensor([[1.0, 0], [1, 0], [-1, 0], [-1, 0]])
    assert BinnedAP()(separate, y).item() == pytest.approx(0.0, abs=1e-7)
    # Everything in one bin: the precision everywhere is 1 positive of 3.
    assert BinnedAP()(torch.tensor([[1.0, 0]]).repeat(4, 1), y).item() == pytest.approx(2 / 3)
    # Inverted: the positive comes after two negatives.
    assert BinnedAP()(separate[[0, 2, 1, 3]], y).item() == pytest.approx(2 / 3)


def test_no_tile_is_larger_than_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    E, y = unit(200, 4, 2).float(), torch.arange(200) // 4
    sizes, rows = [], BinnedAP.rows
    monkeypatch.setattr(
        BinnedAP, "rows", lambda self, tile: (sizes.append(len(tile.similarities)), rows(self, tile))[1]
    )
    BinnedAP(memory=200 * 48 * 7)(E, y)
    assert max(sizes) == 7
    assert sum(sizes) == 200


def test_blackbox_ap_is_the_exact_average_precision() -> None:
    E, y = unit(30, 4, 1), torch.randint(0, 6, (30,))
    expected = []
    for q in range(30):
        order = [z for z in (E @ E[q]).argsort(descending=True).tolist() if z != q]
        hits = [place for place, z in enumerate(order, start=1) if y[z] == y[q]]
        if hits:
            expected.append(1 - sum(n / place for n, place in enumerate(hits, start=1)) / len(hits))
    assert BlackboxAP(margin=0.0)(E, y).item() == pytest.approx(sum(expected) / len(expected), abs=1e-12)


def test_blackbox_ap_of_equal_embeddings_is_finite_and_its_gradient_scales_with_the_loss() -> None:
    E = torch.ones(8, 4).requires_grad_()
    loss = BlackboxAP()(E, torch.arange(8) // 2)
    (gradient,) = torch.autograd.grad(loss, E)
    assert 0 < loss.item() < 1
    assert gradient.isfinite().all()
    E, y = unit(20, 4, 2).requires_grad_(), torch.arange(20) // 4
    once, scaled = (torch.autograd.grad(BlackboxAP()(E, y) * scale, E)[0] for scale in (1, 1024))
    torch.testing.assert_close(scaled, once * 1024)
