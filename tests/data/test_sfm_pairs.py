from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from recollect.common.errors import ConfigError, DataError, SplitNotAllowedError
from recollect.data import load_sfm_pairs, only_splits

IDENTITIES = [f"{number:032x}" for number in (0xABCDEF, 0x123456, 0x777777, 0xFEDCBA)]
PART = {"cids": IDENTITIES, "cluster": [5, 5, 9, 9], "qidxs": [0, 2], "pidxs": [1, 3], "bbxs": [None] * 4}


def write(root: Path, content: Any, name: str = "retrieval-SfM-120k.pkl") -> Path:
    folder = root / "retrieval-SfM-120k"
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(pickle.dumps(content))
    for identity in IDENTITIES:
        path = folder / "ims" / identity[-2:] / identity[-4:-2] / identity[-6:-4] / identity
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 3)).save(path, format="JPEG")
    return folder / name


@pytest.mark.parametrize("numbers", [list, np.array])
def test_pairs_of_a_part(tmp_path: Path, numbers: Any) -> None:
    part = {**PART, **{key: numbers(PART[key]) for key in ("cluster", "qidxs", "pidxs")}}
    write(tmp_path, {"train": part, "val": {**part, "qidxs": [1], "pidxs": [0]}})
    for root in (tmp_path, tmp_path / "retrieval-SfM-120k"):
        found = load_sfm_pairs(root, "train")
        assert (found.queries.tolist(), found.positives.tolist()) == ([0, 2], [1, 3])
        assert found.images.labels.tolist() == [0, 0, 1, 1]
        assert found.images.read(0).size == (4, 3)
    assert load_sfm_pairs(tmp_path, "val").queries.tolist() == [1]


def test_the_publishers_pairs_for_whitening(tmp_path: Path) -> None:
    content = {key: PART[key] for key in ("cids", "qidxs", "pidxs")}
    write(tmp_path, content, "retrieval-SfM-120k-whiten.pkl")
    found = load_sfm_pairs(tmp_path)
    assert (len(found.images), found.positives.tolist()) == (4, [1, 3])


@pytest.mark.parametrize(
    "part",
    [
        [1],
        {"cids": IDENTITIES},
        {**PART, "cids": []},
        {**PART, "qidxs": [0, 4]},
        {**PART, "pidxs": [0]},
        {**PART, "pidxs": [0.5, 1]},
        {**PART, "cluster": [1]},
    ],
)
def test_lists_that_are_not_such(tmp_path: Path, part: Any) -> None:
    path = write(tmp_path, {"train": part})
    with pytest.raises(DataError, match=path.name):
        load_sfm_pairs(tmp_path, "train")


class Code:
    def __reduce__(self) -> Any:
        return os.mkdir, ("made",)


def test_code_is_not_run_and_other_faults_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, {"train": Code()})
    with pytest.raises(DataError, match="would be run"):
        load_sfm_pairs(tmp_path, "train")
    assert not Path("made").exists()
    with pytest.raises(DataError, match="whiten"):
        load_sfm_pairs(tmp_path)
    with pytest.raises(ConfigError, match="whiten, train, val"):
        load_sfm_pairs(tmp_path, "test")
    with only_splits("train"), pytest.raises(SplitNotAllowedError):
        load_sfm_pairs(tmp_path, "val")
