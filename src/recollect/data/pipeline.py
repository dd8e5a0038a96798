"""``Pipeline``: image indices in, uint8 batches out; decoded by threads, ahead of use, within a memory budget.

Why threads: PIL's decoders and both resize kernels release the interpreter's lock, so threads scale, and they
write each image directly to its place in the batch. Nothing is pickled, sent or collated, shared memory cannot
run out, and no worker process can die unnoticed (``docs/pipeline.md`` has the measurements). Changes here may
affect speed and prefetching, but never the pixels: they are a function of (seed, epoch, batch, image).
Training and evaluation depend on this file.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

from recollect.common.errors import ConfigError, DataError, InputError
from recollect.common.images import BadImage, grouped
from recollect.data.image_set import ImageSet, Indices
from recollect.data.reader import Reader
from recollect.data.transforms import FromTorchvision, Pixels, Transform, Uniforms, occurrences, uniforms

_CHUNK = 16  # images per task: small enough for an even load, large enough that scheduling costs nothing
_WINDOW = 2048  # images whose headers are read at a time, to find those of equal size


class Batch(NamedTuple):
    """Images, their B int64 labels, and their indices.

    Images are uint8 with channels last in memory: one tensor B × 3 × H × W, or, from ``load`` and ``stream`` with a
    transform that keeps sizes, a list of B tensors 3 × H × W.
    """

    images: torch.Tensor | list[torch.Tensor]
    labels: torch.Tensor
    indices: Indices


class Pipeline:
    """Loads batches of an ``ImageSet`` through a transform.

    The same (seed, epoch, number of the batch, image) gives the same pixels with any number of workers or processes,
    with or without a cache. Pixels stay uint8; the model scales and normalizes them on its device.

    Args:
        images: the set.
        transform: see ``data/transforms.py``.
        workers: threads that decode; 0 works in the calling thread; None for one per processor, at most 16.
        prefetch_bytes: how much ``stream`` and ``sequential`` may decode ahead of the batch in use. Memory use is
            this plus the current batch; between two batches it is briefly two batches, if those are larger.
        cache: ``"none"``, ``"ram"`` or ``"disk"``. Decoded pixels are kept, or the results of a deterministic
            transform. Images given as arrays are already decoded; for them only results are kept, and only in RAM.
        on_bad_image: ``"error"`` stops; ``"skip"`` uses another image of the same class instead (in ``sequential``:
            leaves it out) and lists it in ``bad_images``.
        seed: seed of the augmentation, 0 or more.
        pin: put batches into page-locked memory, from which a CUDA device copies while it computes. Needs such a device;
            the memory of a batch is then allocated at once when its first image is read.

    Examples:
        >>> from recollect.common.preprocessing import Preprocessing
        >>> from recollect.data.transforms import train_transform
        >>> pixels = np.zeros((4, 40, 40), np.uint8)
        >>> images = ImageSet("demo", list("abcd"), [0, 0, 1, 1], ["x", "y"], arrays=pixels)
        >>> with Pipeline(images, train_transform(Preprocessing(32, 32)), workers=0) as pipeline:
        ...     batch = pipeline.load([0, 3], epoch=0)
        >>> batch.images.shape, batch.labels.tolist()
        (torch.Size([2, 3, 32, 32]), [0, 1])
    """

    def __init__(
        self,
        images: ImageSet,
        transform: Transform,
        workers: int | None = None,
        prefetch_bytes: int = 2**29,
        cache: str = "none",
        on_bad_image: str = "error",
        seed: int = 0,
        pin: bool = False,
    ) -> None:
        for name, value in (("workers", workers), ("prefetch_bytes", prefetch_bytes), ("seed", seed)):
            if value is not None and value < 0:
                raise ConfigError(f"{name} is {value}: it must be 0 or more.")
        self.images, self.transform = images, transform
        self.workers = min(16, processors()) if workers is None else workers
        self.prefetch_bytes, self.seed, self.pin = prefetch_bytes, seed, pin
        self._reader = Reader(images, transform, cache, on_bad_image)
        self._pool = ThreadPoolExecutor(self.workers, "recollect-loader") if self.workers else None
        # It draws from torch's global generator, which the model also uses, while workers are ahead.
        self._only_decode = isinstance(transform, FromTorchvision) and transform.random

    def load(self, indices: Sequence[int] | Indices, epoch: int = 0, number: int = 0) -> Batch:
        """Load one batch now, as batch ``number`` of the epoch.

        Raises:
            ImageError: an image cannot be read and ``on_bad_image`` is ``"error"``.
            DataError: a class has no readable image, or a worker failed; the message names the file.
            InputError: there is no image of that number.
        """
        return next(self.stream([indices], epoch, number))

    def stream(self, batches: Iterable[Sequence[int] | Indices], epoch: int = 0, first: int = 0) -> Iterator[Batch]:
        """Load batches in order, decoding ahead of use within ``prefetch_bytes``.

        With a transform that keeps sizes, a batch is a list of images. ``batches`` is read ahead too: a sampler's state
        must then be saved with the number of batches consumed.

        Args:
            batches: the images of each.
            epoch: the epoch of the run.
            first: the number of the first batch within its epoch. The augmentation depends on it, so a caller that
                resumes in the middle of an epoch passes the number of earlier batches.
        """

        def finish(pending: _Pending) -> Batch:
            self._replace_bad(pending, epoch)
            return self._batch(pending)

        return self._ahead(batches, epoch, finish, first, ragged=self.transform.size is None)

    def sequential(self, batch_size: int) -> Iterator[Batch]:
        """Every image once, for evaluation, in tensors of one size. With ``"skip"``, images that cannot be read are left out.

        In order, if all results have one size. With a transform that keeps sizes, batches contain images of equal size,
        gathered from a window of 2,048 images; ``indices`` identifies them.
        """
        if batch_size < 1:
            raise InputError(f"batch_size is {batch_size}: it must be at least 1.")

        def finish(pending: _Pending) -> Batch | None:
            whole = self._batch(pending)
            if not pending.bad:
                return whole
            kept = np.setdiff1d(np.arange(len(pending.indices)), sorted(pending.bad))
            rows = torch.from_numpy(kept)
            return Batch(whole.images[rows], whole.labels[rows], whole.indices[kept]) if len(kept) else None

        return self._ahead(self._sequential_batches(batch_size), 0, finish)

    def size(self, index: int) -> tuple[int, int] | None:
        """Height and width that an image will have, from its header alone; None if it is bad and may be skipped."""
        return self._reader.size(index)

    @property
    def bad_images(self) -> list[BadImage]:
        """Every image that could not be read so far, in order."""
        return self._reader.bad_images

    def close(self) -> None:
        """Stop the workers. The pipeline cannot load afterwards."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _sequential_batches(self, batch_size: int) -> Iterator[Indices]:
        count = len(self.images)
        if self.transform.size is not None:
            yield from (np.arange(start, min(start + batch_size, count)) for start in range(0, count, batch_size))
            return
        for start in range(0, count, _WINDOW):
            sizes = {index: self._reader.size(index) for index in range(start, min(start + _WINDOW, count))}
            readable = np.array([index for index, size in sizes.items() if size is not None])
            for positions in grouped([size for size in sizes.values() if size is not None], batch_size):
                yield readable[positions]

    def _ahead(
        self,
        batches: Iterable[Sequence[int] | Indices],
        epoch: int,
        finish: Callable[[_Pending], Batch | None],
        first: int = 0,
        ragged: bool = False,
    ) -> Iterator[Batch]:
        """Finished batches in order; tasks are submitted as far ahead as the budget allows."""
        source = enumerate(batches, first)
        queue: deque[_Pending] = deque()

        def begin_next() -> bool:
            following = next(source, None)
            if following is not None:
                number, indices = following
                queue.append(self._begin(indices, epoch, number, ragged))
            return following is not None

        def top_up() -> None:
            """Start tasks, oldest batch first, until ``prefetch_bytes`` are decoded or being decoded."""
            used = sum(pending.started * pending.row_bytes for pending in queue)
            while self._pool is not None and not self._only_decode and used < self.prefetch_bytes:
                if (not queue or queue[-1].all_started) and not begin_next():
                    return
                used += self._start_chunk(queue[-1])

        try:
            while queue or begin_next():
                while not queue[0].all_started:
                    self._start_chunk(queue[0])
                top_up()
                for task in queue[0].tasks:
                    task.result()
                # In a list that is emptied on exit: a variable would keep the batch in memory until the next one.
                finished = [finish(queue.popleft())]
                top_up()
                if finished[0] is not None:
                    yield finished.pop()  # type: ignore[misc]
        finally:
            for pending in queue:
                for task in pending.tasks:
                    task.cancel()

    def _begin(self, indices: Sequence[int] | Indices, epoch: int, number: int, ragged: bool) -> _Pending:
        chosen = np.array(indices, dtype=np.int64)
        if chosen.ndim != 1 or len(chosen) == 0:
            raise InputError(f"a batch must be a list of at least one image number; its shape is {chosen.shape}.")
        if not 0 <= chosen.min() <= chosen.max() < len(self.images):
            raise InputError(
                f"images {chosen.min()} to {chosen.max()} were requested, but {self.images.name} has "
                f"{len(self.images)} images, numbered from 0."
            )
        side = getattr(self.transform, "imsize", None) if ragged else None
        # No image is larger than the bound, and reading every header first would be slow.
        size = (side, side) if side else next((size for i in chosen.tolist() if (size := self._reader.size(i))), (1, 1))
        random = self._draw(chosen, occurrences(chosen), epoch, number)
        return _Pending(chosen, number, random, size, ragged, self.pin)

    def _draw(self, indices: Indices, occurrence: Indices, epoch: int, number: int) -> Uniforms:
        return uniforms(self.seed, epoch, number, indices, occurrence, self.transform.draws)

    def _start_chunk(self, pending: _Pending) -> int:
        """Start the next task of a batch and return how many bytes it will fill."""
        count = self.workers if self._pool is not None and self._only_decode else _CHUNK
        positions = range(pending.started, min(pending.started + count, len(pending.indices)))
        pending.started = positions.stop
        if self._pool is None:
            self._fill(pending, positions)
        elif self._only_decode:
            self._fill(pending, positions, self._pool.map(self._reader.decoded, pending.indices[positions].tolist()))
        else:
            pending.tasks.append(self._pool.submit(self._fill, pending, positions))
        return len(positions) * pending.row_bytes

    def _fill(
        self,
        pending: _Pending,
        positions: Iterable[int],
        decoded: Iterator[Image.Image | Pixels | None] | None = None,
    ) -> None:
        """Load some images of a batch, or transform ``decoded`` ones; the work of one task."""
        for position in positions:
            index = int(pending.indices[position])
            source = None if decoded is None else next(decoded)
            pixels = self._reader.pixels(index, pending.random[position], source)
            if pixels is None:
                pending.bad.add(position)
                continue
            if pending.tensor is not None and pixels.shape != pending.rows[position].shape:
                height, width = pending.rows[position].shape[:2]
                raise InputError(
                    f"{self.images.names[index]} is {pixels.shape[1]}×{pixels.shape[0]} pixels in a batch of "
                    f"{width}×{height}: the transform's results do not have the size that it declares."
                )
            pending.put(position, pixels)

    def _replace_bad(self, pending: _Pending, epoch: int) -> None:
        """Replace each bad image by another of the same class; the choice does not depend on the workers.

        Preferably one that is not in the batch, since a copy is easy to rank; otherwise a copy, augmented differently.
        """
        for position in sorted(pending.bad):
            bad = int(pending.indices[position])
            label = self.images.labels[bad]
            members = np.flatnonzero(self.images.labels == label)
            chance = uniforms(self.seed, epoch, pending.number, members, np.full_like(members, bad), 1)[:, 0]
            members = members[np.argsort(chance, kind="stable")]
            present = np.isin(members, pending.indices)
            for candidate in np.concatenate([members[~present], members[present]]).tolist():
                if self._reader.is_bad(candidate):
                    continue
                copies = np.array([np.count_nonzero(pending.indices == candidate)])
                pending.indices[position] = candidate
                pending.random[position] = self._draw(np.array([candidate]), copies, epoch, pending.number)[0]
                pending.bad.discard(position)
                self._fill(pending, [position])
                if position not in pending.bad:
                    break
            else:
                raise DataError(
                    f"no image of class {self.images.class_names[label]!r} can be read (the last one tried was "
                    f"{self.images.names[bad]}). Repair them or remove the class."
                )

    def _batch(self, pending: _Pending) -> Batch:
        return Batch(pending.images(), torch.from_numpy(self.images.labels[pending.indices]), pending.indices)


class _Pending:
    """A batch in progress: its memory, and the tasks that fill it.

    ``number`` is its position in the epoch; ``size`` the size of every image, or with ``ragged`` the largest possible.
    """

    def __init__(
        self, indices: Indices, number: int, random: Uniforms, size: tuple[int, int], ragged: bool, pin: bool
    ) -> None:
        self.indices, self.number, self.random, self.pin = indices, number, random, pin
        # The system gives memory to a large tensor page by page as it is written, so an unfinished batch costs only
        # what is decoded; unless it is pinned.
        shape = (len(indices), *size, 3)
        self.tensor = None if ragged else torch.empty(shape, dtype=torch.uint8, pin_memory=pin)
        self.rows: list[Pixels] = [] if self.tensor is None else list(self.tensor.numpy())
        if ragged:
            self.rows = [np.empty((0, 0, 3), np.uint8)] * len(indices)
        self.row_bytes = size[0] * size[1] * 3
        self.bad: set[int] = set()  # positions without pixels
        self.started = 0  # positions handed to tasks
        self.tasks: list[Future[None]] = []

    @property
    def all_started(self) -> bool:
        return self.started == len(self.indices)

    def put(self, position: int, pixels: Pixels) -> None:
        """Keep the pixels of one image."""
        if self.tensor is None:
            # A copy: a cache may return its own array, but the caller may change a batch.
            self.rows[position] = np.array(pixels)
        else:
            self.rows[position][:] = pixels

    def images(self) -> torch.Tensor | list[torch.Tensor]:
        """The batch as the receiver gets it."""
        if self.tensor is not None:
            return self.tensor.permute(0, 3, 1, 2)
        rows = [torch.from_numpy(row) for row in self.rows]
        return [(row.pin_memory() if self.pin else row).permute(2, 0, 1) for row in rows]


def processors() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
