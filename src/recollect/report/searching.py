"""``search_images``: the images of an index, or of a file of vectors, that are most similar to given ones.

Used by ``recollect search``. It is here and not in ``search`` because it can write a page with the results.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from recollect.common.errors import InputError
from recollect.report.catalogue import Catalogue, CatalogueAnswer, read_catalogue, search_catalogue
from recollect.report.page import check_target
from recollect.report.search_page import GENERATOR, Asked, ShownResult, from_catalogue, write_search_page
from recollect.search.index import Index
from recollect.search.queries import Answer, ask

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FoundImages:
    """What ``search_images`` found.

    Attributes:
        answers: per query ``{"query": …, "results": […]}`` in plain values, best first. A result has ``similarity`` and, if
            there is one, ``label``; for an index also ``id``, ``metadata`` and, if it is calibrated, ``verdict``; for a
            file of vectors ``name``.
        page: the HTML page, if one was written.
    """

    answers: list[dict[str, Any]]
    page: Path | None = None


def search_images(
    index: str | Path,
    queries: Sequence[str | Path],
    top: int = 10,
    *,
    where: Mapping[str, object] | None = None,
    exact: bool = False,
    dim: int | None = None,
    html: str | Path | None = None,
    model: str | None = None,
    weights: str | None = None,
    device: str | None = None,
    root: str | Path | None = None,
    skip_bad: bool = False,
    overwrite: bool = False,
) -> FoundImages:
    """Find the most similar images, with the model that computed the vectors.

    Args:
        index: an index (a file or an address), or an ``.npz`` of ``recollect embed``.
        queries: image files, folders of images, and ids (in an ``.npz``, names), whose item is left out of its own results.
        top: results per query.
        where: for an index, only images with this metadata, e.g. ``{"label": ["shoe", "boot"]}``.
        exact: compare with every image, even if the index is searched approximately.
        dim: for a file of vectors, compare only this many first numbers.
        html: also write a page with the results.
        model: new folder of the model, if it moved. weights: weights of an initialisation. device: where to compute.
        root: new folder of the images of a file of vectors, if they moved.
        skip_bad: skip queries that cannot be read, instead of stopping.
        overwrite: let the page overwrite a file that recollect did not write.

    Raises:
        InputError, DataError, ImageError, StoreError: the index cannot be searched, or a query is not valid.

    Example:
        The three images of an index that are most like a photo::

            recollect.search_images("shop.index", ["photo.jpg"], top=3).answers[0]["results"]
    """
    if html is not None:
        check_target(Path(html), overwrite, GENERATOR)
    names = [str(query) for query in queries]
    if str(index).endswith(".npz"):
        catalogue = read_catalogue(index, root)
        found = search_catalogue(
            catalogue,
            names,
            top,
            dim=dim,
            model=model,
            weights=weights,
            device=device,
            skip_bad=skip_bad,
        )
        shown, count = [_shown_of_vectors(catalogue, answer) for answer in found], len(catalogue.names)
        answers = [_of_vectors(str(answer.query), asked) for answer, asked in zip(found, shown, strict=True)]
    elif dim is not None:
        raise InputError(
            f"an index has vectors of one length: create one with {dim} numbers with recollect index --dim {dim}."
        )
    else:
        with Index.open(index, model, device=device, **({} if weights is None else {"weights": weights})) as opened:
            matched, remark = ask(opened, names, top, where, exact=exact, skip_bad=skip_bad)
            if remark is not None:
                logger.info(remark)
            shown, count = [] if html is None else [_shown(opened, answer) for answer in matched], len(opened)
        answers = [_of_index(answer) for answer in matched]
    page = None if html is None else write_search_page(html, shown, count, overwrite=overwrite)
    return FoundImages(answers, page)


def _of_vectors(query: str, asked: Asked) -> dict[str, Any]:
    results = [
        {"name": result.name, "similarity": round(result.similarity, 6)}
        | ({} if result.title == result.name else {"label": result.title})
        for result in asked.results
    ]
    return {"query": query, "results": results}


def _shown_of_vectors(catalogue: Catalogue, answer: CatalogueAnswer) -> Asked:
    (asked,) = from_catalogue(catalogue, [answer.query], answer.found)
    return replace(asked, picture=answer.picture)


def _of_index(answer: Answer) -> dict[str, Any]:
    results = []
    for match in answer.matches:
        row: dict[str, Any] = {"id": match.id, "similarity": round(match.similarity, 6)}
        if match.verdict is not None:
            row["verdict"] = match.verdict
        if "label" in match.metadata:
            row["label"] = match.metadata["label"]
        results.append({**row, "metadata": dict(match.metadata)})
    return {"query": answer.query, "results": results}


def _shown(index: Index, answer: Answer) -> Asked:
    results = [
        ShownResult(
            match.id, match.metadata.get("label") or match.id, match.similarity, index.picture(match.id), match.verdict
        )
        for match in answer.matches
    ]
    return Asked(Path(answer.query).name, answer.picture, results)
