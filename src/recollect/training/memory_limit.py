"""Refuses a plan that needs more memory than the machine has, before anything that large is allocated."""

from __future__ import annotations

import contextlib
from itertools import chain

import torch
from torch import Tensor, nn
from torch.func import functional_call

from recollect.common.errors import ConfigError, in_bytes
from recollect.common.machine import total_memory
from recollect.training.probes import passing_bytes

_ERROR = 1.3
"""How far a plan's estimate may be above the memory that a training uses (docs/training.md)."""


def refuse_chunk(network: nn.Module, inputs: Tensor, chunk: int, device: torch.device) -> None:
    """Refuse a chunk of images for which a single layer needs more memory than there is.

    Computed on tensors without values, so nothing is allocated.

    Args:
        network: the trained part. inputs: one input of the largest size. chunk: images in the network at once.

    Raises:
        ConfigError: the message says what to lower.
    """
    memory = _memory_of(device)
    if memory is None or chunk * inputs[0].numel() * 64 < memory:  # far from any limit; spares small trainings the pass
        return
    named = chain(network.named_parameters(), network.named_buffers())
    tensors = {name: tensor.to("meta") for name, tensor in named}
    images = torch.empty((chunk, *inputs.shape[1:]), dtype=inputs.dtype, device="meta")
    with contextlib.suppress(RuntimeError, NotImplementedError), torch.no_grad():  # a layer that looks at values
        least = passing_bytes(network, lambda: functional_call(network, tensors, (images,)))
        _refuse(least, memory, "at least ")


def refuse_estimate(needed: float, device: torch.device) -> None:
    """Refuse a plan that needs more memory than there is, allowing for the error of the estimate.

    Raises:
        ConfigError: the message says what to lower.
    """
    if (memory := _memory_of(device)) is not None:
        _refuse(needed, _ERROR * memory, "about ")


def _refuse(needed: float, limit: float, about: str) -> None:
    if needed > limit:
        raise ConfigError(
            f"this training needs {about}{in_bytes(int(needed))} of memory, more than this machine has. Lower batch.chunk "
            "(--chunk, which never changes the result), model.image_size (--image-size) or batch.size (--batch-size)."
        )


def _memory_of(device: torch.device) -> int | None:
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return total_memory()
