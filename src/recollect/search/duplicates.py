"""Near-duplicates: groups of images whose vectors are closer than a threshold. Exact, tile by tile.

All pairs are compared, but only a tile of similarities is in memory at a time, and groups are kept as a forest, so that even a
million copies of one image need no extra memory. Used by ``recollect duplicates``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from recollect.common.console import ProgressLine
from recollect.common.errors import DataError, InputError
from recollect.search.encoder import embed_in_batches, open_encoder
from recollect.search.files import digest_of, list_images
from recollect.search.index import Index
from recollect.search.stores.base import Item, is_index

_ROWS = 2048

Places = NDArray[np.int64]


@dataclass(frozen=True)
class Group:
    """Images that are near-duplicates of each other, directly or through others.

    Attributes:
        items: the images, by id, without vectors.
        similarity: the lowest similarity among the pairs that connect the group.
        identical: whether all files have the same bytes.
        crosses: whether they are in both the training and the test set.
        labels: the labels they have; more than one is a contradiction.
    """

    items: list[Item]
    similarity: float
    identical: bool
    crosses: bool
    labels: list[str]


def group_vectors(vectors: NDArray[np.float32], threshold: float) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """For every vector the number of its group (that of its first member), and the lowest similarity in that group.

    Args:
        vectors: N × d of length 1.
        threshold: pairs at least this similar are connected.

    Examples:
        >>> rows = np.array([[1, 0], [0, 1], [1, 0]], np.float32)
        >>> group_vectors(rows, 0.9)[0].tolist()
        [0, 1, 0]
    """
    if not -1 <= threshold <= 1:
        raise InputError(f"the similarity is {threshold}: choose one from -1 to 1, e.g. 0.95.")
    if vectors.ndim != 2 or not np.isfinite(vectors).all():
        raise InputError("near-duplicates need N × d vectors with finite values.")
    roots, lowest = np.arange(len(vectors)), np.full(len(vectors), np.inf, np.float32)
    for left, right, values in close_pairs(vectors, threshold):
        join_pairs(roots, lowest, left, right, values)
    return settled_groups(roots, lowest)


def close_pairs(vectors: NDArray[np.float32], threshold: float) -> Iterator[tuple[Places, Places, NDArray[np.float32]]]:
    """All pairs at least this similar, some at a time: the earlier vectors, the later ones, their similarities."""
    count = len(vectors)
    rows = torch.from_numpy(np.ascontiguousarray(vectors, np.float32))
    with ProgressLine("comparing", count) as line:
        for start in range(0, count, _ROWS):
            left = rows[start : start + _ROWS]
            for first in range(start, count, _ROWS):
                tile = left @ rows[first : first + _ROWS].T
                close = tile >= threshold
                if first == start:
                    close.triu_(1)
                places = close.nonzero()
                if len(places):
                    values = tile[places[:, 0], places[:, 1]].numpy()
                    yield places[:, 0].numpy() + start, places[:, 1].numpy() + first, values
            line.advance(len(left))


def settled_groups(
    roots: NDArray[np.int64], lowest: NDArray[np.float32]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The result of ``group_vectors`` from a forest of joined pairs."""
    roots = _settled(roots)
    found = np.full(len(roots), np.inf, np.float32)
    np.minimum.at(found, roots, lowest)
    return roots, found[roots]


def join_pairs(
    roots: NDArray[np.int64],
    lowest: NDArray[np.float32],
    left: NDArray[np.int64],
    right: NDArray[np.int64],
    values: NDArray[np.float32],
) -> None:
    """Join the groups of pairs. Pairs within one group change nothing."""
    known = _settled(roots)
    a, b = known[left], known[right]
    new = np.flatnonzero(a != b)
    for place in new[
        np.argsort(-values[new], kind="stable")
    ].tolist():  # the most similar pairs first: they form the group
        one, two = _root(roots, int(a[place])), _root(roots, int(b[place]))
        if one != two:
            low, high = min(one, two), max(one, two)
            roots[high] = low
            lowest[low] = min(lowest[low], lowest[high], values[place])


def _root(roots: NDArray[np.int64], place: int) -> int:
    while roots[place] != place:
        roots[place] = roots[roots[place]]
        place = int(roots[place])
    return place


def _settled(roots: NDArray[np.int64]) -> NDArray[np.int64]:
    """The root of every element."""
    while not np.array_equal(roots, roots[roots]):
        roots[:] = roots[roots]
    return roots


def find_duplicates(
    target: str | Path,
    *,
    threshold: float = 0.95,
    model: str = "lite0-in1k",
    remarks: list[str] | None = None,
    **opening: Any,
) -> tuple[list[Group], int]:
    """Groups of near-duplicates in an index or a folder, largest first, and how many images were compared.

    Args:
        target: an index, or a folder or ``.csv`` of images; ``train`` and ``test`` folders below it are its parts.
        threshold: pairs at least this similar are near-duplicates.
        model: for a folder: what embeds it.
        remarks: receives sentences on files of a folder that are left out.
        opening: ``weights``, ``device``, ``batch_size``, ``download`` for that model.

    Example:
        >>> groups, compared = find_duplicates("photos", model="run", threshold=0.999)
        >>> compared
        40
    """
    if is_index(target):
        read, vectors = _indexed(target)
    else:
        read, vectors = _embedded(target, model, opening, [] if remarks is None else remarks)
    if not read:
        raise DataError(f"{target}: there are no images to compare.")
    roots, lowest = group_vectors(vectors, threshold)
    members: dict[int, list[int]] = {}
    for place, root in enumerate(roots.tolist()):
        members.setdefault(root, []).append(place)
    groups = [_group([read[p] for p in some], float(lowest[some[0]])) for some in members.values() if len(some) > 1]
    return sorted(groups, key=lambda group: (-len(group.items), group.items[0].id)), len(read)


def _indexed(target: str | Path) -> tuple[list[Item], NDArray[np.float32]]:
    """Items without their vectors, and the vectors: a million of 512 values are 2 GB, so they are in memory once."""
    with Index.open(target) as index:
        vectors = np.empty((len(index), index.generation.dim), np.float32)
        read: list[Item] = []
        for item in islice(index.store.iterate(index.generation.number, vectors=True), len(vectors)):
            vectors[len(read)] = item.vector
            read.append(replace(item, vector=None))
    return read, vectors[: len(read)]


def _embedded(
    target: str | Path, model: str, opening: dict[str, Any], remarks: list[str]
) -> tuple[list[Item], NDArray[np.float32]]:
    listing = list_images(target)
    vectors, bad = embed_in_batches(open_encoder(model, **opening), [entry.path for entry in listing.images])
    remarks += [*listing.remarks, *map(str, bad.values())]
    read = [place for place in range(len(vectors)) if place not in bad]  # one that cannot be read has no duplicates
    entries = [listing.images[place] for place in read]
    return [Item(entry.id, None, entry.metadata, digest_of(entry.path)[0]) for entry in entries], vectors[
        read
    ] if bad else vectors


def _group(items: list[Item], similarity: float) -> Group:
    ordered = sorted(items, key=lambda item: item.id)
    parts = {item.metadata.get("split") for item in ordered}
    digests = {item.digest for item in ordered}
    return Group(
        items=[Item(item.id, None, item.metadata, item.digest) for item in ordered],
        similarity=similarity,
        identical=len(digests) == 1 and "" not in digests,
        crosses=len(parts - {None}) > 1,
        labels=sorted({item.metadata["label"] for item in ordered if "label" in item.metadata}),
    )
