"""``update_index``: create or update an index in one call. Used by ``recollect index``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recollect.common.errors import ConfigError, DataError, InputError
from recollect.search.filling import SyncChanges
from recollect.search.index import CANDIDATES, Index
from recollect.search.store_protocol import NoIndexError


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
        opening: ``weights``, ``device``, ``batch_size``, ``download`` for the model.

    Raises:
        ConfigError: there is no index and no ``model`` to make one.
        InputError: ``rebuild`` without ``model``; ``candidates`` without ``approximate``; another ``dim`` or ``half`` than the
            index has, without ``rebuild``.
        DataError, ImageError, StoreError: what cannot be read or written; none of the files to add can be read.

    Example:
        A folder of photos, searched by a run's embedder::

            recollect.update_index("shop.index", ["photos/"], model="runs/mine").facts["items"]
    """
    if candidates is not None and not approximate:
        raise InputError("--candidates is for approximate search: give --approximate, too.")
    if rebuild and model is None:
        raise InputError("--rebuild embeds everything with another model: give it with --model.")
    with _opened(address, None if rebuild else model, model, dim, half, opening) as index:
        if check:
            index.check()
        if not rebuild:
            _check_vectors(index, dim, half)
        done: list[SyncChanges] = []
        if rebuild and model is not None:
            done.append(index.rebuild(model, dim=dim, half=half or None, skip_missing=prune, wait=wait, **opening))
        removed = index.remove(remove, wait=wait) if remove else 0
        if add:
            done.append(index.add(add, metadata=[metadata] * len(add), wait=wait))
            if len(done[-1].skipped) == len(add):
                raise DataError(f"{index.address}: nothing was added. {' '.join(done[-1].skipped[:5])}")
        for folder in folders:
            done.append(index.sync(folder, prune=prune, prefix=prefix, rehash=rehash, wait=wait))
        if approximate:
            index.approximate(candidates or CANDIDATES, wait=wait)
        elif approximate is not None:
            index.exact(wait=wait)
        return IndexUpdate(index.info(), done, removed)


def _opened(
    address: str | Path,
    expected: str | Path | None,
    model: str | Path | None,
    dim: int | None,
    half: bool,
    opening: Mapping[str, Any],
) -> Index:
    """The index, if its model is the ``expected`` one; or a new one with ``model``."""
    try:
        return Index.open(address, expected, **opening)
    except NoIndexError as error:
        if model is None:
            raise ConfigError(f"{address}: there is no index. To create one, give the model: --model RUN") from error
        return Index.create(address, model, dim=dim, half=half, **opening)


def _check_vectors(index: Index, dim: int | None, half: bool) -> None:
    """Refuse a length or precision that the index does not have: it would be ignored."""
    kept = index.generation
    if dim not in (None, kept.dim) or (half and not kept.half):
        raise InputError(
            f"{index.address} keeps vectors of {kept.dim} values in {'half' if kept.half else 'single'} precision. --dim and "
            "--half are for a new index; to change them, embed everything again with --rebuild --model."
        )
