"""What ``recollect index`` and ``recollect search`` do, as functions: bring an index up to date, and answer queries.

A query is an image file, a folder of images or an id of the index.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recollect.common.errors import DataError, ImageError, InputError
from recollect.common.images import bad_image_summary, with_skip_advice
from recollect.search.index import CANDIDATES, Index
from recollect.search.stores import NEIGHBOURS
from recollect.search.stores.base import Match, NoIndexError
from recollect.search.sync import SyncChanges, scan_images

logger = logging.getLogger(__name__)

_BATCH = 64
"""Query images embedded and searched at once."""


@dataclass(frozen=True)
class IndexUpdate:
    """The result of ``update_index``.

    Attributes:
        facts: the current state of the index, see ``Index.info``.
        changes: one for a rebuild, one for the added files, and one per folder.
        removed: how many of the ids to remove existed.
    """

    facts: dict[str, Any]
    changes: Sequence[SyncChanges]
    removed: int = 0


def update_index(
    address: str | Path,
    folders: Sequence[str | Path] = (),
    *,
    model: str | Path | None = None,
    add: Sequence[str | Path] = (),
    remove: Sequence[str] = (),
    metadata: Mapping[str, object] | None = None,
    rebuild: bool = False,
    prune: bool = False,
    prefix: str = "",
    dim: int | None = None,
    half: bool = False,
    approximate: bool | None = None,
    candidates: int | None = None,
    check: bool = False,
    rehash: bool = False,
    wait: float = 0.0,
    **opening: Any,
) -> IndexUpdate:
    """Create an index if there is none, and update it: only new and changed images are embedded.

    It can be interrupted at any moment; the next call resumes.

    Args:
        address: a file, ``postgresql://…``, ``milvus://…``, or a store of your own.
        folders: folders and ``.csv`` files to synchronize with, see ``Index.sync``.
        model: a run, a saved embedder, or an initialisation; needed for a new index and with ``rebuild``.
        add: single image files to add, each with ``metadata``. remove: ids to remove.
        rebuild: embed everything again with ``model``; the old vectors answer meanwhile.
        prune: remove images whose files are gone; with ``rebuild``, leave them out.
        prefix: prefix of every id of ``folders``.
        dim: keep only the first values of each vector. half: keep vectors in half precision. For a new index or a rebuild.
        approximate: True searches approximately from now on, and measures the recall; False always searches exactly.
        candidates: with ``approximate``, the images per query that are compared exactly; 100 by default.
        check: first read the whole file of the index, and refuse one that is damaged.
        rehash: read every file, even if size and time are unchanged.
        wait: seconds to wait for another process that is writing.
        opening: ``weights``, ``device``, ``batch_size``, ``precision``, ``download`` for the model.

    Raises:
        InputError: ``rebuild`` without ``model``; ``candidates`` without ``approximate``; another ``dim`` or ``half`` than the
            index has, without ``rebuild``.
        NoIndexError: there is no index and no ``model`` to make one.
        DataError, ImageError, StoreError: what cannot be read or written; none of the files to add can be read.

    Example:
        A folder of photos, searched by a run's embedder::

            recollect.update_index("shop.index", ["photos/"], model="runs/mine").facts["items"]
    """
    if candidates is not None and not approximate:
        raise InputError("--candidates is for approximate search: give --approximate, too.")
    if rebuild and model is None:
        raise InputError("--rebuild embeds everything with another model: give it with --model.")
    listings = [scan_images(folder, prefix=prefix) for folder in folders]  # before a new index is created for them
    try:
        index = Index.open(address, None if rebuild else model, **opening)
    except NoIndexError:
        if model is None:
            raise
        index = Index.create(address, model, dim=dim, half=half, **opening)
    with index:
        if check:
            index.check()
        now = index.generation
        if not rebuild and (dim not in (None, now.dim) or (half and not now.half)):  # it would be ignored
            raise InputError(
                f"{index.address} keeps vectors of {now.dim} values in {'half' if now.half else 'single'} precision. --dim "
                "and --half are for a new index; to change them, embed everything again with --rebuild --model."
            )
        changes: list[SyncChanges] = []
        if rebuild and model is not None:
            policy = "skip" if prune else "error"
            changes.append(index.rebuild(model, dim=dim, half=half or None, on_bad_image=policy, wait=wait, **opening))
        removed = index.remove(remove, wait=wait) if remove else 0
        if add:
            changes.append(index.add(add, metadata=[metadata] * len(add), wait=wait))
            if len(changes[-1].skipped) == len(add):
                raise DataError(f"{index.address}: nothing was added. {' '.join(changes[-1].skipped[:5])}")
        for listing in listings:
            changes.append(index.sync(listing, prune=prune, rehash=rehash, wait=wait))
        if approximate:
            index.approximate(candidates or CANDIDATES, wait=wait)
        elif approximate is not None:
            index.exact(wait=wait)
        return IndexUpdate(index.info(), changes, removed)


@dataclass(frozen=True)
class QueryResult:
    """A query with its results.

    Attributes:
        query: an image file, or an id as text.
        matches: the most similar images, best first.
    """

    query: Path | str
    matches: list[Match]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON: ``query`` and ``results``, as the service names them."""
        results = []
        for match in self.matches:
            row: dict[str, Any] = {"id": match.id, "similarity": round(match.similarity, 6)}
            if match.level is not None:
                row["verdict"] = match.level
            row |= {column: match.metadata[column] for column in ("name", "label") if column in match.metadata}
            results.append({**row, "metadata": dict(match.metadata)})
        return {"query": str(self.query), "results": results}


def search_images(
    index: Index | str | Path,
    queries: Sequence[str | Path],
    k: int = NEIGHBOURS,
    *,
    where: Mapping[str, object] | None = None,
    exact: bool = False,
    on_bad_image: str = "error",
    model: str | None = None,
    **opening: Any,
) -> list[QueryResult]:
    """Find the most similar images, with the model that computed the vectors.

    Args:
        index: an open index, or its address: a file, ``postgresql://…``, or an ``.npz`` of ``recollect embed``.
        queries: image files, folders of images, and ids (in an ``.npz``, names). A file or folder comes before an id of the
            same name. The item of an id is left out of its own results; ids need no model.
        k: results per query.
        where: only images with this metadata, e.g. ``{"label": ["shoe", "boot"]}``.
        exact: compare with every image, even if the index is searched approximately.
        on_bad_image: ``"error"`` stops at files that cannot be read, ``"skip"`` continues.
        model, opening: for an address, as in ``Index.open``.

    Returns:
        A result per image, in the order of the queries.

    Raises:
        InputError: a query is neither a file, a folder nor an id.
        ImageError: a file cannot be read. DataError: no file can be read, or a folder has no images.

    Example:
        The three images of an index that are most like a photo::

            recollect.search_images("shop.index", ["photo.jpg"], 3)[0].matches
    """
    with nullcontext(index) if isinstance(index, Index) else Index.open(index, model, **opening) as opened:
        options: dict[str, Any] = {"k": k, "where": where, "exact": exact}
        asked: list[Path | str] = []
        for name in map(str, queries):
            path = Path(name)
            if path.is_dir():
                listing = scan_images(path, labels=False)
                for remark in listing.remarks:
                    logger.info(remark)
                asked += [image.path for image in listing.images]
            elif path.is_file() or name in opened.get([name]):
                asked.append(path if path.is_file() else name)
            else:
                raise InputError(f"{name!r} is neither a file, a folder, nor an id of {opened.address}.")
        results = {n: opened.search_id(name, **options) for n, name in enumerate(asked) if isinstance(name, str)}
        images = [(number, path) for number, path in enumerate(asked) if isinstance(path, Path)]
        bad: list[ImageError] = []
        for start in range(0, len(images), _BATCH):
            batch = images[start : start + _BATCH]
            errors: dict[int, ImageError] = {}
            answers = opened.search_many([path for _, path in batch], on_bad=errors.__setitem__, **options)
            for number, ((place, path), matches) in enumerate(zip(batch, answers, strict=True)):
                if (error := errors.get(number)) is None:
                    results[place] = matches
                elif on_bad_image == "error":
                    raise with_skip_advice(error, str(path)) from error
                else:
                    bad.append(error)
    answered = [QueryResult(query, results[number]) for number, query in enumerate(asked) if number in results]
    if bad:
        if not answered:
            raise DataError(bad_image_summary(bad, "there is nothing to search with"))
        logger.info(bad_image_summary(bad, "skipped"))
    return answered
