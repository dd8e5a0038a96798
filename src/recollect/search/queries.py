"""Queries of users: files, folders of files, ids. Used by ``recollect search``, on an index and on a file of vectors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from recollect.common.errors import DataError, ImageError, InputError
from recollect.common.images import BadImages
from recollect.search.index import Index
from recollect.search.indexed_files import list_images
from recollect.search.store_protocol import Hit

logger = logging.getLogger(__name__)

_TOGETHER = 64
"""Query images embedded and searched at once."""


@dataclass(frozen=True)
class Answer:
    """A query with its results. ``picture`` is the query's image: a file, bytes, or None if it no longer exists."""

    query: str
    picture: Path | bytes | None
    matches: list[Hit]


def list_queries(queries: Sequence[str], is_id: Callable[[str], bool], owner: str) -> list[Path | str]:
    """Files as paths and ids as text, in the order of the queries; a folder becomes its images.

    Files and folders come before ids of the same name. Images of a folder that are skipped are named in log messages.

    Args:
        queries: files, folders and ids.
        is_id: whether a text is an id.
        owner: what has the ids, for the error.

    Raises:
        InputError: a query is neither a file, a folder nor an id. DataError: a folder has no images.
    """
    found: list[Path | str] = []
    for query in queries:
        path = Path(query)
        if path.is_dir():
            listed, remarks = list_images(path, labels=False)
            found += [image.path for image in listed]
            for remark in remarks:
                logger.info(remark)
        elif path.is_file():
            found.append(path)
        elif is_id(query):
            found.append(query)
        else:
            raise InputError(f"{query!r} is neither a file, a folder, nor an id of {owner}.")
    return found


def ask(
    index: Index,
    queries: Sequence[str],
    k: int = 10,
    where: Mapping[str, object] | None = None,
    *,
    exact: bool = False,
    skip_bad: bool = False,
) -> tuple[list[Answer], str | None]:
    """Results for files, folders and ids, in their order, and a message about skipped ones, if any.

    Args:
        index: the index to search.
        queries: files, folders and ids. The item of an id is left out of its own results.
        k, where, exact: as in ``Index.search``.
        skip_bad: skip files that cannot be read, instead of stopping at the first.

    Raises:
        InputError: a query is neither a file, a folder nor an id.
        ImageError: a file cannot be read. DataError: no file can be read.
    """
    asked = list_queries(queries, lambda name: name in index.get([name]), index.address)
    files = [(place, query) for place, query in enumerate(asked) if isinstance(query, Path)]
    answers: list[Answer | None] = [
        None
        if isinstance(query, Path)
        else Answer(query, index.picture(query), index.search_id(query, k, where, exact=exact))
        for query in asked
    ]
    bad = BadImages("skip" if skip_bad else "error", lambda number: str(files[number][1]))
    for start in range(0, len(files), _TOGETHER):
        some = files[start : start + _TOGETHER]

        def on_bad(number: int, error: ImageError, start: int = start) -> None:
            bad.add(start + number, error)

        rows, fingerprint = index.embed([path for _, path in some], on_bad)
        read = np.flatnonzero(np.isfinite(rows).all(axis=1)).tolist()
        found = index.search_vectors(rows[read], k, where, exact=exact, fingerprint=fingerprint)
        for number, matches in zip(read, found, strict=True):
            place, path = some[number]
            answers[place] = Answer(str(path), path, matches)
    kept = [answer for answer in answers if answer is not None]
    if len(bad) and not kept:
        raise DataError(bad.sentence("there is nothing to search with"))
    return kept, bad.sentence("skipped") if len(bad) else None
