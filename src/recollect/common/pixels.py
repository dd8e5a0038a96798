"""The input pixels of a network: upright RGB, resized, cropped. Uses only numpy and Pillow.

``common/images.py`` and ``Preprocessing`` call these functions, and ``recollect export`` writes a copy of this file next to
the ONNX model, so that a program without torch and without recollect computes the same pixels with the same code. Import
only the standard library, numpy and Pillow here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile, ImageOps

MAX_RESIZED = 100_000_000
"""Maximum number of pixels after resizing the shorter side: 0.4 GB. Only very narrow images have more."""

_BAND = 2**20  # pixels converted at a time


def upright(image: Image.Image) -> Image.Image:
    """A PIL image as 8-bit RGB, rotated according to its EXIF orientation; ``image`` itself may be changed."""
    ImageOps.exif_transpose(image, in_place=True)  # otherwise it copies images that need no rotation
    return to_rgb(image)


def to_rgb(image: Image.Image) -> Image.Image:
    """Any PIL image as 8-bit RGB: transparency becomes white, 16-bit values are reduced to their high byte."""
    image.load()
    if image.mode in ("I;16", "I;16L", "I;16B", "I;16N", "I"):
        # PIL's convert() clips 16-bit values at 255; keeping the high byte keeps the picture.
        extremes: Any = image.getextrema()
        wide = image.mode != "I" or extremes[1] > 255
        return _in_bands(image, lambda band: _grey(np.asarray(band) >> 8 if wide else np.asarray(band)))
    if image.mode == "F":
        return _in_bands(image, lambda band: _grey(np.nan_to_num(np.asarray(band))))
    if image.mode in ("LA", "PA", "RGBA", "La", "RGBa") or "transparency" in image.info:
        return _in_bands(image, _on_white)
    if image.mode == "RGB":
        return image.copy() if isinstance(image, ImageFile.ImageFile) else image
    return image.convert("RGB")


def _in_bands(image: Image.Image, convert: Callable[[Image.Image], Image.Image]) -> Image.Image:
    """``convert`` a few rows at a time: the intermediate results of a whole image would be several times its size."""
    result = Image.new("RGB", image.size)
    rows = max(1, _BAND // max(1, image.width))
    for top in range(0, image.height, rows):
        band = image.crop((0, top, image.width, min(top + rows, image.height)))
        result.paste(convert(band), (0, top))
    return result


def _grey(values: NDArray[Any]) -> Image.Image:
    return Image.fromarray(np.clip(values, 0, 255).astype(np.uint8)).convert("RGB")


def _on_white(image: Image.Image) -> Image.Image:
    rgba = image.convert("RGBA")
    white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, rgba).convert("RGB")


def resized_size(width: int, height: int, shorter: int) -> tuple[int, int]:
    """Width and height after resizing the shorter side to ``shorter``, rounded down as in torchvision.

    Raises:
        ValueError: the image is so narrow that it would have more than ``MAX_RESIZED`` pixels.

    Examples:
        >>> resized_size(500, 375, 256)
        (341, 256)
    """
    upright = width <= height
    size = (shorter, int(shorter * height / width)) if upright else (int(shorter * width / height), shorter)
    if size[0] * size[1] > MAX_RESIZED:
        raise ValueError(
            f"{width:,}×{height:,} pixels would become {size[0]:,}×{size[1]:,} when the shorter side is resized to "
            f"{shorter}, more than the limit of {MAX_RESIZED:,}"
        )
    return size


def fitted(
    image: Image.Image, size: int, resize: int | None, interpolation: str, max_side: int | None = None
) -> Image.Image:
    """Resize and crop an RGB image as a model expects it.

    Args:
        image: the image.
        size: side of the centre crop.
        resize: the shorter side before the crop; None keeps the whole image.
        interpolation: ``"bilinear"``, ``"bicubic"`` or ``"lanczos"``.
        max_side: maximum of the longer side of a whole image; larger images are shrunk.

    Raises:
        ValueError: the image is so narrow that it would have more than ``MAX_RESIZED`` pixels after resizing.
    """
    method = Image.Resampling[interpolation.upper()]
    if resize is None:
        if max_side is not None and max(image.size) > max_side:
            image = image.copy()
            # In one step, without the faster reducing_gap: exact, and never enlarging, as instance search requires.
            image.thumbnail((max_side, max_side), method, reducing_gap=None)
        return image
    width, height = resized_size(*image.size, resize)
    if (width, height) != image.size:
        image = image.resize((width, height), method)
    left, top = round((width - size) / 2), round((height - size) / 2)
    return image if image.size == (size, size) else image.crop((left, top, left + size, top + size))


def channels_first(image: Image.Image) -> NDArray[np.uint8]:
    """An RGB image as a contiguous 3 × height × width array of uint8."""
    return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))
