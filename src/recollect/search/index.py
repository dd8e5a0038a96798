"""``Index``: a searchable set of images, with the model that computed their vectors. The entry point of this package.

An index has an address (a file, PostgreSQL, Milvus; see ``stores.base``) and identifies its model by a fingerprint of weights
and preprocessing: vectors of another model are refused, because comparing them would give wrong results without an error.
Settings are read again after a second, and at once when a generation is missing: another process may have replaced it. The
model is opened for the first image. Filling is in ``sync``, what stores do in ``stores.base``; ``commands`` has whole
updates and searches in one call.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from recollect.common.errors import ConfigError, DataError, InputError
from recollect.search.encoder import Encoder, OnBad, open_encoder, read_calibration, shorten, vector_length
from recollect.search.stores import NEIGHBOURS
from recollect.search.stores.base import (
    Generation,
    Item,
    Match,
    NoIndexError,
    Settings,
    Store,
    StoreError,
    Vectors,
    check_ids,
    clean_metadata,
    clean_where,
    open_store,
)
from recollect.search.stores.vector_file import VectorFile
from recollect.search.sync import (
    ImageListing,
    SyncChanges,
    add_images,
    batches,
    digest_of,
    refill,
    scan_images,
    sync_images,
)

if TYPE_CHECKING:
    from recollect.models import Embedder

T = TypeVar("T")

CANDIDATES = 100
"""Items that approximate search compares exactly, unless another number is given."""

_SETTINGS_AGE = 1.0  # seconds before settings are read again
_QUERIES = 200  # items used as queries to measure the recall of approximate search


class OtherModelError(DataError):
    """Vectors of a different model than that of the index."""


class Index(AbstractContextManager["Index", None]):
    """A searchable set of images.

    Attributes:
        address: without a password.
        store: what keeps its vectors.

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
        self.address, self.store = store.address, store
        self._settings, self._encoder, self._opening = settings, encoder, opening
        self._read_at = time.monotonic()

    def close(self) -> None:
        """Close files and connections."""
        self.store.close()

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
            opening: ``weights``, ``device``, ``batch_size``, ``precision``, ``download`` of ``open_encoder``.

        Raises:
            InputError: there is already an index, or ``dim`` is not possible.
        """
        encoder = open_encoder(model, **opening)
        generation = _generation(1, encoder, dim, half)
        store = open_store(address, create=True)
        try:
            with store.writing(wait=10):
                if Settings.read(store) is not None:
                    raise InputError(f"{store.address}: there is already an index. Open it, or choose another address.")
                store.drop_generation(1)  # left by a process that ended before it wrote the settings
                store.create_generation(1, generation.dim, half)
                index = cls(store, Settings(generation), encoder, **opening)
                index._write(index._settings)
        except BaseException:
            store.close()
            raise
        return index

    @classmethod
    def open(
        cls,
        address: str | Path,
        model: str | Path | Embedder | Encoder | None = None,
        *,
        dim: int | None = None,
        root: str | Path | None = None,
        **opening: Any,
    ) -> Index:
        """Open an index, or a file of vectors, which can only be searched.

        Args:
            address: where it is; an ``.npz`` of ``recollect embed``.
            model: the new folder of its model, if it moved; by default the folder at the time the index was created. It is
                opened for the first image, so searching by vectors and ids needs no model.
            dim: for a file of vectors, compare only this many first numbers. root: new folder of its images, if they moved.
            opening: as in ``create``.

        Raises:
            StoreError: there is no index. OtherModelError: ``model`` is not the model of the index.
        """
        store: Store
        if str(address).endswith(".npz"):
            store = VectorFile.open(str(address), dim=dim, root=root)
        elif dim is not None:
            raise InputError(
                f"an index has vectors of one length: create one with {dim} numbers with recollect index --dim {dim}."
            )
        else:
            store = open_store(address)
        try:
            settings = Settings.read(store)
            if settings is None:
                raise NoIndexError(store.address)
            index = cls(store, settings, **opening)
            if model is not None:
                opening["precision"] = opening.get("precision") or settings.current.model.get("precision")
                index._use(open_encoder(model, **opening))
        except BaseException:
            store.close()
            raise
        return index

    @property
    def model(self) -> dict[str, Any]:
        """Its model: ``model``, ``name``, ``fingerprint``, ``dim``."""
        return dict(self.generation.model)

    @property
    def generation(self) -> Generation:
        """The generation that answers."""
        return self._refresh() if time.monotonic() - self._read_at > _SETTINGS_AGE else self._settings.current

    def _refresh(self) -> Generation:
        settings = Settings.read(self.store)
        if settings is None:
            raise StoreError(f"{self.address}: the index no longer exists.")
        self._settings, self._read_at = settings, time.monotonic()
        return settings.current

    @property
    def encoder(self) -> Encoder:
        """Its model, opened when first needed.

        Raises:
            ConfigError: it cannot be opened where it was. OtherModelError: the model in that folder has changed.
        """
        model = self.generation.model
        if self._encoder is not None and model["fingerprint"] in (None, self._encoder.fingerprint):
            return self._encoder
        if model.get("model") is None:
            raise ConfigError(
                f"{self.address}: the index does not know where its model is: give it with --model (model= in Python)."
            )
        try:
            recorded = {name: self._opening.get(name) or model.get(name) for name in ("weights", "precision")}
            encoder = open_encoder(model["model"], **{**self._opening, **recorded})
        except (DataError, ConfigError) as error:
            raise ConfigError(f"the model of {self.address}: {error} If it moved, give it with --model.") from error
        return self._use(encoder)

    def _use(self, encoder: Encoder) -> Encoder:
        what = str(encoder.provenance.get("model") or "the model")
        self._check_fingerprint(encoder.fingerprint, self._settings.current, what)
        self._encoder = encoder
        return encoder

    def count(self, where: Mapping[str, object] | None = None) -> int:
        """The number of images, or of those that pass a filter."""
        return self._retry(lambda generation: self.store.count(generation.number, clean_where(where)))

    def values(self, column: str, limit: int = 1000) -> dict[str, int]:
        """The most frequent values of a metadata column with their counts."""
        return self._retry(lambda generation: self.store.values(generation.number, column, limit))

    def get(self, ids: Sequence[str], *, vectors: bool = False) -> dict[str, Item]:
        """Items by their ids."""
        return self._retry(lambda generation: self.store.get(generation.number, ids, vectors=vectors))

    def examples(self, count: int) -> list[Item]:
        """A few images with different labels, from the first thousand."""
        items = self._retry(lambda generation: list(islice(self.store.iterate(generation.number), 1000)))
        turns: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)  # how many of its label come before it
        return sorted(items, key=lambda item: next(turns[item.metadata.get("label", "")]))[:count]

    def picture(self, name: str) -> Path | bytes | None:
        """The image of an item: its file, or the bytes that were added; None if neither exists."""
        item = self.get([name]).get(name)
        if item is None:
            return None
        if item.source:
            path = Path(item.source)
            return path if path.is_file() else None
        return self.store.picture(item.digest)

    def info(self) -> dict[str, Any]:
        """A description of the index, as plain values."""
        generation = self._refresh()
        facts = {name: getattr(generation, name) for name in ("dim", "half", "model", "approximate", "calibration")}
        rebuild = None
        if (new := self._settings.building) is not None:
            rebuild = {"generation": new.number, "model": new.model, "items": self.store.count(new.number)}
        place = {"address": self.address, "items": self.count(), "generation": generation.number}
        return {**place, **facts, "building": rebuild}

    def sync(
        self,
        folder: str | Path | ImageListing,
        *,
        prune: bool = False,
        prefix: str = "",
        rehash: bool = False,
        wait: float = 0.0,
    ) -> SyncChanges:
        """Synchronize the index with a folder or a CSV file: only new and changed images are embedded.

        It can be interrupted at any moment; the next call resumes. Ids and metadata: see ``sync.scan_images``.

        Args:
            folder: the folder or the ``.csv`` file; or its images, by ``scan_images``.
            prune: remove images of that folder whose files no longer exist (or that the CSV file no longer names).
            prefix: prefix of every id, to keep several folders apart.
            rehash: read every file instead of trusting its size and time.
            wait: seconds to wait for another process that is writing.

        Raises:
            DataError: no images, or ids that belong to other files. IndexBusyError: another process is writing.
        """
        listing = folder if isinstance(folder, ImageListing) else scan_images(folder, prefix=prefix)
        with self.store.writing(wait):
            changes = sync_images(self.store, self._tidy(), self._embed, listing, prune=prune, rehash=rehash)
        changes.skipped[:0] = listing.remarks
        changes.left_out = dict(listing.skipped + Counter(changes.left_out))
        return changes

    def _embed(self, images: Sequence[Any], on_bad: OnBad) -> Vectors:
        return self.encoder.embed(images, on_bad)  # opened only where there is something to embed

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
        names = [_default_id(image) for image in images] if ids is None else list(ids)
        columns = _columns("images", images, names, metadata)
        check_ids(names)
        with self.store.writing(wait):
            return add_images(self.store, self._refresh(), self._embed, images, names, columns)

    def add_vectors(
        self,
        vectors: Vectors,
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
        columns = _columns("vectors", vectors, ids, metadata)
        contents = [("", None)] * len(ids) if pictures is None else list(map(digest_of, pictures))
        with self.store.writing(wait):
            generation = self._refresh()
            self._check_fingerprint(fingerprint, generation, "the model that made these vectors")
            rows = self._shorten(np.asarray(vectors, np.float32), generation)
            items = (
                Item(name, row, extra, digest, picture=picture)
                for name, row, extra, (digest, picture) in zip(ids, rows, columns, contents, strict=True)
            )
            for batch in batches(items, 4096):
                self.store.put(generation.number, batch)
        return len(ids)

    def remove(self, ids: Sequence[str], *, wait: float = 0.0) -> int:
        """Remove images by their ids; returns how many were removed."""
        with self.store.writing(wait):
            return self.store.delete(self._refresh().number, list(ids))

    def search(
        self, query: Any, k: int = NEIGHBOURS, where: Mapping[str, object] | None = None, *, exact: bool = False
    ) -> list[Match]:
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
        self,
        images: Sequence[Any],
        k: int = NEIGHBOURS,
        where: Mapping[str, object] | None = None,
        *,
        exact: bool = False,
        on_bad: OnBad | None = None,
    ) -> list[list[Match]]:
        """``search`` for several images at once. With ``on_bad``, see ``Encoder.embed``, a bad image has no matches."""
        for attempt in range(3):
            encoder = self.encoder
            rows = encoder.embed(list(images), on_bad)
            good = [not np.isnan(row).all() for row in rows]
            try:
                options: dict[str, Any] = {"exact": exact, "fingerprint": encoder.fingerprint}
                answers = iter(self.search_vectors(rows[good], k, where, **options) if any(good) else ())
                break
            except OtherModelError:  # the index was rebuilt between embedding and searching
                if attempt == 2:
                    raise
        return [next(answers) if is_good else [] for is_good in good]

    def search_vectors(
        self,
        vectors: Vectors,
        k: int = NEIGHBOURS,
        where: Mapping[str, object] | None = None,
        *,
        exact: bool = False,
        fingerprint: str | None = None,
    ) -> list[list[Match]]:
        """``search`` for Q × d vectors.

        Args:
            vectors: computed by the index's model, complete or shortened to the index's length.
            k, where, exact: as in ``search``.
            fingerprint: fingerprint of the model that computed them, which is checked.

        Raises:
            OtherModelError: another model's fingerprint. InputError: a wrong shape, or values that are not finite.
        """
        rows, condition = np.asarray(vectors, np.float32), clean_where(where)

        def search(generation: Generation) -> list[list[Match]]:
            if fingerprint is not None:
                self._check_fingerprint(fingerprint, generation, "the model that made the query")
            setting, calibration = False if exact else generation.approximate, generation.calibration
            approximate = None if setting is None else bool(setting)
            candidates = setting["candidates"] if setting else CANDIDATES
            vectors = self._shorten(rows, generation)
            answers = self.store.search(generation.number, vectors, k, condition, approximate, candidates)
            if calibration is None:
                return answers
            return [[replace(m, level=match_level(m.similarity, calibration)) for m in matches] for matches in answers]

        return self._retry(search)

    def search_id(
        self, name: str, k: int = NEIGHBOURS, where: Mapping[str, object] | None = None, *, exact: bool = False
    ) -> list[Match]:
        """The images most similar to one that is in the index, without that one.

        Raises:
            InputError: there is no such id.
        """
        item = self.get([name], vectors=True).get(name)
        if item is None or item.vector is None:
            raise InputError(f"{name[:80]!r} is not an id of this index.")
        matches = self.search_vectors(item.vector[None], k + 1, where, exact=exact)[0]
        return [match for match in matches if match.id != name][:k]

    def rebuild(
        self,
        model: str | Path | Embedder | Encoder,
        *,
        dim: int | None = None,
        half: bool | None = None,
        on_bad_image: str = "error",
        wait: float = 0.0,
        **opening: Any,
    ) -> SyncChanges:
        """Embed all images with another model into a new generation, then switch to it in one step.

        The old generation answers meanwhile, and stays if there is an error; after an interruption the next call resumes.

        Args:
            model: the new one. dim, half: how to keep its vectors; ``half`` as before by default.
            on_bad_image: ``"skip"`` leaves out images that can no longer be read, instead of refusing to switch.
            wait: seconds to wait for another process that is writing.

        Raises:
            DataError: images can no longer be read.
        """
        encoder = open_encoder(model, **opening)
        with self.store.writing(wait):
            old = self._tidy()
            new = _generation(old.number + 1, encoder, dim, old.half if half is None else half)
            if new.identity == replace(old, number=new.number).identity:
                return SyncChanges(unchanged=self.store.count(old.number))  # it already uses this model
            building = self._settings.building
            resumed = building is not None and building.identity == new.identity
            if not resumed or new.number not in self.store.generations():
                self.store.drop_generation(new.number)
                self.store.create_generation(new.number, new.dim, new.half)
                self._write(Settings(old, new))
            changes = refill(self.store, old, new, encoder.embed)
            if changes.skipped and on_bad_image == "error":
                raise DataError(
                    f"{len(changes.skipped):,} images cannot be embedded again, so the old vectors stay in use: "
                    f"{' '.join(changes.skipped[:3])} Restore them, or leave them out with --prune."
                )
            setting = old.approximate
            new = replace(new, approximate=self._measure(new, setting["candidates"]) if setting else setting)
            self._write(Settings(new))
            self._encoder, self._opening = encoder, opening
            self.store.drop_generation(old.number)
        return changes

    def _tidy(self) -> Generation:
        """The current generation, after removing leftovers of a process that ended between switching and removing."""
        generation = self._refresh()
        building = self._settings.building
        for number in self.store.generations():
            if number != generation.number and (building is None or number != building.number):
                self.store.drop_generation(number)
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
        with self.store.writing(wait):
            facts = self._measure(self._refresh(), candidates)
            self._change(approximate=facts)
        return facts

    def _measure(self, generation: Generation, candidates: int) -> dict[str, Any]:
        """Build approximate search; its recall, with items spread over the index as queries, which do not count as found."""
        store, number = self.store, generation.number
        items = store.count(number)
        if not items:
            raise InputError(f"{self.address}: the index is empty; fill it before asking for approximate search.")
        step = max(1, items // _QUERIES)
        names = [item.id for item in islice(store.iterate(number), 0, step * _QUERIES, step)]
        items_by_id = store.get(number, names, vectors=True)
        rows = np.array([items_by_id[name].vector for name in names], np.float32)
        k = NEIGHBOURS + 1
        # Before building: beside HNSW, Milvus reads all vectors.
        exact = store.search(number, rows, k, approximate=False)
        store.build_approximate(number)
        approximate = store.search(number, rows, k, approximate=True, candidates=candidates)
        shares = []
        for name, expected, matches in zip(names, exact, approximate, strict=True):
            others = {match.id for match in expected if match.id != name}
            shares.append(len(others & {match.id for match in matches}) / max(1, len(others)))
        recall = round(float(np.mean(shares)), 4) if items > 1 else 1.0
        return {"candidates": candidates, "recall": recall, "queries": len(names), "k": NEIGHBOURS, "items": items}

    def exact(self, *, wait: float = 0.0) -> None:
        """Compare every query with every image from now on, however many there are."""
        with self.store.writing(wait):
            self.store.drop_approximate(self._refresh().number)
            self._change(approximate=False)

    def check(self) -> None:
        """Read the whole file of the index.

        Raises:
            StoreError: it is damaged. InputError: the index is not a file.
        """
        check = getattr(self.store, "check", None)
        if check is None:
            raise InputError(f"{self.address}: only an index in a file can be checked; servers check their own files.")
        check()

    def set_calibration(self, calibration: Mapping[str, Any] | None, *, wait: float = 0.0) -> None:
        """Store thresholds with the index (see ``thresholds.calibrate``)."""
        with self.store.writing(wait):
            self._refresh()
            self._change(calibration=None if calibration is None else dict(calibration))

    def _check_fingerprint(self, fingerprint: str, generation: Generation, what: str) -> None:
        expected = generation.model["fingerprint"]
        if expected not in (None, fingerprint):  # None: a file of vectors that was made elsewhere
            raise OtherModelError(
                f"{what} is not the model of {self.address}: its weights, preprocessing or precision differ (fingerprint "
                f"{fingerprint[:12]} instead of {expected[:12]}). To embed all images with it: recollect index --rebuild "
                "--model NEW"
            )

    def _shorten(self, rows: Vectors, generation: Generation) -> Vectors:
        """Vectors as the index stores them: the first ``dim`` values, normalized."""
        lengths = sorted({generation.dim, generation.model["dim"] or rows.shape[-1]})
        if rows.ndim != 2 or rows.shape[1] not in lengths:
            raise InputError(
                f"vectors must have {' or '.join(map(str, lengths))} values, but the shape is {rows.shape}: compute them "
                "with the model of the index."
            )
        return rows if rows.shape[1] == generation.dim else shorten(rows, generation.dim)

    def _write(self, settings: Settings) -> None:
        self.store.write_document("settings", asdict(settings))
        self._settings, self._read_at = settings, time.monotonic()

    def _change(self, **changes: Any) -> None:
        """Change the current generation."""
        self._write(replace(self._settings, current=replace(self._settings.current, **changes)))

    def _retry(self, work: Callable[[Generation], T]) -> T:
        """``work(generation)``; once more if the generation was replaced by another process in between."""
        generation = self.generation
        try:
            return work(generation)
        except StoreError:
            if self._refresh().number == generation.number:
                raise
            return work(self.generation)


def _generation(number: int, encoder: Encoder, dim: int | None, half: bool) -> Generation:
    """A new generation. It has the model's own calibration, unless vectors are shortened, which changes similarities."""
    model = {**encoder.provenance, "fingerprint": encoder.fingerprint, "dim": encoder.dim}
    length = vector_length(encoder.dim, dim)
    return Generation(number, model, length, half, None, read_calibration(encoder) if length == encoder.dim else None)


def match_level(similarity: float, calibration: Mapping[str, Any]) -> str:
    """*same*, *similar* or *unknown*, by the thresholds of a calibration."""
    levels = (level for level in ("same", "similar") if similarity >= calibration[level]["similarity"])
    return next(levels, "unknown")


def _columns(
    kind: str,
    things: Sequence[Any] | Vectors,
    ids: Sequence[str],
    metadata: Sequence[Mapping[str, object] | None] | None,
) -> list[dict[str, str]]:
    """The metadata of images or vectors as it is stored; refuses another number of ids or metadata."""
    columns = [None] * len(ids) if metadata is None else metadata
    if not len(things) == len(ids) == len(columns):
        counts = f"{len(things)} {kind}, {len(ids)} ids and {len(columns)} metadata"
        raise InputError(f"{counts}: give one id and metadata for each.")
    return list(map(clean_metadata, columns))


def _default_id(image: Any) -> str:
    if not isinstance(image, str | Path):
        raise InputError(f"a {type(image).__name__} has no name: give ids, one per image.")
    path = Path(image)
    return path.name if path.is_absolute() or ".." in path.parts else path.as_posix()
