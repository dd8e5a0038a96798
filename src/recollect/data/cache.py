"""Caches of decoded pixels for the next epoch, in memory or on disk.

A cache maps an image's number to H × W × 3 uint8 pixels: decoded pixels before random augmentation, or the result of a
deterministic transform; in both cases a hit gives the same pixels as a miss. Safe to call from several threads.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import zlib
from pathlib import Path

import numpy as np
import PIL

from recollect.common.errors import StorageError
from recollect.common.files import atomic_write
from recollect.common.machine import available_bytes
from recollect.data.image_set import ImageSet
from recollect.data.transforms import Pixels

CACHES = ("none", "ram", "disk")


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

    An entry's name is a hash of the image's path, size and modification time, its box, the description of its
    processing, and the version of the decoder. A changed file or setting is therefore a new entry, and several runs and
    processes may share a folder. A damaged entry is made again.

    Args:
        folder: where entries are kept; created if missing.
        images: the set whose files are cached.
        description: everything besides the file that the pixels depend on.
    """

    def __init__(self, folder: Path, images: ImageSet, description: str) -> None:
        self.folder, self._images = folder, images
        self._description = f"{description}\0Pillow {PIL.__version__}"
        self._writable = True

    def path(self, index: int) -> Path:
        """Where the entry of image ``index`` is, or would be."""
        file = self._images.path(index)
        status = file.stat()
        boxes = self._images.boxes
        box = "" if boxes is None else boxes[index].tolist()
        identity = f"{file.absolute()}\0{status.st_size}\0{status.st_mtime_ns}\0{box}\0{self._description}"
        name = hashlib.sha256(identity.encode("utf-8", "surrogateescape")).hexdigest()[:40]
        return self.folder / name[:2] / f"{name}.pixels"

    def get(self, index: int) -> Pixels | None:
        """The pixels of image ``index``, or None."""
        # No entry, no image (reading the image will report it), or a damaged entry.
        with contextlib.suppress(OSError, ValueError, EOFError), self.path(index).open("rb") as file:
            pixels: Pixels = np.load(file)
            if file.read() == _checksum(pixels):
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
                file.write(_checksum(pixels))
        except (OSError, StorageError):  # a cache that cannot be written makes a run slower, but must not stop it
            self._writable = False


def _checksum(pixels: Pixels) -> bytes:
    return zlib.crc32(pixels.data).to_bytes(4, "little")
