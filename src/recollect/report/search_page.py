"""The results of a search as one HTML page: each query with the images found."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from recollect.common.errors import RecollectError
from recollect.common.files import write_text
from recollect.common.images import read_image
from recollect.report.map import data_address
from recollect.report.markup import render
from recollect.report.page import check_target, document
from recollect.search.commands import QueryResult
from recollect.search.index import Index

GENERATOR = "recollect search"
SIDE = 320
"""Longer side of a picture in pixels."""

Picture = Path | bytes | None
"""An image's file or bytes; None if it no longer exists."""


def write_search_page(
    path: Path | str, results: Sequence[QueryResult], index: Index, *, overwrite: bool = False
) -> Path:
    """Write the page; an earlier search page is overwritten, any other file only with ``overwrite``.

    Args:
        path: the file.
        results: of ``search_images``.
        index: the index that was searched.
        overwrite: replace any file.
    """
    path = Path(path)
    check_target(path, overwrite, GENERATOR)
    queries = []
    for result in results:
        picture = result.query if isinstance(result.query, Path) else index.picture(result.query)
        pictures = [(match, index.picture(match.id)) for match in result.matches]
        matches = [(match, _source(picture), _link(picture, path)) for match, picture in pictures]
        queries.append((Path(result.query).name, _source(picture), _link(picture, path), matches))
    heading = f"Search among {len(index):,} images"
    body = render("search.html", heading=heading, queries=queries)
    write_text(path, document(heading, body, generator=GENERATOR))
    return path


def _link(picture: Picture, page: Path) -> str | None:
    """A relative link to the file if there is one, so that both can be moved together."""
    if not isinstance(picture, Path):
        return None
    try:
        return quote(Path(os.path.relpath(picture.absolute(), page.absolute().parent)).as_posix())
    except (ValueError, OSError):  # a name that cannot be written as an address
        return None


def _source(picture: Picture) -> str | None:
    """A small copy as a ``data:`` address; None if the image cannot be read."""
    try:
        return None if picture is None else data_address(read_image(picture, at_least=SIDE), SIDE)
    except (RecollectError, OSError):
        return None
