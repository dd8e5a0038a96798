"""What a transform is, how to make the standard ones, and how to use your own.

A transform takes an image and its random numbers (``data/transforms/draws.py``) and returns H × W × 3 uint8; it
keeps no state, so threads share it. To add one, write a class with the four members of ``Transform``. The transforms
themselves are in ``crops.py``, ``affine.py`` (characters) and ``longer_side.py`` (images that keep their own size).
The pipeline depends on this file.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from PIL import Image

from recollect.common import doors
from recollect.common.errors import ConfigError
from recollect.common.preprocessing import Preprocessing
from recollect.data.transforms.affine import GlyphAffine
from recollect.data.transforms.crops import Pixels, RandomResizedCrop, Resized
from recollect.data.transforms.draws import Uniforms
from recollect.data.transforms.longer_side import LongerSide


class Transform(Protocol):
    """What the pipeline needs from a transform.

    ``size`` is (height, width) of every result, or None when images keep their own sizes. ``draws`` is the number of
    random numbers per image; 0 means deterministic, and then results may be cached. ``key`` describes the
    transform completely: equal keys must mean equal results. A transform may have a fourth attribute, ``at_least``: JPEGs
    are then decoded at a fraction of their size as long as both sides keep this many pixels (``Preprocessing.at_least``).
    """

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width of every result."""

    @property
    def draws(self) -> int:
        """Random numbers per image."""

    @property
    def key(self) -> str:
        """A complete description."""

    def __call__(self, image: Image.Image | Pixels, random: Uniforms) -> Pixels:
        """Transform an RGB image with ``draws`` numbers in [0, 1)."""


_TORCH_RANDOM = threading.Lock()


@dataclass(frozen=True)
class FromTorchvision:
    """Your own torchvision v2 transform, PIL image to a uint8 tensor 3 × size × size.

    Its randomness comes from torch's global generator, which all threads share and the model draws from too. So the
    pipeline calls it in the thread that requests batches, seeded for the image, and restores the generator.
    This is reproducible, but the workers only decode, and nothing is transformed ahead of use: for speed, write a
    ``Transform``. With ``random=False`` it must not draw random numbers, and runs in the workers.
    """

    transform: Callable[[Image.Image], Any]
    side: int
    random: bool = True

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of every result."""
        return (self.side, self.side)

    @property
    def draws(self) -> int:
        """One, as a seed, if the transform is random."""
        return int(self.random)

    @property
    def key(self) -> str:
        """As complete a description as the transform's own ``repr`` is."""
        return f"FromTorchvision({self.transform!r}, {self.side})"

    def __call__(self, image: Image.Image | Pixels, random: Uniforms) -> Pixels:
        """See ``Transform``."""
        picture = image if isinstance(image, Image.Image) else Image.fromarray(image)
        if not self.random:
            return self._checked(self._called(picture))
        with _TORCH_RANDOM, torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(random[0] * 2**53))
            return self._checked(self._called(picture))

    def _called(self, picture: Image.Image) -> Any:
        with doors.running(f"the transform {type(self.transform).__name__}"):
            return self.transform(picture)

    def _checked(self, tensor: Any) -> Pixels:
        expected = (3, *self.size)
        if not isinstance(tensor, torch.Tensor) or tensor.dtype != torch.uint8 or tuple(tensor.shape) != expected:
            found = f"{tensor.dtype} {tuple(tensor.shape)}" if isinstance(tensor, torch.Tensor) else type(tensor)
            raise ConfigError(
                f"the transform must return a uint8 tensor of shape {expected}, not {found}: remove scaling and "
                "normalization, which the model does."
            )
        pixels: Pixels = tensor.permute(1, 2, 0).numpy()
        return pixels


def train_transform(
    preprocessing: Preprocessing,
    scale: tuple[float, float] = (0.08, 1.0),
    flip: bool = True,
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    kernel: str = "torch",
) -> RandomResizedCrop:
    """The released code's training augmentation at a model's size: random resized crop and horizontal flip.

    Args:
        preprocessing: the model's; its size and interpolation are used.
        scale: range of the share of the image's area.
        flip: mirror half of the images.
        ratio: range of the aspect ratio (width to height) of the crop.
        kernel: which implementation resizes, see ``RandomResizedCrop``.
    """
    if preprocessing.interpolation == "lanczos":
        kernel = "pil"
    interpolation, at_least = preprocessing.interpolation, preprocessing.at_least
    return RandomResizedCrop(preprocessing.size, scale, ratio, flip, interpolation, kernel, at_least)


def test_transform(preprocessing: Preprocessing) -> Transform:
    """``preprocessing`` as a transform: resize the shorter side and crop the centre, or keep the aspect ratio."""
    if preprocessing.resize is None:
        return LongerSide(preprocessing.max_side)
    return Resized(preprocessing)


def whole_transform(preprocessing: Preprocessing, flip: bool = False) -> LongerSide:
    """Training on whole images, as instance search does: shrunk as for the test, never cut; mirrored with ``flip``.

    Raises:
        ConfigError: the model takes crops of one size.
    """
    if preprocessing.resize is not None:
        raise ConfigError(
            f"this model is tested on squares of {preprocessing.size} pixels and cannot be trained on whole images: "
            "keep the aspect ratio with model.resize=null, or crop with data.augmentation=crop."
        )
    return LongerSide(preprocessing.max_side, flip)


def glyph_transform(
    preprocessing: Preprocessing,
    degrees: float = 10.0,
    translate: float = 0.1,
    scale: tuple[float, float] = (0.8, 1.2),
    shear: float = 8.0,
) -> GlyphAffine:
    """Training augmentation for characters at a model's size, see ``GlyphAffine``."""
    return GlyphAffine(preprocessing.size, degrees, translate, scale, shear, preprocessing.interpolation)
