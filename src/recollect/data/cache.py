"""Caches of decoded pixels for the next epoch, in memory or on disk.

A cache maps an image's number to H × W × 3 uint8 pixels. The pipeline decides what is cached: decoded pixels before
random augmentation, or the result of a deterministic transform; in both cases a hit gives the same pixels as a miss. To
add a kind of cache, write ``get``, ``put`` and ``stats``, safe to call from several threads, and add it to ``CACHES``.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import struct
import threading
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import PIL

from recollect.common.errors import DataError
from recollect.common.files import atomic_write
from recollect.common.memory import available_bytes
from recollect.common.reading import open_regular
from recollect.common.refusals import StorageError
from recollect.data.image_set import ImageSet
from recollect.data.transforms.crops import Pixels

CACHES = ("none", "ram", "disk")

_MAGIC = b"recollect px 1\n\0"
_HEADER = struct.Struct("<16sIII4x")  # magic, height, width, crc32 of the pixels


@dataclass(frozen=True)
class CacheStats:
    """Statistics of a cache in this process; ``entries`` and ``bytes`` count what was added.

    ``full`` is the reason why nothing more is added, or empty.
    """

    hits: int = 0
    misses: int = 0
    entries: int = 0
    bytes: int = 0
    full: str = ""


class Cache(Protocol):
    """What the pipeline needs from a cache."""

    def get(self, index: int) -> Pixels | None:
        """The pixels of image ``index``, or None."""

    def put(self, index: int, pixels: Pixels) -> None:
        """Keep the pixels of image ``index``, if there is room."""

    def stats(self) -> CacheStats:
        """What it did so far."""


class _Counters:
    """Counts shared by threads, and the limit in bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.hits = self.misses = self.entries = self.bytes = 0
        self.full = ""
        self._lock = threading.Lock()

    def count(self, hit: bool) -> None:
        with self._lock:
            self.hits += hit
            self.misses += not hit

    def reserve(self, size: int) -> bool:
        """Whether ``size`` more bytes fit; if so they are counted as used."""
        with self._lock:
            if self.full:
                return False
            if self.bytes + size > self.limit:
                self.full = f"the limit of {self.limit:,} bytes is reached"
                return False
            self.bytes += size
            self.entries += 1
            return True

    def stats(self) -> CacheStats:
        return CacheStats(self.hits, self.misses, self.entries, self.bytes, self.full)


class RamCache:
    """Pixels in this process's memory, up to ``limit`` bytes.

    When full, it keeps its entries. An epoch visits images in random order, so replacing the oldest by the newest
    would only turn hits into misses. Each process of a distributed run has its own cache; by default the limit is
    half of the memory that is free now, or half of this process's part of it.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._counters = _Counters(available_bytes() // 2 if limit is None else limit)
        self._pixels: dict[int, Pixels] = {}

    def get(self, index: int) -> Pixels | None:
        """The pixels of image ``index``, or None."""
        pixels = self._pixels.get(index)
        self._counters.count(pixels is not None)
        return pixels

    def put(self, index: int, pixels: Pixels) -> None:
        """Keep the pixels of image ``index``, if there is room."""
        if index not in self._pixels and self._counters.reserve(pixels.nbytes):
            # A copy: a view would keep the whole array it belongs to in memory.
            self._pixels[index] = np.array(pixels, order="C")

    def stats(self) -> CacheStats:
        """What it did so far."""
        return self._counters.stats()


class DiskCache:
    """Pixels in files below a folder, one per image, mapped into memory when read.

    An entry's name is a hash of the image's path, size and modification time, its box, the description of its
    processing, and the version of the decoder. A changed file or setting is therefore a new entry, and several runs and
    processes may share a folder. Entries are written under a temporary name and renamed. Each is checked against its
    checksum when this process first reads it; a damaged entry is removed and created again.

    Args:
        folder: where entries are kept; created if missing.
        images: the set whose files are cached.
        description: everything besides the file that the pixels depend on.
        limit: maximum number of bytes this process may write; None for no limit.
    """

    def __init__(self, folder: Path | str, images: ImageSet, description: str, limit: int | None = None) -> None:
        self.folder = Path(folder)
        self._images = images
        self._description = f"{description}\0Pillow {PIL.__version__}"
        self._counters = _Counters(2**63 if limit is None else limit)
        self._checked: set[str] = set()

    def path(self, index: int) -> Path:
        """The path of the entry of image ``index``, which need not exist."""
        file = self._images.path(index)
        status = file.stat()
        boxes = self._images.boxes
        box = "" if boxes is None else boxes[index].tolist()
        identity = f"{file.absolute()}\0{status.st_size}\0{status.st_mtime_ns}\0{box}\0{self._description}"
        name = hashlib.sha256(identity.encode("utf-8", "surrogateescape")).hexdigest()[:40]
        return self.folder / name[:2] / f"{name}.pixels"

    def get(self, index: int) -> Pixels | None:
        """The pixels of image ``index``, or None."""
        pixels = None
        with contextlib.suppress(OSError, DataError):  # no entry, or no image: reading the image will report it
            path = self.path(index)
            pixels = self._read(path)
            if pixels is None:
                path.unlink(missing_ok=True)
        self._counters.count(pixels is not None)
        return pixels

    def put(self, index: int, pixels: Pixels) -> None:
        """Keep the pixels of image ``index``, if there is room."""
        if not self._counters.reserve(_HEADER.size + pixels.nbytes):
            return
        pixels = np.ascontiguousarray(pixels)
        header = _HEADER.pack(_MAGIC, *pixels.shape[:2], zlib.crc32(pixels.data))
        try:
            self._write(self.path(index), header, pixels)
        except (OSError, StorageError) as error:
            # A cache that cannot be written makes a run slower, but must not stop it.
            self._counters.full = f"it cannot be written ({error})"

    def stats(self) -> CacheStats:
        """What it did so far."""
        return self._counters.stats()

    @staticmethod
    def _write(path: Path, header: bytes, pixels: Pixels) -> None:
        # Waiting for the disk once per image would be slow; an incomplete entry after a power cut is found by its checksum.
        with atomic_write(path, durable=False) as file:
            file.write(header)
            file.write(pixels.data.cast("B"))

    def _read(self, path: Path) -> Pixels | None:
        """The pixels of an entry; None if it is damaged. Raises DataError if it does not exist."""
        with os.fdopen(open_regular(path), "rb") as file:
            length = os.fstat(file.fileno()).st_size
            if length < _HEADER.size:
                return None
            # A private mapping: writable, as torch requires, but changes never reach the file.
            mapped = mmap.mmap(file.fileno(), length, access=mmap.ACCESS_COPY)
        magic, height, width, checksum = _HEADER.unpack_from(mapped)
        if magic != _MAGIC or length != _HEADER.size + height * width * 3:
            return None
        pixels = np.frombuffer(mapped, np.uint8, offset=_HEADER.size).reshape(height, width, 3)
        if path.name not in self._checked:
            if zlib.crc32(pixels.data) != checksum:
                return None
            self._checked.add(path.name)
        return pixels
