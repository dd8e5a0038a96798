"""The fast losses on the tile loop against their equations, in float64, gradients included."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from batches import Batch, assert_same, batches, unit, value_and_grads
from hypothesis import assume, given, settings, strategies as st
from torch.nn.functional import normalize

from oracles import losses as reference
from recollect.losses import RecallAtK, Roadmap, SmoothAP, SupAP, create
from recollect.losses.average_precision import BinnedAP, BlackboxAP
from recollect.losses.engine.simix import draw_mixing

TWO_STEPS = {"step": reference.asymmetric_step(), "step_positives": reference.heaviside_step}
EACH_TAU = {"k": (1, 2, 4, 8, 16), "tau1": (0.3, 0.5, 1.0, 2.0, 4.0)}
SOFT = {"k": (1, 3, 50), "tau1": 0.5, "tau2": 0.1}


def calibrated(weight, loss, violating=False):
    return lambda *a: (1 - weight) * loss(*a) + weight * reference.calibration(*a, violating=violating)


sup_ap = partial(reference.smooth_ap, **TWO_STEPS)
sup_ap_released = partial(sup_ap, count_query=True)
# name → the fast loss, its equation
LOSSES = {
    "recall_at_k": (RecallAtK, reference.recall_at_k),
    "recall_at_k, query counted": (
        partial(RecallAtK, count_query=True),
        partial(reference.recall_at_k, count_query=True),
    ),
    "recall_at_k, query a positive": (
        partial(RecallAtK, count_query="positive"),
        partial(reference.recall_at_k, count_query="positive"),
    ),
    "recall_at_k, asymmetric": (partial(RecallAtK, step="asymmetric"), partial(reference.recall_at_k, **TWO_STEPS)),
    "recall_at_k, asymmetric, query a positive": (
        partial(RecallAtK, step="asymmetric", count_query="positive"),
        partial(reference.recall_at_k, count_query="positive", **TWO_STEPS),
    ),
    "recall_at_k, soft": (partial(RecallAtK, **SOFT), partial(reference.recall_at_k, **SOFT)),
    "recall_at_k, a tau1 for each k": (partial(RecallAtK, **EACH_TAU), partial(reference.recall_at_k, **EACH_TAU)),
    "recall_at_k, calibrated": (partial(RecallAtK, calibration_weight=0.3), calibrated(0.3, reference.recall_at_k)),
    "smooth_ap": (SmoothAP, reference.smooth_ap),
    "smooth_ap, released": (partial(SmoothAP, count_query=True), partial(reference.smooth_ap, count_query=True)),
    "sup_ap": (SupAP, sup_ap),
    "sup_ap, released": (partial(SupAP, count_query=True), sup_ap_released),
    "roadmap": (Roadmap, calibrated(0.5, sup_ap)),
    "roadmap, released": (
        partial(Roadmap, count_query=True, calibrate="violating"),
        calibrated(0.5, sup_ap_released, violating=True),
    ),
    "binned_ap": (BinnedAP, reference.binned_ap),
    "binned_ap, few bins": (partial(BinnedAP, bins=3, low=0.3), partial(reference.binned_ap, bins=3, low=0.3)),
    "binned_ap, calibrated": (partial(BinnedAP, calibration_weight=0.3), calibrated(0.3, reference.binned_ap)),
    "blackbox_ap": (BlackboxAP, reference.blackbox_ap),
    "blackbox_ap, sharp": (
        partial(BlackboxAP, lambda_val=0.05, margin=0.3),
        partial(reference.blackbox_ap, lambda_val=0.05, margin=0.3),
    ),
}
LISTS = ("binned_ap", "blackbox_ap")
"""Losses on whole lists of similarities, which have nothing to prune."""

pytestmark = pytest.mark.filterwarnings("ignore:No image of this batch has a positive")
every_loss = pytest.mark.parametrize("name", LOSSES)


def _assume_defined(name: str, *given_batches: Batch) -> None:
    """Where a step jumps or a ranking ties, rounding would decide: leave such batches out."""
    if "asymmetric" in name or name.startswith(("sup_ap", "roadmap", *LISTS)):
        assume(not any(batch.has_ties for batch in given_batches))
    if name.startswith("binned_ap"):  # on the centre of a bin AP has no derivative, and near it a rounded one
        loss = LOSSES[name][0]()
        first, last = given_batches[0].embeddings, given_batches[-1].embeddings
        similarities = (first @ last.T)[~torch.eye(len(first), len(last), dtype=torch.bool)]
        if len(given_batches) == 2:
            similarities = first @ last.T
        place = (loss.high - similarities) / (loss.high - loss.low) * (loss.bins - 1)
        assume(not len(place) or bool((place - place.round()).abs().min() > 1e-5))


@every_loss
@given(batch=batches(), prune=st.booleans(), memory=st.sampled_from([1, 4096, 2**29]))
def test_equals_its_equation(name: str, batch: Batch, prune: bool, memory: int) -> None:
    _assume_defined(name, batch)
    fast, slow = LOSSES[name]
    options = {} if name.startswith(LISTS) else {"prune": prune}
    args = (batch.embeddings, batch.labels)
    assert_same(value_and_grads(fast(memory=memory, **options), *args), value_and_grads(slow, *args))


@every_loss
@settings(max_examples=15)
@given(batch=batches(dim=6), others=batches(dim=6))
def test_with_a_reference_set(name: str, batch: Batch, others: Batch) -> None:
    _assume_defined(name, batch, others)
    fast, slow = LOSSES[name]
    y, z = batch.labels, batch.labels[torch.arange(len(others.labels)) % len(batch.labels)].clone()
    z[::3] = others.labels[::3]
    sets = (batch.embeddings, others.embeddings)
    assert_same(
        value_and_grads(lambda e, r: fast()(e, y, r, z), *sets), value_and_grads(lambda e, r: slow(e, y, r, z), *sets)
    )


@pytest.mark.parametrize("make", [RecallAtK, BinnedAP, BlackboxAP])
def test_the_batch_as_its_own_reference_set_excludes_the_query(make) -> None:
    embeddings, labels, loss = unit(12, 5), torch.arange(12) // 3, make()
    assert loss(embeddings, labels, embeddings, labels) == loss(embeddings, labels)
    assert loss(embeddings, labels, embeddings.clone(), labels) < loss(embeddings, labels), "the query finds its copy"


@pytest.mark.parametrize(
    "name", [name for name in LOSSES if not name.startswith("roadmap") and "calibrated" not in name]
)
@settings(max_examples=15)
@given(batch=batches(), seed=st.integers(0, 1000))
def test_simix_equals_embeddings_built_explicitly(name: str, batch: Batch, seed: int) -> None:
    mixing = draw_mixing(batch.labels, generator=torch.Generator().manual_seed(seed))
    mixed = reference.mixed_batch(batch.embeddings, batch.labels, mixing)
    _assume_defined(name, Batch(*mixed, has_ties=batch.has_ties))
    fast, slow = LOSSES[name]
    loss = fast(simix=True, generator=torch.Generator().manual_seed(seed))
    if hasattr(loss, "k"):
        loss.k = (1, 3, 50) if loss.k[-1] == 50 else (1, 2, 4, 8, 16)

    def explicit(embeddings, labels):
        return slow(*reference.mixed_batch(embeddings, labels, mixing))

    args = (batch.embeddings, batch.labels)
    assert_same(value_and_grads(loss, *args), value_and_grads(explicit, *args))


@settings(max_examples=15)
@given(batch=batches(dim=5), others=batches(dim=5), seed=st.integers(0, 1000))
def test_simix_of_two_sets(batch: Batch, others: Batch, seed: int) -> None:
    loss = SmoothAP(simix=True, generator=torch.Generator().manual_seed(seed))
    generator = torch.Generator().manual_seed(seed)
    y, z = batch.labels, batch.labels[torch.arange(len(others.labels)) % len(batch.labels)]
    mixings = [draw_mixing(labels, generator=generator) for labels in (y, z)]

    def explicit(e, r):
        return reference.smooth_ap(*reference.mixed_batch(e, y, mixings[0]), *reference.mixed_batch(r, z, mixings[1]))

    sets = (batch.embeddings, others.embeddings)
    assert_same(value_and_grads(lambda e, r: loss(e, y, r, z), *sets), value_and_grads(explicit, *sets))


@every_loss
@pytest.mark.parametrize(("simix", "world"), [(False, 50), (True, 3)])
def test_shares_add_up(name: str, simix: bool, world: int) -> None:
    embeddings, labels = unit(30, 6), torch.randint(0, 8, (30,))

    def loss():
        return LOSSES[name][0](simix=simix, generator=torch.Generator().manual_seed(5), memory=20_000)

    def shares(e):
        return torch.stack([loss().share(e, labels, rank, world) for rank in range(world)]).sum()

    assert_same(value_and_grads(shares, embeddings), value_and_grads(lambda e: loss()(e, labels), embeddings))


def test_calibration_counts_queries_without_a_positive_too() -> None:
    """Their negatives must be far away as well: nothing else teaches a rank loss about them."""
    E, y, R, z = unit(6, 3, 1), torch.tensor([0, 0, 1, 1, 7, 7]), unit(8, 3, 2), torch.arange(8) % 2
    fast = value_and_grads(lambda e: BinnedAP(calibration_weight=1.0)(e, y, R, z), E)
    assert_same(fast, value_and_grads(lambda e: reference.calibration(e, y, R, z), E))


@pytest.mark.parametrize("name", [name for name in LOSSES if not name.startswith(LISTS)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-4), (torch.bfloat16, 3e-2), (torch.float16, 5e-3)])
def test_lower_precision_input(name: str, dtype: torch.dtype, tolerance: float) -> None:
    labels = torch.arange(40) % 10
    embeddings = normalize(torch.randn(10, 16)[labels] + 0.5 * torch.randn(40, 16), dim=1).to(dtype)
    fast, slow = LOSSES[name]
    value, (grad,) = value_and_grads(fast(), embeddings, labels)
    exact, (exact_grad,) = value_and_grads(slow, embeddings.double(), labels)
    assert value.dtype == torch.float32
    assert grad.dtype == dtype
    assert abs(float(value) - float(exact)) < 1e-5
    assert float((grad.double() - exact_grad).norm() / exact_grad.norm()) < tolerance


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_lower_precision_input_of_losses_on_lists(name: str, dtype: torch.dtype) -> None:
    embeddings, labels = unit(20, 8, 6).to(dtype), torch.arange(20) // 4
    value, (grad,) = value_and_grads(LOSSES[name][0](), embeddings, labels)
    assert (value.dtype, grad.dtype) == (torch.float32, dtype)
    assert value.item() == pytest.approx(LOSSES[name][0]()(embeddings.double(), labels).item(), abs=1e-6)


@pytest.mark.parametrize("name", ["recall_at_k", "smooth_ap", "contrastive"])
@pytest.mark.parametrize("scale", [2.0**10, 2.0**16])
def test_a_loss_scale_reaches_float16_gradients_before_they_are_rounded(name: str, scale: float) -> None:
    """65,536 is a GradScaler's first scale and no float16; without it many of these gradients would be 0."""
    labels = torch.arange(400) // 4
    embeddings = normalize(torch.randn(100, 64)[labels] + 0.8 * torch.randn(400, 64), dim=1).half()
    loss = create(name)
    _, (exact,) = value_and_grads(loss, embeddings.float(), labels)
    leaf = embeddings.clone().requires_grad_()
    (scale * loss(leaf, labels)).backward()
    assert leaf.grad is not None
    assert leaf.grad.dtype == torch.float16
    torch.testing.assert_close(leaf.grad.float() / scale, exact, rtol=2e-3, atol=1e-7 / scale)


@pytest.mark.parametrize("noise", [0.5, 6.0])
@pytest.mark.parametrize("simix", [False, True])
def test_a_large_batch_in_float32(noise: float, simix: bool) -> None:
    """Several tiles, pruning at work, similarities of every kind; the plain float64 result decides."""
    labels = torch.arange(600) // 4
    direction = normalize(torch.randn(150, 64), dim=1)[labels] + noise * normalize(torch.randn(600, 64), dim=1)
    embeddings = normalize(direction, dim=1)
    loss = RecallAtK(simix=simix, memory=2**20, generator=torch.Generator().manual_seed(1))
    exact = RecallAtK(simix=simix, prune=False, generator=torch.Generator().manual_seed(1))
    value, (grad,) = value_and_grads(loss, embeddings, labels)
    expected, (expected_grad,) = value_and_grads(exact, embeddings.double(), labels)
    assert abs(float(value - expected)) < 1e-5
    assert float((grad - expected_grad).norm() / expected_grad.norm()) < 1e-4


@pytest.mark.parametrize(("count_query", "floor"), [(False, 0.102), (True, 0.285)])
def test_mean_floor_at_perfect_ranking(count_query: bool, floor: float) -> None:
    """The loss of a perfectly ranked batch of 4 a class, default k: the two definitions differ as measured."""
    angle = torch.tensor([0.0, 0.35, 0.75, 1.2], dtype=torch.float64)
    embeddings = torch.zeros(40, 20, dtype=torch.float64)
    for c in range(10):
        embeddings[4 * c : 4 * c + 4, 2 * c], embeddings[4 * c : 4 * c + 4, 2 * c + 1] = angle.cos(), angle.sin()
    value = RecallAtK(count_query=count_query, tau2=0.001)(embeddings, torch.arange(40) // 4)
    assert float(value) == pytest.approx(floor, abs=1e-3)
