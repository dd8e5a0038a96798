"""``Reader``: one image of a set, from its file or a cache through a transform to pixels; and the list of bad ones.

Safe to call from several threads. The pipeline (``data/pipeline.py``) owns one; it handles batches, order and
prefetching.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image

from recollect.common.bad_images import BadImage, BadImages
from recollect.common.errors import ConfigError, DataError, ImageError, RecollectError
from recollect.common.files import cache_folder
from recollect.common.words import printable
from recollect.data.cache import CACHES, Cache, CacheStats, DiskCache, RamCache
from recollect.data.image_set import ImageSet
from recollect.data.transforms import Transform
from recollect.data.transforms.crops import Pixels
from recollect.data.transforms.draws import Uniforms
from recollect.data.transforms.longer_side import LongerSide

_Result = TypeVar("_Result")


class Reader:
    """Reads and transforms single images; the arguments are those of ``Pipeline``."""

    def __init__(
        self,
        images: ImageSet,
        transform: Transform,
        cache: str = "none",
        cache_bytes: int | None = None,
        cache_dir: Path | str | None = None,
        cache_size: int | None = None,
        on_bad_image: str = "error",
        max_pixels: int | None = None,
    ) -> None:
        if cache not in CACHES:
            raise ConfigError(f"cache {cache!r} is unknown: choose one of {', '.join(CACHES)}.")
        if cache_size is not None and (cache == "none" or transform.draws == 0):
            raise ConfigError(
                "cache_size applies to cached images of random transforms only: set cache to 'ram' or 'disk' with a "
                "training transform, or remove cache_size."
            )
        if cache_size is not None and isinstance(transform, LongerSide):
            raise ConfigError("cache_size would shrink images that LongerSide has already resized: remove it.")
        if transform.size is None and not isinstance(transform, LongerSide):
            raise ConfigError(f"{transform.key} has no fixed size: only LongerSide can be used without one.")
        self.images, self.transform = images, transform
        self.max_pixels, self.cache_size = max_pixels, cache_size
        self._at_least: int | None = getattr(transform, "at_least", None)
        self._cache = self._make_cache(cache, cache_bytes, cache_dir)
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

    def cache_stats(self) -> CacheStats:
        """Hits, misses and size of the cache; all 0 without one."""
        return CacheStats() if self._cache is None else self._cache.stats()

    def _make_cache(self, cache: str, limit: int | None, folder: Path | str | None) -> Cache | None:
        if cache == "none" or (self.images.arrays is not None and self.transform.draws):
            return None
        if cache == "disk" and self.images.root is None:
            return None
        if cache == "ram":
            return RamCache(limit)
        kept = f"shorter side {self.cache_size} of {self._at_least}" if self.transform.draws else self.transform.key
        if isinstance(self.transform, LongerSide):
            kept = replace(
                self.transform, flip=False
            ).key  # images are shrunk while they are read, and mirrored afterwards
        return DiskCache(cache_folder() / "pixels" if folder is None else folder, self.images, kept, limit)

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
            kept = np.asarray(_shrunk(self._read(index), self.cache_size))
            self._cache.put(index, kept)
        return kept

    def _read(self, index: int) -> Image.Image:
        if isinstance(self.transform, LongerSide):
            return self.transform.read(self.images, index, self.max_pixels)
        return self.images.read(index, self.max_pixels, at_least=self._at_least)


def _shrunk(image: Image.Image, shorter: int | None) -> Image.Image:
    if shorter is None or min(image.size) <= shorter:
        return image
    factor = shorter / min(image.size)
    width, height = (max(1, round(side * factor)) for side in image.size)
    return image.resize((width, height), Image.Resampling.BICUBIC)
