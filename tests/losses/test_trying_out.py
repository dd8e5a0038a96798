"""A loss from outside is tried before a training: what cannot train is refused with a sentence."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from recollect.common.errors import ConfigError, InputError
from recollect.losses import RecallAtK
from recollect.losses.trying_out import try_given, try_loss
from recollect.step import large_batch_step


class Made(nn.Module):
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
    "a constant": (lambda e, y: torch.tensor(1.0), "does not depend on the embeddings"),
    "detached": (lambda e, y: e.detach().sum(), "does not depend on the embeddings"),
    "a float": (lambda e, y: float(e.sum()), "returns a float"),
    "nothing": (lambda e, y: None, "returns a NoneType"),
    "a mapping": (lambda e, y: {"loss": e.sum()}, "returns a dict"),
    "an error": (lambda e, y: {}["margin"], r"fails: KeyError: 'margin' \(test_trying_out.py, line \d+\)"),
    "square root of 0": (
        lambda e, y: (2 - 2 * e @ e.T).clamp(min=0).sqrt().sum(),
        "gradient of loss 'mine' is not finite",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_loss_that_cannot_train_is_refused(name: str) -> None:
    function, said = BAD[name]
    with pytest.raises(ConfigError, match=said):
        try_loss(Made(function), "mine", dim=8, num_classes=20)


def test_a_loss_of_its_own_parameters_only_is_refused() -> None:
    loss = Made(lambda e, y: loss.weight * 2)
    with pytest.raises(ConfigError, match="does not depend"):
        try_loss(loss, "mine", dim=8, num_classes=20)


@pytest.mark.parametrize("classes", [1, 2, 300])
def test_a_sound_loss_passes_and_draws_nothing(classes: int) -> None:
    before = torch.get_rng_state()
    for loss in (RecallAtK(), Made(lambda e, y: (e @ e.T).mean()), Made(lambda e, y: (e @ e.T).mean().reshape(1))):
        try_loss(loss, "mine", dim=8, num_classes=classes, samples_per_class=3)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_given_loss_is_tried_as_a_copy() -> None:
    loss = Made(lambda e, y: (e @ e.T).mean())
    try_given(loss, "mine", 8, 20)
    assert loss.calls == 0
    with pytest.raises(ConfigError, match="32 numbers"):
        try_given(Made(lambda e, y: e.sum(1)), "mine", 8, 20)

    class Uncopied(Made):
        def __deepcopy__(self, memory: object) -> Made:
            raise TypeError("an open file")

    try_given(Uncopied(lambda e, y: None), "mine", 8, 20)  # left to the first step


@pytest.mark.parametrize("wrong", ["a vector", "a float", "nothing"])
def test_the_step_refuses_what_is_not_one_number(wrong: str) -> None:
    with pytest.raises(InputError, match="must return a tensor with one number"):
        large_batch_step(nn.Linear(4, 8), BAD[wrong][0], torch.randn(32, 4), torch.arange(32), 8)  # type: ignore[arg-type]
