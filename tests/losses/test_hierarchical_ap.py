"""Hierarchical AP (``losses/hierarchical_ap.py``) against its equation and the metric, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from batches import Batch, assert_same, batches, unit, value_and_grads
from hypothesis import assume, given, strategies as st
from torch import Tensor

from oracles import losses as reference
from recollect.common.errors import ConfigError, InputError
from recollect.evaluation import evaluate
from recollect.losses import HierarchicalAP, SmoothAP
from recollect.losses.engine.simix import draw_mixing

pytestmark = pytest.mark.filterwarnings("ignore:No image of this batch has a positive")
STEPS: dict[str, dict[str, Any]] = {
    "sigmoid": {},
    "asymmetric": {"step": reference.asymmetric_step(), "step_positives": reference.heaviside_step},
}
steps = pytest.mark.parametrize("step", STEPS)


def levels(labels: Tensor, kinds: int) -> tuple[Tensor, list[int]]:
    """Labels counted from 0, and a coarser label for each."""
    numbers = torch.unique(labels, return_inverse=True)[1]
    return numbers, [number * 7 % kinds for number in range(int(numbers.max()) + 1)]


@steps
@given(
    batch=batches(),
    kinds=st.integers(1, 4),
    alpha=st.sampled_from([0.0, 1.0, 2.5]),
    prune=st.booleans(),
    memory=st.sampled_from([1, 4096, 2**29]),
)
def test_equals_its_equation(step: str, batch: Batch, kinds: int, alpha: float, prune: bool, memory: int) -> None:
    assume(step == "sigmoid" or not batch.has_ties)
    labels, coarse = levels(batch.labels, kinds)
    fast = HierarchicalAP(coarse, alpha, step=step, prune=prune, memory=memory)  # type: ignore[arg-type]

    def slow(embeddings: Tensor) -> Tensor:
        return reference.hierarchical_ap(embeddings, labels, coarse=torch.tensor(coarse), alpha=alpha, **STEPS[step])

    assert_same(value_and_grads(lambda e: fast(e, labels), batch.embeddings), value_and_grads(slow, batch.embeddings))


@steps
@pytest.mark.parametrize("sizes", [(6, 1, 4), (2, 6, 4)])
def test_an_item_ahead_counts_as_much_as_the_less_relevant_of_two(step: str, sizes: tuple[int, ...]) -> None:
    """Many items of one label share its relevance, so that one of the coarser label may be worth more, or less."""
    E, y, coarse = unit(sum(sizes), 4, 8), torch.repeat_interleave(torch.arange(3), torch.tensor(sizes)), [0, 0, 1]
    loss = HierarchicalAP(coarse, step=step)  # type: ignore[arg-type]
    slow = value_and_grads(lambda e: reference.hierarchical_ap(e, y, coarse=torch.tensor(coarse), **STEPS[step]), E)
    assert_same(value_and_grads(lambda e: loss(e, y), E), slow)


@steps
def test_with_a_reference_set(step: str) -> None:
    E, R = unit(20, 6, 0), unit(33, 6, 1)
    y, z, coarse = torch.arange(20) % 6, torch.arange(33) % 7, [0, 1, 0, 1, 2, 0, 2]
    loss = HierarchicalAP(coarse, step=step, memory=4096)  # type: ignore[arg-type]
    fast = value_and_grads(lambda e, r: loss(e, y, r, z), E, R)
    slow = value_and_grads(
        lambda e, r: reference.hierarchical_ap(e, y, r, z, coarse=torch.tensor(coarse), **STEPS[step]), E, R
    )
    assert_same(fast, slow)


def test_simix_mixes_images_of_one_label() -> None:
    E, y, coarse = unit(18, 6, 2), torch.arange(18) // 3, [0, 0, 1, 1, 1, 2]
    loss = HierarchicalAP(coarse, simix=True, generator=torch.Generator().manual_seed(3))
    mixing = draw_mixing(y, generator=torch.Generator().manual_seed(3))

    def explicit(embeddings: Tensor) -> Tensor:
        mixed = reference.mixed_batch(embeddings, y, mixing)
        return reference.hierarchical_ap(*mixed, coarse=torch.tensor(coarse))

    assert_same(value_and_grads(lambda e: loss(e, y), E), value_and_grads(explicit, E))


def test_shares_add_up() -> None:
    E, y, coarse = unit(50, 8, 3), torch.arange(50) // 4, [n % 3 for n in range(13)]
    loss = HierarchicalAP(coarse, memory=20_000)
    shares = value_and_grads(lambda e: torch.stack([loss.share(e, y, rank, 3) for rank in range(3)]).sum(), E)
    assert_same(shares, value_and_grads(lambda e: loss(e, y), E))


def test_without_a_coarser_level_it_is_smooth_ap() -> None:
    E, y = unit(30, 5, 4), torch.arange(30) // 5
    every_class_its_own = HierarchicalAP(list(range(6)), tau=0.03)
    torch.testing.assert_close(every_class_its_own(E, y), SmoothAP(tau=0.03)(E, y), rtol=0, atol=1e-12)


def test_with_sharp_steps_it_is_the_metric() -> None:
    E, y, coarse = unit(60, 6, 5), torch.arange(60) // 4, [n % 4 for n in range(15)]
    measured = evaluate(E, y, coarse_labels=torch.tensor(coarse)[y], metrics=["h_ap"]).metrics["h_ap"]
    assert 1 - float(HierarchicalAP(coarse, tau=1e-7)(E, y)) == pytest.approx(measured, abs=1e-9)


def test_float32_and_calibration() -> None:
    E, y, coarse = unit(24, 8, 6), torch.arange(24) // 4, [0, 0, 0, 1, 1, 1]
    plain, calibrated = HierarchicalAP(coarse), HierarchicalAP(coarse, calibration_weight=1.0)
    assert float(plain(E.float(), y)) == pytest.approx(float(plain(E, y)), abs=1e-6)
    # Calibration draws together what shares the coarser label.
    assert float(calibrated(E, y)) == pytest.approx(float(reference.calibration(E, torch.tensor(coarse)[y])))


@pytest.mark.parametrize(
    "wrong", [{"coarse": []}, {"coarse": [0, -1]}, {"coarse": "01"}, {"alpha": -1.0}, {"tau": 0.0}]
)
def test_bad_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        HierarchicalAP(**{"coarse": [0, 0], **wrong})


def test_a_label_without_a_coarser_one_is_refused() -> None:
    with pytest.raises(InputError, match="coarse"):
        HierarchicalAP([0, 0])(unit(6, 4, 7), torch.arange(6) // 2)
