"""Filling an index: which images a folder or a CSV file has, and embedding those that are new or changed.

Each batch is embedded and then written in one transaction together with the digests of its images. A process that is
interrupted loses at most one batch, and the next call recognizes finished images by their digests. ``Index`` calls these
functions and holds the lock while they run.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from recollect.common.console import ProgressLine
from recollect.common.errors import DataError, ImageError, InputError, unreadable
from recollect.common.images import IMAGE_SUFFIXES, file_sha256
from recollect.common.text import number_of
from recollect.data.folders import TO_READ_HEIC, SkippedFile, class_images, find_inner_classes, find_parts
from recollect.data.tables import read_csv, relative_to
from recollect.search.encoder import OnBad, shorten
from recollect.search.stores.base import Generation, Item, Store, Vectors

Entry = tuple[Item, Any]
"""An image as it should be in the index, and the path or the object that was passed."""
Embed = Callable[[Sequence[Any], OnBad], Vectors]
"""``Encoder.embed``. It is called only where there is something to embed, so that a model need not be opened before."""

BATCH = 256
"""Images embedded and written together; an interruption costs at most one such batch."""

_EXPECTED = ("not an image", "HEIC")
"""Files that are left out without a message for each."""


@dataclass(frozen=True)
class ImageFile:
    """One image file to be in the index."""

    id: str
    path: Path
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ImageListing:
    """The images of a folder or of a CSV file.

    Attributes:
        source: the folder or the file.
        images: those that exist.
        remarks: messages about skipped files, and about labels that are not clear.
        skipped: the number of skipped files, by reason.
    """

    source: Path
    images: list[ImageFile] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)


def scan_images(source: Path | str, *, prefix: str = "", labels: bool = True) -> ImageListing:
    """List the images of a folder or of a CSV file.

    A folder: every image below it. The id is its path relative to the folder, ``label`` the first folder on that path
    (below ``train``, ``test`` and ``val``, which become ``split``; ``Testing`` and similar names are recognized), ``name``
    the file's name.

    A CSV file: the column ``path`` (relative to the CSV's folder), ``id`` if there is one, and all other columns as
    metadata.

    Args:
        source: the folder or the CSV file.
        prefix: prefix of every id, to keep several folders apart.
        labels: find ``label`` and ``split`` of the images of a folder, with messages where they are not clear.

    Raises:
        DataError: it is neither, or contains no images.
    """
    listing = ImageListing(root := Path(source))
    if root.is_dir():
        listing.images.extend(_folder(listing, prefix, labels))
    elif root.suffix.lower() == ".csv" and root.is_file():
        listing.images.extend(_csv(listing, prefix))
    elif root.exists():
        raise DataError(f"{root}: an index is filled from folders and .csv files; add single files with --add.")
    else:
        raise DataError(f"{root}: no such folder or .csv file.")
    if not listing.images:
        why = f" {listing.remarks[0]}" if listing.remarks else ""
        raise DataError(f"{root}: no images found (looked for {', '.join(sorted(IMAGE_SUFFIXES))}).{why}")
    return listing


def _folder(listing: ImageListing, prefix: str, labels: bool) -> Iterator[ImageFile]:
    root, remarks, skipped = listing.source, listing.remarks, listing.skipped
    unused: list[SkippedFile] = []
    splits: dict[str, str] = {}
    if labels:
        try:
            splits = {folder: split for split, folder in find_parts(root).items()}
        except DataError as error:  # labels are a help here, and no reason to refuse a folder
            remarks.append(f"{error} Its name is taken for a label.")
        if not splits and (inner := find_inner_classes(root)) is not None:
            remarks.append(inner.remark(tables=True))
    for name, label in class_images(root, "", unused, loose=True, parts=splits):
        if any("\ud800" <= character <= "\udfff" for character in name):
            unused.append(SkippedFile(name, "name not UTF-8"))
            continue
        metadata = {"name": name.split("/")[-1]}
        if (split := splits.get(name.split("/")[0])) is not None:
            metadata["split"] = split
        if labels and label:
            metadata["label"] = label
        yield ImageFile(prefix + name, root / name, metadata)
    skipped.update(each.reason for each in unused)
    remarks += [f"{root / name}: skipped ({reason})." for name, reason in unused if reason not in _EXPECTED]
    if skipped["HEIC"]:
        count = number_of(skipped["HEIC"], "HEIC image is/HEIC images are")
        remarks.append(f"{root}: {count} skipped. {TO_READ_HEIC}.")


def _csv(listing: ImageListing, prefix: str) -> Iterator[ImageFile]:
    path, remarks, skipped = listing.source, listing.remarks, listing.skipped
    lines: dict[str, int] = {}
    for line, row in read_csv(path, ("path",), ("id", "label"), others=True):
        name = relative_to(path.parent, row.pop("path"))
        identity = prefix + (row.pop("id", "") or Path(name).as_posix())
        if identity in lines:
            raise DataError(f"{path}, line {line}: {identity!r} is already listed in line {lines[identity]}.")
        lines[identity] = line
        if (file := path.parent / name).is_file():
            columns = {column: value for column, value in row.items() if column and value}
            yield ImageFile(identity, file, {"name": file.name, **columns})
        else:
            skipped["missing"] += 1
            if skipped["missing"] <= 5:
                remarks.append(f"{path}, line {line}: {name} does not exist; skipped.")
    if skipped["missing"] > 5:
        remarks.append(f"{path}: {skipped['missing']:,} files do not exist in total.")


@dataclass
class SyncChanges:
    """The changes that a call made to the index.

    Attributes:
        added, updated, removed, unchanged: numbers of images. ``updated`` counts new contents and new metadata.
        embedded: how many images went through the model; the others were known by their contents.
        skipped: messages about images that could not be added.
        left_out: the number of files that are not in the index, by reason: those of ``skipped`` and files that are not images.
    """

    added: int = 0
    updated: int = 0
    removed: int = 0
    unchanged: int = 0
    embedded: int = 0
    skipped: list[str] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)

    def skip(self, message: str, kind: str) -> None:
        """Note an image that cannot be added. ``kind`` is the reason in one or two words."""
        self.skipped.append(message)
        self.left_out[kind] = self.left_out.get(kind, 0) + 1


def add_images(
    store: Store,
    generation: Generation,
    embed: Embed,
    images: Sequence[Any],
    ids: Sequence[str],
    metadata: Sequence[Mapping[str, str]],
) -> SyncChanges:
    """Add images by their ids; an image with unchanged contents is not embedded again."""
    filling = _Filling(store, generation, embed, store.get(generation.number, ids))
    with ProgressLine("indexing", len(images)) as line:
        for batch in batches(zip(images, ids, metadata, strict=True)):
            filling.put(itertools.starmap(_entry, batch))
            line.advance(len(batch))
    return filling.changes


def sync_images(
    store: Store, generation: Generation, embed: Embed, listing: ImageListing, *, prune: bool, rehash: bool
) -> SyncChanges:
    """Synchronize the index with the images of a folder or a list.

    Args:
        store, generation, embed: where to write, and how to embed.
        listing: the images.
        prune: remove items of that folder whose files no longer exist, or that the list no longer names.
        rehash: read every file again instead of trusting its size and time.
    """
    items = {item.id: item for item in store.iterate(generation.number)}
    filling = _Filling(store, generation, embed, items)
    changes = filling.changes
    pending = [file for file in listing.images if rehash or not _is_current(items.get(file.id), file)]
    changes.unchanged = len(listing.images) - len(pending)
    for file in pending:
        _check_conflict(items.get(file.id), file)
    with ProgressLine("indexing", len(listing.images)) as line:
        line.advance(changes.unchanged)
        for batch in batches(pending):
            with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
                filling.put(pool.map(lambda file: _entry(file.path, file.id, file.metadata), batch))
            line.advance(len(batch))
    if prune:
        ids, is_list = {file.id for file in listing.images}, listing.source.is_file()
        root = (listing.source.parent if is_list else listing.source).resolve()
        files = {item.id: Path(item.source) for item in items.values() if item.source and item.id not in ids}
        own = {name: file for name, file in files.items() if file.is_relative_to(root)}
        stale = [name for name, file in own.items() if is_list or not file.exists()]
        changes.removed = sum(store.delete(generation.number, batch) for batch in batches(stale))
    return changes


def refill(store: Store, old: Generation, new: Generation, embed: Embed) -> SyncChanges:
    """Embed all items of one generation into another; items from an interrupted call are kept."""
    items = {item.id: item for item in store.iterate(new.number)}
    filling = _Filling(store, new, embed, items)
    ids: set[str] = set()
    with ProgressLine("embedding again", store.count(old.number)) as line:
        for batch in batches(store.iterate(old.number)):
            ids.update(item.id for item in batch)
            missing = [item for item in batch if item.id not in items or _content(items[item.id]) != _content(item)]
            filling.changes.unchanged += len(batch) - len(missing)
            filling.put(_entry_again(store, item) for item in missing)
            line.advance(len(batch))
    store.delete(new.number, [name for name in items if name not in ids])  # removed since the interruption
    return filling.changes


def _entry(image: Any, name: str, metadata: Mapping[str, str]) -> Entry | ImageError:
    """The image, or why its file cannot be read; called by several threads."""
    if not isinstance(image, str | Path):
        digest, picture = digest_of(image)
        return Item(name, None, metadata, digest, picture=picture), image
    path = Path(image)
    stamp = stamp_of(path)
    try:
        digest, _ = digest_of(path)
    except (OSError, DataError) as error:
        return ImageError(str(error) if isinstance(error, DataError) else unreadable(error, path), "unreadable")
    return Item(name, None, {"name": path.name, **metadata}, digest, str(path.resolve()), stamp), path


def _entry_again(store: Store, item: Item) -> Entry | ImageError:
    """The image of an item; its metadata stays to the letter, file name included."""
    if item.source:
        entry = _entry(item.source, item.id, {})
        return entry if isinstance(entry, ImageError) else (replace(entry[0], metadata=item.metadata), entry[1])
    picture = store.picture(item.digest)
    if picture is None:
        return ImageError(f"{item.id}: was added as a vector; there is no image to embed.", "without an image")
    return replace(item, picture=picture), picture


def _is_current(item: Item | None, file: ImageFile) -> bool:
    now = file.metadata, str(file.path.resolve()), stamp_of(file.path)
    return item is not None and (item.metadata, item.source, item.stamp) == now


def _check_conflict(item: Item | None, file: ImageFile) -> None:
    """Refuse an id that belongs to another file that still exists: two folders with equal names inside."""
    if item is None or not item.source or item.source == str(file.path.resolve()):
        return
    if Path(item.source).is_file() and item.digest != digest_of(file.path)[0]:
        raise DataError(
            f"the id {file.id!r} of {file.path} already belongs to {item.source}. Keep the folders apart with --prefix, "
            "or remove the other first."
        )


def _content(item: Item) -> tuple[str, Mapping[str, str]]:
    return item.digest, item.metadata


class _Filling:
    """Writes images into a generation, and counts the changes.

    Args:
        store, generation, embed: where to write, and how to embed.
        items: items of the generation, by id.
    """

    def __init__(self, store: Store, generation: Generation, embed: Embed, items: Mapping[str, Item]) -> None:
        self._store, self._generation, self._embed, self._items = store, generation, embed, items
        self._ids = {item.digest: item.id for item in items.values() if item.digest}
        self.changes = SyncChanges()

    def put(self, entries: Iterable[Entry | ImageError]) -> None:
        """Write one batch; only new contents are embedded. Images that cannot be read are noted."""
        batch: list[Entry] = []
        for entry in entries:
            if isinstance(entry, ImageError):
                self.changes.skip(str(entry), entry.kind)
            else:
                batch.append(entry)
        vectors = self._stored_vectors([item for item, _ in batch])
        new = {item.digest: (item, image) for item, image in batch if item.digest not in vectors}
        errors = self._embed_new(new, vectors)
        items = []
        for item, image in batch:
            before = self._items.get(item.id)
            if (error := errors.get(item.digest)) is not None:
                self.changes.skip(f"{image if item.source else item.id}: {error.reason}", error.kind)
                continue
            items.append(replace(item, vector=vectors[item.digest]))
            self._ids[item.digest] = item.id
            if before is None:
                self.changes.added += 1
            elif _content(before) == _content(item):
                self.changes.unchanged += 1
            else:
                self.changes.updated += 1
        self._store.put(self._generation.number, items)

    def _stored_vectors(self, items: Sequence[Item]) -> dict[str, Vectors]:
        """Vectors of these contents that the generation already has, by digest."""
        ids = sorted({self._ids[item.digest] for item in items if item.digest in self._ids})
        stored = self._store.get(self._generation.number, ids, vectors=True) if ids else {}
        return {item.digest: item.vector for item in stored.values() if item.vector is not None}

    def _embed_new(self, new: Mapping[str, Entry], vectors: dict[str, Vectors]) -> dict[str, ImageError]:
        """Add the vectors of new contents to ``vectors``; returns the errors of the others. All by digest."""
        if not new:
            return {}
        bad: dict[int, ImageError] = {}
        rows = shorten(self._embed([image for _, image in new.values()], bad.__setitem__), self._generation.dim)
        errors: dict[str, ImageError] = {}
        for number, (digest, (item, image)) in enumerate(new.items()):
            if number in bad:
                errors[digest] = bad[number]
            elif item.stamp and stamp_of(image) != item.stamp:
                changed = "changed while it was being read. Run the command again."
                errors[digest] = ImageError(changed, "changed meanwhile")
            else:
                vectors[digest] = rows[number]
        self.changes.embedded += len(new) - len(errors)
        return errors


def batches(entries: Iterable[Any], size: int | None = None) -> Iterator[list[Any]]:
    """Lists of ``size`` entries, ``BATCH`` by default."""
    remaining = iter(entries)
    while batch := list(itertools.islice(remaining, size or BATCH)):
        yield batch


def stamp_of(path: Path) -> str:
    """Size and time of a file, to detect changes without reading it; "" if it is gone."""
    try:
        state = path.stat()
    except OSError:
        return ""
    return f"{state.st_size}:{state.st_mtime_ns}"


def digest_of(image: Any) -> tuple[str, bytes | None]:
    """SHA-256 of an image's bytes, and those bytes unless it is a file (arrays and PIL images as PNG)."""
    if isinstance(image, str | Path):
        return file_sha256(image), None
    if isinstance(image, bytes):
        return hashlib.sha256(image).hexdigest(), image
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8:
            raise InputError(f"an image array must be H×W or H×W×3 of uint8, not {image.shape} of {image.dtype}.")
        image = Image.fromarray(image)
    if isinstance(image, Image.Image):
        buffer = io.BytesIO()
        image.save(buffer, "PNG")
        return hashlib.sha256(buffer.getvalue()).hexdigest(), buffer.getvalue()
    raise InputError(f"an image must be a path, bytes, a PIL image or a uint8 array, not a {type(image).__name__}.")
