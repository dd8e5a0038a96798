"""Any sequence of changes leaves a store with the contents of a dictionary that went through the same."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from recollect.search import Item, Store, open_store
from recollect.search.stores import sqlite
from recollect.search.stores.base import clean_where
from search.stores import fresh_address

NAMES = st.sampled_from([f"i{number}" for number in range(12)])
LABELS = st.sampled_from(["a", "b", "c'"])


class StoreMachine(RuleBasedStateMachine):
    """Two openings of one file: one writes, both read."""

    @initialize(half=st.booleans())
    def begin(self, half: bool) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(sqlite, "_REMEMBERED", 3)  # a reader is often further behind, and reads everything
        self.address = fresh_address("sqlite", Path(self.folder.name))
        self.store = open_store(self.address, create=True)
        self.store.create_generation(1, 4, half)
        self.reader: Store = open_store(self.address)
        self.model: dict[str, tuple[np.ndarray, str]] = {}

    @rule(names=st.lists(NAMES, unique=True, max_size=8), seed=st.integers(0, 99), label=LABELS)
    def put(self, names: list[str], seed: int, label: str) -> None:
        rows = np.random.default_rng(seed).integers(-3, 4, (len(names), 4)).astype(np.float32)
        self.store.put(1, [Item(name, row, {"label": label}) for name, row in zip(names, rows, strict=True)])
        self.model.update({name: (row, label) for name, row in zip(names, rows, strict=True)})

    @rule(names=st.lists(NAMES, max_size=6))
    def delete(self, names: list[str]) -> None:
        expected = len(set(names) & set(self.model))
        assert self.store.delete(1, names) == expected
        for name in names:
            self.model.pop(name, None)

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = open_store(self.address)

    @rule(label=st.one_of(st.none(), LABELS), k=st.integers(1, 15), seed=st.integers(0, 9), approximate=st.booleans())
    def search(self, label: str | None, k: int, seed: int, approximate: bool) -> None:
        query = np.random.default_rng(seed).integers(-3, 4, 4).astype(np.float32)
        where = None if label is None else clean_where({"label": label})
        allowed = {name: row for name, (row, its) in self.model.items() if label in (None, its)}
        for store in (self.store, self.reader):
            (hits,) = store.search(1, query[None], k, where, approximate)
            assert len(hits) == min(k, len(allowed))
            assert all(hit.similarity == float(allowed[hit.id] @ query) for hit in hits)
            assert len({hit.id for hit in hits}) == len(hits)
            values = sorted((float(row @ query) for row in allowed.values()), reverse=True)[:k]
            if not approximate:
                assert [hit.similarity for hit in hits] == values

    @invariant()
    def contents(self) -> None:
        if not hasattr(self, "store"):
            return
        read = {item.id: (item.vector, item.metadata["label"]) for item in self.reader.iterate(1, vectors=True)}
        assert set(read) == set(self.model)
        assert all(
            np.array_equal(read[name][0], row) and read[name][1] == its for name, (row, its) in self.model.items()
        )
        assert self.reader.count(1) == len(self.model)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.patch.undo()
            self.store.close()
            self.reader.close()
            self.folder.cleanup()


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=25, stateful_step_count=25)
