"""Queries of users: files, folders of files, ids of the index. Used by ``recollect search``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from recollect.common.bad_images import BadImages
from recollect.common.errors import DataError, ImageError, InputError
from recollect.search.index import Index, Match
from recollect.search.indexed_files import list_images

_TOGETHER = 64
"""Query images embedded and searched at once."""


@dataclass(frozen=True)
class Answer:
    """A query with its results. ``picture`` is the query's image: a file, bytes, or None if it no longer exists."""

    query: str
    picture: Path | bytes | None
    matches: list[Match]


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
    answers: list[Answer | None] = []
    files: list[tuple[int, Path]] = []
    for query in queries:
        path = Path(query)
        if path.is_dir():
            for listed in list_images(path)[0]:
                files.append((len(answers), listed.path))
                answers.append(None)
        elif path.is_file():
            files.append((len(answers), path))
            answers.append(None)
        elif query in index.get([query]):
            answers.append(Answer(query, index.picture(query), index.search_id(query, k, where, exact=exact)))
        else:
            raise InputError(f"{query!r} is neither a file, a folder, nor an id of {index.address}.")
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
