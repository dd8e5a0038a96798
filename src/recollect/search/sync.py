"""Filling an index: adding images, synchronizing it with a folder, embedding everything again.

Each batch is embedded and then written in one transaction together with the digests of its
images. A process that is interrupted loses at most one batch, and the next call recognizes finished images by their
digests. ``Index`` calls these functions and holds the lock while they run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.common.console import ProgressLine
from recollect.common.errors import DataError, ImageError, unreadable
from recollect.search.encoder import OnBad, shorten
from recollect.search.files import ImageListing, IndexedFile, digest_of, stamp_of
from recollect.search.stores.base import Generation, Item, Store, clean_metadata

Embed = Callable[[Sequence[Any], OnBad], NDArray[np.float32]]
"""``Encoder.embed``. It is called only where there is something to embed, so that a model need not be opened before."""

BATCH = 256
"""Images embedded and written together; an interruption costs at most one such batch."""


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


@dataclass(frozen=True)
class _Wanted:
    """An image as it should be in the index. ``image`` is a path or the object that was passed."""

    item: Item
    image: Any


def add_images(
    store: Store,
    generation: Generation,
    embed: Embed,
    images: Sequence[Any],
    ids: Sequence[str],
    metadata: Sequence[Mapping[str, object] | None],
) -> SyncChanges:
    """Add images by their ids; an image with unchanged contents is not embedded again."""
    filling = _Filling(store, generation, embed, {})
    with ProgressLine("indexing", len(images)) as line:
        for some in _batches(zip(images, ids, metadata, strict=True)):
            filling.known = store.get(generation.number, [name for _, name, _ in some])
            filling.put(
                [
                    _wanted(Path(image) if isinstance(image, str) else image, name, clean_metadata(about))
                    for image, name, about in some
                ]
            )
            line.advance(len(some))
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
    known = {item.id: item for item in store.iterate(generation.number)}
    filling = _Filling(store, generation, embed, known)
    changes, listed = filling.changes, listing.images
    pending = [entry for entry in listed if rehash or not _is_current(known.get(entry.id), entry)]
    changes.unchanged = len(listed) - len(pending)
    for entry in pending:
        _check_conflict(known.get(entry.id), entry)
    with ProgressLine("indexing", len(listed)) as line:
        line.advance(changes.unchanged)
        for some in _batches(pending):
            with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
                filling.put(list(pool.map(lambda entry: _wanted(entry.path, entry.id, entry.metadata), some)))
            line.advance(len(some))
    if prune:
        there, is_list = {entry.id for entry in listed}, listing.source.is_file()
        root = (listing.source.parent if is_list else listing.source).resolve()
        gone = [
            item.id
            for item in known.values()
            if item.id not in there
            and item.source
            and Path(item.source).is_relative_to(root)
            and (is_list or not Path(item.source).exists())
        ]
        for some in _batches(gone):
            changes.removed += store.delete(generation.number, some)
    return changes


def refill(store: Store, old: Generation, new: Generation, embed: Embed) -> SyncChanges:
    """Embed all items of one generation into another; items from an interrupted call are kept."""
    done = {item.id: item for item in store.iterate(new.number)}
    filling = _Filling(store, new, embed, done)
    seen: set[str] = set()
    with ProgressLine("embedding again", store.count(old.number)) as line:
        for some in _batches(store.iterate(old.number)):
            seen.update(item.id for item in some)
            kept = [item.id in done and _content(done[item.id]) == _content(item) for item in some]
            filling.changes.unchanged += sum(kept)
            filling.put([_again(store, item) for item, there in zip(some, kept, strict=True) if not there])
            line.advance(len(some))
    store.delete(new.number, [name for name in done if name not in seen])  # removed since the interruption
    return filling.changes


def _wanted(image: Any, name: str, metadata: Mapping[str, str]) -> _Wanted | ImageError:
    """The image, or why its file cannot be read; called by several threads."""
    try:
        if not isinstance(image, Path):
            digest, picture = digest_of(image)
            return _Wanted(Item(name, None, metadata, digest, picture=picture), image)
        stamp, digest = stamp_of(image), digest_of(image)[0]
    except (OSError, DataError) as error:
        return ImageError(str(error) if isinstance(error, DataError) else unreadable(error, image), "unreadable")
    return _Wanted(Item(name, None, {"name": image.name, **metadata}, digest, str(image.resolve()), stamp), image)


def _again(store: Store, item: Item) -> _Wanted | ImageError:
    """The image of an item; its metadata stays to the letter, file name included."""
    if item.source:
        entry = _wanted(Path(item.source), item.id, {})
        if isinstance(entry, ImageError):
            return entry
        return _Wanted(replace(entry.item, metadata=item.metadata), entry.image)
    picture = store.picture(item.digest)
    if picture is None:
        return ImageError(f"{item.id}: was added as a vector; there is no image to embed.", "without an image")
    return _Wanted(replace(item, picture=picture), picture)


def _is_current(item: Item | None, entry: IndexedFile) -> bool:
    if item is None or item.metadata != entry.metadata or item.source != str(entry.path.resolve()):
        return False
    return _has_stamp(entry.path, item.stamp)


def _has_stamp(path: Path, stamp: str) -> bool:
    try:
        return stamp_of(path) == stamp
    except OSError:
        return False


def _check_conflict(item: Item | None, entry: IndexedFile) -> None:
    """Refuse an id that belongs to another file that still exists: two folders with equal names inside."""
    if item is None or not item.source or item.source == str(entry.path.resolve()):
        return
    if Path(item.source).is_file() and item.digest != digest_of(entry.path)[0]:
        raise DataError(
            f"the id {entry.id!r} of {entry.path} already belongs to {item.source}. Keep the folders apart with --prefix, "
            "or remove the other first."
        )


def _content(item: Item) -> tuple[str, Mapping[str, str]]:
    return item.digest, item.metadata


class _Filling:
    """Images on their way into a generation.

    Args:
        store, generation, embed: where to write, and how to embed.
        known: items of the generation, by id.

    Attributes:
        changes: what has been done so far.
    """

    def __init__(self, store: Store, generation: Generation, embed: Embed, known: Mapping[str, Item]) -> None:
        self._store, self._generation, self._embed, self.known = store, generation, embed, known
        self._ids = {item.digest: item.id for item in known.values() if item.digest}  # by contents
        self.changes = SyncChanges()

    def put(self, entries: Sequence[_Wanted | ImageError]) -> None:
        """Write one batch; only images of new contents are embedded. Those that cannot be read are noted."""
        for error in entries:
            if isinstance(error, ImageError):
                self.changes.skip(str(error), error.kind)
        wanted = [entry for entry in entries if isinstance(entry, _Wanted)]
        if not wanted:
            return
        rows = self._known_vectors(wanted)
        first_of: dict[str, int] = {}
        for place, entry in enumerate(wanted):
            if place not in rows:
                first_of.setdefault(entry.item.digest, place)
        failed = self._embed_new(wanted, list(first_of.values()), rows)
        items = []
        for place, entry in enumerate(wanted):
            item, first = entry.item, first_of.get(entry.item.digest, place)
            row = rows.get(place, rows.get(first))
            if row is None:
                copy = f"{entry.image}: the same file as {wanted[first].image}, and skipped too."
                self.changes.skip(str(failed[first]) if place == first else copy, failed[first].kind)
                continue
            items.append(replace(item, vector=row))
            self._ids[item.digest] = item.id
            before = self.known.get(item.id)
            if before is None:
                self.changes.added += 1
            elif _content(before) == _content(item):
                self.changes.unchanged += 1
            else:
                self.changes.updated += 1
        self._store.put(self._generation.number, items)

    def _known_vectors(self, wanted: Sequence[_Wanted]) -> dict[int, NDArray[np.float32]]:
        """Vectors of items with the same contents, under the same id or another, by place."""
        same: dict[int, str] = {}
        for place, entry in enumerate(wanted):
            before = self.known.get(entry.item.id)
            if before is not None and before.digest == entry.item.digest:
                same[place] = before.id
            elif entry.item.digest in self._ids:
                same[place] = self._ids[entry.item.digest]
        stored = self._store.get(self._generation.number, sorted(set(same.values())), vectors=True) if same else {}
        rows: dict[int, NDArray[np.float32]] = {}
        for place, name in same.items():
            item = stored.get(name)
            if item is not None and item.vector is not None and item.digest == wanted[place].item.digest:
                rows[place] = item.vector
        return rows

    def _embed_new(
        self, wanted: Sequence[_Wanted], places: Sequence[int], rows: dict[int, NDArray[np.float32]]
    ) -> dict[int, ImageError]:
        """Add the vector of each place to ``rows``; returns the errors of the others."""
        if not places:
            return {}
        bad: dict[int, ImageError] = {}
        vectors = shorten(self._embed([wanted[place].image for place in places], bad.__setitem__), self._generation.dim)
        failed: dict[int, ImageError] = {}
        for number, place in enumerate(places):
            entry = wanted[place]
            if number in bad:
                failed[place] = bad[number]
            elif entry.item.stamp and not _has_stamp(entry.image, entry.item.stamp):
                changed = f"{entry.image}: changed while it was being read. Run the command again."
                failed[place] = ImageError(changed, "changed meanwhile")
            else:
                rows[place] = vectors[number]
        self.changes.embedded += len(places) - len(failed)
        return failed


def _batches(entries: Iterable[Any]) -> Iterator[list[Any]]:
    remaining = iter(entries)
    while some := list(islice(remaining, BATCH)):
        yield some
