from __future__ import annotations

import numpy as np
import pytest

from oracles import metrics as reference
from recollect.common.errors import DataError, InputError
from recollect.evaluation import Evaluation, evaluate


@pytest.fixture
def result():
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((30, 4)).astype(np.float32)
    return evaluate(vectors, [0] * 12 + [1] * 12 + [2] * 5 + [3], ks=[1, 5])


def test_means_leave_out_queries_without_positive(result):
    assert np.isnan(result.per_query["map"][-1])
    assert result.counted == 29
    assert result.metrics["map"] == pytest.approx(result.per_query["map"][:-1].mean())
    assert list(result.metrics)[:4] == ["r@1", "r@5", "recall@1", "recall@5"]


def test_class_means(result):
    means = result.class_means("map")
    assert list(means) == [0, 1, 2]
    assert means[2] == pytest.approx(result.per_query["map"][24:29].mean())
    assert result.macro["map"] == pytest.approx(np.mean(list(means.values())))
    assert result.macro["map"] != pytest.approx(result.metrics["map"])


def test_macro_averages_equal_the_reference():
    rng = np.random.default_rng(1)
    vectors, labels = rng.standard_normal((40, 3)), [0] * 20 + [1] * 12 + [2] * 7 + [3]
    result = evaluate(vectors, labels, ks=[1, 5])
    assert result.macro == pytest.approx(reference.macro(reference.evaluate(vectors, labels, ks=[1, 5]), labels))
    assert result.summary()["macro"] == result.macro


def test_ids_are_kept(tmp_path):
    result = evaluate(np.eye(4), [0, 0, 1, 1], ids=["a.jpg", "b.jpg", "ä.jpg", "d.jpg"])
    again = Evaluation.load(result.save(tmp_path / "r.npz"))
    assert again.ids.tolist() == ["a.jpg", "b.jpg", "ä.jpg", "d.jpg"]
    assert list(again.per_query) == list(result.per_query)
    assert evaluate(np.eye(4), [0, 0, 1, 1]).ids is None


@pytest.mark.parametrize(
    ("ids", "message"),
    [(["a", "b"], "give 4 strings"), ([1, 2, 3, 4], "give 4 strings"), (list("abca"), "the same id")],
)
def test_bad_ids(ids, message):
    with pytest.raises(InputError, match=message):
        evaluate(np.eye(4), [0, 0, 1, 1], ids=ids)


def test_round_trip(result, tmp_path):
    path = result.save(tmp_path / "deep" / "run.npz")
    again = Evaluation.load(path)
    assert again.metrics == result.metrics
    assert dict(again.settings) == dict(result.settings)
    np.testing.assert_array_equal(again.labels, result.labels)
    np.testing.assert_array_equal(np.load(path)["r@1"], result.per_query["r@1"])


def test_nothing_is_overwritten_silently(result, tmp_path):
    path = result.save(tmp_path / "run.npz")
    content = path.read_bytes()
    with pytest.raises(InputError, match="already exists"):
        result.save(path)
    assert path.read_bytes() == content
    result.save(path, overwrite=True)
    assert result.summary()["queries_without_positive"] == 1


def test_wrong_names_and_files(result, tmp_path):
    with pytest.raises(InputError, match=r"\.npz"):
        result.save(tmp_path / "run.csv")
    with pytest.raises(InputError, match="available: r@1"):
        result.values("r@7")
    (tmp_path / "x.npz").write_bytes(b"PK")
    np.savez(tmp_path / "y.npz", labels=np.arange(3))
    wrong = {"x": "not an .npz", "y": "not a file of per-query results", "missing": "no such file"}
    for name, message in wrong.items():
        with pytest.raises(DataError, match=rf"{name}\.npz: {message}"):
            Evaluation.load(tmp_path / f"{name}.npz")


def test_string_labels_survive(tmp_path):
    result = evaluate(np.eye(4, dtype=np.float32), ["a", "a", "b", "b"])
    assert Evaluation.load(result.save(tmp_path / "s.npz")).class_means("r@1").keys() == {"a", "b"}
