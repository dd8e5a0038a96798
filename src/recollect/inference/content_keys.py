"""The identity of an image: a digest of its content, independent of its folder and name.

A key is the first 16 bytes of the SHA-256 of the file (or of the pixels, for images in memory), with the box if the
image is cropped to one. Hashing reads whole files: reading less could mistake an edited picture for the old one. It costs
little compared with the network (1.8 GB/s on one core of an AMD EPYC, so 0.06 ms for a photo of 100 KB, and 46 ms for a
small network), and is done once: digests are stored with the file's size and times in ``content.sqlite`` in the cache
folder. A file that changed within the last two seconds is not stored, because a second change might not change its times.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import stat
import time
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.common.console import ProgressLine
from recollect.common.errors import ImageError
from recollect.common.files import cache_folder
from recollect.common.images import largest_file
from recollect.data import ImageSet

Keys = NDArray[np.uint8]
"""N × 16 bytes."""

KEY_BYTES = 16
_SETTLED = 2_000_000_000  # nanoseconds after which a change of a file certainly changes its times
_MANY = 5_000  # number of files from which a progress line is shown

Stamp = tuple[int, int, int]  # size, time of change of the content, time of change of the entry


def content_keys(images: ImageSet) -> Keys:
    """The keys of all images of a set, N × 16.

    The key of a file that is empty or cannot be read is made from its name and matches no content: empty files, as an
    interrupted copy leaves them, are not the same photo.
    """
    if images.arrays is not None:
        shape = str(images.arrays.shape[1:]).encode()
        digests = [hashlib.sha256(shape + np.ascontiguousarray(pixels).data).digest() for pixels in images.arrays]
    elif images.items is not None:
        digests = _of_items(images)
    else:
        digests = [digest or _of_name(name) for digest, name in zip(_of_files(images), images.names, strict=True)]
    if images.boxes is not None:
        boxes = np.asarray(images.boxes, "<f8")
        digests = [
            digest if np.isnan(box).any() else hashlib.sha256(digest + box.tobytes()).digest()
            for digest, box in zip(digests, boxes, strict=True)
        ]
    keys = np.frombuffer(b"".join(digest[:KEY_BYTES] for digest in digests), np.uint8)
    return keys.reshape(-1, KEY_BYTES)


def set_digest(images: ImageSet, keys: Keys) -> str:
    """SHA-256 over names, classes and contents: equal for the same photos under the same names in any folder."""
    return hashlib.sha256(images.fingerprint.encode() + np.ascontiguousarray(keys).tobytes()).hexdigest()


def _of_items(images: ImageSet) -> list[bytes]:
    """Keys of images without a file, such as rows of a Hugging Face data set: from their pixels, decoded for this."""
    digests = []
    with ProgressLine("reading images", len(images), quiet=None if len(images) >= _MANY else True) as line:
        for place, name in enumerate(images.names):
            try:
                image = images.read(place)
                facts = f"{image.mode} {image.size}\0".encode()
                digests.append(hashlib.sha256(facts + image.tobytes()).digest())
            except ImageError:
                digests.append(_of_name(name))
            line.advance()
    return digests


def _of_name(name: str) -> bytes:
    return hashlib.sha256(b"unreadable\0" + name.encode("utf-8", "surrogateescape")).digest()


def _of_files(images: ImageSet) -> list[bytes | None]:
    """Digests of files; None for one that is empty or cannot be read."""
    paths = [images.root / name for name in images.names] if images.root is not None else []
    absolute = [os.path.abspath(path) for path in paths]  # noqa: PTH100 - a hundred thousand of them, and no links followed
    stamps = [_stamp(path) for path in absolute]
    known = _remembered(absolute)
    found: list[bytes | None] = [
        known[path][1] if stamp is not None and path in known and known[path][0] == stamp else None
        for path, stamp in zip(absolute, stamps, strict=True)
    ]
    missing = [place for place, digest in enumerate(found) if digest is None]
    fresh: list[tuple[str, Stamp, bytes]] = []
    with (
        ThreadPoolExecutor(min(8, os.cpu_count() or 1), "recollect-hash") as pool,
        ProgressLine("reading images", len(missing), quiet=None if len(missing) >= _MANY else True) as line,
    ):
        for place, digest in zip(
            missing, pool.map(_digest, (absolute[p] if stamps[p] else None for p in missing)), strict=True
        ):
            stamp, path = stamps[place], absolute[place]
            line.advance()
            found[place] = digest
            if (
                digest is not None
                and stamp is not None
                and stamp == _stamp(path)
                and time.time_ns() - max(stamp[1:]) > _SETTLED
            ):
                fresh.append((path, stamp, digest))
    _remember(fresh)
    return found


def _stamp(path: str) -> Stamp | None:
    try:
        status = os.stat(path)  # noqa: PTH116
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(status.st_mode):
        return None  # a pipe would be waited for
    if not status.st_size:
        return None
    # The entry's own time too: a copy that keeps the other ("cp -p", rsync) still changes this one.
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _digest(path: str | None) -> bytes | None:
    if path is None:
        return None
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            if os.fstat(file.fileno()).st_size > largest_file():
                return None  # refused when it is decoded, and not hashed for minutes before
            return hashlib.file_digest(file, "sha256").digest()
    except OSError:
        return None


def _remembered(paths: Sequence[str]) -> dict[str, tuple[Stamp, bytes]]:
    found: dict[str, tuple[Stamp, bytes]] = {}

    def read(database: sqlite3.Connection) -> None:
        for start in range(0, len(paths), 500):
            some = [os.fsencode(path) for path in paths[start : start + 500]]
            marks = ",".join("?" * len(some))
            for *row, checksum in database.execute(f"SELECT * FROM digests WHERE path IN ({marks})", some):
                if checksum == _checksum(row):
                    path, size, content, entry, digest = row
                    found[os.fsdecode(path)] = ((size, content, entry), digest)

    _with_database(read)
    return found


def _remember(fresh: Sequence[tuple[str, Stamp, bytes]]) -> None:
    rows = [(os.fsencode(path), *stamp, digest) for path, stamp, digest in fresh]
    if rows:
        checked = [(*row, _checksum(row)) for row in rows]
        _with_database(
            lambda database: database.executemany("INSERT OR REPLACE INTO digests VALUES (?, ?, ?, ?, ?, ?)", checked)
        )


def _checksum(row: Sequence[object]) -> int:
    """Of a row: SQLite reads what a cut file lacks as zeros, and a digest that ends in zeros is that of no photo."""
    return zlib.crc32(repr(tuple(row)).encode())


def _with_database(work: Callable[[sqlite3.Connection], Any]) -> None:
    """Do ``work`` with the table of digests, if possible. A failure costs time but never changes a result."""
    path = cache_folder() / "content.sqlite"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(sqlite3.connect(path, timeout=30)) as database, database:
            database.execute(
                "CREATE TABLE IF NOT EXISTS digests (path BLOB PRIMARY KEY, size INTEGER, content INTEGER, "
                "entry INTEGER, digest BLOB, checksum INTEGER) WITHOUT ROWID"
            )
            database.execute("DROP TABLE IF EXISTS files")  # of earlier versions, without checksums
            work(database)
    except (OSError, sqlite3.OperationalError):
        return  # a folder that cannot be written, a lock that is held for too long
    except (sqlite3.Error, TypeError, ValueError):
        with contextlib.suppress(OSError):
            path.unlink()  # damaged: the next call creates it again
