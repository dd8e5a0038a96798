"""The answers of a search as one HTML page: each query with the images found for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from recollect.common.decode import read_image
from recollect.common.errors import RecollectError
from recollect.common.files import write_text
from recollect.report.catalogue import Catalogue
from recollect.report.exact_search import Found
from recollect.report.markup import Markup, element, join, name_of
from recollect.report.page import check_target, document
from recollect.report.thumbnails import data_address

GENERATOR = "recollect search"


def write_search_page(
    path: Path | str, catalogue: Catalogue, images: Sequence[Path | str], found: Found, *, overwrite: bool = False
) -> Path:
    """Write the page; an earlier one of its kind is replaced, any other file only with ``overwrite``."""
    path = Path(path)
    check_target(path, overwrite, GENERATOR)
    blocks = []
    for number, image in enumerate(images):
        name = Path(image).name
        items = []
        answers = zip(found.indices[number].tolist(), found.similarities[number].tolist(), strict=True)
        for place, (index, similarity) in enumerate(answers, 1):
            label = None if catalogue.labels is None else catalogue.labels[index]
            said = f"Result {place}: {catalogue.names[index]}, similarity {similarity:.3f}"
            words = element("figcaption", f"{similarity:.2f} ", name_of(label or catalogue.names[index]))
            items.append(element("li", element("figure", _picture(catalogue.path(index), said), words)))
        asked = element(
            "figure",
            _picture(Path(image), f"Query: {name}"),
            element("figcaption", element("span", "query", class_="tag"), name_of(name)),
            class_="asked",
        )
        blocks.append(element("article", asked, element("ol", items, class_="strip plain"), class_="query"))
    heading = f"Search among {len(catalogue.names):,} images"
    body = join(
        element("h1", heading),
        element("p", "Most similar first; the number is the similarity.", class_="note"),
        element("div", blocks, class_="gallery"),
    )
    write_text(path, document(heading, body, generator=GENERATOR))
    return path


def _picture(path: Path, alt: str) -> Markup:
    try:
        return element("img", src=data_address(read_image(path)), alt=alt, title=str(path), decoding="async")
    except (RecollectError, OSError):
        return element("span", "no picture", class_="missing", role="img", aria_label=alt)
