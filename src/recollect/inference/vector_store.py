"""``VectorStore``: rows of numbers on disk, found by the content of images and written part by part.

Features of a frozen part of a network and vectors of an evaluation, a report or a search are all rows that depend on an
image and on a network with its preprocessing. A store is a folder for one network and preprocessing (``about``), in which
a row is found by the image's content (``content_keys.py``). So train, eval, embed, report and search share their results,
whatever the names of the files.

A part is an ``.npz`` with keys and rows, written atomically; its checksums are verified on reading. A killed process loses
one part. A damaged file is removed, with a warning, and its rows are computed again. Files are never changed, so any
number of processes can read and write at once; two that need the same rows of the same images wait for each other.

To free space, remove the folder ``vectors`` in the cache folder, or folders in it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from recollect.common.console import ProgressLine
from recollect.common.errors import DataError, DataWarning, RecollectError
from recollect.common.files import atomic_write, cache_folder, exclusive, write_json
from recollect.inference.content_keys import Keys

Rows = NDArray[np.float32]
Places = NDArray[np.int64]

PART = 1024
"""Images in a part: a minute of work for a small network on one core."""

IN_MEMORY = 1 << 30
"""Bytes up to which rows are collected in memory; more are written to a temporary file."""


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
        self._parts: set[str] = set()
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
        computed: dict[bytes, NDArray[np.float32]] = {}
        for _ in range(3):
            if not self.known(keys).all():
                with self._lock(keys) if keep else contextlib.nullcontext():
                    self._complete(keys, computed, compute, part, keep, description)
            if (rows := self._gather(keys, computed)) is not None:
                return rows
            description = f"{description} again"  # a damaged part was removed
        raise DataError(f"{self.folder}: vectors that were just written cannot be read: check the disk.")

    def keep(self, keys: Keys, rows: Rows) -> bool:
        """Write one part, if possible: a cache that cannot be written makes work slower, but must not stop it."""
        try:
            if not (self.folder / "about.json").exists():
                write_json(self.folder / "about.json", dict(self.about))  # for people who inspect the folder
            name = f"{_digest(keys)}.npz"
            with atomic_write(self.folder / name) as file:
                np.savez(file, keys=keys, rows=np.asarray(rows, np.float32))
            self._parts.discard(name)
        except (OSError, RecollectError) as error:
            warnings.warn(f"vectors are not stored: {error}", DataWarning, stacklevel=2)
            return False
        return True

    def _complete(
        self,
        keys: Keys,
        computed: dict[bytes, NDArray[np.float32]],
        compute: Callable[[Places], Rows],
        part: int,
        keep: bool,
        description: str,
    ) -> None:
        """Compute the missing rows; those that are not stored are added to ``computed``."""
        self._look()  # another process may have written rows while this one waited
        first = {key.tobytes(): place for place, key in reversed(list(enumerate(keys)))}
        missing = np.array(
            sorted(p for key, p in first.items() if key not in self._places and key not in computed), int
        )
        with ProgressLine(description, len(missing)) as line:
            for start in range(0, len(missing), part):
                places = missing[start : start + part]
                rows = np.asarray(compute(places), np.float32)
                sound = np.isfinite(rows).reshape(len(rows), -1).all(axis=1)
                if keep and sound.any():
                    keep = self.keep(keys[places[sound]], rows[sound])
                left = ~sound if keep else np.ones(len(rows), bool)
                computed.update(zip((key.tobytes() for key in keys[places[left]]), rows[left], strict=True))
                line.advance(len(places))
        self._look()

    @contextlib.contextmanager
    def _lock(self, keys: Keys) -> Iterator[None]:
        """Only one process at a time computes these rows. Without a folder for the lock, each does."""
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError, RecollectError):
                stack.enter_context(exclusive(self.folder / f".{_digest(keys)}.lock"))
            yield

    def _gather(self, keys: Keys, computed: Mapping[bytes, NDArray[np.float32]]) -> Rows | None:
        """The rows, read part by part; None if some are missing because a part was damaged."""
        by_part: dict[str, list[tuple[int, int]]] = {}
        for place, key in enumerate(keys):
            if (name := key.tobytes()) in computed:
                continue
            if name not in self._places:
                return None
            part, row = self._places[name]
            by_part.setdefault(part, []).append((place, row))
        shape = next((row.shape for row in computed.values()), None)
        result: Rows | None = None if shape is None else allocated((len(keys), *shape))
        for part, pairs in by_part.items():
            rows = self._read(part, "rows")
            if rows is None:
                return None
            result = allocated((len(keys), *rows.shape[1:])) if result is None else result
            if rows.shape[1:] != result.shape[1:]:
                raise DataError(f"{self.folder}: rows of different shapes. Remove the folder.")
            places, there = np.array(pairs, np.int64).T
            result[places] = rows[there]
        if result is None:
            return np.empty((0, 0), np.float32)
        for place, key in enumerate(keys) if computed else ():
            if (found := computed.get(key.tobytes())) is not None:
                result[place] = found
        return result

    def _look(self) -> None:
        """Find parts that were written since the last call."""
        for path in sorted(self.folder.glob("*.npz")):
            if path.name not in self._parts:
                self._parts.add(path.name)  # also a damaged one that cannot be removed
                keys = self._read(path.name, "keys")
                for row, key in enumerate(() if keys is None else keys):
                    self._places.setdefault(key.tobytes(), (path.name, row))

    def _read(self, part: str, array: str) -> NDArray[Any] | None:
        """An array of a part; a damaged part is removed."""
        path = self.folder / part
        try:
            with np.load(path) as content:
                found: NDArray[Any] = content[array]
                return found
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


def weights_digest(model: nn.Module) -> str:
    """SHA-256 over names, shapes and values of everything in the ``state_dict`` of ``model``."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(np.ascontiguousarray(tensor.detach().cpu().numpy()).data)
    return digest.hexdigest()
