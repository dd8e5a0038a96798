"""Pixels before the backbone: normalization, and images of several sizes.

``Embedder`` uses both. Resizing and cropping themselves are in ``common/preprocessing.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from recollect.common.errors import ConfigError, InputError
from recollect.common.preprocessing import Preprocessing
from recollect.common.size_groups import grouped


class InputNormalization(nn.Module):
    """Maps uint8 pixels to ``(x / 255 − mean) / std`` on their device; floating-point tensors are returned unchanged."""

    def __init__(self, preprocessing: Preprocessing) -> None:
        super().__init__()
        mean = torch.tensor(preprocessing.mean, dtype=torch.float32).reshape(-1, 1, 1)
        std = torch.tensor(preprocessing.std, dtype=torch.float32).reshape(-1, 1, 1)
        # Not saved with the tensors: embedder.json is the only place for them.
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("std", std, persistent=False)
        self.mean: Tensor
        self.std: Tensor

    def forward(self, images: Tensor) -> Tensor:
        """B×3×H×W of uint8 or floating point → normalized floating point."""
        if images.ndim != 4 or images.shape[1] != 3:
            raise InputError(f"images must be B×3×H×W, not {tuple(images.shape)}.")
        if images.dtype == torch.uint8:
            return images.to(self.mean.dtype).div_(255).sub_(self.mean).div_(self.std)
        if not images.is_floating_point():
            raise InputError(f"images must be uint8 (0–255) or floating point (normalized), not {images.dtype}.")
        return images


def check_patches(size: int, patch: int, name: str) -> None:
    """Refuse a size that is not a multiple of a transformer's patch size.

    Raises:
        ConfigError: the message names the nearest valid sizes.
    """
    if size % patch:
        below = size // patch * patch
        choices = f"{below} or {below + patch}" if below else str(patch)
        raise ConfigError(
            f"image size {size} is not a multiple of the patch size of {name}, {patch} pixels: use {choices}."
        )


def by_shape(run: Callable[[Tensor], Tensor], images: Sequence[Tensor]) -> Tensor:
    """``run`` on images of any sizes: images of equal size together, the rows of the result in the order of the images.

    Examples:
        >>> by_shape(lambda x: x.mean((2, 3)), [torch.zeros(3, 4, 2), torch.ones(3, 2, 4), torch.ones(3, 4, 2)])[:, 0]
        tensor([0., 1., 1.])
    """
    for row, image in enumerate(images):
        if image.ndim != 3 or image.shape[0] != 3:
            raise InputError(f"image {row} of the list must be 3×H×W, not {tuple(image.shape)}.")
    if not images:
        raise InputError("the list of images is empty: give at least one.")
    groups = grouped(image.shape for image in images)
    results = torch.cat([run(torch.stack([images[row] for row in rows])) for rows in groups])
    order = torch.tensor([row for rows in groups for row in rows], device=results.device)
    return results[order.argsort()]
