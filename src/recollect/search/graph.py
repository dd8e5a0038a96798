"""Approximate search in memory: an HNSW graph by faiss over the vectors of a generation. Needs the extra ``index``.

The graph is built over the slots that are live at that moment. Items changed since then are left out and searched exactly,
so results never miss a new item or show a removed one; ``Index`` says when rebuilding is worthwhile. Only
the graph's links are kept, as plain arrays that are checked when read: faiss's own format is unsafe to read from untrusted
files, and would store the vectors a second time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.common.imports import require
from recollect.search.exact_search import Found
from recollect.search.loaded_vectors import LoadedVectors, merged
from recollect.search.store_protocol import StoreError

DEFAULTS = {"m": 32, "ef_construction": 100, "ef_search": 128}
"""Links of an item, candidates looked at while building, candidates looked at in a search."""

_ARRAYS = {"levels": np.int32, "offsets": np.uint64, "neighbors": np.int32, "slots": np.int64}


class Graph:
    """A graph over slots.

    Attributes:
        built: settings, entry point and the state it was built at, as stored with it.
        at: number of the last change it contains; ``epoch``: epoch of the slots.
        seen: number of the last change applied since.
    """

    def __init__(self, faiss: Any, index: Any, storage: Any, slots: NDArray[np.int64], built: dict[str, Any]) -> None:
        self._faiss, self._index, self._storage, self.slots, self.built = faiss, index, storage, slots, built
        self.at, self.epoch = int(built["changes"]), int(built["epoch"])
        self.seen = self.at
        self._stale = np.zeros(0, np.int64)
        self._beside = np.zeros(0, np.int64)

    @classmethod
    def build(cls, loaded: LoadedVectors, settings: Mapping[str, int]) -> Graph:
        """Build a graph over all live items."""
        faiss = require("faiss", "index", "approximate search in a file")
        chosen = {**DEFAULTS, **settings}
        slots = np.flatnonzero(loaded.live[: loaded.size]).astype(np.int64)
        index, storage = _empty(faiss, loaded, chosen)
        _fill(index, loaded, slots)  # and with it the storage
        _share(faiss, index, storage, loaded, slots)
        hnsw = index.hnsw
        built = {**chosen, "changes": loaded.changes, "epoch": loaded.epoch, "items": len(slots),
                 "entry_point": int(hnsw.entry_point), "max_level": int(hnsw.max_level)}  # fmt: skip
        return cls(faiss, index, storage, slots, built)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays to store."""
        hnsw = self._index.hnsw
        found = {name: self._faiss.vector_to_array(getattr(hnsw, name)) for name in ("levels", "offsets", "neighbors")}
        return {name: array.astype(_ARRAYS[name]) for name, array in {**found, "slots": self.slots}.items()}

    @classmethod
    def restored(cls, loaded: LoadedVectors, built: Mapping[str, Any], kept: Mapping[str, bytes]) -> Graph:
        """A graph from stored arrays.

        Raises:
            StoreError: the arrays are inconsistent; following them could read any memory.
        """
        faiss = require("faiss", "index", "approximate search in a file")
        try:
            settings = {
                name: int(built[name]) for name in (*DEFAULTS, "changes", "epoch", "items", "entry_point", "max_level")
            }
            arrays = {name: np.frombuffer(kept[name], kind) for name, kind in _ARRAYS.items()}
        except (KeyError, ValueError, TypeError) as error:
            raise damaged_graph() from error
        index, storage = _empty(faiss, loaded, settings)
        _check(faiss, index, settings, arrays, loaded)
        hnsw = index.hnsw
        for name in ("levels", "offsets", "neighbors"):
            faiss.copy_array_to_vector(np.ascontiguousarray(arrays[name]), getattr(hnsw, name))
        hnsw.entry_point, hnsw.max_level = settings["entry_point"], settings["max_level"]
        slots = arrays["slots"].copy()
        _fill(storage, loaded, slots)
        index.ntotal = len(slots)
        _share(faiss, index, storage, loaded, slots)
        return cls(faiss, index, storage, slots, dict(built))

    def take_over(self, loaded: LoadedVectors, changed: NDArray[np.int64], changes: int) -> None:
        """Exclude items removed or changed since the graph was built; search ``changed`` exactly."""
        alive = loaded.live[self.slots]
        self._stale = np.flatnonzero(~alive | np.isin(self.slots, changed)).astype(np.int64)
        self._beside = changed
        self.seen = changes

    def search(
        self, loaded: LoadedVectors, queries: NDArray[np.float32], k: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Slots and similarities, Q × min(k, items)."""
        inside = min(k, len(self.slots) - len(self._stale))
        total = min(k, inside + len(self._beside))
        options: dict[str, Any] = {"efSearch": max(k, int(self.built["ef_search"]))}
        selector = None
        if len(self._stale):
            batch = self._faiss.IDSelectorBatch(self._stale)
            selector = self._faiss.IDSelectorNot(batch)
            options["sel"] = selector
        if inside:
            parameters = self._faiss.SearchParametersHNSW(**options)
            # Its other name is used if faiss.contrib.torch_utils was imported, which replaces it by one without params.
            search = getattr(self._index, "search_numpy", self._index.search)
            similarities, places = search(queries, inside, params=parameters)
            if (
                places < 0
            ).any():  # too few were reached from the entry point: a full list is more important than speed
                return loaded.search(queries, k)
            near = Found(self.slots[places], similarities.astype(np.float32))
        else:
            near = Found(np.zeros((len(queries), 0), np.int64), np.zeros((len(queries), 0), np.float32))
        if len(self._beside):
            slots, values = loaded.search(queries, k, self._beside)
            near = merged(near, Found(slots, values), total)
        return near.indices, near.similarities


def _empty(faiss: Any, loaded: LoadedVectors, settings: Mapping[str, int]) -> tuple[Any, Any]:
    dim, m = loaded.matrix.shape[1], int(settings["m"])
    if loaded.matrix.dtype == np.float16:
        index = faiss.IndexHNSWSQ(dim, faiss.ScalarQuantizer.QT_fp16, m, faiss.METRIC_INNER_PRODUCT)
        index.is_trained = True  # half precision has nothing to learn
        index.storage.is_trained = True
    else:
        index = faiss.IndexHNSWFlat(dim, m, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = int(settings["ef_construction"])
    return index, faiss.downcast_index(index.storage)


def _fill(index: Any, loaded: LoadedVectors, slots: NDArray[np.int64]) -> None:
    if loaded.matrix.dtype == np.float32 and len(slots) == loaded.size:
        index.add(loaded.matrix[: loaded.size])  # in one call: the storage is allocated once, at its final size
        return
    for start in range(0, len(slots), 65536):
        index.add(np.ascontiguousarray(loaded.matrix[slots[start : start + 65536]], np.float32))


def _share(faiss: Any, index: Any, storage: Any, loaded: LoadedVectors, slots: NDArray[np.int64]) -> None:
    """Let exact search read faiss's copy of the vectors, so that they are in memory once."""
    if len(slots) == loaded.size and loaded.size:
        codes = faiss.rev_swig_ptr(storage.codes.data(), storage.codes.size())
        loaded.adopt(codes.view(loaded.matrix.dtype).reshape(loaded.size, -1), owner=index)


def _check(
    faiss: Any, index: Any, settings: Mapping[str, int], arrays: Mapping[str, NDArray[Any]], loaded: LoadedVectors
) -> None:
    count, room = settings["items"], faiss.vector_to_array(index.hnsw.cum_nneighbor_per_level)
    levels, offsets, neighbors, slots = (arrays[name] for name in ("levels", "offsets", "neighbors", "slots"))
    sound = (
        len(levels) == len(slots) == count
        and len(offsets) == count + 1
        and (
            count == 0 or (levels.min() >= 1 and levels.max() < len(room) and settings["max_level"] == levels.max() - 1)
        )
        and bool((offsets == np.concatenate([[0], np.cumsum(room[levels], dtype=np.uint64)])).all())
        and len(neighbors) == int(offsets[-1])
        and (not len(neighbors) or (neighbors.min() >= -1 and neighbors.max() < count))
        and (not count or (slots.min() >= 0 and slots.max() < loaded.size))
        and (-1 if count == 0 else 0) <= settings["entry_point"] < max(1, count)
        and settings["epoch"] == loaded.epoch
    )
    if sound and count:
        # A link on level l must point to an item that has a level l; otherwise its links there belong to another item.
        for level in range(1, int(levels.max())):
            owners = np.flatnonzero(levels > level)
            start, stop = int(room[level]), int(room[level + 1])
            links = np.concatenate(
                [neighbors[int(offsets[o]) + start : int(offsets[o]) + stop] for o in owners.tolist()]
            )
            sound = sound and bool((levels[links[links >= 0]] > level).all())
        sound = sound and int(levels[settings["entry_point"]]) == settings["max_level"] + 1
    if not sound:
        raise damaged_graph()


def damaged_graph() -> StoreError:
    """The error for a stored graph that is not what was written."""
    return StoreError("its graph for approximate search is damaged: build it again (recollect index --approximate).")
