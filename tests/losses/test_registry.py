"""Losses by name, with their options; and losses from outside, which are tried before a training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recollect.common.errors import ConfigError, InputError
from recollect.losses import RecallAtK, available, create
from recollect.losses.registry import describe, try_copy, try_loss
from recollect.step import large_batch_step


def required(name: str) -> dict[str, Any]:
    values = {"num_classes": 4, "dim": 8, "coarse": [0, 0, 1, 1]}
    return {option.name: values[option.name] for option in describe(name).options if option.required}


@pytest.mark.parametrize("name", available())
def test_every_loss_can_be_made_and_called(name: str) -> None:
    entry = available()[name]
    if entry.extra is not None:
        pytest.importorskip("pytorch_metric_learning")
    assert len(describe(name).summary) > 40
    assert "Args:" not in describe(name).summary
    assert all(option.type for option in describe(name).options)
    loss = create(name, **required(name))
    assert isinstance(loss, nn.Module)
    assert bool(list(loss.parameters())) == entry.parameters
    E = nn.functional.normalize(torch.randn(16, 8), dim=1).requires_grad_()
    y = torch.arange(16) // 4
    value = loss(E, y)
    value.backward()
    assert value.shape == ()
    assert value > 0
    assert E.grad is not None
    assert E.grad.any()
    if entry.references:
        assert loss(E, y, E.detach().clone(), y).isfinite()
    else:
        with pytest.raises(ValueError, match="no separate reference set"):
            loss(E, y, E.detach().clone(), y)


def test_defaults_are_told() -> None:
    options = {option.name: option.default for option in describe("binned_ap").options}
    assert list(options)[:3] == ["bins", "low", "high"]
    assert options["bins"] == 25
    assert options["memory"] == 512 * 2**20


def test_options_handed_on_are_options_too() -> None:
    for name in ("recall_at_k", "smooth_ap", "sup_ap", "roadmap"):
        options = {option.name for option in describe(name).options}
        assert {"simix", "memory", "generator"} <= options
        assert not {"options", "rank_limit"} & options
    assert "calibration_weight" in {option.name for option in describe("roadmap").options}
    assert "rho" in {option.name for option in describe("roadmap").options}
    create("roadmap", rho=50.0, memory=2**20)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("proxy_ancor", {}, r"'proxy_ancor' is unknown.*mean proxy_anchor\?.*cross_batch_memory"),
        ("Binned-AP", {}, r"'Binned-AP' is unknown.*mean binned_ap\?"),
        ("binned_ap", {"bin": 3}, r"'bin'.*mean bins\?.* bins, low"),
        ("arcface", {}, r"'arcface' needs .*num_classes and dim"),
        ("arcface", {"num_classes": 3}, r"needs the option dim\."),
        ("recall_at_k", {"rank_limit": 3}, "no option 'rank_limit'"),
    ],
)
def test_wrong_names_and_options_are_sentences(name: str, options: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        create(name, **options)


class Lambda(nn.Module):
    """A loss of a function; counts its calls."""

    def __init__(self, function: Callable[[Tensor, Tensor], object]) -> None:
        super().__init__()
        self.function, self.calls = function, 0
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, embeddings: Tensor, labels: Tensor) -> object:
        self.calls += 1
        return self.function(embeddings, labels)


BAD: dict[str, tuple[Callable[[Tensor, Tensor], object], str]] = {
    "not a number": (lambda e, y: e.sum() * float("nan"), "returns nan for 32 random vectors"),
    "infinite": (lambda e, y: e.sum() / 0, "returns -?inf for"),
    "a vector": (lambda e, y: e.sum(1), "returns 32 numbers: return one, such as their mean"),
    "a constant": (lambda e, y: torch.ones((), requires_grad=True), "does not depend on the embeddings"),
    "detached": (lambda e, y: e.detach().sum(), "does not depend on the embeddings"),
    "a float": (lambda e, y: float(e.sum()), "returns a float"),
    "nothing": (lambda e, y: None, "returns a NoneType"),
    "a mapping": (lambda e, y: {"loss": e.sum()}, "returns a dict"),
    "an error": (lambda e, y: {}["margin"], r"fails: KeyError: 'margin' \(test_registry.py, line \d+\)"),
    "square root of 0": (
        lambda e, y: (2 - 2 * e @ e.T).clamp(min=0).sqrt().sum(),
        "gradient of loss 'mine' is not finite",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_loss_that_cannot_train_is_refused(name: str) -> None:
    function, message = BAD[name]
    with pytest.raises(ConfigError, match=message):
        try_loss(Lambda(function), "mine", dim=8, num_classes=20)


@pytest.mark.parametrize("classes", [1, 2, 300])
def test_a_sound_loss_passes_and_draws_nothing(classes: int) -> None:
    before = torch.get_rng_state()
    for loss in (RecallAtK(), Lambda(lambda e, y: (e @ e.T).mean()), Lambda(lambda e, y: (e @ e.T).mean().reshape(1))):
        try_loss(loss, "mine", dim=8, num_classes=classes, samples_per_class=3)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_given_loss_is_tried_as_a_copy() -> None:
    loss = Lambda(lambda e, y: (e @ e.T).mean())
    try_copy(loss, "mine", 8, 20)
    assert loss.calls == 0
    with pytest.raises(ConfigError, match="32 numbers"):
        try_copy(Lambda(lambda e, y: e.sum(1)), "mine", 8, 20)

    class Uncopied(Lambda):
        def __deepcopy__(self, memory: object) -> Lambda:
            raise TypeError("an open file")

    try_copy(Uncopied(lambda e, y: None), "mine", 8, 20)  # left to the first step


@pytest.mark.parametrize("wrong", ["a vector", "a float", "nothing"])
def test_the_step_refuses_what_is_not_one_number(wrong: str) -> None:
    with pytest.raises(InputError, match="must return a tensor with one number"):
        large_batch_step(nn.Linear(4, 8), BAD[wrong][0], torch.randn(32, 4), torch.arange(32), 8)  # type: ignore[arg-type]
