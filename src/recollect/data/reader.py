"""``Reader``: one image of a set, from its file or a cache through a transform to pixels; and the list of bad ones.

Safe to call from several threads. The pipeline (``data/pipeline.py``) owns one; it handles batches, order and
prefetching.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np
from PIL import Image

from recollect.common.errors import ConfigError, DataError, ImageError, RecollectError
from recollect.common.files import cache_folder
from recollect.common.images import BadImage, BadImages
from recollect.common.text import printable
from recollect.data.cache import CACHES, DiskCache, RamCache
from recollect.data.image_set import ImageSet
from recollect.data.transforms import LongerSide, Pixels, Transform, Uniforms

_Result = TypeVar("_Result")


class Reader:
    """Reads and transforms single images; the arguments are those of ``Pipeline``."""

    def __init__(
        self,
        images: ImageSet,
        transform: Transform,
        cache: str = "none",
        on_bad_image: str = "error",
    ) -> None:
        if cache not in CACHES:
            raise ConfigError(f"cache {cache!r} is unknown: choose one of {', '.join(CACHES)}.")
        if transform.size is None and not isinstance(transform, LongerSide):
            raise ConfigError(f"{transform.key} has no fixed size: only LongerSide can be used without one.")
        self.images, self.transform = images, transform
        self._at_least: int | None = getattr(transform, "at_least", None)
        self._cache = self._make_cache(cache)
        self._bad = BadImages(on_bad_image, images.names.__getitem__)

    def pixels(self, index: int, random: Uniforms, decoded: Image.Image | Pixels | None = None) -> Pixels | None:
        """The transformed pixels of an image; None if it is bad and ``on_bad_image`` is ``"skip"``.

        Args:
            index: the image.
            random: its random numbers.
            decoded: the result of ``decoded``, if it was called before.

        Raises:
            ImageError: it is bad and ``on_bad_image`` is ``"error"``.
            DataError: anything else went wrong; the message names the image.
        """
        return self._checked(index, lambda: self._transformed(index, random, decoded))

    def decoded(self, index: int) -> Image.Image | Pixels | None:
        """The input of a random transform, for ``pixels``; None and errors as there."""
        return self._checked(index, lambda: self._source(index))

    def _checked(self, index: int, work: Callable[[], _Result]) -> _Result | None:
        if index in self._bad:
            return None
        try:
            return work()
        except ImageError as error:
            self._bad.add(index, error)
            return None
        except RecollectError:
            raise
        except Exception as error:
            raise DataError(
                f"{self.images.names[index]}: a worker failed on this image ({type(error).__name__}: {error})."
            ) from error

    def size(self, index: int) -> tuple[int, int] | None:
        """Height and width that an image will have; None if it is bad and may be skipped."""
        if not isinstance(self.transform, LongerSide):
            return self.transform.size
        return self._checked(index, partial(self.transform.output_size, self.images, index))

    def is_bad(self, index: int) -> bool:
        """Whether the image is already known to be bad."""
        return index in self._bad

    @property
    def bad_images(self) -> list[BadImage]:
        """Every image that could not be read so far, in order."""
        return self._bad.listed()

    def _make_cache(self, cache: str) -> RamCache | DiskCache | None:
        if cache == "none" or (self.images.arrays is not None and self.transform.draws):
            return None
        if cache == "ram":
            return RamCache()
        if self.images.root is None:
            return None
        kept = f"as decoded for {self._at_least}" if self.transform.draws else self.transform.key
        if isinstance(self.transform, LongerSide):  # images are shrunk while they are read, and mirrored afterwards
            kept = replace(self.transform, flip=False).key
        return DiskCache(cache_folder() / "pixels", self.images, kept)

    def _transformed(self, index: int, random: Uniforms, decoded: Image.Image | Pixels | None) -> Pixels:
        """Caches the output of a deterministic transform and the input of a random one."""
        if self.transform.draws:
            return self._apply(index, self._source(index) if decoded is None else decoded, random)
        kept = None if self._cache is None else self._cache.get(index)
        if kept is None:
            kept = self._apply(index, self._read(index), random)
            if self._cache is not None:
                self._cache.put(index, kept)
        return kept

    def _apply(self, index: int, image: Image.Image | Pixels, random: Uniforms) -> Pixels:
        try:
            return self.transform(image, random)
        except ImageError as error:  # the decoder does not know the name
            raise ImageError(f"{printable(self.images.names[index])}: {error}", error.kind) from error

    def _source(self, index: int) -> Image.Image | Pixels:
        if self._cache is None:
            return self._read(index)
        kept = self._cache.get(index)
        if kept is None:
            kept = np.asarray(self._read(index))
            self._cache.put(index, kept)
        return kept

    def _read(self, index: int) -> Image.Image:
        if isinstance(self.transform, LongerSide):
            return self.transform.read(self.images, index)
        return self.images.read(index, at_least=self._at_least)
