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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from recollect.common.errors import ConfigError, DataError, DataWarning, InputError
from recollect.common.files import atomic_write, make_folder_for
from recollect.common.reading import parse_json, read_npz
from recollect.common.unit_prefix import unit_prefix
from recollect.common.words import number_of
from recollect.data import list_images
from recollect.data.image_files import TO_READ_HEIC
from recollect.inference.embedding_sets import Embedded, embed_files
from recollect.inference.opening import Opened, open_model
from recollect.search.exact_search import Found, nearest


@dataclass(frozen=True)
class Catalogue:
    """Vectors with names. ``source`` records their origin: ``model``, ``sha256``, ``root``."""

    embeddings: NDArray[np.float32]
    names: list[str]
    labels: list[str] | None = None
    source: dict[str, Any] = field(default_factory=dict)

    def path(self, index: int) -> Path:
        """The path of image ``index`` at the time of embedding."""
        return Path(self.source.get("root") or ".") / self.names[index]


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
    allow_outside: bool = False,
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
        allow_outside: follow symbolic links that leave a folder of ``inputs``.

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
    listed = list_images(inputs, allow_outside=allow_outside, missing="keep" if skip_bad else "error")
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
    images: Sequence[Path | str],
    top: int = 10,
    *,
    dim: int | None = None,
    model: str | None = None,
    weights: str | None = None,
    device: str | None = None,
    skip_bad: bool = False,
) -> tuple[list[str], Found]:
    """The query images, and the catalogue's images nearest to each, by the model that computed it.

    Args:
        catalogue: the catalogue to search.
        images: files of the queries.
        top: results per query.
        dim: compare only this many first numbers of the vectors.
        model: new folder of that model, if it moved or is not recorded. weights: weights of an initialisation.
        skip_bad: skip queries that cannot be read, with a warning, instead of stopping.

    Raises:
        ConfigError: the model of the catalogue is not known. DataError: the model has changed.
    """
    chosen = model or catalogue.source.get("model")
    if not chosen:
        raise ConfigError("the file of vectors does not record its model: give it with --model.")
    if not catalogue.embeddings.shape[0]:
        raise InputError("the catalogue contains no vectors: embed images first.")
    width = catalogue.embeddings.shape[1]
    if dim is not None and dim > width:
        raise InputError(f"dim {dim}: the vectors have {width} numbers; choose from 1 to {width}.")
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
    found = _embedded(opened, [Path(path) for path in images], skip_bad, keep=False)
    read = found.read
    if not len(read):
        raise DataError("none of the images could be read.")
    searched = catalogue.embeddings
    if dim is not None:
        searched = unit_prefix(torch.from_numpy(searched), dim).numpy()
    return [str(images[place]) for place in read.tolist()], nearest(found.vectors[read], searched, top)
