"""``Index``: a searchable set of images, with the model that computed their vectors. The entry point of this package.

An index has an address (a file, PostgreSQL, Milvus; see ``addresses``) and identifies its model by a fingerprint of weights
and preprocessing: vectors of another model are refused, because comparing them would give wrong results without an error.
Settings are read again after a second, and at once when a generation is missing: another process may have replaced it. The
model is opened for the first image. Filling is in ``filling``, the state of an index in ``settings``, what stores do in
``store_protocol``.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from recollect.common.errors import ConfigError, DataError, InputError
from recollect.search.addresses import open_store
from recollect.search.encoder import Encoder, OnBad, open_encoder, recorded_model
from recollect.search.filling import SyncChanges, add_images, refill, stored_vectors, sync_images
from recollect.search.indexed_files import digest_of, list_images
from recollect.search.settings import Generation, Settings, read_settings, write_settings
from recollect.search.sqlite_store import SQLiteStore
from recollect.search.store_protocol import (
    Hit,
    Item,
    NoIndexError,
    Store,
    StoreError,
    checked_id,
    clean_metadata,
    clean_where,
    shortened,
)
from recollect.search.thresholds import read_calibration, verdict

if TYPE_CHECKING:
    from recollect.models import Embedder

T = TypeVar("T")

CANDIDATES = 100
"""Items that approximate search compares exactly, unless another number is given."""

_SETTINGS_AGE = 1.0  # seconds before settings are read again
_QUERIES, _NEAREST = 200, 10  # the recall of approximate search: items used as queries, and how many should be found


class OtherModelError(DataError):
    """Vectors of a different model than that of the index."""


class Index:
    """A searchable set of images.

    Examples:
        >>> import tempfile
        >>> from PIL import Image
        >>> from recollect.models import Embedder
        >>> index = Index.create(tempfile.mkdtemp() + "/shop.index", Embedder.create("tiny"))
        >>> colours = [Image.new("RGB", (32, 32), name) for name in ("red", "green", "blue")]
        >>> index.add(colours, ids=["red", "green", "blue"], metadata=[{"warm": True}, {}, {}]).added
        3
        >>> index.search(colours[1], k=1)[0].id, len(index)
        ('green', 3)
    """

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

    @classmethod
    def create(
        cls,
        address: str | Path,
        model: str | Path | Embedder | Encoder,
        *,
        dim: int | None = None,
        half: bool = False,
        **opening: Any,
    ) -> Index:
        """Create a new index.

        Args:
            address: a file's path, ``postgresql://…``, ``milvus://…``, or a store of your own.
            model: a run, a saved embedder's folder, an initialisation's name, an ``Embedder``, or any ``Encoder``.
            dim: keep only the first values of each vector, normalized: less memory, less accurate.
            half: keep vectors in half precision.
            opening: ``weights``, ``device``, ``batch_size``, ``download`` of ``open_encoder``.

        Raises:
            InputError: there is already an index, or ``dim`` is not possible.
        """
        encoder = open_encoder(model, **opening)
        if dim is not None and not 1 <= dim <= encoder.dim:
            raise InputError(
                f"dim is {dim}: the model's vectors have {encoder.dim} values; choose from 1 to {encoder.dim}."
            )
        store = open_store(address, create=True)
        try:
            with store.writing(wait=10):
                if read_settings(store) is not None:
                    raise InputError(f"{store.address}: there is already an index. Open it, or choose another address.")
                thresholds = _calibration(encoder, dim)
                generation = Generation(1, _model(encoder), dim or encoder.dim, half, calibration=thresholds)
                store.drop_generation(1)  # left by a process that ended before it wrote the settings
                store.create_generation(1, generation.dim, half)
                settings = Settings(generation)
                write_settings(store, settings)
        except BaseException:
            store.close()
            raise
        return cls(store, settings, encoder, **opening)

    @classmethod
    def open(cls, address: str | Path, model: str | Path | Embedder | Encoder | None = None, **opening: Any) -> Index:
        """Open an index.

        Args:
            address: where it is.
            model: the new folder of its model, if it moved; by default the folder at the time the index was created. It is
                opened for the first image, so searching by vectors and ids needs no model.
            opening: as in ``create``.

        Raises:
            StoreError: there is no index. OtherModelError: ``model`` is not the model of the index.
        """
        store = open_store(address)
        try:
            settings = read_settings(store)
            if settings is None:
                raise NoIndexError(store.address)
            index = cls(store, settings, **opening)
            if model is not None:
                index._encoder = index._checked(open_encoder(model, **opening), settings.current)
        except BaseException:
            store.close()
            raise
        return index

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

    def sync(
        self,
        folder: str | Path,
        *,
        prune: bool = False,
        prefix: str = "",
        rehash: bool = False,
        wait: float = 0.0,
    ) -> SyncChanges:
        """Synchronize the index with a folder or a CSV file: only new and changed images are embedded.

        It can be interrupted at any moment; the next call resumes. Ids and metadata: see ``indexed_files.list_images``.

        Args:
            folder: the folder or the ``.csv`` file.
            prune: remove images of that folder whose files no longer exist (or that the CSV file no longer names).
            prefix: prefix of every id, to keep several folders apart.
            rehash: read every file instead of trusting its size and time.
            wait: seconds to wait for another process that is writing.

        Raises:
            DataError: no images, or ids that belong to other files. IndexBusyError: another process is writing.
        """
        left_out: Counter[str] = Counter()
        listed, remarks = list_images(folder, prefix=prefix, left_out=left_out)
        with self._store.writing(wait):
            generation = self._tidied()
            changes = sync_images(
                self._store, generation, self._vectors, listed, Path(folder), prune=prune, rehash=rehash
            )  # fmt: skip
        changes.skipped[:0] = remarks
        changes.left_out = dict(left_out + Counter(changes.left_out))
        return changes

    def add(
        self,
        images: Sequence[Any],
        ids: Sequence[str] | None = None,
        metadata: Sequence[Mapping[str, object] | None] | None = None,
        *,
        wait: float = 0.0,
    ) -> SyncChanges:
        """Add images, replacing those with the same ids.

        Args:
            images: paths, bytes, PIL images or uint8 arrays. Of those that are not files, the bytes are kept.
            ids: one per image; by default the path as given, or only the file's name if the path is absolute or has ``..``:
                ids are shown to clients, paths on this machine are not.
            metadata: one mapping per image; values are kept as text.
            wait: seconds to wait for another process that is writing.
        """
        names = _names(images, ids)
        about = [None] * len(names) if metadata is None else list(metadata)
        if len(about) != len(names):
            raise InputError(f"{len(names)} images but {len(about)} metadata: give one per image.")
        with self._store.writing(wait):
            return add_images(self._store, self._current(fresh=True), self._vectors, images, names, about)

    def add_vectors(
        self,
        vectors: NDArray[np.float32],
        ids: Sequence[str],
        metadata: Sequence[Mapping[str, object] | None] | None = None,
        *,
        fingerprint: str,
        pictures: Sequence[bytes] | None = None,
        wait: float = 0.0,
    ) -> int:
        """Add vectors that were computed elsewhere with this index's model; returns how many.

        Args:
            vectors: N × d, as long as the model's.
            ids, metadata: as in ``add``.
            fingerprint: fingerprint of the model that computed them (``open_encoder(model).fingerprint``).
            pictures: the contents of their image files, which are then kept as those of ``add`` are.

        Raises:
            OtherModelError: another model's fingerprint.
        """
        about = [None] * len(ids) if metadata is None else list(metadata)
        rows = np.asarray(vectors, np.float32)
        if rows.ndim != 2 or not len(rows) == len(ids) == len(about):
            raise InputError(
                f"{rows.shape} vectors, {len(ids)} ids and {len(about)} metadata: give one id and metadata per vector."
            )
        kept_pictures = [("", None)] * len(ids) if pictures is None else [digest_of(content) for content in pictures]
        with self._store.writing(wait):
            generation = self._current(fresh=True)
            self._check_fingerprint(fingerprint, generation, "the model that made these vectors")
            kept = stored_vectors(self._full(rows, generation), generation)
            for start in range(0, len(ids), 4096):
                some = slice(start, start + 4096)
                entries = zip(ids[some], kept[some], about[some], kept_pictures[some], strict=True)
                self._store.put(
                    generation.number,
                    [
                        Item(name, row, clean_metadata(extra), digest, picture=picture)
                        for name, row, extra, (digest, picture) in entries
                    ],
                )
        return len(ids)

    def remove(self, ids: Sequence[str], *, wait: float = 0.0) -> int:
        """Remove images by their ids; returns how many were removed."""
        with self._store.writing(wait):
            return self._store.delete(self._current(fresh=True).number, list(ids))

    def search(
        self,
        query: Any,
        k: int = 10,
        where: Mapping[str, object] | None = None,
        *,
        exact: bool = False,
    ) -> list[Hit]:
        """The images most similar to one image, best first.

        Args:
            query: a path, bytes, a PIL image, a uint8 array, or a vector of floats made by the index's model.
            k: how many.
            where: only images whose metadata has these values, e.g. ``{"label": "shoe"}`` or ``{"label": ["shoe", "boot"]}``.
            exact: compare with every image, even if the index is large or ``approximate``.
        """
        if isinstance(query, np.ndarray) and np.issubdtype(query.dtype, np.floating):
            return self.search_vectors(query[None], k, where, exact=exact)[0]
        return self.search_many([query], k, where, exact=exact)[0]

    def search_many(
        self, images: Sequence[Any], k: int = 10, where: Mapping[str, object] | None = None, *, exact: bool = False
    ) -> list[list[Hit]]:
        """``search`` for several images at once."""
        for attempt in range(3):
            rows, fingerprint = self.embed(images)
            try:
                return self.search_vectors(rows, k, where, exact=exact, fingerprint=fingerprint)
            except OtherModelError:  # the index was rebuilt between embedding and searching
                if attempt == 2:
                    raise
        raise AssertionError("unreachable")

    def embed(self, images: Sequence[Any], on_bad: OnBad | None = None) -> tuple[NDArray[np.float32], str]:
        """Vectors of images by the index's model, and its fingerprint, which ``search_vectors`` takes.

        Images that cannot be read: see ``Encoder.embed``.
        """
        encoder = self.encoder
        return encoder.embed(list(images), on_bad), encoder.fingerprint

    def _vectors(self, images: Sequence[Any], on_bad: OnBad) -> NDArray[np.float32]:
        return self.encoder.embed(images, on_bad)

    def search_vectors(
        self,
        vectors: NDArray[np.float32],
        k: int = 10,
        where: Mapping[str, object] | None = None,
        *,
        exact: bool = False,
        fingerprint: str | None = None,
    ) -> list[list[Hit]]:
        """``search`` for Q × d vectors.

        Args:
            vectors: computed by the index's model, complete or shortened to the index's length.
            k, where, exact: as in ``search``.
            fingerprint: fingerprint of the model that computed them, which is checked.

        Raises:
            OtherModelError: another model's fingerprint. InputError: a wrong shape, or values that are not finite.
        """
        rows, condition = np.asarray(vectors, np.float32), clean_where(where)

        def search(generation: Generation) -> list[list[Hit]]:
            if fingerprint is not None:
                self._check_fingerprint(fingerprint, generation, "the model that made the query")
            kept = stored_vectors(self._full(rows, generation), generation)
            near = False if exact else generation.approximate
            found = self._store.search(
                generation.number,
                kept,
                k,
                condition,
                None if near is None else bool(near),
                near["candidates"] if near else CANDIDATES,
            )
            return [
                [replace(hit, verdict=verdict(hit.similarity, generation.calibration)) for hit in hits]
                for hits in found
            ]

        return self._retried(search)

    def search_id(
        self, name: str, k: int = 10, where: Mapping[str, object] | None = None, *, exact: bool = False
    ) -> list[Hit]:
        """The images most similar to one that is in the index, without that one.

        Raises:
            InputError: there is no such id.
        """
        item = self.get([name], vectors=True).get(name)
        if item is None or item.vector is None:
            raise InputError(f"{shortened(name)!r} is not an id of this index.")
        found = self.search_vectors(item.vector[None], k + 1, where, exact=exact)[0]
        return [match for match in found if match.id != name][:k]

    def rebuild(
        self,
        model: str | Path | Embedder | Encoder,
        *,
        dim: int | None = None,
        half: bool | None = None,
        skip_missing: bool = False,
        wait: float = 0.0,
        **opening: Any,
    ) -> SyncChanges:
        """Embed all images with another model into a new generation, then switch to it in one step.

        The old generation answers meanwhile, and stays if there is an error; after an interruption the next call resumes.

        Args:
            model: the new one. dim, half: how to keep its vectors; ``half`` as before by default.
            skip_missing: leave out images that can no longer be read, instead of refusing to switch.
            wait: seconds to wait for another process that is writing.

        Raises:
            DataError: images can no longer be read.
        """
        encoder = open_encoder(model, **opening)
        with self._store.writing(wait):
            old = self._tidied()
            kept = old.half if half is None else half
            if (encoder.fingerprint, dim or encoder.dim, kept) == (old.fingerprint, old.dim, old.half):
                return SyncChanges(unchanged=self._store.count(old.number))  # it already uses this model
            new = Generation(
                old.number + 1, _model(encoder), dim or encoder.dim, kept, calibration=_calibration(encoder, dim)
            )
            if not 1 <= new.dim <= encoder.dim:
                raise InputError(f"dim is {dim}: the model's vectors have {encoder.dim} values.")
            building = self._settings.building
            begun = building is not None and (building.number, building.fingerprint, building.dim, building.half) == (
                new.number, new.fingerprint, new.dim, new.half)  # fmt: skip
            if not begun or new.number not in self._store.generations():
                self._store.drop_generation(new.number)
                self._store.create_generation(new.number, new.dim, new.half)
                self._write(Settings(old, new))
            changes = refill(self._store, old, new, encoder.embed)
            if changes.skipped and not skip_missing:
                shown = " ".join(changes.skipped[:3])
                raise DataError(
                    f"{len(changes.skipped):,} images cannot be embedded again, so the old vectors stay in use: {shown} "
                    "Restore them, or leave them out with --prune."
                )
            near = old.approximate
            new = replace(new, approximate=self._measured(new, near["candidates"]) if near else near)
            self._write(Settings(new))
            self._encoder, self._opening = encoder, opening
            self._store.drop_generation(old.number)
        return changes

    def _tidied(self) -> Generation:
        """The current generation, after removing leftovers of a process that ended between switching and removing."""
        generation = self._current(fresh=True)
        known = {generation.number, *([] if self._settings.building is None else [self._settings.building.number])}
        for number in set(self._store.generations()) - known:
            self._store.drop_generation(number)
        return generation

    def approximate(self, candidates: int = CANDIDATES, *, wait: float = 0.0) -> dict[str, Any]:
        """Search approximately from now on, after measuring the recall against exact search.

        Args:
            candidates: images per query that are found fast and then compared exactly: more are slower and find more.

        Returns:
            The record stored with the index: ``candidates``, ``recall`` (share of the exact first ``k`` found), ``queries``.
        """
        if not 1 <= candidates <= 1000:
            raise InputError(f"candidates is {candidates!r}: it must be from 1 to 1,000.")
        with self._store.writing(wait):
            facts = self._measured(self._current(fresh=True), candidates)
            self._write(self._settings.with_current(approximate=facts))
        return facts

    def _measured(self, generation: Generation, candidates: int) -> dict[str, Any]:
        """Build approximate search; its recall, with items spread over the index as queries, which do not count as found."""
        store, number = self._store, generation.number
        items = store.count(number)
        if not items:
            raise InputError(f"{self.address}: the index is empty; fill it before asking for approximate search.")
        step = max(1, items // _QUERIES)
        names = [item.id for item in islice(store.iterate(number), 0, step * _QUERIES, step)]
        vectors = store.get(number, names, vectors=True)
        rows = np.array([vectors[name].vector for name in names], np.float32)
        k = _NEAREST + 1
        exact = store.search(
            number, rows, k, approximate=False
        )  # before building: beside HNSW, Milvus reads all vectors
        store.build_approximate(number)
        near = store.search(number, rows, k, approximate=True, candidates=candidates)
        shares = []
        for name, right, found in zip(names, exact, near, strict=True):
            wanted = {hit.id for hit in right if hit.id != name}
            shares.append(len(wanted & {hit.id for hit in found}) / max(1, len(wanted)))
        recall = round(float(np.mean(shares)), 4) if items > 1 else 1.0
        return {"candidates": candidates, "recall": recall, "queries": len(names), "k": _NEAREST, "items": items}

    def exact(self, *, wait: float = 0.0) -> None:
        """Compare every query with every image from now on, however many there are."""
        with self._store.writing(wait):
            self._store.drop_approximate(self._current(fresh=True).number)
            self._write(self._settings.with_current(approximate=False))

    def check(self) -> None:
        """Read the whole file of the index.

        Raises:
            StoreError: it is damaged. InputError: the index is not a file.
        """
        if not isinstance(self._store, SQLiteStore):
            raise InputError(f"{self.address}: only an index in a file can be checked; servers check their own files.")
        self._store.check()

    def set_calibration(self, calibration: Mapping[str, Any] | None, *, wait: float = 0.0) -> None:
        """Store thresholds with the index (see ``thresholds.calibrate``)."""
        with self._store.writing(wait):
            self._current(fresh=True)
            self._write(self._settings.with_current(calibration=None if calibration is None else dict(calibration)))

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


def _model(encoder: Encoder) -> dict[str, Any]:
    return {**encoder.note, "fingerprint": encoder.fingerprint, "dim": encoder.dim}


def _calibration(encoder: Encoder, dim: int | None) -> dict[str, Any] | None:
    """The model's own calibration, unless vectors are shortened, which changes similarities."""
    return None if dim not in (None, encoder.dim) else read_calibration(encoder)


def _names(images: Sequence[Any], ids: Sequence[str] | None) -> list[str]:
    if ids is None:
        unnamed = next((image for image in images if not isinstance(image, str | Path)), None)
        if unnamed is not None:
            raise InputError(f"a {type(unnamed).__name__} has no name: give ids, one per image.")
        ids = [_name(Path(image)) for image in images]
    names = list(ids)
    if len(names) != len(images):
        raise InputError(f"{len(images)} images but {len(names)} ids: give one per image.")
    twice = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
    if twice is not None:
        raise InputError(f"the id {shortened(twice)!r} occurs twice: give one id per image, each different.")
    return [checked_id(name) for name in names]


def _name(path: Path) -> str:
    return path.name if path.is_absolute() or ".." in path.parts else path.as_posix()
