"""``VectorStore``: rows of numbers on disk, found by the content of images and written part by part.

Features of a frozen part of a network and vectors of an evaluation, a report or a search are all rows that depend on an
image and on a network with its preprocessing. A store is a folder for one network and preprocessing (``about``), in which
a row is found by the image's content (``content_keys.py``). So train, eval, embed, report and search share their results,
whatever the names of the files.

Rows are written in files of one part each, atomically, with a checksum that is verified on reading. A killed process loses
one part. A damaged file is removed, with a warning, and its rows are computed again. Files are never changed, so any
number of processes can read and write at once; two that need the same rows of the same images wait for each other.

To free space, remove the folder ``vectors`` in the cache folder, or folders in it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
import tempfile
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from recollect.common.console import ProgressLine
from recollect.common.errors import DataError, DataWarning, RecollectError
from recollect.common.files import atomic_write, cache_folder, write_json
from recollect.common.locks import exclusive
from recollect.common.reading import open_regular
from recollect.inference.content_keys import KEY_BYTES, Keys

Rows = NDArray[np.float32]
Places = NDArray[np.int64]

PART = 1024
"""Images in a part: a minute of work for a small network on one core."""

IN_MEMORY = 1 << 30
"""Bytes up to which rows are collected in memory; more are written to a temporary file."""

_MAGIC = b"recollV1"
_HEADER = struct.Struct("<8sIIQ4Q")  # magic, checksum of what follows it, dimensions of a row, rows, shape of a row
_ALIGNED = 64


class VectorStore:
    """The outputs of one network, or a part of it, for images.

    Args:
        about: everything a row depends on besides the image, as plain values (see ``weights_digest``).
        folder: the folder of all stores; the cache folder's ``vectors`` by default.

    Examples:
        >>> folder = Path(tempfile.mkdtemp())
        >>> keys = np.arange(48, dtype=np.uint8).reshape(3, 16)
        >>> store = VectorStore({"model": "ones"}, folder)
        >>> store.rows(keys, lambda missing: np.ones((len(missing), 2), np.float32)).shape
        (3, 2)
        >>> int(VectorStore({"model": "ones"}, folder).known(keys).sum())
        3
    """

    def __init__(self, about: Mapping[str, Any], folder: Path | None = None) -> None:
        text = json.dumps(about, sort_keys=True, default=str)
        self.about = about
        self.folder = (folder or cache_folder() / "vectors") / hashlib.sha256(text.encode()).hexdigest()[:32]
        self._files: dict[str, _File] = {}
        self._refused: set[str] = set()
        self._places: dict[bytes, tuple[str, int]] = {}

    def known(self, keys: Keys) -> NDArray[np.bool_]:
        """Which rows are stored."""
        self._look()
        return np.array([key.tobytes() in self._places for key in keys], bool)

    def rows(
        self,
        keys: Keys,
        compute: Callable[[Places], Rows],
        *,
        part: int | None = None,
        keep: bool = True,
        description: str = "embedding",
    ) -> Rows:
        """The rows of ``keys`` in order: stored rows are read, the others computed and stored.

        Args:
            keys: N × 16, from ``content_keys``.
            compute: rows of the images at the given positions. A row that is not finite is returned but not stored.
            part: how many are computed and written at a time. The division into parts does not depend on
                interruptions, so the rows do not either.
            keep: False only reads: computed rows are not written.
            description: for the progress line.
        """
        given: dict[int, NDArray[np.float32]] = {}
        if not self.known(keys).all():
            with self._alone(keys) if keep else contextlib.nullcontext():
                given = self._complete(keys, compute, part or PART, keep, description)
        return self._gather(keys, given, compute)

    def add(self, keys: Keys, rows: Rows) -> None:
        """Write one part."""
        content = np.ascontiguousarray(rows, "<f4")
        shape = (*content.shape[1:], 0, 0, 0, 0)[:4]
        digest = hashlib.sha256(keys.tobytes()).hexdigest()[:24]
        gap = bytes(-(_HEADER.size + keys.nbytes) % _ALIGNED)
        follows = struct.pack("<IQ4Q", content.ndim - 1, len(content), *shape) + keys.tobytes() + gap
        checksum = zlib.crc32(content.data.cast("B"), zlib.crc32(follows))
        if not (self.folder / "about.json").exists():
            write_json(self.folder / "about.json", dict(self.about))  # for people who inspect the folder
        with atomic_write(self.folder / f"{digest}.rows") as file:
            file.write(_HEADER.pack(_MAGIC, checksum, content.ndim - 1, len(content), *shape))
            file.write(follows[struct.calcsize("<IQ4Q") :])
            file.write(content.data.cast("B"))
        self._refused.discard(f"{digest}.rows")

    def keep(self, keys: Keys, rows: Rows) -> bool:
        """``add``, if possible: a cache that cannot be written makes work slower, but must not stop it."""
        try:
            self.add(keys, rows)
        except (OSError, RecollectError) as error:
            warnings.warn(f"vectors are not stored: {error}", DataWarning, stacklevel=2)
            return False
        return True

    def _complete(
        self, keys: Keys, compute: Callable[[Places], Rows], part: int, keep: bool, description: str
    ) -> dict[int, NDArray[np.float32]]:
        """Compute the missing rows; returns the rows that are not in the store afterwards, by position."""
        self._look()  # another process may have written rows while this one waited
        missing = self._missing(keys)
        given: dict[int, NDArray[np.float32]] = {}
        with ProgressLine(description, len(missing)) as line:
            for start in range(0, len(missing), part):
                places = missing[start : start + part]
                rows = np.asarray(compute(places), np.float32)
                sound = np.isfinite(rows).reshape(len(rows), -1).all(axis=1)
                if keep and sound.any():
                    keep = self.keep(keys[places[sound]], rows[sound])
                left = ~sound if keep else np.ones(len(rows), bool)
                given.update(zip(places[left].tolist(), rows[left], strict=True))
                line.advance(len(places))
        self._look()
        return given

    @contextlib.contextmanager
    def _alone(self, keys: Keys) -> Iterator[None]:
        """Only one process at a time computes these rows. Without a folder for the lock, each does."""
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError, RecollectError):
                stack.enter_context(exclusive(self.folder / f".{_digest(keys)}.lock"))
            yield

    def _missing(self, keys: Keys) -> Places:
        """Positions to compute: for equal images only the first."""
        first: dict[bytes, int] = {}
        for place, key in enumerate(keys):
            name = key.tobytes()
            if name not in self._places:
                first.setdefault(name, place)
        return np.array(list(first.values()), np.int64)

    def _gather(self, keys: Keys, given: Mapping[int, NDArray[np.float32]], compute: Callable[[Places], Rows]) -> Rows:
        by_key = {keys[place].tobytes(): row for place, row in given.items()}
        for _ in range(2):
            wanted: dict[str, list[tuple[int, int]]] = {}
            for place, key in enumerate(keys):
                name = key.tobytes()
                if name not in by_key:
                    if name not in self._places:
                        break
                    file, row = self._places[name]
                    wanted.setdefault(file, []).append((place, row))
            else:
                opened = {name: self._verified(name) for name in wanted}
                if all(file is not None for file in opened.values()):
                    return self._copied(keys, wanted, {n: f for n, f in opened.items() if f is not None}, by_key)
            # A damaged file was removed: its rows are computed again.
            again = self._complete(keys, compute, PART, True, "embedding again")
            by_key.update({keys[place].tobytes(): row for place, row in again.items()})
        raise DataError(f"{self.folder}: vectors that were just written cannot be read: check the disk.")

    def _copied(
        self,
        keys: Keys,
        wanted: Mapping[str, list[tuple[int, int]]],
        opened: Mapping[str, _File],
        by_key: Mapping[bytes, NDArray[np.float32]],
    ) -> Rows:
        shapes = {file.shape for file in opened.values()} | {row.shape for row in by_key.values()}
        if len(shapes) != 1:
            raise DataError(f"{self.folder}: rows of different shapes {sorted(shapes)}. Remove the folder.")
        rows = allocated((len(keys), *shapes.pop()))
        for name, pairs in wanted.items():
            places, there = np.array(pairs, np.int64).T
            rows[places] = opened[name].rows[there]
        if by_key:
            for place, key in enumerate(keys):
                if (row := by_key.get(key.tobytes())) is not None:
                    rows[place] = row
        return rows

    # Files ------------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Find parts that were written since the last call."""
        try:
            names = sorted(entry.name for entry in os.scandir(self.folder) if entry.name.endswith(".rows"))
        except OSError:
            return  # nothing is stored yet, or storing is not possible
        for name in names:
            if name in self._files or name in self._refused:
                continue
            file = _opened(self.folder / name)
            if file is None:
                self._remove(name)
                continue
            self._files[name] = file
            for row, key in enumerate(file.keys):
                self._places.setdefault(key.tobytes(), (name, row))

    def _verified(self, name: str) -> _File | None:
        """The file, checked against its checksum once; None, and removed, if it is damaged."""
        file = self._files[name]
        if file.checked or file.is_sound():
            file.checked = True
            return file
        self._remove(name)
        return None

    def _remove(self, name: str) -> None:
        warnings.warn(
            f"{self.folder / name}: damaged. It is removed, and its vectors are computed again.",
            DataWarning,
            stacklevel=2,
        )
        with contextlib.suppress(OSError):
            (self.folder / name).unlink()
        self._files.pop(name, None)
        self._refused.add(name)  # in case it cannot be removed
        self._places = {key: place for key, place in self._places.items() if place[0] != name}


@dataclass
class _File:
    """One part, mapped into memory."""

    path: Path
    checksum: int
    keys: Keys
    rows: Rows
    checked: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return self.rows.shape[1:]

    def is_sound(self) -> bool:
        try:
            with os.fdopen(open_regular(self.path), "rb") as file:
                file.seek(12)  # after the magic and the checksum itself
                found = 0
                while block := file.read(1 << 20):
                    found = zlib.crc32(block, found)
        except (OSError, DataError):
            return False
        return found == self.checksum


def _opened(path: Path) -> _File | None:
    """A part whose size matches its header; None for anything else."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            header = file.read(_HEADER.size)
            if len(header) < _HEADER.size:
                return None
            magic, checksum, dimensions, count, *shape = _HEADER.unpack(header)
            length = os.fstat(file.fileno()).st_size
            begin = _HEADER.size + count * KEY_BYTES
            begin += -begin % _ALIGNED
            row = tuple(shape[:dimensions])
            if magic != _MAGIC or not 1 <= dimensions <= 4 or not count or length != begin + 4 * count * prod(row):
                return None
            keys = np.frombuffer(file.read(count * KEY_BYTES), np.uint8).reshape(count, KEY_BYTES)
        rows = np.memmap(path, "<f4", "r", begin, (count, *row))
    except (OSError, DataError, ValueError, OverflowError, MemoryError):
        return None
    return _File(path, checksum, keys, rows)


def allocated(shape: tuple[int, ...]) -> Rows:
    """An array in memory or, if it is large, in a temporary file that is removed when it is no longer used."""
    if 4 * prod(shape) <= IN_MEMORY:
        return np.empty(shape, np.float32)
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder, suffix=".part") as file:
        return np.memmap(file, np.float32, "w+", shape=shape)


def _digest(keys: Keys) -> str:
    return hashlib.sha256(np.ascontiguousarray(keys).tobytes()).hexdigest()[:24]


def weights_digest(model: nn.Module) -> str:
    """SHA-256 over names, shapes and values of everything in the ``state_dict`` of ``model``."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(np.ascontiguousarray(tensor.detach().cpu().numpy()).data)
    return digest.hexdigest()
