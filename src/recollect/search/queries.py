"""``search_images``: the images of an index, or of a file of vectors, that are most similar to files, folders and ids."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recollect.common.errors import DataError, ImageError, InputError
from recollect.common.images import BadImage, bad_image_summary, with_skip_advice
from recollect.search.files import list_images
from recollect.search.index import Index
from recollect.search.stores import NEIGHBOURS
from recollect.search.stores.base import Match

logger = logging.getLogger(__name__)

_TOGETHER = 64
"""Query images embedded and searched at once."""


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
        results: dict[int, QueryResult] = {}  # by their places in the order of the queries
        images: list[tuple[int, Path]] = []
        for name in map(str, queries):
            files = [path := Path(name)]
            if path.is_dir():
                listing = list_images(path, labels=False)
                for remark in listing.remarks:
                    logger.info(remark)
                files = [image.path for image in listing.images]
            elif not path.is_file():
                if name not in opened.get([name]):
                    raise InputError(f"{name!r} is neither a file, a folder, nor an id of {opened.address}.")
                results[len(results) + len(images)] = QueryResult(name, opened.search_id(name, **options))
                continue
            images += enumerate(files, len(results) + len(images))
        bad: list[BadImage] = []
        for start in range(0, len(images), _TOGETHER):
            places, paths = zip(*images[start : start + _TOGETHER], strict=True)
            unread: dict[int, ImageError] = {}
            for number, matches in enumerate(opened.search_many(paths, on_bad=unread.__setitem__, **options)):
                if (error := unread.get(number)) is not None:
                    if on_bad_image == "error":
                        raise with_skip_advice(error, str(paths[number])) from error
                    bad.append(BadImage(start + number, str(paths[number]), error.reason, error.kind))
                else:
                    results[places[number]] = QueryResult(paths[number], matches)
    if bad:
        if not results:
            raise DataError(bad_image_summary(bad, "there is nothing to search with"))
        logger.info(bad_image_summary(bad, "skipped"))
    return list(dict(sorted(results.items())).values())
