"""Inputs of a network: one tensor, several, or a list of images of different sizes.

``large_batch_step`` counts, slices and passes on its images only through these functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from recollect.common.errors import InputError

Images = Tensor | tuple[Tensor, ...] | Mapping[str, Tensor] | list[Tensor]


def tensors_of(images: Images) -> list[Tensor]:
    """The tensors of an input, in order."""
    if isinstance(images, Tensor):
        return [images]
    return list(images.values()) if isinstance(images, Mapping) else list(images)


def first_tensor(images: Images) -> Tensor:
    """The first tensor; raises an error if the input is something else."""
    tensors = tensors_of(images)
    if not tensors or not all(isinstance(tensor, Tensor) for tensor in tensors):
        raise InputError(f"images must be a tensor, or a tuple, dict or list of tensors, not {describe(images)}.")
    return tensors[0]


def count_rows(images: Images, labels: Tensor) -> int:
    """The number of images; raises an error if it differs from the number of labels."""
    counts = {len(images)} if isinstance(images, list) else {len(tensor) for tensor in tensors_of(images)}
    if counts != {len(labels)} or not len(labels):
        raise InputError(
            f"give one label per image, and at least one image: there are {sorted(counts)} images and {len(labels)} labels."
        )
    return len(labels)


def take_rows(images: Images, rows: slice | Tensor, device: torch.device) -> Images:
    """Some of the images, on ``device``."""

    def some(tensor: Tensor) -> Tensor:
        taken = tensor[rows if isinstance(rows, slice) else rows.to(tensor.device)]
        return taken.to(device, non_blocking=True)

    if isinstance(images, Tensor):
        return some(images)
    if isinstance(images, Mapping):
        return {name: some(tensor) for name, tensor in images.items()}
    if isinstance(images, list):
        chosen = images[rows] if isinstance(rows, slice) else [images[row] for row in rows.tolist()]
        return [image.to(device, non_blocking=True) for image in chosen]
    return tuple(some(tensor) for tensor in images)


def call_model(model: nn.Module, images: Images) -> Any:
    """``model(images)``, with a tuple or dict as its arguments."""
    if isinstance(images, Mapping):
        return model(**images)
    return model(*images) if isinstance(images, tuple) else model(images)


def describe(value: object) -> str:
    """A value in a few words, for messages."""
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
