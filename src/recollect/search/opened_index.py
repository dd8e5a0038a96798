"""An opened index: its store, settings and model, and functions that read them. ``Index`` adds searching and changing.

Settings are read again after a second, and at once when a generation is missing: another process may have
replaced it. The model is opened for the first image and checked by its fingerprint.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from recollect.common.errors import ConfigError, DataError, InputError
from recollect.search.encoder import Encoder, open_encoder, recorded_model
from recollect.search.settings import Generation, Settings, read_settings, write_settings
from recollect.search.store_protocol import Item, Store, StoreError, clean_where

T = TypeVar("T")

_SETTINGS_AGE = 1.0  # seconds before settings are read again


class OtherModelError(DataError):
    """Vectors of a different model than that of the index."""


class OpenedIndex:
    """Base of ``Index``, which users should use."""

    def __init__(self, store: Store, settings: Settings, encoder: Encoder | None = None, **opening: Any) -> None:
        self._store, self._settings, self._encoder, self._opening = store, settings, encoder, opening
        self._read_at = time.monotonic()

    def close(self) -> None:
        """Close files and connections."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self.count()

    @property
    def address(self) -> str:
        """Its address, without a password."""
        return self._store.address

    @property
    def store(self) -> Store:
        """Its store."""
        return self._store

    @property
    def model(self) -> dict[str, Any]:
        """Its model: ``model``, ``name``, ``fingerprint``, ``dim``."""
        return dict(self._current().model)

    @property
    def generation(self) -> Generation:
        """The generation that answers."""
        return self._current()

    @property
    def encoder(self) -> Encoder:
        """Its model, opened when first needed.

        Raises:
            OtherModelError: the model in that folder has changed.
        """
        generation = self._current()
        if self._encoder is None or self._encoder.fingerprint != generation.fingerprint:
            place = generation.model.get("model")
            if place is None:
                raise ConfigError(
                    f"{self.address}: the index does not know where its model is: give it with --model (model= in Python)."
                )
            opening = {"weights": generation.model.get("weights"), **self._opening}
            with recorded_model(self.address):
                encoder = open_encoder(place, **opening)
            self._encoder = self._checked(encoder, generation)
        return self._encoder

    def count(self, where: Mapping[str, object] | None = None) -> int:
        """The number of images, or of those that pass a filter."""
        return self._retried(lambda generation: self._store.count(generation.number, clean_where(where)))

    def values(self, column: str, limit: int = 1000) -> dict[str, int]:
        """The most frequent values of a metadata column with their counts."""
        return self._retried(lambda generation: self._store.values(generation.number, column, limit))

    def get(self, ids: Sequence[str], *, vectors: bool = False) -> dict[str, Item]:
        """Items by their ids."""
        return self._retried(lambda generation: self._store.get(generation.number, ids, vectors=vectors))

    def examples(self, count: int) -> list[Item]:
        """A few images with different labels, from the first thousand."""
        found = self._retried(lambda generation: list(islice(self._store.iterate(generation.number), 1000)))
        turns: Counter[str] = Counter()
        order = []
        for item in found:
            label = item.metadata.get("label", "")
            order.append(turns[label])
            turns[label] += 1
        return [found[place] for place in sorted(range(len(found)), key=lambda place: order[place])[:count]]

    def picture(self, name: str) -> Path | bytes | None:
        """The image of an item: its file, or the bytes that were added; None if neither exists."""
        item = self.get([name]).get(name)
        if item is None:
            return None
        if item.source:
            path = Path(item.source)
            return path if path.is_file() else None
        return self._store.picture(item.digest)

    def info(self) -> dict[str, Any]:
        """A description of the index, as plain values."""
        generation = self._current(fresh=True)
        building = self._settings.building
        return {
            "address": self.address,
            "items": self.count(),
            "generation": generation.number,
            "dim": generation.dim,
            "half": generation.half,
            "model": generation.model,
            "approximate": generation.approximate,
            "calibration": generation.calibration,
            "building": None
            if building is None
            else {"generation": building.number, "model": building.model, "items": self._store.count(building.number)},
        }

    def _checked(self, encoder: Encoder, generation: Generation) -> Encoder:
        self._check_fingerprint(encoder.fingerprint, generation, str(encoder.note.get("model") or "the model"))
        return encoder

    def _check_fingerprint(self, found: str, generation: Generation, what: str) -> None:
        if found != generation.fingerprint:
            raise OtherModelError(
                f"{what} is not the model of {self.address}: its weights or preprocessing differ (fingerprint {found[:12]} "
                f"instead of {generation.fingerprint[:12]}). To embed all images with it: recollect index --rebuild --model NEW"
            )

    def _full(self, rows: NDArray[np.float32], generation: Generation) -> NDArray[np.float32]:
        lengths = sorted({generation.dim, int(generation.model["dim"])})
        if rows.ndim != 2 or rows.shape[1] not in lengths:
            raise InputError(
                f"vectors must have {' or '.join(map(str, lengths))} values, but the shape is {rows.shape}: compute them "
                "with the model of the index."
            )
        return rows

    def _current(self, *, fresh: bool = False) -> Generation:
        if fresh or time.monotonic() - self._read_at > _SETTINGS_AGE:
            settings = read_settings(self._store)
            if settings is None:
                raise StoreError(f"{self.address}: the index no longer exists.")
            self._settings, self._read_at = settings, time.monotonic()
        return self._settings.current

    def _write(self, settings: Settings) -> None:
        write_settings(self._store, settings)
        self._settings, self._read_at = settings, time.monotonic()

    def _retried(self, work: Callable[[Generation], T]) -> T:
        """``work(generation)``; once more if the generation was replaced by another process in between."""
        generation = self._current()
        try:
            return work(generation)
        except StoreError:
            if self._current(fresh=True).number == generation.number:
                raise
            return work(self._current())
