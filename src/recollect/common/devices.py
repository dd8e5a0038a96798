"""The device a user names, or a sentence why it cannot be used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recollect.common.errors import ConfigError

if TYPE_CHECKING:
    import torch


def usable_device(wanted: str, setting: str = "device", *, training: bool = False) -> torch.device:
    """The device called ``wanted``; ``"auto"`` is a GPU if there is one.

    Args:
        wanted: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``mps``, …
        setting: what the user set, for the message.
        training: whether losses and metrics are to be computed there, not only embeddings.

    Raises:
        ConfigError: there is no such device here.
    """
    import torch

    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError as error:
        raise ConfigError(f"{setting} {wanted!r} is no device: use auto, cpu or cuda.") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"{setting} is {wanted}, but torch finds no GPU: use cpu, or install a CUDA build of torch.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"{setting} is {wanted}, but there are {torch.cuda.device_count()} GPUs, counted from 0.")
    if device.type not in ("cpu", "cuda"):
        _try(device, setting, training)
    return device


def _try(device: torch.device, setting: str, training: bool) -> None:
    import torch

    try:
        torch.ones(1, device=device).item()  # "meta" has tensors without content
        if training:
            torch.ones(1, dtype=torch.float64, device=device)
    except TypeError as error:  # "mps"
        raise ConfigError(
            f"{setting} is {device}, which has no float64, and losses are summed in it: use auto, cpu or cuda."
        ) from error
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(f"{setting} is {device}, which cannot compute here: use auto, cpu or cuda.") from error
