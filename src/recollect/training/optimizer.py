"""The optimizer (Adam, AdamW or SGD over the embedder's groups and the loss's parameters) and its learning rate.

The learning rate is a function of the progress of the training, so there is no state to save.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from recollect.common.errors import ConfigError
from recollect.config.schema import OptimizerConfig
from recollect.models import Embedder


def make_optimizer(config: OptimizerConfig, model: Embedder, loss: nn.Module) -> torch.optim.Optimizer:
    """An optimizer of everything that is trained; each group remembers its full learning rate as ``base_lr``.

    Raises:
        ConfigError: nothing is left to train.
    """
    if config.lr == "auto":
        raise ConfigError("optimizer.lr is still 'auto', but the optimizer needs a number: set optimizer.lr.")
    groups = model.parameter_groups(
        config.lr,
        config.weight_decay,
        config.head_multiplier,
        config.p_multiplier,
        config.decay_norm_and_bias,
        config.decay_p,
    )
    own = [parameter for parameter in loss.parameters() if parameter.requires_grad]
    if own:
        # No weight decay: class vectors are compared by angle, so it would only shrink them.
        groups.append({"name": "loss", "params": own, "lr": config.lr * config.loss_multiplier, "weight_decay": 0.0})
    if not groups:
        raise ConfigError("nothing is left to train: the whole model is frozen. Set model.freeze to an earlier stage.")
    for group in groups:
        group["base_lr"] = group["lr"]
    return optimizer_of(config, groups)


def optimizer_of(config: OptimizerConfig, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """The optimizer called ``config.name`` over ``groups``, each with its learning rate."""
    if config.name == "sgd":
        return torch.optim.SGD(groups, momentum=config.momentum)
    return (torch.optim.Adam if config.name == "adam" else torch.optim.AdamW)(groups)


@dataclass(frozen=True)
class Position:
    """The progress of a training before a step.

    Args:
        epoch: epochs done, including the fraction of the current one.
        fraction: how much of the whole training is done, from 0 to below 1.
        step_in_epochs: how much of an epoch one step is.
    """

    epoch: float
    fraction: float
    step_in_epochs: float


def learning_rate_factor(config: OptimizerConfig, position: Position) -> float:
    """The factor on every learning rate.

    ``milestones``: by ``gamma`` once for each milestone (in epochs) that has been reached; ``exponential``: by
    ``gamma`` once for each epoch that has ended; ``cosine``: half a cosine
    from 1 to 0 over the training; ``constant``: 1. The warm-up rises linearly, its first step being above 0.

    Examples:
        >>> config = OptimizerConfig(milestones=(40, 70), gamma=0.3)
        >>> [round(learning_rate_factor(config, Position(epoch, 0.0, 0.1)), 2) for epoch in (39.9, 40.0, 70.0)]
        [1.0, 0.3, 0.09]
    """
    if config.schedule == "milestones":
        # Positions are sums of fractions of epochs; 39.9999999 is epoch 40.
        factor = config.gamma ** sum(position.epoch >= milestone - 1e-9 for milestone in config.milestones)
    elif config.schedule == "exponential":
        factor = config.gamma ** math.floor(position.epoch + 1e-9)
    elif config.schedule == "cosine":
        factor = 0.5 * (1 + math.cos(math.pi * position.fraction))
    else:
        factor = 1.0
    if config.warm_up > 0:
        factor *= min(1.0, (position.epoch + position.step_in_epochs) / config.warm_up)
    return factor


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
