"""``Pictures``: images of a set one after the other, as ``Embedder.embed`` takes them; training has the pipeline.

Files that are taken as they lie on disk are given as paths, which the embedder's own threads decode. Everything else
is read here by threads a little ahead of use; what a picture is (whole, cropped to its box, shrunk) is decided by the
function that reads it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from PIL import Image

from recollect.data.image_set import ImageSet

_AHEAD = 32  # pictures: 100 MB of photos of 1024 pixels
_THREADS = 8


class Pictures:
    """Images ``part`` of a set, in order; every iteration reads them anew.

    Args:
        images: the set.
        part: which of them; all by default.
        read: an image of the set by its number, e.g. ``LongerSide(1024).read``; by default as the set has it.

    Example:
        >>> import numpy as np
        >>> images = ImageSet("demo", ["a", "b"], [0, 0], ["x"], arrays=np.zeros((2, 4, 6, 3), np.uint8))
        >>> [picture.size for picture in Pictures(images)]
        [(6, 4), (6, 4)]
    """

    def __init__(
        self,
        images: ImageSet,
        part: range | None = None,
        read: Callable[[ImageSet, int], Image.Image] | None = None,
    ) -> None:
        self.images, self.part, self.read = images, range(len(images)) if part is None else part, read

    def __len__(self) -> int:
        return len(self.part)

    def __iter__(self) -> Iterator[Path | Image.Image]:
        if self.read is None and self.images.arrays is None and self.images.boxes is None:
            return (self.images.path(index) for index in self.part)
        return self._ahead(self.read or ImageSet.read)

    def _ahead(self, read: Callable[[ImageSet, int], Image.Image]) -> Iterator[Image.Image]:
        with ThreadPoolExecutor(_THREADS, "recollect-pictures") as pool:
            waiting: deque[Future[Image.Image]] = deque()
            try:
                for index in self.part:
                    waiting.append(pool.submit(read, self.images, index))
                    if len(waiting) > _AHEAD:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
