from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from recollect.common.errors import InputError
from recollect.search.exact import nearest


@given(st.integers(1, 40), st.integers(2, 60), st.integers(1, 12), st.integers(0, 5), st.booleans())
def test_equals_sorting_everything(queries: int, items: int, top: int, seed: int, own: bool) -> None:
    random = np.random.default_rng(seed)
    # Few different whole numbers: many exact ties, also at the end of a list, which must come in the gallery's order.
    gallery = random.integers(-2, 3, (items, 3)).astype(np.float32)
    asked = random.integers(-2, 3, (queries, 3)).astype(np.float32)
    mine = random.integers(-1, items, queries) if own else None
    found = nearest(asked, gallery, top, own=mine)
    for row in range(queries):
        similarities = (gallery.astype(np.float64) @ asked[row].astype(np.float64)).tolist()
        left_out = None if mine is None else int(mine[row])
        order = sorted((-s, i) for i, s in enumerate(similarities) if i != left_out)
        count = found.indices.shape[1]
        assert found.similarities[row].tolist() == [-s for s, _ in order[:count]]
        assert found.indices[row].tolist() == [i for _, i in order[:count]]


def test_tiles_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    vectors = random.normal(size=(50, 8)).astype(np.float32)
    whole = nearest(vectors, vectors, 7, own=np.arange(50))
    monkeypatch.setattr("recollect.search.exact._TILE_BYTES", 4 * 50 * 3)
    tiled = nearest(vectors, vectors, 7, own=np.arange(50))
    assert np.array_equal(whole.indices, tiled.indices)


@pytest.mark.parametrize(
    ("queries", "gallery", "top", "says"),
    [
        (np.ones((1, 2)), np.ones((1, 3)), 1, "dimensions"),
        (np.ones((1, 2)), np.ones((0, 2)), 1, "at least one"),
        (np.full((1, 2), np.nan), np.ones((1, 2)), 1, "queries: a value is not finite"),
        (np.ones((1, 2)), np.full((1, 2), np.nan), 1, "finite values"),
        (np.ones((1, 2)), np.ones((1, 2)), 0, "at least 1"),
    ],
)
def test_wrong_input_is_named(queries: np.ndarray, gallery: np.ndarray, top: int, says: str) -> None:
    with pytest.raises(InputError, match=says):
        nearest(queries.astype(np.float32), gallery.astype(np.float32), top)


def test_a_single_vector_has_no_neighbour() -> None:
    with pytest.raises(InputError, match="no vector besides"):
        nearest(np.ones((1, 2), np.float32), np.ones((1, 2), np.float32), 3, own=np.array([0]))
