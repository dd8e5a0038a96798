from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from recollect.common.errors import InputError, MissingExtraError
from recollect.evaluation import evaluate, index_cost


@pytest.fixture(scope="module")
def data():
    pytest.importorskip("faiss")
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 80, 1200)
    vectors = rng.standard_normal((80, 32))[labels] + 1.5 * rng.standard_normal((1200, 32))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32), labels


@pytest.mark.parametrize("kind", ["ivf", "hnsw", "pq"])
def test_costs(data, kind):
    vectors, labels = data
    cost = index_cost(vectors, labels, kind=kind, ks=[1, 10])
    exact = evaluate(vectors, labels, ks=[1, 10]).metrics
    assert cost.exact.neighbours == {1: 1.0, 10: 1.0}
    for k in (1, 10):
        assert cost.exact.r[k] == pytest.approx(exact[f"r@{k}"])
    assert len(cost.rows) >= 3
    shares = [row.neighbours[10] for row in cost.rows]
    assert shares[-1] > shares[0]  # turning the knob up finds more
    assert shares[0] < 1.0
    assert all(row.milliseconds > 0 and row.mebibytes > 0 for row in cost.rows)
    json.dumps(cost.as_dict())


def test_a_query_without_a_positive_counts_nowhere(data):
    vectors, labels = data[0], np.where(np.arange(1200) < 100, 1000 + np.arange(1200), data[1])
    cost = index_cost(vectors, labels, kind="hnsw", ks=[1], settings=[16])
    assert cost.exact.r[1] == pytest.approx(evaluate(vectors, labels, ks=[1]).metrics["r@1"])


def test_looking_into_every_cluster_is_exact(data):
    vectors, labels = data
    row = index_cost(vectors, labels, kind="ivf", ks=[10], settings=[10_000]).rows[0]
    assert row.neighbours[10] == 1.0


def test_compression_makes_it_smaller(data):
    vectors, _ = data
    cost = index_cost(vectors, kind="pq", ks=[1], settings=[8])
    assert cost.rows[0].mebibytes < cost.exact.mebibytes
    assert cost.rows[0].r == {}


def test_separate_gallery(data):
    vectors, labels = data
    queries, gallery = slice(0, 100), slice(100, None)
    cost = index_cost(vectors[queries], labels[queries], vectors[gallery], labels[gallery], kind="hnsw", ks=[5])
    exact = evaluate(vectors[queries], labels[queries], vectors[gallery], labels[gallery], ks=[5]).metrics
    assert cost.exact.r[5] == pytest.approx(exact["r@5"])


def test_refusals(data):
    vectors, labels = data
    with pytest.raises(InputError, match="ivf, hnsw, pq"):
        index_cost(vectors, kind="tree")
    with pytest.raises(InputError, match="equal parts"):
        index_cost(vectors, kind="pq", settings=[5])
    with pytest.raises(InputError, match="256 centroids"):
        index_cost(vectors[:100], kind="pq", ks=[1])
    with pytest.raises(InputError, match="fewer than any"):
        index_cost(vectors[:100], ks=[100])
    with pytest.raises(InputError, match=r"3 labels .*1200 vectors"):
        index_cost(vectors, labels[:3])
    with pytest.raises(InputError, match=r"32 dimensions .*gallery 8"):
        index_cost(vectors, gallery=vectors[:, :8])


def test_without_faiss_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingExtraError, match=r"recollect\[index\]"):
        index_cost(np.eye(3, dtype=np.float32))
