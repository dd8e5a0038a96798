"""``VectorStore``: rows of numbers on disk, found by the content of images and written part by part.

Features of a frozen part of a network and vectors of an evaluation, a report or a search are all rows that depend on an
image and on a network with its preprocessing. A store is a folder for one network and preprocessing (``provenance``), in which
a row is found by the image's content. So train, eval, embed and report share their results, whatever the names of the
files. To free space, remove the folder ``vectors`` in the cache folder, or folders in it.

A part is an ``.npz`` with keys and rows, written atomically; its checksums are verified on reading. A killed process loses
one part. A damaged file is removed, with a warning, and its rows are computed again. Files are never changed, so any
number of processes can read and write at once; two that need the same rows of the same images wait for each other.

The key of an image (``content_keys``) is the first 16 bytes of the SHA-256 of its file (or of its pixels, for images in
memory), with the box if the image is cropped to one. Hashing reads whole files: reading less could mistake an edited
picture for the old one. It costs little compared with the network (1.8 GB/s on one core of an AMD EPYC, so 0.06 ms for a
photo of 100 KB, and 46 ms for a small network), and is done once: digests are stored with the file's size and times in
``content.sqlite`` in the cache folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import stat
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.common.console import ProgressLine
from recollect.common.errors import DataError, DataWarning, ImageError, RecollectError
from recollect.common.files import atomic_write, cache_folder, exclusive, write_json
from recollect.common.images import largest_file
from recollect.data import ImageSet

Keys = NDArray[np.uint8]
"""N × 16 bytes."""
Rows = NDArray[np.float32]
Places = NDArray[np.int64]

PART = 1024
"""Images in a part: a minute of work for a small network on one core."""
IN_MEMORY = 1 << 30
"""Bytes up to which rows are collected in memory; more are written to a temporary file."""
KEY_BYTES = 16
_SETTLED = 2_000_000_000  # nanoseconds after which a change of a file certainly changes its times
_MANY = 5_000  # number of files from which a progress line is shown


class VectorStore:
    """The outputs of one network, or a part of it, for images.

    Args:
        provenance: everything a row depends on besides the image, as plain values (see ``weights_digest``).
        folder: the folder of all stores; the cache folder's ``vectors`` by default.

    Examples:
        >>> folder = Path(tempfile.mkdtemp())
        >>> keys = np.arange(48, dtype=np.uint8).reshape(3, 16)
        >>> store = VectorStore({"model": "ones"}, folder)
        >>> store.rows(keys, lambda missing: np.ones((len(missing), 2), np.float32)).shape
        (3, 2)
        >>> int(VectorStore({"model": "ones"}, folder).contains(keys).sum())
        3
    """

    def __init__(self, provenance: Mapping[str, Any], folder: Path | None = None) -> None:
        text = json.dumps(provenance, sort_keys=True, default=str)
        self.provenance = provenance
        self.folder = (folder or cache_folder() / "vectors") / hashlib.sha256(text.encode()).hexdigest()[:32]
        self._parts: set[str] = set()
        self._places: dict[bytes, tuple[str, int]] = {}

    def contains(self, keys: Keys) -> NDArray[np.bool_]:
        """Which rows are stored."""
        for path in sorted(self.folder.glob("*.npz")):
            if path.name not in self._parts:
                self._parts.add(path.name)  # also a damaged one that cannot be removed
                part_keys = self._read(path.name, "keys")
                for row, key in enumerate(() if part_keys is None else part_keys):
                    self._places.setdefault(key.tobytes(), (path.name, row))
        return np.array([key.tobytes() in self._places for key in keys], bool)

    def rows(
        self,
        keys: Keys,
        compute: Callable[[Places], Rows],
        *,
        part: int = PART,
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
        names = [key.tobytes() for key in keys]
        computed: dict[bytes, Rows] = {}
        for _ in range(3):
            with contextlib.ExitStack() as stack:
                if keep and not self.contains(keys).all():
                    # One process at a time computes these rows; without a folder for the lock, each does.
                    with contextlib.suppress(OSError, RecollectError):
                        stack.enter_context(exclusive(self.folder / f".{_digest(keys)}.lock"))
                first: dict[bytes, int] = {}
                for place, stored in enumerate(self.contains(keys)):
                    if not stored and names[place] not in computed:
                        first.setdefault(names[place], place)
                missing = np.array(list(first.values()), np.int64)
                with ProgressLine(description, len(missing), quiet=None if len(missing) else True) as line:
                    for start in range(0, len(missing), part):
                        places = missing[start : start + part]
                        rows = np.asarray(compute(places), np.float32)
                        sound: NDArray[np.bool_] = np.asarray(np.isfinite(rows).reshape(len(rows), -1).all(axis=1))
                        if keep and sound.any():
                            keep = self.write(keys[places[sound]], rows[sound])
                        for place, row, finite in zip(places.tolist(), rows, sound, strict=True):
                            if not (finite and keep):
                                computed[names[place]] = row
                        line.advance(len(places))
            self.contains(keys)
            if (gathered := self._gather(names, computed)) is not None:
                return gathered
            description = f"{description} again"  # a damaged part was removed
        raise DataError(f"{self.folder}: vectors that were just written cannot be read: check the disk.")

    def write(self, keys: Keys, rows: Rows) -> bool:
        """Write one part, if possible: a cache that cannot be written makes work slower, but must not stop it."""
        try:
            if not (self.folder / "about.json").exists():
                write_json(self.folder / "about.json", dict(self.provenance))  # for people who inspect the folder
            name = f"{_digest(keys)}.npz"
            with atomic_write(self.folder / name) as file:
                np.savez(file, keys=keys, rows=np.asarray(rows, np.float32))
            self._parts.discard(name)
        except (OSError, RecollectError) as error:
            warnings.warn(f"vectors are not stored: {error}", DataWarning, stacklevel=2)
            return False
        return True

    def _gather(self, names: Sequence[bytes], computed: Mapping[bytes, Rows]) -> Rows | None:
        """The rows, read part by part; None if some are missing because a part was damaged."""
        parts: dict[str, list[int]] = {}
        for place, name in enumerate(names):
            if name not in computed and name not in self._places:
                return None
            parts.setdefault("" if name in computed else self._places[name][0], []).append(place)
        result: Rows | None = None
        for part, places in parts.items():
            if not part:
                rows = np.stack([computed[names[place]] for place in places])
            elif (stored := self._read(part, "rows")) is None:
                return None
            else:
                rows = stored[[self._places[names[place]][1] for place in places]]
            result = allocated((len(names), *rows.shape[1:])) if result is None else result
            result[places] = rows
        return np.empty((0, 0), np.float32) if result is None else result

    def _read(self, part: str, array: str) -> NDArray[Any] | None:
        """An array of a part; a damaged part is removed."""
        path = self.folder / part
        try:
            with np.load(path) as content:
                values: NDArray[Any] = content[array]
                return values
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, NotImplementedError):
            text = f"{path}: damaged. It is removed, and its vectors are computed again."
            warnings.warn(text, DataWarning, stacklevel=2)
        with contextlib.suppress(OSError):
            path.unlink()
        self._places = {key: place for key, place in self._places.items() if place[0] != part}
        return None


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


def content_keys(images: ImageSet) -> Keys:
    """The keys of all images of a set, N × 16.

    The key of a file that is empty or cannot be read is made from its name and matches no content: empty files, as an
    interrupted copy leaves them, are not the same photo.
    """
    digests = _item_digests(images) if images.root is None else _file_digests(images)
    keys = np.empty((len(images), KEY_BYTES), np.uint8)
    for place, digest in enumerate(digests):
        if digest is None:
            name = images.names[place].encode("utf-8", "surrogateescape")
            digest = hashlib.sha256(b"unreadable\0" + name).digest()
        if images.boxes is not None and not np.isnan(images.boxes[place]).any():
            digest = hashlib.sha256(digest + np.asarray(images.boxes[place], "<f8").tobytes()).digest()
        keys[place] = np.frombuffer(digest[:KEY_BYTES], np.uint8)
    return keys


def set_digest(images: ImageSet, keys: Keys) -> str:
    """SHA-256 over names, classes and contents: equal for the same photos under the same names in any folder."""
    return hashlib.sha256(images.fingerprint.encode() + np.ascontiguousarray(keys).tobytes()).hexdigest()


def _item_digests(images: ImageSet) -> list[bytes | None]:
    """Digests of images without a file, such as arrays or rows of a Hugging Face data set."""
    digests: list[bytes | None] = [None] * len(images)
    with ProgressLine("reading images", len(images), quiet=None if len(images) >= _MANY else True) as line:
        for place in range(len(images)):
            with contextlib.suppress(ImageError):
                digests[place] = images.digest(place)
            line.advance()
    return digests


def _file_digests(images: ImageSet) -> list[bytes | None]:
    """Digests of files; None for one that is empty or cannot be read."""
    root = images.root or Path()
    # A hundred thousand of them, and no links followed.
    paths = [os.fsencode(os.path.abspath(root / name)) for name in images.names]  # noqa: PTH100
    stamps = {path: stamp for path in paths if (stamp := _stamp(path)) is not None}
    digests: dict[bytes, bytes] = dict(
        _query(
            "SELECT path, digest FROM sha256 WHERE path = ? AND size = ? AND content = ? AND entry = ? AND length(digest) = 32",
            ((path, *stamp) for path, stamp in stamps.items()),
        )
    )
    missing = [path for path in stamps if path not in digests]
    settled = []
    with (
        ThreadPoolExecutor(min(8, os.cpu_count() or 1), "recollect-hash") as pool,
        ProgressLine("reading images", len(missing), quiet=None if len(missing) >= _MANY else True) as line,
    ):
        for path, digest in zip(missing, pool.map(_file_digest, missing), strict=True):
            line.advance()
            if digest is None:
                continue
            digests[path], stamp = digest, stamps[path]
            # A file that just changed might change again without a change of its times.
            if stamp == _stamp(path) and time.time_ns() - max(stamp[1:]) > _SETTLED:
                settled.append((path, *stamp, digest))
    if settled:
        _query("INSERT OR REPLACE INTO sha256 VALUES (?, ?, ?, ?, ?)", settled)
    return [digests.get(path) for path in paths]


def _stamp(path: bytes) -> tuple[int, int, int] | None:
    """Size, time of change of the content and time of change of the entry; None without a content that can be read."""
    try:
        status = os.stat(path)  # noqa: PTH116
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(status.st_mode) or not 0 < status.st_size <= largest_file():
        return None  # a pipe would be waited for, and too large a file hashed for minutes before it is refused
    # The entry's own time too: a copy that keeps the other ("cp -p", rsync) still changes this one.
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _file_digest(path: bytes) -> bytes | None:
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            return hashlib.file_digest(file, "sha256").digest()
    except OSError:
        return None


def _query(statement: str, rows: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The results of a statement for each row, in the table of digests. A failure costs time but never changes a result."""
    path = cache_folder() / "content.sqlite"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(sqlite3.connect(path, timeout=30)) as database, database:
            database.execute(
                "CREATE TABLE IF NOT EXISTS sha256 (path BLOB PRIMARY KEY, size INTEGER, content INTEGER, entry INTEGER, "
                "digest BLOB) WITHOUT ROWID"
            )
            return [result for row in rows for result in database.execute(statement, row)]
    except (OSError, sqlite3.OperationalError):
        return []  # a folder that cannot be written, a lock that is held for too long
    except sqlite3.Error:
        with contextlib.suppress(OSError):
            path.unlink()  # damaged: the next call creates it again
        return []
