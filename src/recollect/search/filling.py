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
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from recollect.common.console import ProgressLine
from recollect.common.errors import DataError, ImageError, unreadable
from recollect.losses.matryoshka import unit_prefix
from recollect.search.encoder import OnBad
from recollect.search.indexed_files import IndexedFile, digest_of, stamp_of
from recollect.search.settings import Generation
from recollect.search.store_protocol import Item, Store, clean_metadata

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


def stored_vectors(rows: NDArray[np.float32], generation: Generation) -> NDArray[np.float32]:
    """Vectors as the index stores them: the first ``dim`` values, normalized."""
    if generation.dim == rows.shape[1]:
        return rows
    kept: NDArray[np.float32] = unit_prefix(torch.from_numpy(np.ascontiguousarray(rows)), generation.dim).numpy()
    return kept


def add_images(
    store: Store,
    generation: Generation,
    embed: Embed,
    images: Sequence[Any],
    ids: Sequence[str],
    metadata: Sequence[Mapping[str, object] | None],
) -> SyncChanges:
    """Add images by their ids; an image with unchanged contents is not embedded again."""
    changes = SyncChanges()
    digests: dict[str, str] = {}
    with ProgressLine("indexing", len(images)) as line:
        for start in range(0, len(images), BATCH):
            some = range(start, min(start + BATCH, len(images)))
            wanted = []
            for number in some:
                image = Path(images[number]) if isinstance(images[number], str) else images[number]
                wanted.append(_wanted(image, ids[number], clean_metadata(metadata[number])))
            readable = _readable(wanted, changes)
            known = store.get(generation.number, [entry.item.id for entry in readable])
            _put(store, generation, embed, readable, known, digests, changes)
            line.advance(len(some))
    return changes


def _wanted(image: Any, name: str, metadata: dict[str, str]) -> _Wanted | ImageError:
    """The image, or why its file cannot be read; called by several threads."""
    try:
        stamp = stamp_of(image) if isinstance(image, Path) else ""
        digest, picture = digest_of(image)
    except (OSError, DataError) as error:
        return ImageError(str(error) if isinstance(error, DataError) else unreadable(error, image), "unreadable")
    source = str(image.resolve()) if isinstance(image, Path) else ""
    if isinstance(image, Path):
        metadata = {"name": image.name, **metadata}
    return _Wanted(Item(name, None, metadata, digest, source, stamp, picture), image)


def _readable(wanted: Sequence[_Wanted | ImageError], changes: SyncChanges) -> list[_Wanted]:
    """Those whose files can be read; the others are noted."""
    for entry in wanted:
        if isinstance(entry, ImageError):
            changes.skip(str(entry), entry.kind)
    return [entry for entry in wanted if isinstance(entry, _Wanted)]


def sync_images(
    store: Store,
    generation: Generation,
    embed: Embed,
    listed: Sequence[IndexedFile],
    folder: Path,
    *,
    prune: bool,
    rehash: bool,
) -> SyncChanges:
    """Synchronize the index with the images of a folder.

    Args:
        store, generation, embed: where to write, and how to embed.
        listed: the existing images. folder: their folder or list.
        prune: remove items of that folder whose files no longer exist.
        rehash: read every file again instead of trusting its size and time.
    """
    changes = SyncChanges()
    known = {item.id: item for item in store.iterate(generation.number)}
    digests = {item.digest: item.id for item in known.values() if item.digest}
    pending = [entry for entry in listed if rehash or not _is_current(known.get(entry.id), entry)]
    changes.unchanged = len(listed) - len(pending)
    _check_conflicts(known, pending)
    with ProgressLine("indexing", len(listed)) as line:
        line.advance(changes.unchanged)
        for some in _batches(pending):
            with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
                wanted = list(pool.map(lambda entry: _wanted(entry.path, entry.id, entry.metadata), some))
            _put(store, generation, embed, _readable(wanted, changes), known, digests, changes)
            line.advance(len(some))
    if prune:
        there = {entry.id for entry in listed}
        root = str((folder if folder.is_dir() else folder.parent).resolve())
        gone = [
            item.id
            for item in known.values()
            if item.id not in there and item.source and Path(item.source).is_relative_to(root)
            and not Path(item.source).exists()
        ]  # fmt: skip
        if folder.is_file():  # a list defines the content of the index: files it no longer names are removed too
            gone = [
                i.id for i in known.values() if i.id not in there and i.source and Path(i.source).is_relative_to(root)
            ]
        for some in _batches(gone):
            changes.removed += store.delete(generation.number, some)
    return changes


def _is_current(item: Item | None, entry: IndexedFile) -> bool:
    if item is None or item.metadata != entry.metadata or item.source != str(entry.path.resolve()):
        return False
    try:
        return item.stamp == stamp_of(entry.path)
    except OSError:
        return False


def _check_conflicts(known: Mapping[str, Item], pending: Sequence[IndexedFile]) -> None:
    """Refuse ids that belong to other files that still exist: two folders with equal names inside."""
    for entry in pending:
        item = known.get(entry.id)
        if (
            item is None
            or not item.source
            or item.source == str(entry.path.resolve())
            or not Path(item.source).is_file()
        ):
            continue
        if item.digest != digest_of(entry.path)[0]:
            raise DataError(
                f"the id {entry.id!r} of {entry.path} already belongs to {item.source}. Keep the folders apart with --prefix, "
                "or remove the other first."
            )


def _put(
    store: Store,
    generation: Generation,
    embed: Embed,
    wanted: Sequence[_Wanted],
    known: Mapping[str, Item],
    digests: dict[str, str],
    changes: SyncChanges,
) -> None:
    """Embed the new images of one batch and write them."""
    if not wanted:
        return
    # Items whose vector can be reused: those with the same contents, under the same id or another.
    same: dict[int, str] = {}
    for place, entry in enumerate(wanted):
        before = known.get(entry.item.id)
        if before is not None and before.digest == entry.item.digest:
            same[place] = entry.item.id
        elif entry.item.digest in digests:
            same[place] = digests[entry.item.digest]
    vectors = store.get(generation.number, sorted(set(same.values())), vectors=True) if same else {}
    rows: dict[int, NDArray[np.float32]] = {}
    for place, other in same.items():
        item = vectors.get(other)
        if item is not None and item.vector is not None and item.digest == wanted[place].item.digest:
            rows[place] = item.vector
    new: list[int] = []
    first_of: dict[str, int] = {}
    for place, entry in enumerate(wanted):
        if place not in rows and first_of.setdefault(entry.item.digest, place) == place:
            new.append(place)
    failed: dict[int, ImageError] = {}
    rows.update(_embedded(embed, generation, wanted, new, failed))
    changes.embedded += len(new) - len(failed)
    items = []
    for place, entry in enumerate(wanted):
        first = first_of.get(entry.item.digest, place)
        row = rows.get(place, rows.get(first))
        if row is None:
            error = failed[first]
            copy = f"{entry.image}: the same file as {wanted[first].image}, and skipped too."
            changes.skip(str(error) if place == first else copy, error.kind)
            continue
        items.append(replace(entry.item, vector=row))
        before = known.get(entry.item.id)
        if before is None:
            changes.added += 1
        elif before.digest == entry.item.digest and before.metadata == entry.item.metadata:
            changes.unchanged += 1
        else:
            changes.updated += 1
        digests[entry.item.digest] = entry.item.id
    store.put(generation.number, items)


def _embedded(
    embed: Embed,
    generation: Generation,
    wanted: Sequence[_Wanted],
    places: Sequence[int],
    failed: dict[int, ImageError],
) -> dict[int, NDArray[np.float32]]:
    """The vector of each place, except of those that ``failed`` gets."""
    if not places:
        return {}
    bad: dict[int, ImageError] = {}
    vectors = embed([wanted[place].image for place in places], bad.__setitem__)
    kept = stored_vectors(vectors, generation)
    rows = {}
    for number, place in enumerate(places):
        entry = wanted[place]
        if number in bad:
            failed[place] = bad[number]
        elif entry.item.stamp and not _unchanged(entry):
            changed = f"{entry.image}: changed while it was being read. Run the command again."
            failed[place] = ImageError(changed, "changed meanwhile")
        else:
            rows[place] = kept[number]
    return rows


def _unchanged(entry: _Wanted) -> bool:
    try:
        return stamp_of(entry.image) == entry.item.stamp
    except OSError:
        return False


def refill(store: Store, old: Generation, new: Generation, embed: Embed) -> SyncChanges:
    """Embed all items of one generation into another; items from an interrupted call are kept."""
    changes = SyncChanges()
    done = {item.id: item for item in store.iterate(new.number)}
    digests = {item.digest: item.id for item in done.values() if item.digest}
    total = store.count(old.number)
    seen: set[str] = set()
    with ProgressLine("embedding again", total) as line:
        for some in _batches(store.iterate(old.number)):
            seen.update(item.id for item in some)
            wanted = []
            for item in some:
                before = done.get(item.id)
                if before is not None and (before.digest, before.metadata) == (item.digest, item.metadata):
                    changes.unchanged += 1
                    continue
                wanted.append(_again(store, item))
            _put(store, new, embed, _readable(wanted, changes), done, digests, changes)
            line.advance(len(some))
    left = [name for name in done if name not in seen]  # removed from the old one since the interruption
    store.delete(new.number, left)
    return changes


def _again(store: Store, item: Item) -> _Wanted | ImageError:
    if item.source:
        entry = _wanted(Path(item.source), item.id, dict(item.metadata))
        # The metadata stays to the letter, file name included.
        return (
            entry if isinstance(entry, ImageError) else replace(entry, item=replace(entry.item, metadata=item.metadata))
        )
    picture = store.picture(item.digest)
    if picture is None:
        return ImageError(f"{item.id}: was added as a vector; there is no image to embed.", "without an image")
    return _Wanted(replace(item, picture=picture), picture)


def _batches(entries: Iterable[Any]) -> Iterator[list[Any]]:
    some: list[Any] = []
    for entry in entries:
        some.append(entry)
        if len(some) == BATCH:
            yield some
            some = []
    if some:
        yield some
