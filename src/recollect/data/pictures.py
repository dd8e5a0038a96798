"""The images of a set as ``Embedder.embed`` takes them: one after the other, none read before it is reached."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from PIL import Image

from recollect.data.images import ImageSet


class Pictures:
    """A sized iterable over the images of a set: paths where possible, so that the embedder's threads decode them.

    Args:
        images: the set.
        read: ``read(images, index)`` instead, for images that must not be taken as they lie on disk.
    """

    def __init__(self, images: ImageSet, read: Callable[[ImageSet, int], Image.Image] | None = None) -> None:
        self._images = images
        as_files = images.arrays is None and images.boxes is None
        self._read = read or (ImageSet.path if as_files else ImageSet.read)

    def __len__(self) -> int:
        return len(self._images)

    def __iter__(self) -> Iterator[Path | Image.Image]:
        return (self._read(self._images, index) for index in range(len(self._images)))
