"""Augmentation for small grey shapes (characters): a random affine map instead of a crop.

Made by ``glyph_transform`` of ``data/transforms/transform.py``. The map is torchvision's ``affine``; the tests compare them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from PIL import Image

from recollect.common.errors import ConfigError
from recollect.data.transforms.crops import Pixels, resize_pil
from recollect.data.transforms.draws import Uniforms


@dataclass(frozen=True)
class GlyphAffine:
    """For small grey shapes on a plain background: slight rotation, shear, scaling and shift; no mirroring.

    A mirrored letter is another letter, and an aggressive crop cuts it off. Areas that move in from outside get the
    colour of the image's corners. The whole image is then resized to ``side`` × ``side``, antialiased.
    """

    side: int = 32
    degrees: float = 10.0
    translate: float = 0.1
    scale: tuple[float, float] = (0.8, 1.2)
    shear: float = 8.0
    interpolation: str = "bilinear"

    draws = 5

    def __post_init__(self) -> None:
        if not 0 < self.scale[0] <= self.scale[1]:
            raise ConfigError(f"scale {self.scale} must be two numbers above 0, the smaller first.")

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of every result."""
        return (self.side, self.side)

    @property
    def key(self) -> str:
        """A complete description."""
        return repr(self)

    def parameters(self, width: int, height: int, random: Uniforms) -> tuple[float, float, float, float, float]:
        """Angle in degrees, shift right and down in pixels, scale, shear in degrees."""
        signed = 2.0 * random - 1.0
        low, high = math.log(self.scale[0]), math.log(self.scale[1])
        return (
            float(signed[0]) * self.degrees,
            float(signed[1]) * self.translate * width,
            float(signed[2]) * self.translate * height,
            math.exp(low + (high - low) * float(random[3])),
            float(signed[4]) * self.shear,
        )

    def __call__(self, image: Image.Image | Pixels, random: Uniforms) -> Pixels:
        """See ``Transform``."""
        if not isinstance(image, Image.Image):
            image = Image.fromarray(image)
        width, height = image.size
        matrix = _inverse_affine(width, height, *self.parameters(width, height, random))
        corners = zip(*(image.getpixel((x, y)) for x in (0, width - 1) for y in (0, height - 1)), strict=True)
        # The middle value of the four corners, so that a stroke that reaches one of them does not set the background.
        ground = tuple(sum(sorted(values)[1:3]) // 2 for values in corners)
        moved = image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR, fillcolor=ground)
        return resize_pil(moved, self.size, self.interpolation)


def _inverse_affine(
    width: int, height: int, degrees: float, right: float, down: float, scale: float, shear: float
) -> tuple[float, float, float, float, float, float]:
    """PIL's matrix from output to input pixels: around the centre, shear along x, rotate, scale, then shift."""
    angle, slant = math.radians(degrees), math.tan(math.radians(shear))
    cos, sin = math.cos(angle) / scale, math.sin(angle) / scale
    a, b = cos - slant * sin, sin + slant * cos
    c, d = -sin, cos
    x, y = width / 2, height / 2
    return (a, b, x - a * (x + right) - b * (y + down), c, d, y - c * (x + right) - d * (y + down))
