"""The optimizer: Adam, AdamW or SGD over the embedder's parameter groups and the loss's own parameters."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import nn

from recollect.common.errors import ConfigError
from recollect.config.schema import OptimizerConfig
from recollect.training.schedule import Position, learning_rate_factor


class HasGroups(Protocol):
    """What is asked of a model: an ``Embedder`` has it."""

    def parameter_groups(
        self,
        lr: float,
        weight_decay: float,
        head_multiplier: float = 1.0,
        p_multiplier: float = 1.0,
        decay_norm_and_bias: bool = True,
    ) -> list[dict[str, Any]]:
        """Groups for an optimizer, without frozen parameters."""


def make_optimizer(config: OptimizerConfig, model: HasGroups, loss: nn.Module) -> torch.optim.Optimizer:
    """An optimizer of everything that is trained; each group remembers its full learning rate as ``base_lr``.

    Raises:
        ConfigError: nothing is left to train.
    """
    if config.lr == "auto":
        raise ConfigError("optimizer.lr 'auto' must be settled before an optimizer can be made: set a number.")
    groups = model.parameter_groups(
        config.lr, config.weight_decay, config.head_multiplier, config.p_multiplier, config.decay_norm_and_bias
    )
    own = [parameter for parameter in loss.parameters() if parameter.requires_grad]
    if own:
        # Class vectors are compared by angle, so decay would only shrink them: none.
        groups.append({"name": "loss", "params": own, "lr": config.lr * config.loss_multiplier, "weight_decay": 0.0})
    if not groups:
        raise ConfigError("nothing is left to train: the whole model is frozen. Set model.freeze to an earlier stage.")
    for group in groups:
        group["base_lr"] = group["lr"]
    if config.name == "sgd":
        return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum)
    return (torch.optim.Adam if config.name == "adam" else torch.optim.AdamW)(groups, lr=config.lr)


def set_learning_rates(optimizer: torch.optim.Optimizer, config: OptimizerConfig, position: Position) -> float:
    """Set every group's learning rate for the next step; returns the factor."""
    factor = learning_rate_factor(config, position)
    for group in optimizer.param_groups:
        group["lr"] = group["base_lr"] * factor
    return factor


def clip_gradients(optimizer: torch.optim.Optimizer, largest: float | None) -> float:
    """The norm of the whole gradient, before it is clipped to ``largest``."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    norm = nn.utils.clip_grad_norm_(parameters, float("inf") if largest is None else largest)
    return float(norm)
