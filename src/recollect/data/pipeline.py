"""``Pipeline``: image indices in, uint8 batches out; decoded by threads or processes, ahead of use, within a memory budget.

Training, evaluation, stored features and ``Embedder.embed`` all read images here. PIL's decoders and both resize kernels
release the interpreter's lock, so threads scale and write each image directly to its place in the batch; but what remains
under the lock, 0.4 ms per photo, bounds one process to some 2,000 photos per second. So on machines with many processors
each thread has a process of its own, sends it indices and random numbers, and copies the pixels from memory that both share
(``_ReaderProcess``): a hundredth of the work under the lock, and everything else is the same code
(``docs/pipeline.md`` has the measurements). Changes here may affect speed and prefetching, but never the pixels: they
are a function of (seed, epoch, batch, image). Decoded pixels may be kept for the next epoch, in memory or on disk; a hit
gives the same pixels as a miss.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import threading
import weakref
import zlib
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import repeat
from multiprocessing.connection import Connection
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import PIL
import torch
import torch.multiprocessing
from PIL import Image

from recollect.common import plugins
from recollect.common.errors import ConfigError, DataError, ImageError, InputError, RecollectError, StorageError
from recollect.common.files import atomic_write, cache_folder, exclusive
from recollect.common.images import ON_BAD_IMAGE, BadImage, max_pixels, set_max_pixels, with_skip_advice
from recollect.common.machine import available_bytes, fix_torchvision
from recollect.common.text import check_choice
from recollect.data.image_set import ImageSet, Indices
from recollect.data.transforms import FromTorchvision, Pixels, Transform, Uniforms, occurrences, uniforms

if sys.platform != "win32":
    import fcntl

_CHUNK = 16  # images per task: small enough for an even load, large enough that scheduling costs nothing
_THREADS = 4  # one loads up to 500 photos per second, and the lock allows some 2,000
_MANY_IMAGES = 1000  # fewer are read before processes have started


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
        workers: threads or processes that decode; 0 works in the calling thread; None for one per processor, divided by
            the processes of a run on this machine (``LOCAL_WORLD_SIZE``); at most 16 threads.
        prefetch_bytes: how much ``stream`` and ``sequential`` may decode ahead of the batch in use; None for 1.5 batches.
            Memory use is this plus the current batch; between two batches it is briefly two batches, if those are larger.
        cache: ``"none"``, ``"ram"`` or ``"disk"``. Decoded pixels are kept, or the results of a deterministic
            transform. Images given as arrays are already decoded; for them only results are kept.
        on_bad_image: ``"error"`` stops; ``"skip"`` uses another image of the same class instead (in ``sequential``:
            leaves it out) and lists it in ``bad_images``.
        seed: seed of the augmentation, 0 or more.
        pin: put batches into page-locked memory, from which a CUDA device copies while it computes. Needs such a device;
            the memory of a batch is then allocated at once when its first image is read.
        worker_type: ``"threads"``, ``"processes"``, or ``"auto"``: processes for files, if there are more than 4 workers, or
            more than one and a random torchvision transform, which threads cannot run.
        cache_size: shrink images to this shorter side before they are cached and augmented, so that more of them fit.

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
        prefetch_bytes: int | None = None,
        cache: str = "none",
        on_bad_image: str = "error",
        seed: int = 0,
        pin: bool = False,
        worker_type: str = "auto",
        cache_size: int | None = None,
    ) -> None:
        check_choice("cache", cache, ("none", "ram", "disk"))
        check_choice("on_bad_image", on_bad_image, ON_BAD_IMAGE)
        check_choice("worker_type", worker_type, ("auto", "threads", "processes"))
        if cache_size is not None and transform.size is None:
            raise ConfigError(
                "cache_size is for crops: images that keep their aspect ratio are cached as they are shrunk."
            )
        self.images, self.transform, self.on_bad_image = images, transform, on_bad_image
        self.prefetch_bytes, self.seed, self.pin, self.cache_size = prefetch_bytes, seed, pin, cache_size
        self._bad: dict[int, BadImage] = {}
        self._cache: RamCache | DiskCache | None = None
        key = transform.read_key if transform.draws else transform.key
        key += f", shorter side {cache_size}" if cache_size and transform.draws else ""
        if images.arrays is None or not transform.draws:
            if cache == "ram":
                self._cache = RamCache.of_run(images, key)
            elif cache == "disk":
                self._cache = DiskCache(cache_folder() / "pixels", images, key)
        share = max(1, processors() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        self.workers = share if workers is None else workers
        self._payload = self._for_processes(worker_type, cache)
        if self._payload is None and workers is None:
            self.workers = min(16, share)
        self._pool = ThreadPoolExecutor(self.workers, "recollect-loader") if self.workers else None
        self._of_thread, self._processes = threading.local(), list[_ReaderProcess]()
        # Without processes: it draws from torch's global generator, which the model also uses, while workers are ahead.
        random = isinstance(transform, FromTorchvision) and transform.random
        self._only_decode = self._pool is not None and random and self._payload is None

    def _for_processes(self, worker_type: str, cache: str) -> bytes | None:
        """What a process needs to read images; None to read them in threads."""
        threads = 1 if isinstance(self.transform, FromTorchvision) and self.transform.random else _THREADS
        if worker_type == "auto" and (
            self.workers <= threads
            or len(self.images) < _MANY_IMAGES
            or not (self.images.root or all(isinstance(item, str | Path) for item in self.images.items or [b""]))
            or multiprocessing.current_process().daemon  # which may not have processes of its own
        ):
            return None
        if worker_type == "threads" or not self.workers:
            return None
        memory = self._cache.address if isinstance(self._cache, RamCache) else None
        if memory == "":
            if worker_type == "auto":
                return None
            raise ConfigError(
                "processes share a RAM cache on Linux only: use data.cache=disk, or data.worker_type=threads."
            )
        options = {"on_bad_image": self.on_bad_image, "cache_size": self.cache_size}
        options["cache"] = "none" if memory else cache
        try:
            return pickle.dumps((self.images, self.transform, options, memory, max_pixels()))
        except Exception as error:  # pickling calls the objects' own code
            if worker_type == "auto":
                return None
            raise ConfigError(
                f"the images or the augmentation cannot be sent to processes ({error}): define the augmentation at the top "
                "level of a file, or set data.worker_type=threads."
            ) from error

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
        count, whole = len(self.images), self.transform.size is None
        step, memory = batch_size, 2**29 if self.prefetch_bytes is None else self.prefetch_bytes
        if whole and count:
            height, width = self._largest(0)
            step = max(1, min(_CHUNK, memory // (12 * height * width)))  # a quarter of the budget at most
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
                if len(group) < room and waiting_bytes <= memory:
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
        for process in self._processes:
            process.close()

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *error: object) -> None:
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
        budget = self.prefetch_bytes or 0
        used = 0  # bytes of the images in the queue that are decoded or being decoded

        def start() -> bool:
            """Start the next task, oldest batch first; without workers, do it. False if there is none."""
            nonlocal used, budget
            if not queue or queue[-1].started == len(queue[-1].indices):
                following = next(source, None)
                if following is None:
                    return False
                queue.append(self._begin(following[1], epoch, following[0]))
            pending, count = queue[-1], self.workers if self._only_decode else _CHUNK
            if self._pool is None or self._only_decode:
                budget = 0
            elif self.prefetch_bytes is None:
                two_tasks_each = min(pending.row_bytes * self.workers * _CHUNK * 2, 2**29)
                budget = max(pending.row_bytes * len(pending.indices) * 3 // 2, two_tasks_each)
            positions = range(pending.started, min(pending.started + count, len(pending.indices)))
            pending.started = positions.stop
            used += len(positions) * pending.row_bytes
            if self._pool is None:
                self._fill(pending, positions)
            elif self._only_decode:
                self._fill(pending, positions, self._pool.map(self._pixels, pending.indices[positions].tolist()))
            else:
                pending.tasks.append(self._pool.submit(self._fill, pending, positions, None, self._payload))
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
        if images.ndim != 1 or not images.size or not 0 <= images.min() <= images.max() < len(self.images):
            most = len(self.images) - 1
            raise InputError(f"a batch must be a list of numbers of images, from 0 to {most}, but is {images}.")
        size = self.transform.size
        random = np.empty((len(images), 0))
        if self.transform.draws:
            random = uniforms(self.seed, epoch, number, images, occurrences(images), self.transform.draws)
        return _PendingBatch(images, number, random, size or self._largest(int(images[0])), size is None, self.pin)

    def _fill(
        self,
        pending: _PendingBatch,
        positions: Sequence[int],
        decoded: Iterator[Image.Image | Pixels | None] | None = None,
        payload: bytes | None = None,
    ) -> None:
        """Load some images of a batch, or transform ``decoded`` ones; the work of one task.

        With a ``payload`` the process of this thread reads them.
        """
        indices, random = pending.indices[positions].tolist(), pending.random[positions]
        results: Iterable[Image.Image | Pixels | BadImage | None]
        if payload is None:
            results = map(self._pixels, indices, random, repeat(None) if decoded is None else decoded)
        else:
            if not hasattr(self._of_thread, "process"):
                self._of_thread.process = _ReaderProcess(payload, self._shared_bytes(pending.row_bytes))
                self._processes.append(self._of_thread.process)
            results = self._of_thread.process.read(self.images, indices, random)
        for position, index, read in zip(positions, indices, results, strict=True):
            if isinstance(read, BadImage):
                self._bad[index] = read
            if read is None or isinstance(read, BadImage):
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

    def _shared_bytes(self, image_bytes: int) -> int:
        """Memory shared with one process. What does not fit is sent through its pipe, which takes longer."""
        free = shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else 2**40  # small in many containers
        return max(1, min(_CHUNK * image_bytes, 2**26, free // (2 * self.workers)))

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
                if self.cache_size and self.transform.draws and min(source.size) > self.cache_size:
                    ratio = self.cache_size / min(source.size)
                    width, height = (max(self.cache_size, round(side * ratio)) for side in source.size)
                    source = source.resize((width, height), Image.Resampling.BICUBIC)
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


class _ReaderProcess:
    """A process that reads images for one thread: indices and random numbers in, pixels out through shared memory.

    torch's shared memory has no name, and the process ends when its pipe does: nothing remains, however this process ends.

    Args:
        payload: what ``_serve`` needs to read images.
        room: bytes of the shared memory.
    """

    _starting = threading.Lock()

    def __init__(self, payload: bytes, room: int) -> None:
        context: Any = torch.multiprocessing.get_context("spawn" if sys.platform == "win32" else "forkserver")
        context.set_forkserver_preload([__name__])
        self._memory = torch.empty(room, dtype=torch.uint8).share_memory_()
        self._connection, connection = context.Pipe()
        arguments = payload, plugins.imported_files(), self._memory, connection
        self._process = context.Process(target=_serve, args=arguments, name="recollect-loader", daemon=True)
        with self._starting:
            # A new process imports the program's main file. Only an augmentation that is defined there needs that; a
            # script without ``if __name__ == "__main__"`` would run twice.
            main = sys.modules["__main__"]
            try:
                if b"__main__" not in payload:
                    sys.modules["__main__"] = ModuleType("__main__")
                self._process.start()
            finally:
                sys.modules["__main__"] = main
        connection.close()

    def read(self, images: ImageSet, indices: list[int], random: Uniforms) -> Iterator[Pixels | BadImage]:
        """The pixels of images, or why one cannot be read. Use them before the next call."""
        try:
            self._connection.send((indices, random))
            results = self._connection.recv()
        except (EOFError, OSError) as error:
            self._process.join(10)
            code = self._process.exitcode
            how = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
            names = f"{images.names[indices[0]]} … {images.names[indices[-1]]}"
            raise DataError(
                f"a process that decodes images ended ({how}) at {names}. The system ends processes when memory runs out: use "
                "fewer (data.workers), or threads (data.worker_type=threads)."
            ) from error
        memory = self._memory.numpy()
        for result in results:
            if isinstance(result, RecollectError):
                raise result
            if isinstance(result, tuple):
                start, shape = result
                result = memory[start : start + int(np.prod(shape))].reshape(shape)
            yield result

    def close(self) -> None:
        """End the process."""
        self._connection.close()
        self._process.join(10)
        if self._process.exitcode is None:
            self._process.kill()


def _serve(payload: bytes, files: list[Path], memory: torch.Tensor, connection: Connection) -> None:
    """The work of a process: read images until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which closes the pipe
    torch.set_num_threads(1)
    if b"torchvision" in payload:
        fix_torchvision()
    for file in files:
        plugins.import_file(file)
    images, transform, options, cache, limit = pickle.loads(payload)  # noqa: S301 (from the parent)
    set_max_pixels(limit)
    reader, block = Pipeline(images, transform, workers=0, **options), memory.numpy()
    if cache is not None:
        reader._cache = RamCache(len(images), cache)
    with contextlib.suppress(EOFError, OSError):
        while True:
            used, results = 0, list[object]()
            for index, random in zip(*connection.recv(), strict=True):
                result: object
                try:
                    read = reader._pixels(index, random)
                    result = reader._bad[index] if read is None else np.asarray(read)
                except RecollectError as error:
                    result = error
                if isinstance(result, np.ndarray) and used + result.nbytes <= len(block):
                    block[used : used + result.nbytes] = result.reshape(-1)
                    used, result = used + result.nbytes, (used, result.shape)
                results.append(result)
            connection.send(results)


class RamCache:
    """Pixels in memory that all processes of a run on this machine share, up to half of what is free when it is made.

    The memory has no name (``memfd``), so it is freed when the last of these processes ends, however they end. When
    full, it keeps its entries: an epoch visits images in random order, so replacing the oldest by the newest would only turn
    hits into misses. It starts with the bytes in use, and the place, height and width of the pixels of every image.

    Args:
        count: how many images there are.
        address: of the memory that another process made.
        name: what the memory is called in the list of this process's files.
    """

    def __init__(self, count: int, address: str = "", name: str = "recollect-pixels") -> None:
        header, file = 8 * (1 + 3 * count), -1  # without a file, memory of this process alone
        size = header + available_bytes() * int(os.environ.get("LOCAL_WORLD_SIZE", "1")) // 2
        if address:
            file = os.open(address, os.O_RDWR)
            size = os.fstat(file).st_size
        elif hasattr(os, "memfd_create"):
            file = os.memfd_create(name)
            os.ftruncate(file, size)  # pages take memory when they are written
            address = f"/proc/{os.getpid()}/fd/{file}"
        self._memory, self.address = np.frombuffer(mmap.mmap(file, size), np.uint8), address
        self._file = None if file < 0 else os.fdopen(file, "r+b", buffering=0)  # closes it with this object
        self._used, self._table = self._memory[:8].view(np.int64), self._memory[8:header].view(np.int64).reshape(-1, 3)
        self._header, self._lock = header, threading.Lock()

    @classmethod
    def of_run(cls, images: ImageSet, key: str) -> RamCache:
        """The cache of the processes that ``torchrun`` started here, or of this process and those it starts."""
        if os.environ.get("LOCAL_WORLD_SIZE", "1") == "1" or not hasattr(os, "memfd_create"):
            return cls(len(images))
        run = f"{os.getppid()} {images.fingerprint} {key}"
        name = f"recollect-pixels-{hashlib.sha256(run.encode('utf-8', 'surrogateescape')).hexdigest()[:40]}"
        path = cache_folder() / "ram" / name
        with exclusive(path.with_suffix(".lock")):
            with contextlib.suppress(OSError):  # there is none, or its process has ended
                address = path.read_text()
                if name in str(Path(address).readlink()):
                    return cls(len(images), address)
            cache = cls(len(images), name=name)
            with atomic_write(path) as file:
                file.write(cache.address.encode())
            weakref.finalize(cache, path.unlink, missing_ok=True)
            return cache

    def get(self, index: int) -> Pixels | None:
        """The pixels of image ``index``, or None."""
        place, height, width = self._table[index].tolist()
        return self._memory[place : place + 3 * height * width].reshape(height, width, 3) if place else None

    def put(self, index: int, pixels: Pixels) -> None:
        """Keep the pixels of image ``index``, if there is room."""
        with self._lock:
            if self._file is not None:
                fcntl.lockf(self._file, fcntl.LOCK_EX)  # other processes write too
            try:
                place = self._header + int(self._used[0])
                if not self._table[index, 0] and place + pixels.nbytes <= len(self._memory):
                    self._used += pixels.nbytes
                    self._memory[place : place + pixels.nbytes] = pixels.reshape(-1)
                    self._table[index, 1:] = pixels.shape[:2]
                    self._table[index, 0] = place  # last: from now on the entry is read
            finally:
                if self._file is not None:
                    fcntl.lockf(self._file, fcntl.LOCK_UN)


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
        with contextlib.suppress(OSError, ValueError, EOFError, ImageError), self.path(index).open("rb") as file:
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
