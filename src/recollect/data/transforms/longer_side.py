"""Instance search: images keep their aspect ratio, and the longer side has a maximum.

The rules are those of the Revisited Oxford and Paris benchmark. ``LongerSide`` is a transform; unlike others it reads
the image itself, because the bound of a cropped query depends on the size of the whole picture. The pipeline's
``sequential`` uses ``output_size`` to batch images of equal size without decoding anything first; its ``stream``, for
training, yields lists of images of different sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image

from recollect.common.decode import image_size
from recollect.common.errors import ConfigError, ImageError
from recollect.data.image_set import ImageSet
from recollect.data.transforms.crops import Pixels, mirrored
from recollect.data.transforms.draws import Uniforms


@dataclass(frozen=True)
class LongerSide:
    """Crop to the box, if there is one; then shrink until the longer side is at most ``imsize``. Never enlarge.

    For a cropped image the bound is ``imsize · max(crop) / max(whole image)``, rounded down: a query is shown at the
    scale its whole picture would have had. Lanczos; ``imsize=None`` keeps every size. ``flip`` mirrors half of the
    images, for training.
    """

    imsize: int | None = 1024
    flip: bool = False

    size = None

    def __post_init__(self) -> None:
        if self.imsize is not None and self.imsize < 1:
            raise ConfigError(f"imsize is {self.imsize}: it must be at least 1, or None to keep the size of images.")

    @property
    def draws(self) -> int:
        """One, if images may be mirrored."""
        return int(self.flip)

    @property
    def key(self) -> str:
        """A complete description."""
        return repr(self)

    def read(self, images: ImageSet, index: int) -> Image.Image:
        """Image ``index``, cropped and shrunk."""
        whole = images.read(index, crop=False)
        box = _box(images, index)
        image = whole if box is None else whole.crop(box)
        if min(image.size) < 1:
            raise ImageError(
                f"{images.names[index]}: its box {box} lies outside the {whole.width}×{whole.height} image."
            )
        return image.resize(self._fit(image.size, whole.size), Image.Resampling.LANCZOS)

    def output_size(self, images: ImageSet, index: int) -> tuple[int, int]:
        """Height and width that ``read`` will give, from the file's header alone."""
        whole = _upright_size(images, index)
        box = _box(images, index)
        width, height = self._fit(whole if box is None else (box[2] - box[0], box[3] - box[1]), whole)
        return height, width

    def __call__(self, image: Image.Image | Pixels, random: Uniforms) -> Pixels:
        """The pixels of an image from ``read``, mirrored or not; see ``Transform``."""
        pixels = np.asarray(image)
        return mirrored(pixels) if self.flip and random[0] < 0.5 else pixels

    def _fit(self, size: tuple[int, int], whole: tuple[int, int]) -> tuple[int, int]:
        """Width and height after shrinking, the aspect ratio kept as closely as whole pixels allow."""
        width, height = size
        if self.imsize is None:
            return size
        bound = max(1, math.floor(self.imsize * max(size) / max(whole)))
        if max(size) <= bound:
            return size
        if width >= height:
            return bound, _closest(bound * height / width, lambda n: abs(width / height - bound / n))
        return _closest(bound * width / height, lambda n: abs(width / height - n / bound)), bound


def _closest(value: float, error: Callable[[int], float]) -> int:
    """The whole number next to ``value`` with the smaller error, at least 1."""
    return max(min(math.floor(value), math.ceil(value), key=lambda n: error(n) if n else math.inf), 1)


def _box(images: ImageSet, index: int) -> tuple[int, int, int, int] | None:
    """The crop in whole pixels, rounded as PIL rounds."""
    box = images.box(index)
    return None if box is None else (round(box[0]), round(box[1]), round(box[2]), round(box[3]))


def _upright_size(images: ImageSet, index: int) -> tuple[int, int]:
    """Width and height of the whole image, turned upright, without decoding it."""
    if images.arrays is not None:
        return images.arrays[index].shape[1], images.arrays[index].shape[0]
    return image_size(images.path(index)) if images.items is None else images.read(index, crop=False).size
