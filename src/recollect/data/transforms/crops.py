"""The two standard transforms: a random resized crop for training, resize and centre crop for testing.

Both give the same result as torchvision v2 (see ``RandomResizedCrop`` for which of its two resize kernels), as the tests
check. Made by ``train_transform`` and ``test_transform`` of ``data/transforms/transform.py``; the pipeline calls them in
threads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from recollect.common.errors import ConfigError
from recollect.common.preprocessing import INTERPOLATIONS, Preprocessing
from recollect.data.transforms.draws import Uniforms

Pixels = NDArray[np.uint8]
"""H × W × 3."""

KERNELS = ("torch", "pil")

_ATTEMPTS = 10  # torchvision's RandomResizedCrop gives up after this many and takes a central crop


@dataclass(frozen=True)
class RandomResizedCrop:
    """A random part of the image, resized to ``side`` × ``side``, flipped with probability 1/2.

    The box is drawn as torchvision's ``RandomResizedCrop`` does. Two kernels resize it:

    - ``"torch"`` gives exactly what torchvision v2 gives for uint8 tensors. Against its result for PIL images, which
      rounds more finely, values differ by at most 1 of 255 (bicubic: one in ten thousand by more, up to 5). Three
      times as fast.
    - ``"pil"`` gives exactly what torchvision v2 gives for PIL images. Lanczos exists only here.
    """

    side: int = 224
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: bool = True
    interpolation: str = "bilinear"
    kernel: str = "torch"
    at_least: int | None = None

    def __post_init__(self) -> None:
        if self.interpolation not in INTERPOLATIONS:
            raise ConfigError(
                f"interpolation {self.interpolation!r} is unknown: choose one of {', '.join(INTERPOLATIONS)}."
            )
        if self.kernel not in KERNELS:
            raise ConfigError(f"kernel {self.kernel!r} is unknown: choose one of {', '.join(KERNELS)}.")
        if self.kernel == "torch" and self.interpolation == "lanczos":
            raise ConfigError("the torch kernel cannot resize with lanczos: set kernel to 'pil'.")
        for name, (low, high) in (("scale", self.scale), ("ratio", self.ratio)):
            if not 0 < low <= high:
                raise ConfigError(f"{name} {(low, high)} must be two numbers above 0, the smaller first.")

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of every result."""
        return (self.side, self.side)

    @property
    def draws(self) -> int:
        """Two per attempt, two for the position, one for the flip."""
        return 2 * _ATTEMPTS + 3

    @property
    def key(self) -> str:
        """A complete description."""
        return repr(self)

    def box(self, width: int, height: int, random: Uniforms) -> tuple[int, int, int, int]:
        """Left, top, right and bottom of the crop."""
        area = width * height
        log_low, log_high = math.log(self.ratio[0]), math.log(self.ratio[1])
        for attempt in range(_ATTEMPTS):
            target = area * (self.scale[0] + (self.scale[1] - self.scale[0]) * float(random[2 * attempt]))
            aspect = math.exp(log_low + (log_high - log_low) * float(random[2 * attempt + 1]))
            w, h = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
            if 0 < w <= width and 0 < h <= height:
                top = int(random[2 * _ATTEMPTS] * (height - h + 1))
                left = int(random[2 * _ATTEMPTS + 1] * (width - w + 1))
                return left, top, left + w, top + h
        in_ratio = width / height
        w, h = width, height
        if in_ratio < self.ratio[0]:
            h = round(w / self.ratio[0])
        elif in_ratio > self.ratio[1]:
            w = round(h * self.ratio[1])
        left, top = (width - w) // 2, (height - h) // 2
        return left, top, left + w, top + h

    def __call__(self, image: Image.Image | Pixels, random: Uniforms) -> Pixels:
        """See ``Transform``."""
        if isinstance(image, Image.Image):
            cropped: Image.Image | Pixels = image.crop(self.box(image.width, image.height, random))
        else:
            left, top, right, bottom = self.box(image.shape[1], image.shape[0], random)
            cropped = image[top:bottom, left:right]
        resize = resize_torch if self.kernel == "torch" else resize_pil
        pixels = resize(cropped, self.size, self.interpolation)
        return mirrored(pixels) if self.flip and random[-1] < 0.5 else pixels


@dataclass(frozen=True)
class Resized:
    """The deterministic test transform: exactly ``Preprocessing``'s pixels."""

    preprocessing: Preprocessing

    draws = 0

    @property
    def at_least(self) -> int | None:
        """See ``Preprocessing``."""
        return self.preprocessing.at_least

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of every result."""
        return (self.preprocessing.size, self.preprocessing.size)

    @property
    def key(self) -> str:
        """A complete description; mean and deviation are not part of the pixels."""
        chosen = self.preprocessing
        steps = f"size={chosen.size}, resize={chosen.resize}, interpolation={chosen.interpolation!r}"
        return f"Resized({steps}, at_least={self.at_least})"

    def __call__(self, image: Image.Image | Pixels, random: Uniforms) -> Pixels:
        """See ``Transform``."""
        tensor = self.preprocessing(image if isinstance(image, Image.Image) else Image.fromarray(image))
        pixels: Pixels = tensor.permute(1, 2, 0).numpy()
        return pixels


def mirrored(pixels: Pixels) -> Pixels:
    """The mirrored image, as a contiguous array."""
    result = np.empty_like(pixels)
    # One channel at a time: numpy copies a reversed H×W×3 view four times slower.
    for channel in range(3):
        result[:, :, channel] = pixels[:, ::-1, channel]
    return result


def resize_pil(image: Image.Image | Pixels, size: tuple[int, int], interpolation: str) -> Pixels:
    """Resize to (height, width) as PIL does, antialiased."""
    picture = image if isinstance(image, Image.Image) else Image.fromarray(image)
    if picture.size != (size[1], size[0]):
        picture = picture.resize((size[1], size[0]), Image.Resampling[interpolation.upper()])
    return np.asarray(picture)


def resize_torch(image: Image.Image | Pixels, size: tuple[int, int], interpolation: str) -> Pixels:
    """Resize to (height, width) as torch does for uint8, antialiased."""
    # Contiguous through numpy: torch would copy a crop with all its threads, and a team of them in every worker costs
    # more than the work. The resize itself runs in the calling thread, without the interpreter's lock.
    pixels = np.array(image, order="C")
    tensor = torch.from_numpy(pixels)[None].permute(0, 3, 1, 2)
    resized = torch.nn.functional.interpolate(
        tensor, list(size), mode=interpolation, antialias=True, align_corners=False
    )
    result: Pixels = resized[0].permute(1, 2, 0).numpy()
    return result
