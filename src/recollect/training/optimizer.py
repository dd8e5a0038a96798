"""The optimizer over the embedder's groups and the loss's parameters, its step and learning rate, and requests to stop.

The learning rate is a function of the progress of the training, so there is no state to save. A training stops after the
current step on SIGINT and SIGTERM, so that a checkpoint can be written.
"""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from recollect.common import plugins
from recollect.common.errors import ConfigError
from recollect.common.machine import tf32
from recollect.config.schema import Config, OptimizerConfig
from recollect.data.pipeline import Batch
from recollect.models import Embedder
from recollect.step.distributed import Processes
from recollect.step.large_batch import StepInfo, is_out_of_memory, large_batch_step, out_of_memory
from recollect.training.run import Trained

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
}
"""By name. Others are found by ``common/plugins.py``: ``my.py:MyOptimizer``, ``package.module:name``, or a name that an
installed package adds. Each is called with groups of parameters that have their own ``lr`` and ``weight_decay``, and with
``momentum`` if it has that argument."""


def find_optimizer(name: str) -> Callable[..., torch.optim.Optimizer]:
    """The class or function of an optimizer's name or reference.

    Raises:
        ConfigError: there is none.
    """
    if name in OPTIMIZERS:
        return OPTIMIZERS[name]
    loaded = plugins.load("optimizer", name)
    if loaded is None:
        raise plugins.unknown("optimizer", name, OPTIMIZERS)
    target: Callable[..., torch.optim.Optimizer] = loaded.target
    return target


def make_optimizer(config: OptimizerConfig, model: Embedder, loss: nn.Module) -> torch.optim.Optimizer:
    """An optimizer of everything that is trained; each group remembers its full learning rate as ``base_lr``.

    Raises:
        ConfigError: nothing is left to train, or there is no such optimizer.
    """
    lr = float(config.lr)  # "auto" was chosen before
    groups = model.parameter_groups(
        lr,
        config.weight_decay,
        config.head_multiplier,
        config.p_multiplier,
        config.decay_norm_and_bias,
        config.decay_p,
        config.layer_decay,
    )
    own = [parameter for parameter in loss.parameters() if parameter.requires_grad]
    if own:
        # No weight decay: class vectors are compared by angle, so it would only shrink them.
        groups.append({"name": "loss", "params": own, "lr": lr * config.loss_multiplier, "weight_decay": 0.0})
    if not groups:
        raise ConfigError("nothing is left to train: the whole model is frozen. Set model.freeze to an earlier stage.")
    for group in groups:
        group["base_lr"] = group["lr"]
    maker = find_optimizer(config.name)
    with plugins.errors_as_config(f"optimizer {config.name!r}"):
        options: dict[str, Any] = {"momentum": config.momentum} if "momentum" in plugins.options_of(maker) else {}
        if config.name in OPTIMIZERS and groups[0]["params"][0].device.type == "cuda":
            options["fused"] = True  # one pass over memory instead of a dozen
        optimizer = maker(groups, **options)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(f"optimizer {config.name!r} returned a {type(optimizer).__name__} instead of an Optimizer.")
    return optimizer


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


def take_step(
    network: nn.Module,
    trained: Trained,
    config: Config,
    batch: Batch,
    position: Position,
    chunk: int,
    *,
    dtype: torch.dtype | None = None,
    info: StepInfo | None = None,
    check: Callable[[float, float], None] = lambda loss, norm: None,
) -> tuple[float, float, float]:
    """One optimizer step on a batch.

    Args:
        network: the trained part. trained: loss, optimizer and scaler. config: the settings.
        batch: this process's part of it.
        position: the progress of the training, which the learning rate depends on.
        chunk: images in the network at once.
        dtype: of autocast; None for float32.
        info: filled with what the step did.
        check: called with the loss and the norm of the gradient before the weights change; may raise.

    Returns:
        The loss, the norm of the whole gradient before clipping, and the factor on the learning rates.
    """
    optimizer, scaler = trained.optimizer, trained.scaler
    factor = learning_rate_factor(config.optimizer, position)
    for group in optimizer.param_groups:
        group["lr"] = group["base_lr"] * factor
    optimizer.zero_grad(set_to_none=True)
    try:
        with tf32(trained.device):
            value = large_batch_step(
                network,
                trained.loss,
                batch.images,
                batch.labels,
                chunk,
                autocast=dtype,
                scaler=scaler if scaler.is_enabled() else None,
                group=trained.processes,
                skip_share=config.batch.skip_share,
                info=info,
            )
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise out_of_memory(error, chunk) from error
    scaler.unscale_(optimizer)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    largest = float("inf") if config.optimizer.clip is None else config.optimizer.clip
    loss, norm = float(value), clip_gradients(parameters, largest)
    check(loss, norm)
    scaler.step(optimizer)
    scaler.update()
    if trained.average is not None:
        trained.average.update()
    return loss, norm, factor


def clip_gradients(parameters: Sequence[nn.Parameter], largest: float) -> float:
    """``clip_grad_norm_``, also where some gradients are divided among processes; returns the norm of all before it."""
    gradients: list[Any] = [parameter.grad for parameter in parameters if parameter.grad is not None]
    shards = [gradient for gradient in gradients if hasattr(gradient, "full_tensor")]
    if not shards:
        return float(nn.utils.clip_grad_norm_(parameters, largest))
    others = [gradient for gradient in gradients if not hasattr(gradient, "full_tensor")]
    norms: list[Any] = [nn.utils.get_total_norm(shards), nn.utils.get_total_norm(others)]
    norm = math.hypot(float(norms[0].full_tensor()), float(norms[1]))
    for gradient in (*(shard.to_local() for shard in shards), *others):
        gradient.mul_(min(1.0, largest / (norm + 1e-6)))
    return norm


class StopRequest:
    """Whether this training was asked to stop, and by which signal."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def ask(self, number: int, frame: FrameType | None = None) -> None:
        """Record a signal; a second one ends the process at once, as by default."""
        if self.signal is not None:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.signal = number

    def agreed(self, due: bool, processes: Processes, device: torch.device) -> tuple[bool, int | None]:
        """Whether a checkpoint is ``due`` on any process, and the signal that any received: all act after the same step."""
        if processes.size == 1:
            return due, self.signal
        requests = torch.tensor([int(due), self.signal or 0], device=device)
        dist.all_reduce(requests, op=dist.ReduceOp.MAX, group=processes.group)
        due_anywhere, number = requests.tolist()
        return bool(due_anywhere), number or None


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Catch SIGINT and SIGTERM inside the block. Outside the main thread, where that is impossible, catch nothing."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    earlier = {number: signal.signal(number, request.ask) for number in numbers}
    try:
        yield request
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
