"""Images to vectors for an index: the only place in this package that uses models.

An index needs three things of a model: vectors, their length, and a fingerprint that identifies it. Any object with
these three (``Encoder``) can fill an index; ``open_encoder`` makes one from a run, a saved embedder or an initialisation.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from recollect.common.errors import ConfigError, DataError, DataWarning, ImageError

if TYPE_CHECKING:
    from recollect.models import Embedder

OnBad = Callable[[int, ImageError], None]


@runtime_checkable
class Encoder(Protocol):
    """Turns images into vectors.

    Attributes:
        dim: length of a vector.
        fingerprint: changes when weights or preprocessing change, and only then.
        note: plain values that say what it is and open it again: ``model``, ``weights``, ``name``.
    """

    dim: int
    fingerprint: str
    note: dict[str, Any]

    def embed(self, images: Sequence[Any], on_bad: OnBad | None = None) -> NDArray[np.float32]:
        """N images (paths, bytes, PIL images, uint8 arrays) → N × dim vectors of length 1.

        An image that cannot be read raises its ``ImageError``; with ``on_bad`` that is called with its number and the
        error, and its row is NaN.
        """
        ...


class ModelEncoder:
    """An ``Embedder`` as an ``Encoder``. For files, it reuses vectors that any command has computed before.

    Args:
        embedder: the network.
        note: see ``Encoder``.
        frozen: the stage up to which training froze the network, if known.
        device: where to compute. batch_size: images per batch.
    """

    def __init__(
        self,
        embedder: Embedder,
        note: dict[str, Any],
        *,
        frozen: str | None = None,
        device: str | None = None,
        batch_size: int = 64,
    ) -> None:
        self._embedder, self._frozen, self._device, self._batch_size = embedder, frozen, device, batch_size
        self.dim, self.at_least = int(embedder.dim), embedder.preprocessing.at_least
        self.fingerprint = fingerprint(embedder)
        self.note = {**note, "name": embedder.config.init}

    def embed(self, images: Sequence[Any], on_bad: OnBad | None = None) -> NDArray[np.float32]:
        """Vectors of images."""
        if images and all(isinstance(image, str | Path) for image in images):
            return self._of_files([Path(image) for image in images], on_bad)
        rows = self._embedder.embed(
            images,
            batch_size=self._batch_size,
            device=self._device,
            progress=False,
            on_bad_image="error" if on_bad is None else on_bad,
        )
        vectors: NDArray[np.float32] = rows.numpy()
        return vectors

    def _of_files(self, paths: Sequence[Path], on_bad: OnBad | None) -> NDArray[np.float32]:
        from recollect.inference.embedding_sets import embed_files

        found = embed_files(
            self._embedder,
            paths,
            frozen=self._frozen,
            batch_size=self._batch_size,
            device=self._device,
            on_bad_image="error" if on_bad is None else "skip",
            keep=False,  # an index keeps its vectors itself
        )
        if on_bad is not None:
            skipped = {bad.name: ImageError(bad.reason, bad.kind) for bad in found.skipped}
            for number, path in enumerate(paths):
                if (error := skipped.get(str(path.absolute()))) is not None:
                    on_bad(number, error)
        return found.vectors


def open_encoder(
    model: str | Path | Embedder | Encoder,
    weights: str | None = None,
    *,
    device: str | None = None,
    batch_size: int = 64,
    download: bool = False,
) -> Encoder:
    """An encoder from a run, the folder of a saved embedder, an initialisation's name, or an existing encoder.

    Args:
        model: one of these.
        weights: weights file or folder of an initialisation.
        device: where to compute.
        batch_size: images per batch.
        download: download weights that are not on this machine.
    """
    if not isinstance(model, str | Path):
        if isinstance(model, Encoder):
            return model
        return ModelEncoder(model, {"model": None}, device=device, batch_size=batch_size)
    from recollect.inference.opening import open_model

    opened = open_model(str(model), weights=weights, download=download)
    if opened.remark is not None:
        warnings.warn(opened.remark, DataWarning, stacklevel=2)
    note = {"model": opened.source["model"], "weights": opened.source.get("weights")}
    return ModelEncoder(opened.embedder, note, frozen=opened.frozen, device=device, batch_size=batch_size)


@contextmanager
def recorded_model(owner: str) -> Iterator[None]:
    """Errors of opening a model by its recorded place also say what to do if it moved.

    Args:
        owner: what records it, e.g. the address of an index.

    Raises:
        ConfigError: instead of a ``DataError`` or ``ConfigError``.
    """
    try:
        yield
    except (DataError, ConfigError) as error:
        raise ConfigError(f"the model of {owner}: {error} If it moved, give it with --model.") from error


def fingerprint(embedder: Embedder) -> str:
    """A SHA-256 over weights, preprocessing, and the parts of the model that have no weights."""
    from recollect.inference.vector_store import weights_digest

    config, pixels = embedder.config, embedder.preprocessing
    facts = [
        weights_digest(embedder),
        [config.architecture, config.pooling, config.l2_before_head],
        [pixels.size, pixels.resize, pixels.interpolation, pixels.mean, pixels.std, pixels.max_side],
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()
