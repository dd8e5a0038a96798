"""Many images to vectors: decoding in threads, batches of equal size, bounded memory. Behind ``Embedder.embed``.

Images stream through: at most about two batches of decoded pixels wait at any time, whatever the number of images. The
vectors alone are kept.
"""

from __future__ import annotations

import os
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from recollect.common.console import ProgressLine
from recollect.common.errors import ConfigError, ImageError, InputError
from recollect.common.images import Preprocessing, read_image, to_rgb

ImageLike = str | Path | bytes | Image.Image | NDArray[np.uint8] | Tensor
"""A file, its bytes, a PIL image, an H×W or H×W×3 uint8 array, or a 3×H×W tensor that is already preprocessed."""

OnBadImage = Literal["error", "skip"] | Callable[[int, ImageError], None]


def embed_images(
    run: Callable[[Tensor], Tensor],
    images: Iterable[ImageLike] | Tensor,
    preprocessing: Preprocessing,
    *,
    batch_size: int,
    device: torch.device,
    length: int,
    pixels: Callable[[int, int], int],
    progress: bool,
    on_bad_image: OnBadImage,
    workers: int | None,
) -> Tensor:
    """Vectors of all images, N×``length`` on the CPU. See ``Embedder.embed``.

    Args:
        run: a batch on ``device`` to its vectors.
        pixels: cost of one image by height and width, in pixels; a batch holds at most ``batch_size`` times the cost of
            an image of the preprocessing's size.
        length: length of a vector.
    """
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1, not {batch_size}.")
    count = len(images) if isinstance(images, Sized) else None
    results = _Results(length, count)
    budget = batch_size * pixels(preprocessing.size, preprocessing.size)
    bad = _BadImages(on_bad_image)
    with ProgressLine("embedding", count, quiet=None if progress else True) as line:

        def send(indices: Sequence[int], batch: Tensor) -> None:
            if device.type == "cuda" and batch.device.type == "cpu":
                batch = batch.pin_memory()
            batch = batch.to(device, non_blocking=device.type == "cuda")
            results.add(indices, run(batch))
            line.advance(len(indices))

        if isinstance(images, Tensor):
            _embed_tensor(images, batch_size, budget, pixels, send)
        else:
            buckets = _Buckets(batch_size, budget, pixels)
            for index, pixels_or_error in _decoded(images, preprocessing, workers, 2 * batch_size):
                if isinstance(pixels_or_error, ImageError):
                    bad.add(index, pixels_or_error)
                    results.add([index], torch.full((1, length), torch.nan))
                    line.advance()
                    continue
                for indices, batch in buckets.add(index, pixels_or_error):
                    send(indices, batch)
            for indices, batch in buckets.rest():
                send(indices, batch)
    bad.report()
    return results.all()


def _embed_tensor(
    images: Tensor,
    batch_size: int,
    budget: int,
    pixels: Callable[[int, int], int],
    send: Callable[[Sequence[int], Tensor], None],
) -> None:
    if images.ndim != 4:
        raise InputError(f"a tensor of images is N×3×H×W, not {tuple(images.shape)}; give one image as a list of one.")
    step = _batch_of(batch_size, budget, pixels(images.shape[-2], images.shape[-1]))
    for start in range(0, len(images), step):
        batch = images[start : start + step]
        send(range(start, start + len(batch)), batch)


def _batch_of(batch_size: int, budget: int, cost: int) -> int:
    return max(1, min(batch_size, budget // max(1, cost)))


def as_pixels(image: ImageLike, preprocessing: Preprocessing) -> Tensor:
    """One image, whatever it is given as, to the tensor the model takes."""
    if isinstance(image, Tensor):
        if image.ndim != 3 or image.shape[0] != 3:
            raise InputError(f"an image tensor is 3×H×W, not {tuple(image.shape)}.")
        return image
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or image.ndim not in (2, 3):
            raise InputError(f"an image array is H×W or H×W×3 of uint8, not {image.shape} of {image.dtype}.")
        image = Image.fromarray(image)
    if isinstance(image, Image.Image):
        return preprocessing(to_rgb(image))
    if isinstance(image, str | Path | bytes):
        return preprocessing(read_image(image))
    raise InputError(f"an image is a path, bytes, a PIL image, an array or a tensor, not a {type(image).__name__}.")


def _decoded(
    images: Iterable[ImageLike], preprocessing: Preprocessing, workers: int | None, window: int
) -> Iterator[tuple[int, Tensor | ImageError]]:
    """Images in order, decoded ahead by threads (PIL lets go of the interpreter while it decodes)."""

    def attempt(image: ImageLike) -> Tensor | ImageError:
        try:
            return as_pixels(image, preprocessing)
        except ImageError as error:
            return error

    count = min(8, os.cpu_count() or 1) if workers is None else workers
    if count <= 0:
        for index, image in enumerate(images):
            yield index, attempt(image)
        return
    with ThreadPoolExecutor(count, thread_name_prefix="decode") as pool:
        waiting: deque[tuple[int, Tensor | Future[Tensor | ImageError]]] = deque()
        try:
            for index, image in enumerate(images):
                ready = as_pixels(image, preprocessing) if isinstance(image, Tensor) else pool.submit(attempt, image)
                waiting.append((index, ready))
                if len(waiting) > window:
                    yield _settled(waiting.popleft())
            while waiting:
                yield _settled(waiting.popleft())
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _settled(item: tuple[int, Tensor | Future[Tensor | ImageError]]) -> tuple[int, Tensor | ImageError]:
    index, value = item
    return index, value.result() if isinstance(value, Future) else value


@dataclass
class _Buckets:
    """Images waiting for a batch of their own size and type."""

    batch_size: int
    budget: int
    pixels: Callable[[int, int], int]
    waiting: dict[tuple[torch.Size, torch.dtype], list[tuple[int, Tensor]]] = field(default_factory=dict)
    held: int = 0

    def add(self, index: int, image: Tensor) -> Iterator[tuple[list[int], Tensor]]:
        """Take one image; give every batch that is now due."""
        key = (image.shape, image.dtype)
        self.waiting.setdefault(key, []).append((index, image))
        cost = self.pixels(image.shape[-2], image.shape[-1])
        self.held += cost
        if len(self.waiting[key]) >= _batch_of(self.batch_size, self.budget, cost):
            yield self._take(key)
        elif self.held > 2 * self.budget:
            # Many sizes, few of each: send the fullest, so that memory stays bounded and batches reasonable.
            yield self._take(max(self.waiting, key=lambda other: len(self.waiting[other])))

    def rest(self) -> Iterator[tuple[list[int], Tensor]]:
        """What is left at the end."""
        for key in list(self.waiting):
            yield self._take(key)

    def _take(self, key: tuple[torch.Size, torch.dtype]) -> tuple[list[int], Tensor]:
        taken = self.waiting.pop(key)
        self.held -= len(taken) * self.pixels(key[0][-2], key[0][-1])
        return [index for index, _ in taken], torch.stack([image for _, image in taken])


class _Results:
    """Rows in the images' order. The latest batch is fetched only after the next was started, so a GPU never waits."""

    def __init__(self, length: int, count: int | None) -> None:
        self.rows = torch.empty(count or 0, length)
        self.growing = count is None
        self.last: tuple[list[int], Tensor] | None = None
        self.highest = -1

    def add(self, indices: Sequence[int], vectors: Tensor) -> None:
        """Keep the vectors of ``indices``."""
        self._store()
        self.last = (list(indices), vectors)

    def _store(self) -> None:
        if self.last is None:
            return
        indices, vectors = self.last
        self.highest = max(self.highest, max(indices))
        if self.growing and self.highest >= len(self.rows):
            grown = torch.empty(max(2 * len(self.rows), self.highest + 1, 64), self.rows.shape[1])
            grown[: len(self.rows)] = self.rows
            self.rows = grown
        self.rows[indices] = vectors.to(device="cpu", dtype=torch.float32)
        self.last = None

    def all(self) -> Tensor:
        """Every row."""
        self._store()
        return self.rows[: self.highest + 1].clone() if self.growing else self.rows


class _BadImages:
    """What to do with images that cannot be read."""

    def __init__(self, policy: OnBadImage) -> None:
        if not callable(policy) and policy not in ("error", "skip"):
            raise ConfigError(f'on_bad_image must be "error", "skip" or a function, not {policy!r}.')
        self.policy = policy
        self.messages: list[str] = []

    def add(self, index: int, error: ImageError) -> None:
        """Raise, note or hand on."""
        if callable(self.policy):
            self.policy(index, error)
        elif self.policy == "error":
            raise error
        else:
            self.messages.append(f"image {index}: {error}")

    def report(self) -> None:
        """One warning that names the skipped images."""
        if self.messages:
            shown = "\n  ".join(self.messages[:20]) + ("\n  ..." if len(self.messages) > 20 else "")
            warnings.warn(
                f"{len(self.messages)} images could not be read; their rows are NaN:\n  {shown}", stacklevel=4
            )
