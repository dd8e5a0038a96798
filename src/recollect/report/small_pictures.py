"""Images reduced to a few pixels, to find near-duplicates and to draw on the map."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from recollect.common.console import ProgressLine
from recollect.common.errors import RecollectError
from recollect.common.images import read_image
from recollect.data import ImageSet

SIDE = 32
"""Side of a small picture in pixels, for any aspect ratio."""
FINE = 64
"""Side of the grey picture by which two images that look alike are compared more closely."""
_SIGNATURE = 16
_MANY = 2000  # number of images from which a progress line is shown


@dataclass(frozen=True)
class SmallPictures:
    """Small copies of some images of a set.

    Attributes:
        places: their numbers in the set, ascending. pixels: M × SIDE × SIDE × 3. shapes: M times width / height.
        fine: M × FINE × FINE, grey.
    """

    places: NDArray[np.int64]
    pixels: NDArray[np.uint8]
    shapes: NDArray[np.float64]
    fine: NDArray[np.uint8]

    def of(self, places: Sequence[int] | NDArray[np.int64]) -> SmallPictures:
        """Those of ``places`` that could be read."""
        kept = np.flatnonzero(np.isin(self.places, np.asarray(places)))
        return SmallPictures(self.places[kept], self.pixels[kept], self.shapes[kept], self.fine[kept])

    def joined(self, other: SmallPictures) -> SmallPictures:
        """These and then those of ``other``."""
        return SmallPictures(
            np.concatenate([self.places, other.places]),
            np.concatenate([self.pixels, other.pixels]),
            np.concatenate([self.shapes, other.shapes]),
            np.concatenate([self.fine, other.fine]),
        )

    def signatures(self) -> NDArray[np.float32]:
        """M × 768 rows of length 1 whose product is the correlation of two pictures at 16 × 16 pixels.

        A picture of one colour has a row of zeros and is similar to no other. That two pictures are copies is decided by
        ``near_copies.py``.
        """
        step = SIDE // _SIGNATURE
        # Strided sums: numpy's mean over two inner axes is slower.
        sums = np.zeros((len(self.pixels), _SIGNATURE, _SIGNATURE, 3), np.float32)
        for down in range(step):
            for across in range(step):
                sums += self.pixels[:, down::step, across::step]
        rows: NDArray[np.float32] = sums.reshape(len(sums), -1) / np.float32(step**2)
        rows -= rows.mean(axis=1, keepdims=True)
        length = np.linalg.norm(rows, axis=1, keepdims=True)
        unit: NDArray[np.float32] = np.divide(rows, length, out=np.zeros_like(rows), where=length > 1e-3)
        return unit


def no_pictures() -> SmallPictures:
    """Small copies of no image."""
    pixels, fine = np.empty((0, SIDE, SIDE, 3), np.uint8), np.empty((0, FINE, FINE), np.uint8)
    return SmallPictures(np.empty(0, np.int64), pixels, np.empty(0), fine)


def read_small(images: ImageSet, places: Sequence[int] | NDArray[np.int64]) -> SmallPictures:
    """Small copies of the images at ``places``; those that cannot be read are left out."""
    wanted = np.unique(np.asarray(places, np.int64))

    def one(place: int) -> tuple[NDArray[np.uint8], float, NDArray[np.uint8]] | None:
        try:
            # A photo is decoded at a fraction of its size, unless it has a box, whose coordinates refer to the whole photo.
            image = read_image(images.source(place), at_least=FINE) if images.boxes is None else images.read(place)
            small = image.resize((SIDE, SIDE), Image.Resampling.BOX if min(image.size) >= SIDE else None)
            fine = image.convert("L").resize((FINE, FINE), Image.Resampling.BOX if min(image.size) >= FINE else None)
            return np.asarray(small), image.width / image.height, np.asarray(fine)
        except RecollectError:
            return None

    kept: list[int] = []
    pixels, shapes = np.empty((len(wanted), SIDE, SIDE, 3), np.uint8), []
    fine = np.empty((len(wanted), FINE, FINE), np.uint8)
    quiet = None if len(wanted) >= _MANY else True
    with (
        ThreadPoolExecutor(min(8, os.cpu_count() or 1), "recollect-small") as pool,
        ProgressLine("small pictures", len(wanted), quiet=quiet) as line,
    ):
        for place, found in zip(wanted.tolist(), pool.map(one, wanted.tolist()), strict=True):
            if found is not None:
                pixels[len(kept)], shape, fine[len(kept)] = found
                kept.append(place)
                shapes.append(shape)
            line.advance()
    return SmallPictures(np.array(kept, np.int64), pixels[: len(kept)], np.array(shapes), fine[: len(kept)])
