"""The ``.npz`` of ``recollect embed``: vectors in a file, written at once and then only read. As a store, it can be searched.

It has ``embeddings`` (N × d, unit length), ``names``, ``labels`` if there are class folders ("": an image without a class),
and ``source``, the model, so that a query is embedded by the same model. ``recollect eval`` reads the first three.
"""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.common.errors import DataError, DataWarning, ImageError, InputError
from recollect.common.files import atomic_write, make_folder_for
from recollect.common.images import bad_image_summary
from recollect.common.reading import parse_json, read_npz
from recollect.data import list_images
from recollect.data.folders import TO_READ_HEIC
from recollect.search.encoder import open_encoder, shorten, vector_length
from recollect.search.exact import check_queries, nearest_unchecked
from recollect.search.stores.base import (
    Generation,
    Item,
    Match,
    Settings,
    Store,
    StoreError,
    Vectors,
    Where,
    matches_of,
)


class VectorFile(Store):
    """Vectors with names, which are the ids; a name that several vectors have is the id of none.

    See ``Store`` for what the methods do: those that write refuse to.

    Attributes:
        address: the file.
        embeddings: N × d. names: N texts. labels: likewise, if there are any.
        source: the origin of the vectors: ``model``, ``fingerprint``, ``root``.
    """

    def __init__(
        self,
        address: str,
        embeddings: NDArray[np.float32],
        names: list[str],
        labels: list[str] | None,
        source: dict[str, Any],
    ) -> None:
        self.address, self.embeddings, self.names, self.labels, self.source = address, embeddings, names, labels, source
        classes = labels or [""] * len(names)
        self._metadata = [{"name": n} | ({"label": c} if c else {}) for n, c in zip(names, classes, strict=True)]
        counts = Counter(names)
        self._rows = {name: row for row, name in enumerate(names) if counts[name] == 1}
        self._model_dim = None if "dim" in source else embeddings.shape[1]  # shortened: the model's are longer

    @classmethod
    def open(
        cls, address: str, *, create: bool = False, dim: int | None = None, root: Path | str | None = None
    ) -> VectorFile:
        """Read an ``.npz`` of vectors; one made elsewhere needs no more than ``embeddings``.

        Args:
            address: the file. create: refused, see ``embed_catalogue``.
            dim: keep only this many first values of the vectors.
            root: where its images are now, if they moved.

        Raises:
            DataError: it cannot be read, or its arrays do not match.
        """
        if create:
            raise InputError(f"{address}: an .npz is a file of vectors of recollect embed; give an index another name.")
        arrays = read_npz(address)
        if "embeddings" not in arrays or arrays["embeddings"].ndim != 2:
            raise DataError(
                f"{address}: has no array 'embeddings' of N × d vectors; its arrays are {', '.join(arrays) or 'none'}."
            )
        embeddings = arrays["embeddings"].astype(np.float32)
        if any(arrays[name].shape != embeddings.shape[:1] for name in ("names", "labels") if name in arrays):
            raise DataError(f"{address}: 'names' and 'labels' must be lists with one value per vector.")
        names = [str(name) for name in arrays.get("names", np.arange(len(embeddings)))]
        labels = [str(label) for label in arrays["labels"]] if "labels" in arrays else None
        if not np.isfinite(embeddings).all():
            raise DataError(f"{address}: a value is not finite (NaN or infinity); embed the images again.")
        note = f"{address}: its note about the model"
        source = parse_json(str(arrays["source"]), note, dict) if "source" in arrays else {}
        store = cls(address, embeddings, names, labels, source if root is None else {**source, "root": str(root)})
        store.embeddings = shorten(embeddings, vector_length(embeddings.shape[1], dim))
        return store

    def write(self) -> None:
        """Write the file."""
        arrays: dict[str, Any] = {"embeddings": self.embeddings, "names": np.array(self.names)}
        if self.labels is not None:
            arrays["labels"] = np.array(self.labels)
        with atomic_write(Path(self.address)) as file:
            np.savez(file, source=np.array(json.dumps(self.source)), **arrays)

    def close(self) -> None:
        """Nothing to close."""

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise StoreError(
            f"{self.address}: a file of vectors does not change: write it anew with recollect embed, or make an index of the "
            "images with recollect index."
        )

    writing = write_document = create_generation = drop_generation = put = delete = _refuse
    build_approximate = drop_approximate = _refuse

    def read_document(self, key: str) -> dict[str, Any] | None:
        """The settings of an index of these vectors."""
        model = {name: self.source.get(name) for name in ("model", "weights", "fingerprint")}
        model |= {"name": model["model"], "dim": self._model_dim, "precision": self.source.get("precision")}
        return asdict(Settings(Generation(1, model, self.embeddings.shape[1])))

    def generations(self) -> list[int]:
        """The only one."""
        return [1]

    def get(self, generation: int, ids: Sequence[str], *, vectors: bool = False) -> dict[str, Item]:
        """Items by name."""
        return {name: self._item(self._rows[name], vectors) for name in ids if name in self._rows}

    def _item(self, row: int, vectors: bool) -> Item:
        vector, name = self.embeddings[row] if vectors else None, self.names[row]
        return Item(name, vector, self._metadata[row], source=str(Path(self.source.get("root") or ".") / name))

    def picture(self, digest: str) -> bytes | None:
        """None: images stay in their files."""
        return None

    def iterate(self, generation: int, *, vectors: bool = False) -> Iterator[Item]:
        """All items."""
        return (self._item(row, vectors) for row in range(len(self.names)))

    def _allowed(self, where: Where | None) -> NDArray[np.bool_] | None:
        if not where:
            return None
        passes = (all(row.get(name) in values for name, values in where.items()) for row in self._metadata)
        return np.fromiter(passes, bool, len(self.names))

    def count(self, generation: int, where: Where | None = None) -> int:
        """Number of items."""
        allowed = self._allowed(where)
        return len(self.names) if allowed is None else int(allowed.sum())

    def values(self, generation: int, column: str, limit: int = 1000) -> dict[str, int]:
        """Most frequent values of a column."""
        return dict(Counter(row[column] for row in self._metadata if column in row).most_common(limit))

    def search(
        self, generation: int, queries: Vectors, k: int, where: Where | None = None, *_: Any, **__: Any
    ) -> list[list[Match]]:
        """Compare with all vectors."""
        rows, allowed = check_queries(queries, self.embeddings.shape[1], k), self._allowed(where)
        count = min(k, len(self.names) if allowed is None else int(allowed.sum()))
        neighbours = nearest_unchecked(rows, self.embeddings, count, allowed=allowed)
        return matches_of(neighbours, lambda row: (self.names[row], self._metadata[row]))


def embed_catalogue(
    model: str,
    inputs: Sequence[Path | str],
    out: Path | str,
    *,
    weights: str | None = None,
    dim: int | None = None,
    batch_size: int | None = None,
    device: str | None = None,
    precision: str | None = None,
    on_bad_image: str = "error",
    download: bool = False,
    overwrite: bool = False,
) -> VectorFile:
    """Embed images and write their vectors to a file.

    Args:
        model: a run, a saved embedder, or an initialisation; weights: of that.
        inputs: see ``recollect.data.list_images``.
        out: the ``.npz`` to write.
        dim: keep only this many first numbers of each vector.
        batch_size: images per batch. device: where to compute.
        precision: of the network: ``"fp32"`` by default, ``"bf16"``, ``"fp16"`` or ``"auto"``.
        on_bad_image: ``"error"`` stops at images that cannot be read, ``"skip"`` continues with a warning.
        download: download an initialisation's weights if they are missing.
        overwrite: replace ``out``.

    Raises:
        InputError: ``out`` exists or is not an ``.npz``. DataError, ImageError, WeightsError: something cannot be read.

    Example:
        >>> file = embed_catalogue("run", ["photos"], "photos.npz")
        >>> file.embeddings.shape, len(set(file.labels))
        ((40, 128), 8)
    """
    out = Path(out)
    if out.suffix != ".npz":
        raise InputError(f"{out}: vectors are saved as .npz: give a name that ends in .npz.")
    if out.exists() and not overwrite:
        raise InputError(f"{out} already exists: choose another --out, or allow overwriting (--overwrite).")
    make_folder_for(out)
    listing = list_images(inputs, on_bad_image=on_bad_image)
    opening: dict[str, Any] = {"device": device, "batch_size": batch_size, "precision": precision}
    encoder = open_encoder(model, weights, download=download, keep=True, **opening)
    length = vector_length(encoder.dim, dim)
    errors: dict[int, ImageError] = {}
    vectors = encoder.embed(listing.paths, errors.__setitem__ if on_bad_image == "skip" else None)
    rows = [row for row in range(len(vectors)) if row not in errors]
    if not rows:
        raise DataError("none of the images could be read.")
    source: dict[str, Any] = {**encoder.provenance, "fingerprint": encoder.fingerprint}
    if dim is not None:
        source["dim"] = dim
    if left_out := dict(Counter(listing.skipped) + Counter(error.kind for error in errors.values())):
        source["left_out"] = left_out
    if "HEIC" in listing.skipped:
        warnings.warn(f"{TO_READ_HEIC}.", DataWarning, stacklevel=2)
    if errors:
        source["skipped"] = [
            {"name": str(listing.paths[row].absolute()), "reason": str(error)} for row, error in errors.items()
        ]
        warnings.warn(bad_image_summary(list(errors.values()), "left out"), DataWarning, stacklevel=2)
    # An image next to the class folders has the label "", which is not a class.
    labels = None if listing.labels is None else [listing.labels[row] for row in rows]
    if listing.root is not None:
        source["root"] = str(listing.root)
    file = VectorFile(str(out), shorten(vectors[rows], length), [listing.names[row] for row in rows], labels, source)
    file.write()
    return file
