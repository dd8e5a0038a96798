from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from recollect.common.errors import ConfigError, DataError, InputError
from recollect.common.text import Remark
from recollect.data import load
from recollect.inference.training_record import trained_on
from recollect.search import Index, OtherModelError, thresholds
from recollect.search.encoder import open_encoder, read_calibration
from recollect.search.thresholds import BINS, calibrate, calibrate_target
from search.stores import vectors
from search.toy_model import ToyEncoder, make_photos, save_model


@given(st.integers(12, 40), st.integers(0, 100), st.sampled_from([0.05, 0.2, 0.5]), st.sampled_from([3, 1024]))
def test_rates_are_those_of_counting_all_pairs(count: int, seed: int, rate: float, rows: int) -> None:
    random = np.random.default_rng(seed)
    labels = random.integers(0, 3, count)
    labels[:8] = [0, 0, 0, 0, 1, 1, 1, 1]  # enough pairs of two classes for the smallest rate
    labels[8:10] = [2, 2]
    points = vectors(count, 5, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(thresholds, "_ROWS", rows)
        found = calibrate(points, labels, same_rate=rate, similar_rate=0.6, fingerprint="f")
    similarities = points.astype(np.float64) @ points.T.astype(np.float64)
    pairs = np.triu(np.ones((count, count), bool), 1)
    equal = labels[:, None] == labels[None]
    same, other = similarities[pairs & equal], similarities[pairs & ~equal]
    assert (found.same_pairs, found.other_pairs) == (len(same), len(other))
    threshold = found.same.similarity
    width = 2 / BINS + 1e-6  # a bin, and the rounding of float32
    assert (other >= threshold + width).mean() <= found.same.false_match_rate <= rate
    assert found.same.false_match_rate <= (other >= threshold - width).mean()
    assert (same < threshold - width).mean() <= found.same.miss_rate <= (same < threshold + width).mean()
    # A threshold a little lower would let too many through.
    assert (other >= threshold - 2 * width).mean() > rate or threshold <= -1 + width
    assert found.similar.similarity <= found.same.similarity
    assert [row.similarity for row in found.curve] == sorted(row.similarity for row in found.curve)


def test_wrong_input_is_named() -> None:
    rows = vectors(6)
    for labels, rate, says in (
        ([0, 0, 1, 1, 2, 2], 0.5, "same ≤ similar"),
        ([0, 0, 1, 1, 2, 2], 1e-6, "cannot tell"),
        ([0] * 6, 0.1, "two classes"),
        (list(range(6)), 0.1, "two classes"),
        ([0, 1], 0.1, "one per vector"),
    ):
        with pytest.raises(InputError, match=says):
            calibrate(rows, labels, same_rate=rate, similar_rate=0.2, fingerprint="f")


def test_an_index_says_same_similar_unknown(tmp_path: Path) -> None:
    photos = make_photos(tmp_path / "photos", classes=6, each=6)
    with Index.create(tmp_path / "x.index", ToyEncoder()) as index:
        index.sync(photos)
        assert index.search(photos / "class0" / "0.png")[0].level is None
    found, remarks = calibrate_target(tmp_path / "x.index", same_rate=0.005)
    assert remarks == []
    assert found.same.miss_rate < 0.5
    with Index.open(tmp_path / "x.index", ToyEncoder()) as index:
        assert index.info()["calibration"]["same"]["similarity"] == found.same.similarity
        answers = index.search(photos / "class0" / "0.png", 36)
        assert answers[0].level == "same"
        assert {match.level for match in answers} == {"same", "similar", "unknown"}
    with Index.open(tmp_path / "x.index") as index:  # an initialisation, which is in no folder
        index._change(model={**index.model, "model": "lite0-in1k"})
    assert calibrate_target(tmp_path / "x.index", same_rate=0.005)[0] == found
    (tmp_path / "flat").mkdir()
    (photos / "class1" / "0.png").rename(tmp_path / "flat" / "a.png")
    with pytest.raises(DataError, match=r"no labelled images\. Give a folder with one folder per class"):
        calibrate_target(tmp_path / "x.index", str(tmp_path / "flat"))


def test_a_model_keeps_it_for_its_indexes(tmp_path: Path) -> None:
    photos = make_photos(tmp_path / "photos", classes=6, each=6, size=16)
    model = save_model(tmp_path / "model")
    with pytest.raises(InputError, match="--data"):
        calibrate_target(model)
    found, _ = calibrate_target(model, str(photos), same_rate=0.01)
    kept = read_calibration(open_encoder(str(model)))
    assert kept is not None
    assert kept["same"]["similarity"] == found.same.similarity
    with Index.create(tmp_path / "x.index", str(model)) as index:
        assert index.generation.calibration == kept
    with Index.create(tmp_path / "y.index", str(model), dim=4) as index:
        assert index.generation.calibration is None
    for part, count in (("train", 2), ("val", 4)):
        make_photos(tmp_path / "parts" / part, classes=count, each=6, size=16)
    assert calibrate_target(model, str(tmp_path / "parts"), same_rate=0.01)[0].classes == 4, (
        "val, where there is no test part"
    )
    save_model(model, 1)
    assert read_calibration(open_encoder(str(model))) is None


def test_classes_trained_on_are_left_out(tmp_path: Path) -> None:
    """By name and by content: in the folder that was trained on, in a copy with other names, and in an index."""
    photos = make_photos(tmp_path / "photos", classes=8, each=5, size=16)
    run = save_model(tmp_path / "run")
    trained = load("folder", photos, "train", class_split="alphabet")
    trained_on(trained).write(run)
    for copy in ("copy", "renamed"):
        shutil.copytree(photos, tmp_path / copy)
    for folder in list((tmp_path / "renamed").iterdir()):
        folder.rename(folder.with_name(f"new {folder.name}"))
    for name in ("photos", "copy", "renamed"):
        found, remarks = calibrate_target(run, str(tmp_path / name), same_rate=0.05)
        assert (found.classes, remarks) == (4, [Remark("4 classes were trained on and left out.")])
    with Index.create(tmp_path / "x.index", str(run)) as index:
        index.sync(photos)
    found, remarks = calibrate_target(tmp_path / "x.index", same_rate=0.05)
    assert (found.classes, remarks) == (4, [Remark("4 classes were trained on and left out.")])
    for number in range(4, 8):
        shutil.rmtree(photos / f"class{number}")
    found, remarks = calibrate_target(run, str(photos), same_rate=0.05)
    assert found.classes == 4
    assert remarks[0].warning
    assert "the model was trained on all of these classes" in remarks[0].text
    (run / "trained_on.npz").write_bytes(b"damaged")
    with pytest.raises(DataError, match="Restore it from a complete copy"):  # not taken for a run that noted nothing
        calibrate_target(run, str(photos))


def test_an_index_whose_model_moved_is_calibrated_only_with_its_record(tmp_path: Path) -> None:
    photos = make_photos(tmp_path / "photos", classes=8, each=5, size=16)
    for seed, name in enumerate(("run", "other")):
        save_model(tmp_path / name, seed)
    trained_on(load("folder", photos, "train", class_split="alphabet")).write(tmp_path / "run")
    index, moved = tmp_path / "x.index", tmp_path / "moved"
    with Index.create(index, str(tmp_path / "run")) as made:
        made.sync(photos)
    (tmp_path / "run").rename(moved)
    for data in (None, str(photos)):
        with pytest.raises(ConfigError, match=r"the model of .* If it moved, give it with --model"):
            calibrate_target(index, data, same_rate=0.05)
        found, remarks = calibrate_target(index, data, model=moved, same_rate=0.05)
        assert (found.classes, remarks) == (4, [Remark("4 classes were trained on and left out.")])
    with pytest.raises(OtherModelError, match="not the model"):
        calibrate_target(index, model=tmp_path / "other")
    with pytest.raises(InputError, match="is not an index"):
        calibrate_target(moved, str(photos), model=moved)
