"""Learning rates, parameter groups, a step, and a request to stop."""

from __future__ import annotations

import math
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from training_toys import Proxies

from recollect.common.errors import ConfigError
from recollect.config.resolve import resolve
from recollect.config.schema import Config, OptimizerConfig
from recollect.data.pipeline import Batch
from recollect.step.distributed import Processes
from recollect.training.optimizer import Position, learning_rate_factor, make_optimizer, stop_on_signals, take_step
from recollect.training.run import Trained


def factors(config: OptimizerConfig, epochs: int, batches: int) -> list[float]:
    """The factor before each step of a training, positions found as the trainer finds them."""
    return [
        learning_rate_factor(config, Position(e + b / batches, (e + b / batches) / epochs, 1 / batches))
        for e in range(epochs)
        for b in range(batches)
    ]


@pytest.mark.parametrize(
    ("config", "scheduler"),
    [
        (  # stepped after each epoch, as by the paper's code
            OptimizerConfig(milestones=(3, 5), gamma=0.3),
            partial(torch.optim.lr_scheduler.MultiStepLR, milestones=[3, 5], gamma=0.3),
        ),
        (
            OptimizerConfig(schedule="exponential", gamma=0.99),
            partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.99),
        ),
    ],
)
def test_schedules_are_those_of_torch(config: OptimizerConfig, scheduler: Any) -> None:
    theirs = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule, expected = scheduler(theirs), []
    for _ in range(7):
        expected += [theirs.param_groups[0]["lr"]] * 13
        theirs.step()
        schedule.step()
    assert factors(config, 7, 13) == pytest.approx(expected, rel=1e-12)


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

    def parameter_groups(self, lr: float, weight_decay: float, head: float, *others: Any) -> list[dict[str, Any]]:
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


def test_nothing_to_train() -> None:
    with pytest.raises(ConfigError, match=r"nothing .*to train"):
        make_optimizer(OptimizerConfig(), Grouped(frozen=True), nn.Identity())


class Sum(nn.Module):
    def forward(self, vectors: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return vectors.sum()


def stepped(config: Config, steps: int = 1) -> tuple[Trained, float, float]:
    """A linear layer after some steps on the sum of its outputs; the last norm and the last factor."""
    torch.manual_seed(0)
    model, loss = Grouped(), Sum()
    trained = Trained(
        model, loss, make_optimizer(config.optimizer, model, loss), torch.amp.GradScaler("cpu", enabled=False),
        torch.device("cpu"), Processes(),
    )  # fmt: skip
    batch = Batch(torch.ones(4, 3), torch.arange(4), np.arange(4))
    for _ in range(steps):
        _, norm, factor = take_step(model.head, trained, config, batch, Position(1.0, 0.5, 0.1), 2)
    return trained, norm, factor


def test_a_step_sets_every_learning_rate_and_clips_the_whole_gradient() -> None:
    config = resolve("glyphs", {"optimizer.lr": 0.1, "optimizer.head_multiplier": 5, "optimizer.schedule": "cosine"})
    config = replace(config, optimizer=replace(config.optimizer, milestones=()))
    trained, norm, factor = stepped(config, steps=2)  # factors are not multiplied upon one another
    assert factor == pytest.approx(0.5)
    assert [group["lr"] for group in trained.optimizer.param_groups] == pytest.approx([0.05, 0.25])
    assert norm == pytest.approx(math.sqrt(8 * 4**2)), "four rows of ones, for six weights and two biases"
    clipped = replace(config, optimizer=replace(config.optimizer, clip=1.0))
    trained, norm, _ = stepped(clipped)
    assert norm == pytest.approx(math.sqrt(8 * 4**2))
    total = torch.cat([p.grad.flatten() for p in trained.model.parameters() if p.grad is not None]).norm()
    assert float(total) == pytest.approx(1.0, abs=1e-4)


def test_an_optimizer_may_come_from_outside(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import torch\ndef rms(groups):\n    return torch.optim.RMSprop(groups)\nnone = dict\n"
    )
    optimizer = make_optimizer(OptimizerConfig(name="torch.optim:RMSprop"), Grouped(), nn.Identity())
    assert type(optimizer) is torch.optim.RMSprop
    assert optimizer.defaults["momentum"] == 0.9, "optimizer.momentum reaches every optimizer that has one"
    optimizer = make_optimizer(OptimizerConfig(name=f"{tmp_path}/own.py:rms"), Grouped(), nn.Identity())
    assert [group["base_lr"] for group in optimizer.param_groups] == [1e-4, 1e-4]
    with pytest.raises(ConfigError, match=r"'adamm' is unknown\. Did you mean adam"):
        make_optimizer(OptimizerConfig(name="adamm"), Grouped(), nn.Identity())
    with pytest.raises(ConfigError, match=r"none' (fails|returned)"):
        make_optimizer(OptimizerConfig(name=f"{tmp_path}/own.py:none"), Grouped(), nn.Identity())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_a_wish(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with stop_on_signals() as stop:
        assert stop.agreed(True, Processes(), torch.device("cpu")) == (True, None)
        signal.raise_signal(number)
        assert stop.agreed(False, Processes(), torch.device("cpu")) == (False, number)
    assert signal.getsignal(number) is before
