"""The results of a search as one HTML page: each query with the images found."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from recollect.common.errors import RecollectError
from recollect.common.files import write_text
from recollect.common.images import read_image
from recollect.common.text import in_decimals
from recollect.report.atlas import data_address
from recollect.report.catalogue import Catalogue
from recollect.report.markup import Markup, breakable, element, join
from recollect.report.page import check_target, document
from recollect.search.exact_search import Found

GENERATOR = "recollect search"
SIDE = 320
"""Longer side of a picture in pixels."""

Picture = Path | bytes | None
"""An image's file or bytes; None if it no longer exists."""


@dataclass(frozen=True)
class ShownResult:
    """One image found. ``title`` is its label or name; ``verdict`` is shown if there is one."""

    name: str
    title: str
    similarity: float
    picture: Picture
    verdict: str | None = None


@dataclass(frozen=True)
class Asked:
    """A query and its results."""

    name: str
    picture: Picture
    results: list[ShownResult]


def from_catalogue(catalogue: Catalogue, images: Sequence[Path | str], found: Found) -> list[Asked]:
    """The results of a search in a catalogue, for display."""
    asked = []
    for image, places, values in zip(images, found.indices.tolist(), found.similarities.tolist(), strict=True):
        results = []
        for index, similarity in zip(places, values, strict=True):
            name = catalogue.names[index]
            label = None if catalogue.labels is None else catalogue.labels[index]
            results.append(ShownResult(name, label or name, similarity, catalogue.picture(index)))
        asked.append(Asked(Path(image).name, Path(image), results))
    return asked


def write_search_page(path: Path | str, asked: Sequence[Asked], count: int, *, overwrite: bool = False) -> Path:
    """Write the page; an earlier search page is overwritten, any other file only with ``overwrite``.

    Args:
        path: the file.
        asked: queries with their results.
        count: how many images were searched.
        overwrite: replace any file.
    """
    path = Path(path)
    check_target(path, overwrite, GENERATOR)
    blocks = []
    for query in asked:
        items = [_result(place, result, path) for place, result in enumerate(query.results, 1)]
        figure = element(
            "figure",
            _picture(query.picture, f"Query: {query.name}"),
            element("figcaption", element("span", "query", class_="tag"), _linked(query.picture, query.name, path)),
            class_="asked",
        )
        blocks.append(element("article", figure, element("ol", items, class_="found"), class_="query large"))
    heading = f"Search among {count:,} images"
    body = join(
        element("h1", heading),
        element("p", "Most similar first; the number is the similarity. Names link to the files.", class_="note"),
        element("div", blocks, class_="gallery"),
    )
    write_text(path, document(heading, body, generator=GENERATOR))
    return path


def _result(place: int, result: ShownResult, page: Path) -> Markup:
    verdict = "" if result.verdict is None else f", {result.verdict}"
    said = f"Result {place}: {result.name}, similarity {in_decimals(result.similarity, 3)}{verdict}"
    words = element(
        "figcaption",
        element(
            "span",
            f"{place}. ",
            element("strong", in_decimals(result.similarity, 2)),
            None if result.verdict is None else element("span", result.verdict, class_="badge"),
        ),
        element("strong", breakable(result.title), class_="line") if result.title != result.name else None,
        element("span", _linked(result.picture, result.name, page), class_="line"),
    )
    return element("li", element("figure", _picture(result.picture, said), words))


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
