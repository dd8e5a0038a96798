"""Image files to pixels: the one safe way in, and the preprocessing a model was made for.

Both the data room (training, evaluation) and the models room (``Embedder.embed``) read images here, so a picture looks
the same to both. Files come from elsewhere and are treated so: sizes are checked before pixels are decoded.
"""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from recollect.common.errors import ConfigError, ImageError

if TYPE_CHECKING:
    import torch

# PIL warns below the limit that is stated and enforced here. Once, not around each read: filters are not safe in threads.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)

MAX_PIXELS = 100_000_000
"""Larger images are refused as decompression bombs. PIL keeps colours in 4 bytes a pixel, and for a moment a
picture is held twice, as decoded and as converted: 100 megapixels take 0.8 GB, besides what the decoder itself needs."""

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "AVIF", "JPEG2000")
"""Formats PIL may try. Rare ones with fragile decoders are left out."""

IMAGE_SUFFIXES = frozenset(
    {
        ".jpg",
        ".jpeg",
        ".jpe",
        ".jfif",
        ".png",
        ".webp",
        ".bmp",
        ".gif",
        ".tif",
        ".tiff",
        ".ppm",
        ".pgm",
        ".avif",
        ".jp2",
    }
)

INTERPOLATIONS = ("bilinear", "bicubic", "lanczos")

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def read_image(source: str | Path | bytes, *, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Read an image file as 8-bit RGB, upright by its EXIF orientation.

    Palettes, greyscale, CMYK and 16-bit images are converted; transparency is laid on white.

    Args:
        source: a path, or the file's bytes.
        max_pixels: images with more pixels are refused before they are decoded.

    Raises:
        ImageError: the file is missing, broken, truncated, too large or not an image; the message names it.
    """
    name = f"an image of {len(source)} bytes" if isinstance(source, bytes) else str(source)
    try:
        file = io.BytesIO(source) if isinstance(source, bytes) else source
        with Image.open(file, formats=_known_formats()) as image:
            if image.width * image.height > max_pixels:
                raise ImageError(
                    f"{name}: {image.width}×{image.height} pixels, more than the limit of {max_pixels:,}. "
                    "Shrink the file, or raise the limit if you trust it."
                )
            ImageOps.exif_transpose(image, in_place=True)  # else it copies what needs no turning
            return to_rgb(image)
    except ImageError:
        raise
    except FileNotFoundError as error:
        raise ImageError(f"{name}: no such file.") from error
    except (UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise ImageError(f"{name}: not an image that can be read ({type(error).__name__}).") from error
    except _DECODER_ERRORS as error:
        raise ImageError(f"{name}: damaged or unreadable ({error}).") from error


# PIL's decoders raise nearly anything on damaged files; all of it means the same to the user.
_DECODER_ERRORS = (
    OSError,
    SyntaxError,
    ValueError,
    LookupError,
    TypeError,
    ArithmeticError,
    AttributeError,
    RuntimeError,
    EOFError,
    struct.error,
    zlib.error,
)


@cache
def _known_formats() -> tuple[str, ...]:
    # Asking an older PIL for a format it does not have fails with a KeyError on every file.
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert any PIL image to 8-bit RGB without surprises (see ``read_image``)."""
    image.load()
    if image.mode in ("I;16", "I;16L", "I;16B", "I;16N", "I"):
        # PIL's convert() clips 16-bit values at 255; keeping the high byte keeps the picture.
        wide = image.mode != "I" or _largest(image) > 255
        return _in_bands(image, lambda band: _grey(np.asarray(band) >> 8 if wide else np.asarray(band)))
    if image.mode == "F":
        return _in_bands(image, lambda band: _grey(np.nan_to_num(np.asarray(band))))
    if image.mode in ("LA", "PA", "RGBA", "La", "RGBa") or "transparency" in image.info:
        return _in_bands(image, _on_white)
    if image.mode == "RGB":
        return image.copy() if isinstance(image, ImageFile.ImageFile) else image
    return image.convert("RGB")


_BAND = 2**20  # pixels converted at a time


def _in_bands(image: Image.Image, convert: Callable[[Image.Image], Image.Image]) -> Image.Image:
    """``convert`` some rows at a time: what it holds on the way would else be several times the picture."""
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


def _largest(image: Image.Image) -> float:
    extremes: Any = image.getextrema()
    return 0 if extremes is None else float(extremes[1])


@dataclass(frozen=True)
class Preprocessing:
    """What a model expects of an image: resize the shorter side, crop the centre, then its mean and deviation.

    Calling it gives uint8 pixels; scaling and normalization happen in the model, on its device, so that four times less
    travels there. ``resize=None`` keeps the image's shape (instance search): it is only shrunk when its longer side is
    above ``max_side``.
    """

    size: int = 224
    resize: int | None = 256
    interpolation: str = "bilinear"
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    max_side: int | None = None

    def __post_init__(self) -> None:
        if self.interpolation not in INTERPOLATIONS:
            raise ConfigError(
                f"interpolation {self.interpolation!r} is unknown: choose one of {', '.join(INTERPOLATIONS)}."
            )
        if self.resize is not None and self.resize < self.size:
            raise ConfigError(f"resize {self.resize} is smaller than the crop of {self.size}: raise resize.")

    def __call__(self, image: Image.Image) -> torch.Tensor:
        """RGB image to a uint8 tensor, 3 × size × size (or 3 × its own height × width)."""
        from recollect.common import torchvision_fix

        torchvision_fix.apply()
        from torchvision.transforms.v2 import functional

        if self.resize is not None:
            mode = functional.InterpolationMode(self.interpolation)
            image = functional.resize(image, [self.resize], interpolation=mode)
            image = functional.center_crop(image, [self.size, self.size])
        elif self.max_side is not None and max(image.size) > self.max_side:
            # thumbnail() keeps the aspect ratio and never enlarges, as the instance-search protocol asks. In one go,
            # without the gap that is faster: the same pixels as the data room's ``LongerSide``.
            image = image.copy()
            method = Image.Resampling[self.interpolation.upper()]
            image.thumbnail((self.max_side, self.max_side), method, reducing_gap=None)
        tensor: torch.Tensor = functional.pil_to_tensor(image)
        return tensor

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as written into ``embedder.json``."""
        return {**self.__dict__, "mean": list(self.mean), "std": list(self.std)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Preprocessing:
        """The inverse of ``as_dict``; names it does not know are refused."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(values) - known):
            raise ConfigError(
                f"preprocessing has no setting {', '.join(unknown)}: it knows {', '.join(sorted(known))}."
            )
        settings: dict[str, Any] = dict(values)
        for name in ("mean", "std"):
            if name in settings:
                settings[name] = tuple(settings[name])
        return cls(**settings)
