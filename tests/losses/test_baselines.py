"""The baselines and the memory of earlier batches, against pytorch-metric-learning itself."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recollect.common.errors import InputError, MissingExtraError
from recollect.losses import create
from recollect.losses.cross_batch_memory import CrossBatchMemory

library = pytest.importorskip("pytorch_metric_learning")
from pytorch_metric_learning import distances, losses, miners  # noqa: E402

CLASSES, DIM = 6, 5
SIZES = {"num_classes": CLASSES, "dim": DIM}


def unit(count: int, seed: int, dim: int = DIM) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return nn.functional.normalize(torch.randn(count, dim, dtype=torch.float64, generator=generator), dim=1)


LABELS = torch.tensor([0, 1, 2, 0, 1, 2, 0, 3, 4, 4, 5, 1])
REF_LABELS = torch.tensor([0, 0, 1, 5, 3, 2, 2, 4])


# What the library must be told to be the same loss: name, our options, its loss, its miner.
Case = tuple[str, dict[str, Any], Callable[[], nn.Module], Callable[[], nn.Module | None]]
TAKE_REFERENCES: list[Case] = [
    ("contrastive", {}, lambda: losses.ContrastiveLoss(pos_margin=0, neg_margin=1), lambda: None),
    (
        "contrastive",
        {"distance": "cosine", "pos_margin": 0.9, "neg_margin": 0.4},
        lambda: losses.ContrastiveLoss(0.9, 0.4, distance=distances.CosineSimilarity()),
        lambda: None,
    ),
    (
        "triplet",
        {},
        lambda: losses.TripletMarginLoss(margin=0.2),
        lambda: miners.TripletMarginMiner(margin=0.2, type_of_triplets="semihard"),
    ),
    (
        "triplet",
        {"miner": "batch_hard", "margin": 0.1, "squared": True},
        lambda: losses.TripletMarginLoss(margin=0.1, distance=distances.LpDistance(power=2)),
        lambda: miners.BatchHardMiner(distance=distances.LpDistance(power=2)),
    ),
    ("triplet", {"miner": "all"}, lambda: losses.TripletMarginLoss(margin=0.2), lambda: None),
    (
        "margin",
        {"num_classes": CLASSES},
        lambda: losses.MarginLoss(margin=0.2, beta=1.2, learn_beta=True, num_classes=CLASSES),
        miners.DistanceWeightedMiner,
    ),
    (
        "margin",
        {"nu": 0.1, "beta": 1.0},
        lambda: losses.MarginLoss(margin=0.2, beta=1.0, nu=0.1, learn_beta=True),
        miners.DistanceWeightedMiner,
    ),
    ("multi_similarity", {}, lambda: losses.MultiSimilarityLoss(2, 50, 0.5), lambda: miners.MultiSimilarityMiner(0.1)),
    ("multi_similarity", {"epsilon": None, "base": 1.0}, lambda: losses.MultiSimilarityLoss(2, 50, 1.0), lambda: None),
    ("supcon", {}, lambda: losses.SupConLoss(temperature=0.1), lambda: None),
]
BATCH_ONLY: list[Case] = [
    ("fast_ap", {}, lambda: losses.FastAPLoss(num_bins=10), lambda: None),
    ("norm_softmax", SIZES, lambda: losses.NormalizedSoftmaxLoss(CLASSES, DIM, temperature=0.05), lambda: None),
    ("proxy_nca", SIZES, lambda: losses.ProxyNCALoss(CLASSES, DIM, softmax_scale=1), lambda: None),
    ("proxy_anchor", SIZES, lambda: losses.ProxyAnchorLoss(CLASSES, DIM, margin=0.1, alpha=32), lambda: None),
    ("arcface", SIZES, lambda: losses.ArcFaceLoss(CLASSES, DIM, margin=28.6, scale=64), lambda: None),
    ("cosface", SIZES, lambda: losses.CosFaceLoss(CLASSES, DIM, margin=0.35, scale=64), lambda: None),
]
EVERY = TAKE_REFERENCES + BATCH_ONLY


def ids(cases: list[Case]) -> list[str]:
    return ["-".join([name, *options]) for name, options, *_ in cases]


def like(theirs: nn.Module, ours: nn.Module) -> nn.Module:
    """Give the library's loss our loss's parameters, in float64."""
    theirs.load_state_dict(ours.loss.state_dict())
    return theirs.double()


def compare(case: Case, references: bool) -> None:
    name, options, make_loss, make_miner = case
    ours = create(name, **options)
    theirs, miner = like(make_loss(), ours), make_miner()
    E, R = unit(len(LABELS), 1), unit(len(REF_LABELS), 2)
    extra = (R, REF_LABELS) if references else (None, None)
    results = []
    for call in (
        lambda e, r: ours(e, LABELS, r, extra[1]),
        lambda e, r: theirs(e, LABELS, None if miner is None else miner(e, LABELS, r, extra[1]), r, extra[1]),
    ):
        e = E.clone().requires_grad_()
        r = extra[0].clone().requires_grad_() if extra[0] is not None else None
        torch.manual_seed(3)
        value = call(e, r)
        value.backward()
        results.append([value.detach(), e.grad, *([] if r is None else [r.grad])])
    assert results[0][0] > 0
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert one.dtype == torch.float32
        assert one.grad is not None
        torch.testing.assert_close(one.grad.double(), other.grad, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("case", EVERY, ids=ids(EVERY))
def test_equals_the_library(case: Case) -> None:
    compare(case, references=False)
    if case in TAKE_REFERENCES:
        compare(case, references=True)


@pytest.mark.parametrize("case", TAKE_REFERENCES, ids=ids(TAKE_REFERENCES))
def test_which_sets_are_one(case: Case) -> None:
    """The batch as its own reference set leaves pairs with itself out; one tensor as both labels does not make two sets one."""
    loss, E, R = create(case[0], **case[1]), unit(len(LABELS), 1), unit(len(LABELS), 2)
    values = []
    for arguments in ((), (E, LABELS), (R, LABELS), (R, LABELS.clone())):
        torch.manual_seed(0)
        values.append(loss(E, LABELS, *arguments).item())
    assert values[0] == values[1] != values[2] == values[3]


@pytest.mark.parametrize("name", ["margin", "norm_softmax", "proxy_nca", "proxy_anchor", "arcface", "cosface"])
def test_own_parameters_reach_the_optimizer(name: str) -> None:
    options = {"num_classes": CLASSES} if name == "margin" else SIZES
    loss = create(name, **options)
    (parameter,) = loss.parameters()
    assert parameter.numel() == (CLASSES if name == "margin" else CLASSES * DIM)
    before = parameter.detach().clone()
    optimizer = torch.optim.Adam(loss.parameters(), lr=0.1)
    clustered = unit(CLASSES, 1)[LABELS] + 0.1 * unit(12, 2)
    for dtype in (torch.float32, torch.float64, torch.float16):
        optimizer.zero_grad()
        loss(clustered.to(dtype), LABELS).backward()
        optimizer.step()
    assert parameter.dtype == torch.float32
    assert (parameter != before).any()
    other = create(name, **options)
    other.load_state_dict(loss.state_dict())
    torch.manual_seed(0)
    mine = loss(unit(12, 1), LABELS)
    torch.manual_seed(0)
    assert other(unit(12, 1), LABELS) == mine


@pytest.mark.parametrize("case", EVERY, ids=ids(EVERY))
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_types(case: Case, dtype: torch.dtype) -> None:
    loss = create(case[0], **case[1])
    E = unit(len(LABELS), 1).to(dtype).requires_grad_()
    torch.manual_seed(0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(E, LABELS.to(torch.uint8))
    value.backward()
    assert value.dtype == torch.float32
    assert value.shape == ()
    assert E.grad is not None
    assert E.grad.dtype == dtype
    torch.manual_seed(0)
    assert value.item() == pytest.approx(loss(E.detach().double(), LABELS).item(), rel=1e-4)


@pytest.mark.parametrize("case", TAKE_REFERENCES + BATCH_ONLY[:1], ids=ids(TAKE_REFERENCES + BATCH_ONLY[:1]))
def test_batch_of_singletons_is_zero_with_a_zero_gradient(case: Case) -> None:
    loss = create(case[0], **case[1])
    E = unit(CLASSES, 1).requires_grad_()
    with pytest.warns(UserWarning, match=r"No image .*positive"):
        value = loss(E, torch.arange(CLASSES))
    value.backward()
    assert value.item() == 0
    assert E.grad is not None
    assert not E.grad.any()


def test_bad_input() -> None:
    arcface = create("arcface", **SIZES)
    with pytest.raises(InputError, match=r"0 to 5 .*0 to 6"):
        arcface(unit(2, 1), torch.tensor([0, 6]))
    with pytest.raises(InputError, match="dim=3"):
        arcface(unit(2, 1, dim=3), torch.tensor([0, 1]))


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.split(".")[0] == "pytorch_metric_learning"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "pytorch_metric_learning", None)
    with pytest.raises(MissingExtraError, match=r"recollect\[baselines\]"):
        create("triplet")


def batches(steps: int, size: int = 6) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(9)
    return [(unit(size, 20 + step), torch.randint(0, 4, (size,), generator=generator)) for step in range(steps)]


MEMORY_CASES: list[Case] = [
    (
        "contrastive",
        {"distance": "cosine", "pos_margin": 1.0, "neg_margin": 0.5},
        lambda: losses.ContrastiveLoss(1.0, 0.5, distance=distances.CosineSimilarity()),
        lambda: None,
    ),
    *[case for case in TAKE_REFERENCES if case[0] in ("triplet", "multi_similarity", "supcon", "margin")],
]


@pytest.mark.parametrize("case", MEMORY_CASES, ids=ids(MEMORY_CASES))
@pytest.mark.parametrize("memory_size", [6, 100])
def test_memory_equals_the_library_step_by_step(case: Case, memory_size: int) -> None:
    name, options, make_loss, make_miner = case
    ours = CrossBatchMemory(DIM, memory_size, name, options).double()
    theirs = losses.CrossBatchMemory(like(make_loss(), ours.wrapped), DIM, memory_size, miner=make_miner()).double()
    for step, (E, y) in enumerate(batches(8)):
        results = []
        for loss in (ours, theirs):
            e = E.clone().requires_grad_()
            torch.manual_seed(step)
            value = loss(e, y)
            value.backward()
            results.append((value.detach(), e.grad))
        torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-12)
    assert ours.filled == min(memory_size, 48)


def test_memory_uses_the_papers_contrastive_loss_by_default() -> None:
    default = create("cross_batch_memory", dim=DIM)
    paper = create("cross_batch_memory", dim=DIM, loss_options=MEMORY_CASES[0][1])
    for E, y in batches(3):
        assert default(E, y) == paper(E, y) > 0


def test_resumed_memory_goes_on_exactly() -> None:
    first = create("cross_batch_memory", dim=DIM, memory_size=16)
    steps = [(E.float(), y) for E, y in batches(7)]
    for E, y in steps[:4]:
        first(E, y)
    second = create("cross_batch_memory", dim=DIM, memory_size=16)
    second.load_state_dict(first.state_dict())
    for E, y in steps[4:]:
        assert second(E, y) == first(E, y)


def test_evaluation_reads_the_memory_without_writing() -> None:
    loss = create("cross_batch_memory", dim=DIM, memory_size=16)
    (E, y), (other, z) = batches(2)
    loss.eval()
    with pytest.warns(UserWarning, match="No image"):
        assert loss(E, y) == 0
    assert loss.filled == 0
    loss.train()
    loss(E, y)
    before = {name: value.clone() for name, value in loss.state_dict().items()}
    loss.eval()
    assert loss(other, z) > 0
    for name, value in loss.state_dict().items():
        assert torch.equal(value, before[name])


def test_two_steps_before_one_backward() -> None:
    loss = create("cross_batch_memory", dim=DIM, memory_size=8)
    (E, y), (other, z) = [(E.requires_grad_(), y) for E, y in batches(2)]
    (loss(E, y) + loss(other, z)).backward()
    assert E.grad is not None
    assert E.grad.any()


def test_memory_refuses_what_it_cannot_hold() -> None:
    loss = create("cross_batch_memory", dim=DIM, memory_size=4)
    E, y = batches(1)[0]
    with pytest.raises(InputError, match="memory_size to 6"):
        loss(E, y)
    with pytest.raises(InputError, match=r"memory .*reference set"):
        loss(E, y, E.clone(), y)
    with pytest.raises(InputError, match="dimensions"):
        loss(unit(4, 1, dim=3), torch.zeros(4).long())
