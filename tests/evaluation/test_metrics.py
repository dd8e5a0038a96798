"""Each metric on ranks small enough to do by hand, graded ones too, and as other libraries compute it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from oracles import metrics as reference
from recollect.common.errors import InputError
from recollect.evaluation import Metric, changed_queries, evaluate, metrics
from recollect.evaluation.tiles import RankTile

# Two queries: positives at ranks 1, 3, 6; and one positive at rank 4.
RANKS = torch.tensor([[1.0, 3.0, 6.0], [4.0, math.inf, math.inf]], dtype=torch.float64)


POSITIVES = torch.tensor([3, 1])


@pytest.mark.parametrize(
    ("name", "k", "expected"),
    [
        ("r@k", 1, [1, 0]),
        ("r@k", 4, [1, 1]),
        ("recall@k", 1, [1 / 3, 0]),
        ("recall@k", 3, [2 / 3, 0]),
        ("recall@k", 6, [1, 1]),
        ("map", None, [(1 + 2 / 3 + 3 / 6) / 3, 1 / 4]),
        ("map@r", None, [(1 + 2 / 3) / 3, 0]),
        ("r_precision", None, [2 / 3, 0]),
        ("mrr", None, [1, 1 / 4]),
        ("first_rank", None, [1, 4]),
    ],
)
def test_by_hand(name, k, expected):
    extra = [] if k is None else [k]
    assert metrics.METRICS[name].compute(RANKS, POSITIVES, *extra).tolist() == pytest.approx(expected)


def _tile():
    return RankTile(torch.tensor([0, 1]), POSITIVES, RANKS, torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2))


def last_rank(ranks, positives):
    """A metric from outside."""
    return ranks.gather(1, positives.unsqueeze(1) - 1)[:, 0]


def test_a_metric_from_outside():
    """A function, and a ``Metric`` that reads no deeper than it says, beside a named one."""
    rng = np.random.default_rng(0)
    vectors, labels = rng.standard_normal((60, 4)).astype(np.float32), rng.integers(0, 9, 60)
    hits = Metric(lambda ranks, positives, k: (ranks <= k).sum(dim=1), depth="k", name="hits@k")
    found = evaluate(vectors, labels, ks=[1, 5], metrics=[last_rank, hits, "recall@k"])
    assert list(found.per_query) == ["recall@1", "recall@5", "last_rank", "hits@1", "hits@5"]
    np.testing.assert_allclose(found.per_query["hits@5"], found.per_query["recall@5"] * found.positives)
    everything = reference.evaluate(vectors, labels.tolist())
    similarity = vectors.astype(float) @ vectors.T.astype(float)
    for query, values in enumerate(everything):
        same = (labels == labels[query]) & (np.arange(60) != query)
        if values is not None:
            other = labels != labels[query]
            worst = similarity[query][same].min()
            assert found.per_query["last_rank"][query] == same.sum() + (similarity[query][other] >= worst).sum()


def test_less_may_be_better():
    far = Metric(last_rank, name="last", higher_is_better=False)
    first, second = (evaluate(np.eye(4)[order], [0, 0, 1, 1], metrics=[far]) for order in ([0, 0, 1, 1], [0, 1, 0, 1]))
    assert changed_queries(first, second, "last").worse.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Metric(last_rank, depth="K"), "choose 'k', 'R' or None"),
        (lambda: Metric(last_rank, depth="k"), "ends in '@k'"),
        (lambda: Metric(lambda ranks, positives: ranks), "cannot be called"),
        (lambda: Metric(last_rank, name="labels"), "none of the names labels"),
        (lambda: Metric("map"), "a function of"),
        (lambda: metrics.checked_metrics([Metric(last_rank, name="map")]), "map is already in use"),
        (lambda: metrics.compute(_tile(), [Metric(lambda r, p: r, name="wide")], [1]), "one value per query"),
        (lambda: metrics.compute(_tile(), [Metric(lambda r, p: 1.0, name="one")], [1]), "returned float"),
    ],
)
def test_metrics_that_cannot_be(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_pytorch_metric_learning():
    """With k = N − 1 its mean average precision and reciprocal rank look at every rank, as ours do."""
    pytest.importorskip("faiss")
    accuracy = pytest.importorskip("pytorch_metric_learning.utils.accuracy_calculator")
    vectors, labels, _ = _coarse_clusters(count=300)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)  # it ranks by distance
    names = {
        "mean_average_precision_at_r": "map@r",
        "r_precision": "r_precision",
        "precision_at_1": "r@1",
        "mean_average_precision": "map",
        "mean_reciprocal_rank": "mrr",
    }
    calculator = accuracy.AccuracyCalculator(include=tuple(names), k=299, device=torch.device("cpu"))
    theirs = calculator.get_accuracy(torch.from_numpy(vectors), torch.from_numpy(labels))
    ours = evaluate(vectors, labels, ks=[1]).metrics
    assert {names[name]: value for name, value in theirs.items()} == pytest.approx(
        {name: ours[name] for name in names.values()}, abs=1e-6
    )


KS = (1, 3)


def _coarse_clusters(count=400, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 40, count)
    coarse = labels // 20  # two coarse classes: hundreds of positives a query, counted by sorting rows
    vectors = rng.standard_normal((2, 16))[coarse] + rng.standard_normal((40, 16))[labels]
    return (vectors + rng.standard_normal((count, 16))).astype(np.float32), labels, coarse


def test_many_items_of_the_coarse_class():
    vectors, labels, coarse = _coarse_clusters(count=700)
    few = slice(0, 25)
    case = {"coarse_labels": coarse[few], "gallery_coarse_labels": coarse.tolist(), "ks": KS}
    queries_and_gallery = vectors[few], labels[few], vectors, labels
    result = evaluate(*queries_and_gallery, memory=1 << 20, **case)
    for number, values in enumerate(reference.evaluate(*queries_and_gallery, **case)):
        for name, column in result.per_query.items():
            assert column[number] == pytest.approx(values[name], abs=1e-12), (number, name)


def test_the_other_metrics_are_those_without_a_hierarchy():
    vectors, labels, coarse = _coarse_clusters()
    plain = evaluate(vectors, labels, ks=KS)
    both = evaluate(vectors, labels, ks=KS, coarse_labels=coarse)
    assert list(both.per_query) == [*plain.per_query, "h_ap", "h_ap_released", "ndcg"]
    for name, column in plain.per_query.items():
        np.testing.assert_array_equal(both.per_query[name], column, err_msg=name)
    only = evaluate(vectors, labels, metrics=("h_ap",), coarse_labels=coarse)
    assert list(only.per_query) == ["h_ap"]
    np.testing.assert_array_equal(only.per_query["h_ap"], both.per_query["h_ap"])


def test_graded_metrics_by_hand():
    """Ranking: coarse, fine, other, coarse. Relevances 1/4, 1, 0, 1/4."""
    gallery = np.array([[0.9], [0.8], [0.7], [0.6]])
    coarse = {"coarse_labels": [0], "gallery_coarse_labels": [0, 0, 1, 0]}
    result = evaluate([[1.0]], [5], gallery, [6, 5, 7, 6], **coarse).metrics
    h_ap = (0.25 / 1 + (0.25 + 1) / 2 + (0.25 + 0.25 + 0.25) / 4) / 1.5
    assert result["h_ap"] == pytest.approx(h_ap)
    # As HAPPIER released it, the query is a second fine item: relevances 1/4, 1/2, 0, 1/4.
    released = (0.25 / 1 + (0.25 + 0.5) / 2 + (0.25 + 0.25 + 0.25) / 4) / 1.0
    assert result["h_ap_released"] == pytest.approx(released)
    ideal = 3 + 1 / np.log2(3) + 1 / np.log2(4)
    assert result["ndcg"] == pytest.approx((1 + 3 / np.log2(3) + 1 / np.log2(5)) / ideal)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"coarse_labels": [0, 1, 0, 0]}, "coarse labels 0 and 1"),
        ({"coarse_labels": None, "metrics": ["h_ap"]}, "pass coarse_labels"),
        ({"coarse_labels": None, "gallery_coarse_labels": [0] * 4}, "without coarse_labels"),
        ({"gallery": np.eye(4), "gallery_labels": [0, 0, 1, 1]}, "both gallery_labels and gallery_coarse_labels"),
        ({"metrics": ["h_ap", "accuracy"]}, "unknown"),
    ],
)
def test_hierarchies_that_cannot_be(change, message):
    with pytest.raises(InputError, match=message):
        evaluate(**{"embeddings": np.eye(4), "labels": [0, 0, 1, 1], "coarse_labels": [0, 0, 0, 0], **change})
