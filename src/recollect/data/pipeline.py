"""``Pipeline``: image indices in, uint8 batches out; decoded by threads, ahead of use, within a memory budget.

Training, evaluation, stored features and ``Embedder.embed`` all read images here. Why threads: PIL's decoders and both
resize kernels release the interpreter's lock, so threads scale, and they write each image directly to its place in the
batch. Nothing is pickled, sent or collated, shared memory cannot run out, and no worker process can die unnoticed
(``docs/pipeline.md`` has the measurements). Changes here may affect speed and prefetching, but never the pixels: they
are a function of (seed, epoch, batch, image). Decoded pixels may be kept for the next epoch, in memory or on disk; a hit
gives the same pixels as a miss.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import zlib
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import numpy as np
import PIL
import torch
from PIL import Image

from recollect.common.errors import ConfigError, DataError, ImageError, InputError, RecollectError, StorageError
from recollect.common.files import atomic_write, cache_folder
from recollect.common.images import ON_BAD_IMAGE, BadImage, with_skip_advice
from recollect.common.machine import available_bytes
from recollect.data.image_set import ImageSet, Indices
from recollect.data.transforms import FromTorchvision, Pixels, Transform, Uniforms, occurrences, uniforms

CACHES = ("none", "ram", "disk")

_CHUNK = 16  # images per task: small enough for an even load, large enough that scheduling costs nothing


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
            transform. Images given as arrays are already decoded; for them only results are kept.
        on_bad_image: ``"error"`` stops; ``"skip"`` uses another image of the same class instead (in ``sequential``:
            leaves it out) and lists it in ``bad_images``.
        seed: seed of the augmentation, 0 or more.
        pin: put batches into page-locked memory, from which a CUDA device copies while it computes. Needs such a device;
            the memory of a batch is then allocated at once when its first image is read.

    Examples:
        >>> from recollect.common.images import Preprocessing
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
        for name, word, words in (("cache", cache, CACHES), ("on_bad_image", on_bad_image, ON_BAD_IMAGE)):
            if word not in words:
                raise ConfigError(f"{name} {word!r} is unknown: choose one of {', '.join(words)}.")
        self.images, self.transform, self.on_bad_image = images, transform, on_bad_image
        self.workers = min(16, processors()) if workers is None else workers
        self.prefetch_bytes, self.seed, self.pin = prefetch_bytes, seed, pin
        self._bad: dict[int, BadImage] = {}
        self._cache: RamCache | DiskCache | None = None
        if cache == "ram" and not (images.arrays is not None and transform.draws):
            self._cache = RamCache()
        elif cache == "disk" and not (images.arrays is not None and transform.draws):
            key = transform.read_key if transform.draws else transform.key
            self._cache = DiskCache(cache_folder() / "pixels", images, key)
        self._pool = ThreadPoolExecutor(self.workers, "recollect-loader") if self.workers else None
        # It draws from torch's global generator, which the model also uses, while workers are ahead.
        self._only_decode = self._pool is not None and isinstance(transform, FromTorchvision) and transform.random

    def load(self, indices: Sequence[int] | Indices, epoch: int = 0, number: int = 0) -> Batch:
        """Load one batch now, as batch ``number`` of the epoch.

        Raises:
            ImageError: an image cannot be read and ``on_bad_image`` is ``"error"``.
            DataError: a class has no readable image, or a worker failed; the message names the file.
            InputError: there is no image of that number.
        """
        return next(self.stream([indices], epoch, number))

    def stream(self, batches: Iterable[Sequence[int] | Indices], epoch: int = 0, first: int = 0) -> Generator[Batch]:
        """Load batches in order, decoding ahead of use within ``prefetch_bytes``.

        With a transform that keeps sizes, a batch is a list of images. ``batches`` is read ahead too: a sampler's state
        must then be saved with the number of batches consumed.

        Args:
            batches: the images of each.
            epoch: the epoch of the run.
            first: the number of the first batch within its epoch. The augmentation depends on it, so a caller that
                resumes in the middle of an epoch passes the number of earlier batches.
        """
        for pending in self._filled(batches, epoch, first):
            self._replace_bad(pending, epoch)
            yield pending.hand_over(self.images.labels)

    def sequential(self, batch_size: int, pixels: int | None = None) -> Iterator[Batch]:
        """Every image once, for evaluation, in tensors of one size. With ``"skip"``, images that cannot be read are left out.

        In order, if all results have one size. With a transform that keeps sizes, images of equal size are gathered until
        there are ``batch_size``, or until ``prefetch_bytes`` of images are waiting; ``indices`` identifies them.

        Args:
            batch_size: images per batch.
            pixels: at most this many per batch, if images keep their own sizes: fewer of larger ones.
        """
        if batch_size < 1:
            raise InputError(f"batch_size is {batch_size}: it must be at least 1.")
        count, whole = len(self.images), self.transform.size is None
        step = batch_size
        if whole and count:
            height, width = self._largest(0)
            step = max(1, min(_CHUNK, self.prefetch_bytes // (12 * height * width)))  # a quarter of the budget at most
        ranges = np.split(np.arange(count), range(step, count, step)) if count else []
        waiting: dict[tuple[int, ...], list[tuple[int, torch.Tensor]]] = {}
        waiting_bytes = 0
        for pending in self._filled(ranges):
            if len(pending.bad) == len(pending.indices):
                continue
            if not whole:
                yield pending.hand_over(self.images.labels)
                continue
            batch = pending.hand_over(self.images.labels)
            for index, image in zip(batch.indices.tolist(), batch.images, strict=True):
                size, waiting_bytes = tuple(image.shape), waiting_bytes + image.nbytes
                group = waiting.setdefault(size, [])
                group.append((index, image))
                room = batch_size if pixels is None else min(batch_size, pixels * 3 // image.nbytes)
                if len(group) < room and waiting_bytes <= self.prefetch_bytes:
                    continue
                if len(group) < room:
                    size = max(waiting, key=lambda other: len(waiting[other]) * np.prod(other))
                waiting_bytes -= sum(each.nbytes for _, each in waiting[size])
                yield self._stacked(waiting.pop(size))
        for group in waiting.values():
            yield self._stacked(group)

    def size(self, index: int) -> tuple[int, int] | None:
        """Height and width that an image will have, from its header alone; None if that cannot be read."""
        with contextlib.suppress(ImageError):
            return self.transform.output_size(self.images, index)
        return None

    @property
    def bad_images(self) -> list[BadImage]:
        """Every image that could not be read so far, in order."""
        return sorted(self._bad.values(), key=attrgetter("index"))

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

    def _stacked(self, group: list[tuple[int, torch.Tensor]]) -> Batch:
        indices = np.array([index for index, _ in group])
        images = torch.stack([image.permute(1, 2, 0) for _, image in group]).permute(0, 3, 1, 2)
        return Batch(images, torch.from_numpy(self.images.labels[indices]), indices)

    def _filled(
        self, batches: Iterable[Sequence[int] | Indices], epoch: int = 0, first: int = 0
    ) -> Iterator[_PendingBatch]:
        """Batches in order, with their pixels; tasks are started as far ahead as the budget allows."""
        source = enumerate(batches, first)
        queue: deque[_PendingBatch] = deque()
        budget = 0 if self._pool is None or self._only_decode else self.prefetch_bytes
        used = 0  # bytes of the images in the queue that are decoded or being decoded

        def start() -> bool:
            """Start the next task, oldest batch first; without workers, do it. False if there is none."""
            nonlocal used
            if not queue or queue[-1].started == len(queue[-1].indices):
                following = next(source, None)
                if following is None:
                    return False
                queue.append(self._begin(following[1], epoch, following[0]))
            pending, count = queue[-1], self.workers if self._only_decode else _CHUNK
            positions = range(pending.started, min(pending.started + count, len(pending.indices)))
            pending.started = positions.stop
            used += len(positions) * pending.row_bytes
            if self._pool is None:
                self._fill(pending, positions)
            elif self._only_decode:
                self._fill(pending, positions, self._pool.map(self._pixels, pending.indices[positions].tolist()))
            else:
                pending.tasks.append(self._pool.submit(self._fill, pending, positions))
            return True

        try:
            while queue or start():
                while (queue[0].started < len(queue[0].indices) or used < budget) and start():
                    pass
                for task in queue[0].tasks:
                    task.result()
                used -= len(queue[0].indices) * queue[0].row_bytes
                # In a list that is emptied on exit: a variable would keep the batch in memory until the next one.
                filled = [queue.popleft()]
                while used < budget and start():
                    pass
                yield filled.pop()
        finally:
            for pending in queue:
                for task in pending.tasks:
                    task.cancel()

    def _largest(self, index: int) -> tuple[int, int]:
        """Height and width of the largest image, if images keep their sizes: a bound, or those of image ``index``.

        Reading every header would be slow.
        """
        side = self.transform.max_side
        return (side, side) if side else self.size(index) or (1, 1)

    def _begin(self, indices: Sequence[int] | Indices, epoch: int, number: int) -> _PendingBatch:
        images = np.array(indices, dtype=np.int64)
        if images.ndim != 1 or len(images) == 0:
            raise InputError(f"a batch must be a list of at least one image number; its shape is {images.shape}.")
        if not 0 <= images.min() <= images.max() < len(self.images):
            raise InputError(
                f"images {images.min()} to {images.max()} were requested, but {self.images.name} has "
                f"{len(self.images)} images, numbered from 0."
            )
        size = self.transform.size
        random = np.empty((len(images), 0))
        if self.transform.draws:
            random = uniforms(self.seed, epoch, number, images, occurrences(images), self.transform.draws)
        return _PendingBatch(images, number, random, size or self._largest(int(images[0])), size is None, self.pin)

    def _fill(
        self,
        pending: _PendingBatch,
        positions: Iterable[int],
        decoded: Iterator[Image.Image | Pixels | None] | None = None,
    ) -> None:
        """Load some images of a batch, or transform ``decoded`` ones; the work of one task."""
        for position in positions:
            index = int(pending.indices[position])
            source = None if decoded is None else next(decoded)
            read = self._pixels(index, pending.random[position], source)
            if read is None:
                pending.bad.add(position)
                continue
            pixels = np.asarray(read)
            if pending.tensor is None:
                # A copy: a cache may return its own array, but the caller may change a batch.
                pending.rows[position] = np.array(pixels)
            elif pixels.shape != pending.rows[position].shape:
                size, declared = pixels.shape, pending.rows[position].shape
                raise InputError(
                    f"{self.images.names[index]} is {size[1]}×{size[0]} pixels in a batch of {declared[1]}×{declared[0]}: "
                    "the transform's results do not have the size that it declares."
                )
            else:
                pending.rows[position][:] = pixels

    def _pixels(
        self, index: int, random: Uniforms | None = None, source: Image.Image | Pixels | None = None
    ) -> Image.Image | Pixels | None:
        """An image, decoded unless it is given as ``source``, and transformed if ``random`` numbers are given.

        The cache keeps the output of a deterministic transform and the input of a random one. None if the image cannot be
        read and such images are skipped.
        """
        if index in self._bad:
            return None
        try:
            if source is None and self._cache is not None:
                source = self._cache.get(index)
            if source is None:
                source = self.transform.read(self.images, index)
                if not self.transform.draws:
                    source = self.transform(source, np.empty(0))
                if self._cache is not None:
                    source = np.asarray(source)
                    self._cache.put(index, source)
            return source if random is None or not self.transform.draws else self.transform(source, random)
        except ImageError as error:
            name = self.images.names[index]
            if self.on_bad_image == "error":
                raise with_skip_advice(error, name) from error
            self._bad[index] = BadImage(index, name, error.reason, error.kind)
            return None
        except RecollectError:
            raise
        except Exception as error:
            raise DataError(
                f"{self.images.names[index]}: a worker failed on this image ({type(error).__name__}: {error})."
            ) from error

    def _replace_bad(self, pending: _PendingBatch, epoch: int) -> None:
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
                if candidate in self._bad:
                    continue
                copies = np.array([np.count_nonzero(pending.indices == candidate)])
                pending.indices[position] = candidate
                pending.random[position] = uniforms(
                    self.seed, epoch, pending.number, np.array([candidate]), copies, self.transform.draws
                )[0]
                pending.bad.discard(position)
                self._fill(pending, [position])
                if position not in pending.bad:
                    break
            else:
                raise DataError(
                    f"no image of class {self.images.class_names[label]!r} can be read (the last one tried was "
                    f"{self.images.names[bad]}). Repair them or remove the class."
                )


class _PendingBatch:
    """A batch in progress: its memory, and the tasks that fill it.

    ``number`` is its position in the epoch; ``size`` the size of every image, or with ``whole`` the largest possible.
    """

    def __init__(
        self, indices: Indices, number: int, random: Uniforms, size: tuple[int, int], whole: bool, pin: bool
    ) -> None:
        self.indices, self.number, self.random, self.pin = indices, number, random, pin
        # The system gives memory to a large tensor page by page as it is written, so an unfinished batch costs only
        # what is decoded; unless it is pinned.
        shape = (len(indices), *size, 3)
        self.tensor = None if whole else torch.empty(shape, dtype=torch.uint8, pin_memory=pin)
        empty = [np.empty((0, 0, 3), np.uint8)] * len(indices)
        self.rows: list[Pixels] = empty if self.tensor is None else list(self.tensor.numpy())
        self.row_bytes = size[0] * size[1] * 3
        self.bad: set[int] = set()  # positions without pixels
        self.started = 0  # positions handed to tasks
        self.tasks: list[Future[None]] = []

    def hand_over(self, labels: Indices) -> Batch:
        """The batch without its bad images; its memory is the receiver's from now on."""
        readable = np.setdiff1d(np.arange(len(self.indices)), sorted(self.bad))
        images: torch.Tensor | list[torch.Tensor]
        if self.tensor is None:
            rows = [torch.from_numpy(self.rows[position]) for position in readable]
            images = [(row.pin_memory() if self.pin else row).permute(2, 0, 1) for row in rows]
        else:
            images = self.tensor.permute(0, 3, 1, 2)
            images = images[torch.from_numpy(readable)] if self.bad else images
        self.tensor, self.rows = None, []
        return Batch(images, torch.from_numpy(labels[self.indices[readable]]), self.indices[readable])


class RamCache:
    """Pixels in this process's memory, up to half of what is free now (or of this process's part of it).

    When full, it keeps its entries. An epoch visits images in random order, so replacing the oldest by the newest
    would only turn hits into misses.
    """

    def __init__(self) -> None:
        self._room = available_bytes() // 2
        self._lock = threading.Lock()
        self._pixels: dict[int, Pixels] = {}

    def get(self, index: int) -> Pixels | None:
        """The pixels of image ``index``, or None."""
        return self._pixels.get(index)

    def put(self, index: int, pixels: Pixels) -> None:
        """Keep the pixels of image ``index``, if there is room."""
        with self._lock:
            if index in self._pixels or pixels.nbytes > self._room:
                return
            self._room -= pixels.nbytes
            # A copy: a view would keep the whole array it belongs to in memory.
            self._pixels[index] = np.array(pixels, order="C")


class DiskCache:
    """Pixels in files below a folder, one per image: a ``.npy`` followed by its checksum.

    An entry's name is a hash of the image's identity (path, size and modification time of a file, otherwise its content),
    its box, the description of its processing, and the version of the decoder. A changed file or setting is therefore a
    new entry, and several runs and processes may share a folder. A damaged entry is made again.

    Args:
        folder: where entries are kept; created if missing.
        images: the set whose images are cached.
        description: everything besides the image that the pixels depend on.
    """

    def __init__(self, folder: Path, images: ImageSet, description: str) -> None:
        self.folder, self._images = folder, images
        self._description = f"{description}\0Pillow {PIL.__version__}"
        self._writable = True

    def path(self, index: int) -> Path:
        """Where the entry of image ``index`` is, or would be."""
        boxes = self._images.boxes
        box = "" if boxes is None else boxes[index].tolist()
        identity = f"{self._images.identity(index)}\0{box}\0{self._description}"
        name = hashlib.sha256(identity.encode("utf-8", "surrogateescape")).hexdigest()[:40]
        return self.folder / name[:2] / f"{name}.pixels"

    def get(self, index: int) -> Pixels | None:
        """The pixels of image ``index``, or None."""
        # No entry, no image (reading the image will report it), or a damaged entry.
        with (
            contextlib.suppress(OSError, ValueError, EOFError, ImageError),
            self.path(index).open("rb") as file,
        ):
            pixels: Pixels = np.load(file)
            if file.read() == zlib.crc32(pixels.data).to_bytes(4, "little"):
                return pixels
        return None

    def put(self, index: int, pixels: Pixels) -> None:
        """Keep the pixels of image ``index``."""
        if not self._writable:
            return
        pixels = np.ascontiguousarray(pixels)
        try:
            # No fsync per image: the checksum exposes an entry torn by a power cut.
            with atomic_write(self.path(index), durable=False) as file:
                np.save(file, pixels)
                file.write(zlib.crc32(pixels.data).to_bytes(4, "little"))
        except (OSError, StorageError):  # a cache that cannot be written makes a run slower, but must not stop it
            self._writable = False


def processors() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
