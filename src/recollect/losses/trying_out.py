"""Tests a loss from outside the package once before training.

Training calls ``loss(embeddings, labels)`` and needs one number that depends on the embeddings. A loss that returns
something else would fail in the first step, or silently train nothing. ``training/build.py`` calls ``try_loss``; a loss
passed in Python is tried as a copy, so that neither its memory nor its random state changes.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from recollect.common import plugins
from recollect.common.errors import ConfigError

_MOST = 8
"""Number of classes, and of images per class, that a loss is tried with."""


def try_loss(
    loss: nn.Module,
    name: str,
    dim: int,
    num_classes: int,
    *,
    samples_per_class: int = 4,
    device: torch.device | str = "cpu",
) -> None:
    """Call a loss on random vectors of length 1, and refuse one that cannot train.

    Args:
        loss: the loss; its state may change.
        name: for messages.
        dim: length of the embeddings.
        num_classes: labels are below this number.
        samples_per_class: vectors of each label, at most 8.
        device: where it will be called; it is moved there.

    Raises:
        ConfigError: it fails, does not return one number, or that number or its gradient is not finite or does not depend
            on the embeddings.

    Example:
        >>> class Spread(nn.Module):
        ...     def forward(self, embeddings, labels):
        ...         return (embeddings @ embeddings.T).mean(dim=1)
        >>> try_loss(Spread(), "Spread", dim=8, num_classes=4)
        Traceback (most recent call last):
        ...
        recollect.common.errors.ConfigError: loss 'Spread' returns 16 numbers: return one, such as their mean.
    """
    what = f"loss {name!r}"
    labels = torch.arange(max(1, min(_MOST, num_classes))).repeat_interleave(min(_MOST, samples_per_class))
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(0)
        vectors = nn.functional.normalize(torch.randn(len(labels), dim), dim=1)
        embeddings = vectors.to(device).requires_grad_()
        with plugins.errors_as_config(what):
            value: Any = loss.to(device)(embeddings, labels.to(device))
        if not isinstance(value, Tensor):
            raise ConfigError(f"{what} returns a {type(value).__name__}: return a tensor with one number.")
        if value.numel() != 1:
            raise ConfigError(f"{what} returns {value.numel()} numbers: return one, such as their mean.")
        gradient = None
        if value.requires_grad:
            with plugins.errors_as_config(what):
                (gradient,) = torch.autograd.grad(value.squeeze(), embeddings, allow_unused=True)
    if gradient is None:
        raise ConfigError(
            f"{what} does not depend on the embeddings, so it would train nothing: compute it from them with torch, "
            "without detach(), item() or numpy."
        )
    if not bool(value.isfinite().all()):
        raise ConfigError(
            f"{what} returns {float(value)} for {len(labels)} random vectors of length 1: check it for log(0), 0/0 or overflow."
        )
    if not bool(gradient.isfinite().all()):
        raise ConfigError(
            f"the gradient of {what} is not finite for {len(labels)} random vectors of length 1. A common cause is the square "
            "root or the norm of 0, for example the distance of a vector to itself: add a small number, or mask it."
        )


def try_given(loss: nn.Module, name: str, dim: int, num_classes: int, **options: Any) -> None:
    """``try_loss`` on a copy of an object; one that cannot be copied, or is recollect's own, is not tried."""
    if type(loss).__module__.startswith("recollect."):
        return
    try:
        copied = copy.deepcopy(loss)
    except Exception:  # it contains something that cannot be copied, such as an open file
        return
    try_loss(copied, name, dim, num_classes, **options)
