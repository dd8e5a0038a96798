"""The learning rate over a training, as a function of where it stands. Nothing to save, nothing to get out of step."""

from __future__ import annotations

import math
from dataclasses import dataclass

from recollect.config.schema import OptimizerConfig


@dataclass(frozen=True)
class Position:
    """Where a training stands before a step.

    Args:
        epoch: epochs done, with the fraction of the present one.
        fraction: how much of the whole training is done, from 0 to 1.
        step_in_epochs: how much of an epoch one step is.
    """

    epoch: float
    fraction: float
    step_in_epochs: float


def learning_rate_factor(config: OptimizerConfig, position: Position) -> float:
    """What every learning rate is multiplied by.

    ``milestones``: by ``gamma`` once for each milestone (in epochs) that has been reached; ``cosine``: half a cosine
    from 1 to 0 over the training; ``constant``: 1. The warm-up rises linearly, its first step being above 0.

    Example:
        >>> config = OptimizerConfig(milestones=(40, 70), gamma=0.3)
        >>> [round(learning_rate_factor(config, Position(epoch, 0.0, 0.1)), 2) for epoch in (39.9, 40.0, 70.0)]
        [1.0, 0.3, 0.09]
    """
    if config.schedule == "milestones":
        # Positions are sums of fractions of epochs; 39.9999999 is epoch 40.
        factor = config.gamma ** sum(position.epoch >= milestone - 1e-9 for milestone in config.milestones)
    elif config.schedule == "cosine":
        factor = 0.5 * (1 + math.cos(math.pi * min(position.fraction, 1.0)))
    else:
        factor = 1.0
    if config.warm_up > 0:
        factor *= min(1.0, (position.epoch + position.step_in_epochs) / config.warm_up)
    return factor
