"""Approximate search is widened until it finds as much of the exact results as was asked for."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from recollect.common.errors import InputError
from recollect.search import Item, Store, open_store
from recollect.search.approximate_search import Questions, build, build_again
from recollect.search.settings import Generation

pytest.importorskip("faiss")

GENERATION = Generation(1, {"fingerprint": ""}, 48)
POOR = {"m": 4, "ef_construction": 16}
"""A graph with so few links that a narrow search misses most neighbours."""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setitem(build.__globals__["DEFAULTS"], "ef_search", 4)
    made = open_store(tmp_path / "x.index", create=True)
    made.create_generation(1, 48)
    rows = np.random.default_rng(0).standard_normal((1500, 48)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    made.put(1, [Item(f"{number:04d}", row, {}) for number, row in enumerate(rows)])
    yield made
    made.close()


def test_a_search_is_widened_until_the_recall_is_reached(store: Store) -> None:
    narrow = build(store, GENERATION, {**POOR, "ef_search": 4}).approximate
    assert narrow is not None
    assert narrow["recall"] < 0.5
    assert narrow["wanted"] is None
    wide = build(store, GENERATION, POOR, 0.8).approximate
    assert wide is not None
    assert wide["recall"] >= 0.8
    assert wide["ef_search"] > 4
    assert (wide["wanted"], wide["m"], wide["queries"], wide["items"]) == (0.8, 4, 200, 1500)
    assert Questions.of(store, GENERATION).recall(store) == pytest.approx(wide["recall"], abs=1e-4)
    # Another process reads the width from the file.
    other = open_store(str(store.address))
    assert Questions.of(other, GENERATION).recall(other) == pytest.approx(wide["recall"], abs=1e-4)
    other.close()


def test_a_new_generation_gets_what_was_asked_of_the_old_one(store: Store) -> None:
    asked = {**POOR, "ef_search": 999, "recall": 0.1, "queries": 3, "k": 10, "items": 7}
    again = build_again(store, GENERATION, {**asked, "wanted": 0.6}).approximate
    assert again is not None
    assert again["wanted"] == 0.6
    assert again["recall"] >= 0.6
    assert again["ef_search"] < 999  # chosen anew
    fixed = build_again(store, GENERATION, {**asked, "wanted": None}).approximate
    assert fixed is not None
    assert (fixed["ef_search"], fixed["wanted"]) == (999, None)
    of_version_02 = build_again(store, GENERATION, asked).approximate
    assert of_version_02 is not None
    assert of_version_02["wanted"] == 0.95


def test_a_recall_that_is_not_reached_is_said(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(build.__globals__, "WIDEST", 8)
    with caplog.at_level(logging.WARNING):
        found = build(store, GENERATION, POOR).approximate
    assert found is not None
    assert found["ef_search"] == 8
    (message,) = caplog.messages
    assert "less than the 95.0% asked for" in message
    assert "--exact" in message


def test_impossible_wishes_are_refused(store: Store) -> None:
    for recall in (0.0, 1.1, float("nan")):
        with pytest.raises(InputError, match="at most 1"):
            build(store, GENERATION, {}, recall)
    with pytest.raises(InputError, match="exclude each other"):
        build(store, GENERATION, {"ef_search": 16}, 0.9)
