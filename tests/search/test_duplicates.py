from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from recollect.common.errors import InputError
from recollect.search import Index, duplicates
from recollect.search.duplicates import find_duplicates, group_vectors
from search.toy_model import ToyEncoder, make_photos


def _reference(vectors: np.ndarray, threshold: float) -> list[int]:
    """Groups by walking from neighbour to neighbour."""
    close = vectors.astype(np.float64) @ vectors.T.astype(np.float64) >= threshold
    groups = [-1] * len(vectors)
    for start in range(len(vectors)):
        waiting = [start] if groups[start] < 0 else []
        while waiting:
            place = waiting.pop()
            if groups[place] < 0:
                groups[place] = start
                waiting += np.flatnonzero(close[place]).tolist()
    return groups


@given(st.integers(1, 40), st.integers(0, 200), st.sampled_from([1, 7, 2048]))
def test_groups_are_those_of_a_walk(count: int, seed: int, rows: int) -> None:
    random = np.random.default_rng(seed)
    # Whole numbers: float32 and float64 agree to the bit about every pair.
    vectors = random.integers(-1, 2, (count, 3)).astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duplicates, "_ROWS", rows)
        groups, lowest = group_vectors(vectors / 2, 0.5)
    assert groups.tolist() == _reference(vectors / 2, 0.5)
    for root in set(groups.tolist()):
        members = np.flatnonzero(groups == root)
        assert (lowest[members] == lowest[members[0]]).all()
        assert np.isinf(lowest[members[0]]) == (len(members) == 1)
        if len(members) > 1:
            assert lowest[members[0]] >= 0.5


def test_wrong_input_is_named() -> None:
    with pytest.raises(InputError, match=r"0\.95"):
        group_vectors(np.ones((2, 2), np.float32), 1.5)
    with pytest.raises(InputError, match="finite"):
        group_vectors(np.full((2, 2), np.nan, np.float32), 0.5)


def test_an_index_and_a_folder(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    make_photos(photos / "train", classes=3, each=3)
    make_photos(photos / "test", classes=2, each=3, seed=5)
    shutil.copy(photos / "train" / "class0" / "0.png", photos / "test" / "class1" / "copy.png")
    shutil.copy(photos / "train" / "class1" / "0.png", photos / "train" / "class1" / "again.png")
    with Index.create(tmp_path / "x.index", ToyEncoder()) as index:
        index.sync(photos)
    groups, count = find_duplicates(tmp_path / "x.index", threshold=0.999)
    assert count == 17
    assert [[item.id for item in group.items] for group in groups] == [
        ["test/class1/copy.png", "train/class0/0.png"],
        ["train/class1/0.png", "train/class1/again.png"],
    ]
    assert [(g.identical, g.crosses, g.labels) for g in groups] == [
        (True, True, ["class0", "class1"]),
        (True, False, ["class1"]),
    ]
    (photos / "train" / "class2" / "broken.png").write_text("not an image")
    said: list[str] = []
    again, count = find_duplicates(photos, threshold=0.999, model=ToyEncoder(), remarks=said)  # type: ignore[arg-type]
    assert count == 17
    assert ["broken.png" in sentence for sentence in said] == [True]
    assert [[item.id for item in group.items] for group in again] == [[i.id for i in g.items] for g in groups]
    (loose,), _ = find_duplicates(tmp_path / "x.index", threshold=-1)
    assert len(loose.items) == 17
