"""Embeds many images: decoding in threads, batches of equal size, bounded memory. Used by ``Embedder.embed``.

Images are streamed: at most about two batches of decoded pixels are in memory, for any number of images. Only
vectors are kept. Decoding and grouping by size are in ``common/images.py``.
"""

from __future__ import annotations

import os
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from recollect.common.console import ProgressLine
from recollect.common.errors import ImageError, InputError
from recollect.common.images import BadImages, ImageSource, OnBadImage, SizeGroups, read_image
from recollect.common.preprocessing import Preprocessing
from recollect.common.text import printable

ImageLike = ImageSource | Tensor
"""Any source that the decoder accepts, or a 3×H×W tensor that is already preprocessed."""

_WAITING_BYTES = 2**29  # limit on decoded images that wait; beyond it, fewer are decoded ahead


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
        run: maps a batch on ``device`` to its vectors.
        pixels: cost of one image by height and width, in pixels; a batch costs at most ``batch_size`` times an image of
            the preprocessing's size.
        length: dimension of a vector.
    """
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1, not {batch_size}.")
    count = len(images) if isinstance(images, Sized) else None
    results = _Results(length, count)
    budget = batch_size * pixels(preprocessing.size, preprocessing.size)
    bad = BadImages(on_bad_image)
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

            def cost(kind: _Kind) -> int:
                return pixels(kind[0][-2], kind[0][-1])

            groups: SizeGroups[_Kind, tuple[int, Tensor]] = SizeGroups(
                lambda kind: _batch_of(batch_size, budget, cost(kind)), cost, 2 * budget
            )

            def send_group(group: list[tuple[int, Tensor]]) -> None:
                send([index for index, _ in group], torch.stack([image for _, image in group]))

            for index, image in _decoded(images, preprocessing, workers, 2 * batch_size):
                if isinstance(image, ImageError):
                    bad.add(index, image)
                    results.add([index], torch.full((1, length), torch.nan))
                    line.advance()
                    continue
                for group in groups.add((image.shape, image.dtype), (index, image)):
                    send_group(group)
            for group in groups.rest():
                send_group(group)
    if len(bad) and not callable(on_bad_image):
        warnings.warn(bad.sentence("their rows are NaN"), stacklevel=3)
    return results.all()


_Kind = tuple[torch.Size, torch.dtype]


def _embed_tensor(
    images: Tensor,
    batch_size: int,
    budget: int,
    pixels: Callable[[int, int], int],
    send: Callable[[Sequence[int], Tensor], None],
) -> None:
    if images.ndim != 4:
        raise InputError(
            f"a tensor of images must be N×3×H×W, not {tuple(images.shape)}; give a single image as a list."
        )
    step = _batch_of(batch_size, budget, pixels(images.shape[-2], images.shape[-1]))
    for start in range(0, len(images), step):
        batch = images[start : start + step]
        send(range(start, start + len(batch)), batch)


def _batch_of(batch_size: int, budget: int, cost: int) -> int:
    return max(1, min(batch_size, budget // max(1, cost)))


def as_pixels(image: ImageLike, preprocessing: Preprocessing) -> Tensor:
    """Convert one image of any accepted type to the model's input tensor."""
    if isinstance(image, Tensor):
        if image.ndim != 3 or image.shape[0] != 3:
            raise InputError(f"an image tensor must be 3×H×W, not {tuple(image.shape)}.")
        return image
    decoded = read_image(image, at_least=preprocessing.at_least)
    try:
        return preprocessing(decoded)
    except ImageError as error:  # the decoder does not know the name
        if isinstance(image, str | Path):
            raise ImageError(f"{printable(str(image))}: {error}", error.kind) from error
        raise


def _decoded(
    images: Iterable[ImageLike], preprocessing: Preprocessing, workers: int | None, window: int
) -> Iterator[tuple[int, Tensor | ImageError]]:
    """Images in order, decoded ahead by threads (PIL releases the interpreter's lock while it decodes)."""

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
        ahead = _Ahead(preprocessing, window, count)
        try:
            for index, image in enumerate(images):
                ready = as_pixels(image, preprocessing) if isinstance(image, Tensor) else pool.submit(attempt, image)
                waiting.append((index, ready))
                while len(waiting) > ahead.most:
                    yield ahead.seen(_settled(waiting.popleft()))
            while waiting:
                yield _settled(waiting.popleft())
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


class _Ahead:
    """How many images may wait: ``window``, or fewer if images may be large."""

    def __init__(self, preprocessing: Preprocessing, window: int, workers: int) -> None:
        self._window, self._workers = window, workers
        side = preprocessing.size if preprocessing.resize is not None else preprocessing.max_side
        self._bounded = side is not None
        # Whole images of any size: as many as threads, until the first ones show how large they are.
        self.most = self._room(3 * side * side) if side is not None else min(window, workers)

    def _room(self, size: int) -> int:
        return min(self._window, max(self._workers, _WAITING_BYTES // max(1, size)))

    def seen(self, item: tuple[int, Tensor | ImageError]) -> tuple[int, Tensor | ImageError]:
        """Update the limit from a decoded image, and return the image. Halved, because the next one may be larger."""
        if not self._bounded and isinstance(item[1], Tensor):
            self.most = self._room(2 * item[1].nbytes)
        return item


def _settled(item: tuple[int, Tensor | Future[Tensor | ImageError]]) -> tuple[int, Tensor | ImageError]:
    index, value = item
    return index, value.result() if isinstance(value, Future) else value


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
        """All rows."""
        self._store()
        return self.rows[: self.highest + 1].clone() if self.growing else self.rows
