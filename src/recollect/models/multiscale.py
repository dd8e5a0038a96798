"""Descriptors averaged over several scales of an image: normalized, averaged, and normalized again.

Resizing is done on the normalized tensor, bilinear without aligned corners, as is usual in instance search. As in cirtorch,
what a network was trained to return is averaged; a whitening that was added afterwards is applied to the average.
``Embedder.embed`` calls ``multiscale`` when it is given scales.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch.nn.functional as F
from torch import Tensor

from recollect.common.errors import InputError
from recollect.models.heads import unit

INSTANCE_SEARCH_SCALES = (1.0, math.sqrt(2.0), 1.0 / math.sqrt(2.0))
"""The three scales of the instance-search protocol."""


def multiscale(
    model: Callable[[Tensor], Tensor], images: Tensor, scales: Sequence[float], multiple: int = 1, power: float = 1.0
) -> Tensor:
    """The normalized mean of ``model(images resized by s)`` over ``scales``.

    Args:
        model: maps normalized images (B×3×H×W) to unit vectors.
        images: normalized, floating point.
        scales: positive factors for both sides.
        multiple: sides are rounded to multiples of this (the patch of a transformer); 1 rounds down as torch does.
        power: exponent of the mean: that of GeM for its own descriptors, which have no negative values.

    Examples:
        >>> import torch
        >>> model = lambda x: torch.nn.functional.normalize(x.mean((2, 3)), dim=1)
        >>> multiscale(model, torch.rand(2, 3, 32, 48), (1.0, 0.5)).shape
        torch.Size([2, 3])
    """
    check_scales(scales)
    first, *others = (unit(model(fit(images, scale, multiple))) ** power for scale in scales)
    return unit(sum(others, first) ** (1 / power))


def fit(images: Tensor, scale: float = 1.0, multiple: int = 1) -> Tensor:
    """Resize by ``scale``, with sides rounded to multiples of ``multiple``; returns the same images if nothing changes."""
    if multiple == 1 and scale == 1:
        return images
    height, width = images.shape[-2:]
    if multiple == 1:
        if min(math.floor(height * scale), math.floor(width * scale)) < 1:
            raise InputError(
                f"images of {width}×{height} pixels would have no pixels at scale {scale:g}: use a larger scale."
            )
        return F.interpolate(images, scale_factor=scale, mode="bilinear", align_corners=False)
    size = [max(multiple, round(side * scale / multiple) * multiple) for side in (height, width)]
    if size == [height, width]:
        return images
    return F.interpolate(images, size=size, mode="bilinear", align_corners=False)


def check_scales(scales: Sequence[float]) -> None:
    """Refuse scales that are not positive numbers."""
    if len(scales) == 0 or not all(scale > 0 and math.isfinite(scale) for scale in scales):
        raise InputError(f"scales must be one or more positive numbers, not {list(scales)}.")


def sizes_at(height: int, width: int, scales: Sequence[float]) -> int:
    """Pixels of one image over all scales: the memory of a batch is proportional to it."""
    return sum(math.ceil(height * scale) * math.ceil(width * scale) for scale in scales)
