"""Input and options nobody should pass: every loss answers with a finite number or a sentence, and always answers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from recollect.common.errors import ConfigError, InputError, RecollectError
from recollect.losses import RecallAtK, Roadmap, SmoothAP, SupAP, available, create
from recollect.losses.registry import describe

TILED = ["recall_at_k", "smooth_ap", "sup_ap", "roadmap", "binned_ap", "blackbox_ap"]
VALUES: list[Any] = [
    0, -1, 1, 5, 2**63, 10**30, -(10**30), 0.0, -0.5, 1.5, 1e-40, 1e-320, 1e40, math.inf, -math.inf, math.nan,
    True, None, "", "1", "abc", (), (0,), (10**30,), (math.nan,), ("1",), [1.5], {}, torch.ones(2), object,
]  # fmt: skip

pytestmark = pytest.mark.filterwarnings("ignore")


def answers(loss: torch.nn.Module, embeddings: torch.Tensor, labels: torch.Tensor) -> None:
    """A finite value with a finite gradient, or a sentence."""
    leaf = embeddings.clone().requires_grad_()
    try:
        value = loss(leaf, labels)
    except InputError:
        return
    value.backward()
    assert bool(value.isfinite())
    assert leaf.grad is not None
    assert bool(leaf.grad.isfinite().all())


@pytest.mark.parametrize("name", TILED)
def test_embeddings_of_any_length_are_answered(name: str) -> None:
    for scale in (1e-30, 1e-18, 1e-3, 1e2, 1e4, 1e9, 1e18, 1e19, 1e25, 3e38, 1e200):
        for dtype in (torch.float32, torch.float64):
            embeddings = torch.randn(40, 8, dtype=torch.float64) * scale
            embeddings[::5] = 0
            embeddings[1::5] *= 1e-3
            answers(create(name), embeddings.to(dtype), torch.arange(40) // 4)


def test_similarities_that_overflow_are_refused() -> None:
    labels = torch.arange(40) // 4
    for loss in (RecallAtK(), SmoothAP(), SupAP(), Roadmap()):
        with pytest.raises(InputError, match="similarities"):
            loss(torch.randn(40, 8) * 1e18, labels)
    with pytest.raises(InputError, match="tau = 1e-08"):
        RecallAtK(tau2=1e-8)(torch.nn.functional.normalize(torch.randn(40, 8), dim=1), labels)


@pytest.mark.parametrize("name", list(available()))
def test_no_value_of_an_option_ends_in_a_traceback(name: str) -> None:
    """Each option of each loss with each value: made and answered, or refused with a sentence."""
    if available()[name].extra is not None:
        pytest.importorskip("pytorch_metric_learning")
    described = describe(name)
    values = {"num_classes": 10, "dim": 8, "coarse": [0, 0, 1, 1]}
    needed = {option.name: values[option.name] for option in described.options if option.required}
    embeddings, labels = torch.nn.functional.normalize(torch.randn(12, 8), dim=1), torch.arange(12) // 3
    for option in described.options:
        for value in VALUES:
            try:
                loss = create(name, **{**needed, option.name: value})
            except RecollectError as error:
                assert option.name in str(error)  # noqa: PT017
            else:
                if name in TILED:
                    answers(loss, embeddings, labels)


@pytest.mark.parametrize(
    ("embeddings", "labels", "message"),
    [
        (torch.full((4, 3), float("nan")), torch.arange(4), "NaN or infinite"),
        (torch.tensor([[1.0], [torch.inf]]), torch.arange(2), "row 1"),
        (torch.randn(4), torch.arange(4), "must be a matrix"),
        (torch.randn(4, 3), torch.arange(5), "4 embeddings but 5 labels"),
        (torch.randn(4, 3), torch.arange(4.0), "vector of integers"),
        (torch.randn(4, 3), torch.zeros(4, 1, dtype=torch.int64), "vector of integers"),
        (torch.ones(4, 3, dtype=torch.int64), torch.arange(4), "floating point"),
        (torch.randn(0, 3), torch.arange(0), "empty"),
    ],
)
def test_bad_input_gets_a_sentence(embeddings: torch.Tensor, labels: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RecallAtK()(embeddings, labels)


def test_bad_reference_sets() -> None:
    embeddings, labels = torch.nn.functional.normalize(torch.randn(12, 8), dim=1), torch.arange(12) // 3
    for arguments, message in (
        ((embeddings,), "ref_labels is missing"),
        ((torch.randn(3, 5), torch.arange(3)), r"8 dimensions .*ref_emb 5"),
        ((torch.randn(3, 8), torch.arange(4)), r"3 ref_emb .*4 ref_labels"),
    ):
        with pytest.raises(ValueError, match=message):
            RecallAtK()(embeddings, labels, *arguments)
    with pytest.raises(ValueError, match="not one of 2 shares"):
        RecallAtK().share(embeddings, labels, 3, 2)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("recall_at_k", {"k": range(10**9)}, "k must be"),
        ("recall_at_k", {"tau1": (1.0, 2.0)}, "one for each k"),
        ("recall_at_k", {"step": "cubic"}, "'cubic' is unknown"),
        ("binned_ap", {"low": 1.0}, "below high"),
        ("triplet", {"miner": "hard"}, "semihard, batch_hard"),
        ("contrastive", {"distance": "l1"}, "euclidean, cosine"),
        ("arcface", {"num_classes": 4, "dim": 1}, "dim must be"),
        ("cross_batch_memory", {"dim": 4, "loss": "triplet", "loss_options": {"marge": 1}}, "no option 'marge'"),
        ("cross_batch_memory", {"dim": 4, "loss": "recall_at_k", "loss_options": {"simix": True}}, "simix"),
    ],
)
def test_bad_options_get_a_sentence(name: str, options: dict[str, Any], message: str) -> None:
    if available()[name].extra is not None:
        pytest.importorskip("pytorch_metric_learning")
    with pytest.raises(ConfigError, match=message):
        create(name, **options)
