"""Learning rates and parameter groups."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from training_toys import Proxies

from recollect.common.errors import ConfigError
from recollect.config.schema import OptimizerConfig
from recollect.training.optimizer import (
    Position,
    clip_gradients,
    learning_rate_factor,
    make_optimizer,
    set_learning_rates,
)


def factors(config: OptimizerConfig, epochs: int, batches: int) -> list[float]:
    """The factor before each step of a training, positions found as the trainer finds them."""
    return [
        learning_rate_factor(config, Position(e + b / batches, (e + b / batches) / epochs, 1 / batches))
        for e in range(epochs)
        for b in range(batches)
    ]


def test_milestones_are_those_of_torch() -> None:
    """Torch's MultiStepLR, stepped after each epoch, is what the paper's code uses."""
    parameter = nn.Parameter(torch.zeros(1))
    theirs = torch.optim.SGD([parameter], lr=1.0)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(theirs, milestones=[3, 5], gamma=0.3)
    expected = []
    for _ in range(7):
        expected += [theirs.param_groups[0]["lr"]] * 13
        theirs.step()
        scheduler.step()
    ours = factors(OptimizerConfig(milestones=(3, 5), gamma=0.3), 7, 13)
    assert ours == pytest.approx(expected, rel=1e-12)


def test_exponential_is_that_of_torch() -> None:
    parameter = nn.Parameter(torch.zeros(1))
    theirs = torch.optim.SGD([parameter], lr=1.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(theirs, gamma=0.99)
    expected = []
    for _ in range(7):
        expected += [theirs.param_groups[0]["lr"]] * 13
        theirs.step()
        scheduler.step()
    ours = factors(OptimizerConfig(schedule="exponential", gamma=0.99), 7, 13)
    assert ours == pytest.approx(expected, rel=1e-12)


def test_cosine_goes_from_one_to_nearly_nothing() -> None:
    ours = factors(OptimizerConfig(schedule="cosine"), 4, 5)
    assert ours[0] == 1
    assert ours[10] == pytest.approx(0.5)
    assert ours == [pytest.approx(0.5 * (1 + math.cos(math.pi * i / 20))) for i in range(20)]


def test_warm_up_rises_in_equal_steps_and_multiplies() -> None:
    ours = factors(OptimizerConfig(schedule="constant", warm_up=2.0), 4, 5)
    assert ours[:10] == pytest.approx([(i + 1) / 10 for i in range(10)])
    assert set(ours[10:]) == {1.0}
    assert factors(OptimizerConfig(schedule="constant", warm_up=0.4), 1, 5) == pytest.approx([0.5, 1, 1, 1, 1])


class Grouped(nn.Module):
    def __init__(self, frozen: bool = False) -> None:
        super().__init__()
        self.backbone, self.head = nn.Linear(3, 3), nn.Linear(3, 2)
        self.frozen = frozen

    def parameter_groups(
        self,
        lr: float,
        weight_decay: float,
        head: float = 1.0,
        p: float = 1.0,
        decay: bool = True,
        decay_p: bool = False,
    ) -> list[dict[str, Any]]:
        if self.frozen:
            return []
        return [
            {"name": "backbone", "params": list(self.backbone.parameters()), "lr": lr, "weight_decay": weight_decay},
            {"name": "head", "params": list(self.head.parameters()), "lr": lr * head, "weight_decay": weight_decay},
        ]


@pytest.mark.parametrize(
    ("name", "kind"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW), ("sgd", torch.optim.SGD)]
)
def test_optimizers_and_groups(name: str, kind: type) -> None:
    config = OptimizerConfig(name=name, lr=0.1, momentum=0.7, head_multiplier=5, loss_multiplier=100, schedule="cosine")  # type: ignore[arg-type]
    optimizer = make_optimizer(config, Grouped(), Proxies(3, 2))
    assert type(optimizer) is kind
    assert optimizer.defaults.get("momentum", 0.7) == 0.7
    assert [(g["name"], g["lr"], g["weight_decay"]) for g in optimizer.param_groups] == [
        ("backbone", 0.1, 4e-4),
        ("head", 0.5, 4e-4),
        ("loss", 10.0, 0.0),
    ]
    set_learning_rates(optimizer, config, Position(1.0, 0.5, 0.1))
    set_learning_rates(optimizer, config, Position(1.0, 0.5, 0.1))  # not upon one another
    assert [g["lr"] for g in optimizer.param_groups] == pytest.approx([0.05, 0.25, 5.0])


def test_nothing_to_train() -> None:
    with pytest.raises(ConfigError, match=r"nothing .*to train"):
        make_optimizer(OptimizerConfig(), Grouped(frozen=True), nn.Identity())


def test_clipping_bounds_the_whole_gradient_and_tells_its_norm() -> None:
    model = Grouped()
    optimizer = make_optimizer(OptimizerConfig(), model, nn.Identity())
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 2.0)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert clip_gradients(optimizer, None) == pytest.approx(2 * math.sqrt(count))
    assert clip_gradients(optimizer, 1.0) == pytest.approx(2 * math.sqrt(count))
    total = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).norm()
    assert float(total) == pytest.approx(1.0, abs=1e-4)
