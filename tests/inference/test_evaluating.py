"""A model and a test set to metrics; what may be compared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from recollect.common.errors import ConfigError, DataError
from recollect.evaluation import evaluate
from recollect.inference.evaluating import (
    check_protocol,
    compare_settings,
    evaluate_prefixes,
    evaluate_target,
    measure_labelled,
)
from recollect.inference.target_vectors import Target, target_from_file


@pytest.fixture
def vectors() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(10), 4)
    return (rng.standard_normal((10, 8))[labels] + rng.standard_normal((40, 8))).astype(np.float32), labels


def test_protocols(vectors: tuple[np.ndarray, np.ndarray]) -> None:
    target = Target("x", Path("x"), *vectors, ks=(1, 3), source={"a": 1})
    result, summary = evaluate_target(target)
    assert summary["metrics"] == evaluate(*vectors, ks=[1, 3]).metrics == result.metrics
    assert summary["source"] == {"a": 1}
    assert set(measure_labelled(*vectors, ks=(1, 3))) == {"r@1", "r@3", "map@r"}
    assert "reid/r@2" in evaluate_target(target, [2], "reid")[1]["metrics"]
    assert set(evaluate_prefixes(target, [4])[4]) == {"r@1", "r@3", "map@r"}
    assert "reid/r@2" in evaluate_prefixes(target, [4], [2], "reid")[4]
    truth = [{"easy": [i], "hard": [i + 1], "junk": []} for i in range(5)]
    found = Target("x", Path("x"), vectors[0][:5], gallery=vectors[0], gnd=truth, distractors=vectors[0][:3])
    summary = evaluate_target(found)[1]
    assert summary["protocol"] == "revisited"
    assert summary["metrics"]["medium/map"] < summary["without_distractors"]["medium/map"]
    with pytest.raises(ConfigError, match="all or reid"):
        check_protocol("other")


def test_both_levels_of_labels_are_ranked_unless_told_otherwise(vectors: tuple[np.ndarray, np.ndarray]) -> None:
    target = Target("x", Path("x"), *vectors, coarse_labels=vectors[1] // 2, ks=(1,))
    for choice in (None, True):
        summary = evaluate_target(target, hierarchical=choice)[1]
        assert {"h_ap", "ndcg"} <= set(summary["metrics"])
        assert "left_out" not in summary
    summary = evaluate_target(target, hierarchical=False)[1]
    assert not {"h_ap", "ndcg"} & set(summary["metrics"])
    assert summary["left_out"] == ["h_ap", "h_ap_released", "ndcg"]


def test_vectors_of_a_file_come_back(vectors: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    target = Target("x", tmp_path, *vectors, gallery=vectors[0], gallery_labels=vectors[1])
    target.save_vectors(tmp_path / "v.npz")
    read = target_from_file(tmp_path / "v.npz")
    assert np.array_equal(read.gallery, vectors[0])
    assert read.place == tmp_path / "v-eval"
    assert read.ks == (1, 10)
    np.savez(tmp_path / "w.npz", embeddings=vectors[0])
    with pytest.raises(DataError, match="labels"):
        target_from_file(tmp_path / "w.npz")


def test_images_without_a_class_are_nobodys_positives(tmp_path: Path) -> None:
    rows = np.eye(4, dtype=np.float32)
    np.savez(tmp_path / "v.npz", embeddings=rows, labels=np.array(["a", "", "a", ""]))
    result, _ = evaluate_target(target_from_file(tmp_path / "v.npz"), [1])
    assert np.isnan(result.per_query["r@1"]).tolist() == [False, True, False, True]


def test_what_may_be_compared(vectors: tuple[np.ndarray, np.ndarray]) -> None:
    plain = evaluate(*vectors, ks=[1])

    def of(**identity: object) -> object:
        return replace(plain, settings={**plain.settings, "identity": identity})

    here = of(images="abc", **{"image size": 224, "scales": [1.0]})
    assert compare_settings(of(images="abc", **{"image size": 224, "scales": [1.0]}), here) == []  # type: ignore[arg-type]
    assert compare_settings(of(images="abc", **{"image size": 96}), here) == ["image size: 96 there, 224 here"]  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="different images"):
        compare_settings(of(images="xyz"), here)  # type: ignore[arg-type]
    assert "only labels" in compare_settings(plain, here)[0]  # type: ignore[arg-type]
