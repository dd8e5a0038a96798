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
from numpy.typing import NDArray

from recollect.common.console import ProgressLine
from recollect.common.errors import DataError, ImageError, InputError
from recollect.search.encoder import open_encoder
from recollect.search.exact import pair_tiles
from recollect.search.index import Index
from recollect.search.stores.base import Item, is_index
from recollect.search.sync import digest_of, scan_images

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


def group_vectors(vectors: NDArray[np.float32], threshold: float) -> tuple[Places, NDArray[np.float32]]:
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
    roots, lowest = np.arange(len(vectors)), np.full(len(vectors), np.inf, np.float32)
    for left, right, values in close_pairs(vectors, threshold):
        join_pairs(roots, lowest, left, right, values)
    return groups_of(roots, lowest)


def close_pairs(vectors: NDArray[np.float32], threshold: float) -> Iterator[tuple[Places, Places, NDArray[np.float32]]]:
    """All pairs at least this similar, some at a time: the earlier vectors, the later ones, their similarities."""
    with ProgressLine("comparing", len(vectors)) as line:
        for left, right, tile, pairs in pair_tiles(vectors, _ROWS):
            ones, others = pairs.logical_and_(tile >= threshold).nonzero(as_tuple=True)
            if len(ones):
                yield ones.numpy() + left.start, others.numpy() + right.start, tile[ones, others].numpy()
            if right.stop >= len(vectors):  # the last tile of these rows
                line.advance(len(tile))


def groups_of(roots: Places, lowest: NDArray[np.float32]) -> tuple[Places, NDArray[np.float32]]:
    """The result of ``group_vectors`` from a forest of joined pairs."""
    _flatten(roots)
    values = np.full(len(roots), np.inf, np.float32)
    np.minimum.at(values, roots, lowest)
    return roots, values[roots]


def join_pairs(
    roots: Places, lowest: NDArray[np.float32], left: Places, right: Places, values: NDArray[np.float32]
) -> None:
    """Join the groups of pairs, where ``roots`` leads from each vector to its group. Pairs within one group change nothing."""
    _flatten(roots)
    new = np.flatnonzero(roots[left] != roots[right])
    for pair in new[np.argsort(-values[new], kind="stable")]:  # the most similar first: they form the group
        low, high = sorted((_root(roots, left[pair]), _root(roots, right[pair])))
        if low != high:
            roots[high] = low
            lowest[low] = min(lowest[low], lowest[high], values[pair])


def _root(roots: Places, place: int) -> int:
    while roots[place] != place:
        roots[place] = roots[roots[place]]
        place = int(roots[place])
    return place


def _flatten(roots: Places) -> None:
    """Let every vector lead to its group directly."""
    while not np.array_equal(roots, roots[roots]):
        roots[:] = roots[roots]


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
    items: list[Item] = []
    if is_index(target):
        with Index.open(target) as index:
            # Items without their vectors, and the vectors: a million of 512 values are 2 GB, so they are in memory once.
            vectors = np.empty((len(index), index.generation.dim), np.float32)
            for item in islice(index.store.iterate(index.generation.number, vectors=True), len(vectors)):
                vectors[len(items)] = item.vector
                items.append(replace(item, vector=None, source="", stamp=""))
            vectors = vectors[: len(items)]
    else:
        listing = scan_images(target)
        errors: dict[int, ImageError] = {}
        vectors = open_encoder(model, **opening).embed([file.path for file in listing.images], errors.__setitem__)
        if remarks is not None:
            remarks += [*listing.remarks, *map(str, errors.values())]
        # One that cannot be read has no duplicates.
        files = [file for place, file in enumerate(listing.images) if place not in errors]
        items = [Item(file.id, None, file.metadata, digest_of(file.path)[0]) for file in files]
        vectors = np.delete(vectors, list(errors), axis=0) if errors else vectors
    if not items:
        raise DataError(f"{target}: there are no images to compare.")
    roots, lowest = group_vectors(vectors, threshold)
    members: dict[int, list[Item]] = {}
    for item, root in zip(items, roots.tolist(), strict=True):
        members.setdefault(root, []).append(item)
    groups = [_group(same, float(lowest[root])) for root, same in members.items() if len(same) > 1]
    return sorted(groups, key=lambda group: (-len(group.items), group.items[0].id)), len(items)


def _group(items: list[Item], similarity: float) -> Group:
    digests = {item.digest for item in items}
    return Group(
        items=sorted(items, key=lambda item: item.id),
        similarity=similarity,
        identical=len(digests) == 1 and "" not in digests,
        crosses=len({item.metadata["split"] for item in items if "split" in item.metadata}) > 1,
        labels=sorted({item.metadata["label"] for item in items if "label" in item.metadata}),
    )
