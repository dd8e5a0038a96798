"""A model and a test set to metrics; what may be compared; what ``recollect eval`` writes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from recollect import write_evaluation
from recollect.common.errors import ConfigError, DataError, InputError
from recollect.evaluation import Evaluation, evaluate
from recollect.inference.evaluate import (
    EvaluationInput,
    check_protocol,
    compare_evaluations,
    evaluate_input,
    evaluate_prefixes,
    measure_labelled,
)


@pytest.fixture
def vectors() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(10), 4)
    return (rng.standard_normal((10, 8))[labels] + rng.standard_normal((40, 8))).astype(np.float32), labels


def test_protocols(vectors: tuple[np.ndarray, np.ndarray]) -> None:
    target = EvaluationInput("x", Path("x"), *vectors, ks=(1, 3), provenance={"a": 1})
    result, summary = evaluate_input(target)
    assert summary["metrics"] == evaluate(*vectors, ks=[1, 3]).metrics == result.metrics
    assert summary["source"] == {"a": 1}
    assert set(measure_labelled(*vectors, ks=(1, 3))) == {"r@1", "r@3", "map@r"}
    assert "reid/r@2" in evaluate_input(target, [2], "reid")[1]["metrics"]
    assert set(evaluate_prefixes(target, [4])[4]) == {"r@1", "r@3", "map@r"}
    assert "reid/r@2" in evaluate_prefixes(target, [4], [2], "reid")[4]
    truth = [{"easy": [i], "hard": [i + 1], "junk": []} for i in range(5)]
    target = EvaluationInput("x", Path("x"), vectors[0][:5], gallery=vectors[0], gnd=truth, distractors=vectors[0][:3])
    summary = evaluate_input(target)[1]
    assert summary["protocol"] == "revisited"
    assert summary["metrics"]["medium/map"] < summary["without_distractors"]["medium/map"]
    with pytest.raises(ConfigError, match="all or reid"):
        check_protocol("other")


def test_both_levels_of_labels_are_ranked_unless_told_otherwise(vectors: tuple[np.ndarray, np.ndarray]) -> None:
    target = EvaluationInput("x", Path("x"), *vectors, coarse_labels=vectors[1] // 2, ks=(1,))
    for choice in (None, True):
        summary = evaluate_input(target, hierarchical=choice)[1]
        assert {"h_ap", "ndcg"} <= set(summary["metrics"])
        assert "left_out" not in summary
    summary = evaluate_input(target, hierarchical=False)[1]
    assert not {"h_ap", "ndcg"} & set(summary["metrics"])
    assert summary["left_out"] == ["h_ap", "h_ap_released", "ndcg"]


def test_vectors_of_a_file_come_back(vectors: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    target = EvaluationInput("x", tmp_path, *vectors, gallery=vectors[0], gallery_labels=vectors[1])
    target.save_vectors(tmp_path / "v.npz")
    read = EvaluationInput.from_file(tmp_path / "v.npz")
    assert np.array_equal(read.gallery, vectors[0])
    assert read.place == tmp_path / "v-eval"
    assert read.ks == (1, 10)
    np.savez(tmp_path / "w.npz", embeddings=vectors[0])
    with pytest.raises(DataError, match="labels"):
        EvaluationInput.from_file(tmp_path / "w.npz")


def test_images_without_a_class_are_nobodys_positives(tmp_path: Path) -> None:
    rows = np.eye(4, dtype=np.float32)
    np.savez(tmp_path / "v.npz", embeddings=rows, labels=np.array(["a", "", "a", ""]))
    result, _ = evaluate_input(EvaluationInput.from_file(tmp_path / "v.npz"), [1])
    assert np.isnan(result.per_query["r@1"]).tolist() == [False, True, False, True]


def test_what_may_be_compared(vectors: tuple[np.ndarray, np.ndarray]) -> None:
    plain = evaluate(*vectors, ks=[1])

    def of(**identity: object) -> object:
        return replace(plain, settings={**plain.settings, "identity": identity})

    here = of(images="abc", **{"image size": 224, "scales": [1.0]})

    def differences(there: object) -> list[str]:
        return compare_evaluations(there, here)["differences"]  # type: ignore[no-any-return, arg-type]

    assert differences(of(images="abc", **{"image size": 224, "scales": [1.0]})) == []
    assert differences(of(images="abc", **{"image size": 96})) == ["image size: 96 there, 224 here"]
    with pytest.raises(ConfigError, match="different images"):
        differences(of(images="xyz"))
    assert "only labels" in differences(plain)[0]


@pytest.fixture
def vectors_file(vectors: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> Path:
    np.savez(tmp_path / "vectors.npz", embeddings=vectors[0], labels=vectors[1])
    return tmp_path / "vectors.npz"


def test_it_returns_what_it_writes(vectors_file: Path) -> None:
    written = write_evaluation(vectors_file, ks=[1, 5], dims=[4], similarity="cosine")
    assert written.metrics_file == vectors_file.with_name("vectors-eval") / "metrics.json"
    assert json.loads(written.metrics_file.read_text()) == json.loads(json.dumps(written.summary))
    assert list(written.summary["dims"]) == ["4", "8"]
    assert isinstance(written.result, Evaluation)
    saved = Evaluation.load(written.metrics_file.with_name("queries.npz"))
    assert saved.metrics["r@1"] == written.summary["metrics"]["r@1"]
    again = write_evaluation(
        vectors_file,
        ks=[1, 5],
        similarity="cosine",
        compare=written.metrics_file.with_name("queries.npz"),
        overwrite=True,
    )
    assert again.summary["compared_with"]["r@1"]["difference"] == 0


def test_an_earlier_result_is_kept_unless_told_otherwise(vectors_file: Path) -> None:
    first = write_evaluation(vectors_file, ks=[1])
    with pytest.raises(InputError, match="--overwrite"):
        write_evaluation(vectors_file, ks=[2])
    assert json.loads(first.metrics_file.read_text())["metrics"].keys() >= {"r@1"}
    assert "r@2" in write_evaluation(vectors_file, ks=[2], overwrite=True).summary["metrics"]


def test_what_cannot_be_is_refused_before_anything_is_written(vectors_file: Path) -> None:
    wrong = ({"protocol": "some"}, {"metrics": ["nothing"]}, {"recipe": "glyphs", "model": None})
    for options in wrong:
        with pytest.raises((ConfigError, InputError)):
            write_evaluation(**{"model": vectors_file, **options})
    with pytest.raises(InputError, match="give one model"):
        write_evaluation()
    assert [path.name for path in vectors_file.parent.iterdir()] == ["vectors.npz"]
