"""The results of a search as one HTML page: each query with the images found."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from recollect.common.errors import RecollectError
from recollect.common.files import write_text
from recollect.common.images import read_image
from recollect.common.text import in_decimals
from recollect.report.map import data_address
from recollect.report.markup import Markup, breakable, element, join
from recollect.report.page import check_target, document
from recollect.search.commands import QueryResult
from recollect.search.index import Index
from recollect.search.stores.base import Match

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
    blocks = []
    for result in results:
        picture = result.query if isinstance(result.query, Path) else index.picture(result.query)
        name = Path(result.query).name
        items = [_match(place, match, index.picture(match.id), path) for place, match in enumerate(result.matches, 1)]
        figure = element(
            "figure",
            _picture(picture, f"Query: {name}"),
            element("figcaption", element("span", "query", class_="tag"), _linked(picture, name, path)),
            class_="asked",
        )
        blocks.append(element("article", figure, element("ol", items, class_="found"), class_="query large"))
    heading = f"Search among {len(index):,} images"
    body = join(
        element("h1", heading),
        element("p", "Most similar first; the number is the similarity. Names link to the files.", class_="note"),
        element("div", blocks, class_="gallery"),
    )
    write_text(path, document(heading, body, generator=GENERATOR))
    return path


def _match(place: int, match: Match, picture: Picture, page: Path) -> Markup:
    level, label = "" if match.level is None else f", {match.level}", match.metadata.get("label")
    alt = f"Result {place}: {match.id}, similarity {in_decimals(match.similarity, 3)}{level}"
    words = element(
        "figcaption",
        element(
            "span",
            f"{place}. ",
            element("strong", in_decimals(match.similarity, 2)),
            None if match.level is None else element("span", match.level, class_="badge"),
        ),
        element("strong", breakable(label), class_="line") if label else None,
        element("span", _linked(picture, match.id, page), class_="line"),
    )
    return element("li", element("figure", _picture(picture, alt), words))


def _linked(picture: Picture, name: str, page: Path) -> Markup:
    """The full name, with a relative link to the file if there is one, so that both can be moved together."""
    if not isinstance(picture, Path):
        return breakable(name)
    try:
        relative = os.path.relpath(picture.absolute(), page.absolute().parent)
        return element("a", breakable(name), href=quote(Path(relative).as_posix()))
    except (ValueError, OSError):  # a name that cannot be written as an address
        return breakable(name)


def _picture(picture: Picture, alt: str) -> Markup:
    try:
        if picture is not None:
            image = read_image(picture, at_least=SIDE)
            return element("img", src=data_address(image, SIDE), alt=alt, decoding="async")
    except (RecollectError, OSError):
        pass
    return element("span", "no picture", class_="missing", role="img", aria_label=alt)
