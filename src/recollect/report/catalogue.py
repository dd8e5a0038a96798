"""Files of vectors: embedding images and searching; used by ``recollect embed`` and ``recollect search``.

A catalogue is an ``.npz`` with ``embeddings`` (N × d, unit length), ``names``, ``labels`` if there are class folders ("": an
image without a class), and ``source``, the model, so that a query is embedded by the same model. ``recollect eval``
reads the first three.
"""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from recollect.common.errors import ConfigError, DataError, DataWarning, InputError
from recollect.common.files import atomic_write, make_folder_for
from recollect.common.reading import parse_json, read_npz
from recollect.common.text import number_of
from recollect.data import list_images
from recollect.data.image_files import TO_READ_HEIC
from recollect.inference.embedding_sets import Embedded, embed_files
from recollect.inference.opening import Opened, open_model
from recollect.losses.matryoshka import unit_prefix
from recollect.search.encoder import recorded_model
from recollect.search.exact_search import Found, nearest
from recollect.search.queries import list_queries


@dataclass(frozen=True)
class Catalogue:
    """Vectors with names. ``source`` records their origin: ``model``, ``sha256``, ``root``."""

    embeddings: NDArray[np.float32]
    names: list[str]
    labels: list[str] | None = None
    source: dict[str, Any] = field(default_factory=dict)

    def picture(self, index: int) -> Path:
        """The path of image ``index``, below the catalogue's folder, or the current one if it has none."""
        return Path(str(self.source.get("root") or ".")) / self.names[index]


@dataclass(frozen=True)
class CatalogueAnswer:
    """A query with its results.

    Attributes:
        query: the image file, or the name of an image of the catalogue.
        picture: the query's image; None if it is not known.
        found: the results, 1 × k.
    """

    query: Path | str
    picture: Path | None
    found: Found


def embed_catalogue(
    model: str,
    inputs: Sequence[Path | str],
    out: Path | str,
    *,
    weights: str | None = None,
    dim: int | None = None,
    batch_size: int = 64,
    device: str | None = None,
    skip_bad: bool = False,
    download: bool = False,
    overwrite: bool = False,
) -> Catalogue:
    """Embed images and write the catalogue.

    Args:
        model: a run, a saved embedder, or an initialisation; weights: of that.
        inputs: see ``recollect.data.list_images``.
        out: the ``.npz`` to write.
        dim: keep only this many first numbers of each vector.
        batch_size: images per batch. device: where to compute.
        skip_bad: skip images that cannot be read, with a warning, instead of stopping.
        download: download an initialisation's weights if they are missing.
        overwrite: replace ``out``.

    Raises:
        InputError: ``out`` exists or is not an ``.npz``. DataError, ImageError, WeightsError: something cannot be read.

    Example:
        >>> made = embed_catalogue("run", ["photos"], "photos.npz")
        >>> made.embeddings.shape, len(set(made.labels))
        ((40, 128), 8)
    """
    out = Path(out)
    if out.suffix != ".npz":
        raise InputError(f"{out}: vectors are saved as .npz: give a name that ends in .npz.")
    if out.exists() and not overwrite:
        raise InputError(f"{out} already exists: choose another --out, or allow overwriting (--overwrite).")
    make_folder_for(out)
    listed = list_images(inputs, missing="keep" if skip_bad else "error")
    opened = open_model(model, weights=weights, download=download, device=device, dim=dim)
    if opened.remark is not None:
        warnings.warn(opened.remark, DataWarning, stacklevel=2)
    source: dict[str, Any] = {**opened.source, **({} if dim is None else {"dim": dim})}
    found = _embedded(opened, listed.paths, skip_bad, batch_size=batch_size)
    rows, kept = found.vectors, found.read.tolist()
    if left_out := dict(Counter(listed.left_out) + Counter(bad.kind for bad in found.skipped)):
        source["left_out"] = left_out
    if "HEIC" in listed.left_out:
        warnings.warn(f"{TO_READ_HEIC}.", DataWarning, stacklevel=2)
    if found.skipped:
        source["skipped"] = [{"name": bad.name, "reason": bad.reason} for bad in found.skipped]
    if not kept:
        raise DataError("none of the images could be read.")
    # An image next to the class folders has the label "", which is not a class.
    labels = None if listed.labels is None else [listed.labels[index] for index in kept]
    if listed.root is not None:
        source["root"] = str(listed.root)
    catalogue = Catalogue(rows[kept], [listed.names[index] for index in kept], labels, source)
    _write(out, catalogue)
    return catalogue


def _embedded(opened: Opened, paths: Sequence[Path], skip_bad: bool, **options: Any) -> Embedded:
    """Vectors of files; those that cannot be read are named in a warning, or stop everything."""
    policy = "skip" if skip_bad else "error"
    found = embed_files(opened.embedder, paths, frozen=opened.frozen, on_bad_image=policy, **options)
    if found.skipped:
        shown = "; ".join(bad.reason.rstrip(".") for bad in found.skipped[:5])
        more = "; …" if len(found.skipped) > 5 else ""
        count = number_of(len(found.skipped), "image")
        warnings.warn(f"{count} could not be read, and left out: {shown}{more}", DataWarning, stacklevel=3)
    return found


def _write(path: Path, catalogue: Catalogue) -> None:
    arrays: dict[str, Any] = {
        "embeddings": catalogue.embeddings,
        "names": np.array(catalogue.names),
        "source": np.array(json.dumps(catalogue.source)),
    }
    if catalogue.labels is not None:
        arrays["labels"] = np.array(catalogue.labels)
    with atomic_write(path) as file:
        np.savez(file, **arrays)


def read_catalogue(path: Path | str, root: Path | str | None = None) -> Catalogue:
    """Read an ``.npz`` of vectors; one made elsewhere needs no more than ``embeddings``.

    ``root`` is where its images are now, if they moved.

    Raises:
        DataError: it cannot be read, or its arrays do not match.
    """
    arrays = read_npz(path)
    if "embeddings" not in arrays or arrays["embeddings"].ndim != 2:
        raise DataError(
            f"{path}: has no array 'embeddings' of N × d vectors; its arrays are {', '.join(arrays) or 'none'}."
        )
    if any(arrays[name].ndim != 1 for name in ("names", "labels") if name in arrays):
        raise DataError(f"{path}: 'names' and 'labels' must be lists, with one value per vector.")
    embeddings = arrays["embeddings"].astype(np.float32)
    names = [str(name) for name in arrays.get("names", np.arange(len(embeddings)))]
    labels = [str(label) for label in arrays["labels"]] if "labels" in arrays else None
    if len(names) != len(embeddings) or (labels is not None and len(labels) != len(embeddings)):
        raise DataError(
            f"{path}: {len(embeddings)} vectors, {len(names)} names; give one name, and one label if any, per vector."
        )
    note = f"{path}: its note about the model"
    source = parse_json(str(arrays["source"]), note, dict) if "source" in arrays else {}
    return Catalogue(embeddings, names, labels, source if root is None else {**source, "root": str(root)})


def search_catalogue(
    catalogue: Catalogue,
    queries: Sequence[Path | str],
    top: int = 10,
    *,
    dim: int | None = None,
    model: str | None = None,
    weights: str | None = None,
    device: str | None = None,
    skip_bad: bool = False,
) -> list[CatalogueAnswer]:
    """The catalogue's images nearest to each query, in the order of the queries.

    Args:
        catalogue: the catalogue to search.
        queries: image files, folders of images, and names of the catalogue. The image of a name is left out of its own
            results, and its vector is that of the catalogue, so names alone need no model.
        top: results per query.
        dim: compare only this many first numbers of the vectors.
        model: new folder of the catalogue's model, if it moved or is not recorded. weights: weights of an initialisation.
        skip_bad: skip files that cannot be read, with a warning, instead of stopping.

    Raises:
        InputError: a query is neither a file, a folder nor a name. ConfigError: the model of the catalogue is not known, or
            it moved. DataError: the model has changed.
    """
    if not catalogue.embeddings.shape[0]:
        raise InputError("the catalogue contains no vectors: embed images first.")
    width = catalogue.embeddings.shape[1]
    if dim is not None and dim > width:
        raise InputError(f"dim {dim}: the vectors have {width} numbers; choose from 1 to {width}.")
    asked = list_queries(
        [str(query) for query in queries],
        set(catalogue.names).__contains__,
        "the file of vectors",
    )
    searched = catalogue.embeddings
    if dim is not None:
        searched = unit_prefix(torch.from_numpy(searched), dim).numpy()
    answers: dict[int, CatalogueAnswer] = {}
    if named := {place: _position(catalogue, name) for place, name in enumerate(asked) if isinstance(name, str)}:
        own = list(named.values())
        for place, position, found in zip(named, own, _nearest(searched[own], searched, top, own), strict=True):
            answers[place] = CatalogueAnswer(asked[place], catalogue.picture(position), found)
    if files := [(place, path) for place, path in enumerate(asked) if isinstance(path, Path)]:
        opened = _open_model_of(catalogue, dim, model, weights, device)
        embedded = _embedded(opened, [path for _, path in files], skip_bad, keep=False)
        read = [files[number] for number in embedded.read.tolist()]
        for (place, path), found in zip(read, _nearest(embedded.vectors[embedded.read], searched, top), strict=True):
            answers[place] = CatalogueAnswer(path, path, found)
    if not answers:
        raise DataError("none of the images could be read.")
    return [answers[place] for place in sorted(answers)]


def _nearest(
    queries: NDArray[np.float32], searched: NDArray[np.float32], top: int, own: Sequence[int] | None = None
) -> list[Found]:
    """The results of each query; ``own``: positions of the queries among ``searched``, which are left out of them."""
    if not len(queries):
        return []
    found = nearest(queries, searched, top if own is None else top + 1)
    answers = []
    for number, (places, values) in enumerate(zip(found.indices, found.similarities, strict=True)):
        others = slice(None) if own is None else np.flatnonzero(places != own[number])[:top]
        answers.append(Found(places[None, others], values[None, others]))
    return answers


def _position(catalogue: Catalogue, name: str) -> int:
    count = catalogue.names.count(name)
    if count > 1:
        raise InputError(f"{name!r} is the name of {count} images of the file of vectors: give the image file instead.")
    return catalogue.names.index(name)


def _open_model_of(
    catalogue: Catalogue, dim: int | None, model: str | None, weights: str | None, device: str | None
) -> Opened:
    """The model that computed the catalogue; the arguments are those of ``search_catalogue``."""
    chosen = model or catalogue.source.get("model")
    if not chosen:
        raise ConfigError("the file of vectors does not record its model: give it with --model.")
    with nullcontext() if model else recorded_model("the file of vectors"):
        opened = open_model(
            str(chosen),
            weights=weights or catalogue.source.get("weights"),
            device=device,
            dim=dim or catalogue.source.get("dim"),
        )
    made_by = catalogue.source.get("sha256")
    if made_by is not None and opened.source.get("sha256") not in (None, made_by):
        raise DataError(
            f"{chosen} is not the model of these vectors (its weights differ): embed the images again, or give the right "
            "model with --model."
        )
    return opened
