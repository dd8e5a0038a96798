"""Each metric on ranks small enough to do by hand.

Also covers ``evaluation/retrieval.py``.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from oracles import metrics as reference
from recollect.common.errors import InputError
from recollect.evaluation import Metric, changed_queries, default_ks, evaluate, metrics
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


def test_names():
    every = metrics.checked_metrics(None)
    assert list(metrics.compute(_tile(), every, [1, 10])) == metrics.columns(every, [1, 10])
    assert metrics.columns(metrics.checked_metrics(["map", "r@k"]), [1, 10]) == ["r@1", "r@10", "map"]


def _tile():
    return RankTile(torch.tensor([0, 1]), POSITIVES, RANKS, torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2))


def test_limits():
    positives = torch.tensor([3, 1])

    def limits(names, ks):
        return metrics.limits_for(metrics.checked_metrics(names), ks)(positives, 3)

    assert limits(["r@k"], [1, 10]).tolist() == [[10, 0, 0], [10, 0, 0]]
    assert limits(["recall@k"], [2]).tolist() == [[2, 1, 0], [2, 1, 0]]
    assert limits(["map@r"], [1]).tolist() == [[3, 2, 1], [1, 0, 0]]
    assert limits(["r@k", "map@r"], [10]).tolist() == [[10, 2, 1], [10, 0, 0]]
    assert (limits(["map"], [1]) > 1 << 32).all()


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
        (lambda: Metric(last_rank, depth="k"), "end in '@k'"),
        (lambda: Metric(last_rank, name="last@k"), "end in '@k'"),
        (lambda: Metric(lambda ranks, positives: ranks), "cannot be called"),
        (lambda: Metric(last_rank, name="labels"), "none of the names labels"),
        (lambda: Metric(last_rank, name="../up"), "cannot be called"),
        (lambda: Metric("map"), "a function of"),
        (lambda: metrics.checked_metrics([Metric(last_rank, name="map")]), "map is already in use"),
        (lambda: metrics.checked_metrics([last_rank, last_rank]), "last_rank is already in use"),
        (lambda: metrics.compute(_tile(), [Metric(lambda r, p: r, name="wide")], [1]), "one value per query"),
        (lambda: metrics.compute(_tile(), [Metric(lambda r, p: 1.0, name="one")], [1]), "returned float"),
    ],
)
def test_metrics_that_cannot_be(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize(
    ("items", "ks"), [(1, [1]), (2, [1]), (11, [1, 10]), (1000, [1, 10, 100]), (5000, [1, 10, 100, 1000])]
)
def test_default_ks_fit_the_gallery(items, ks):
    assert default_ks(items) == ks


def test_default_ks_are_used():
    vectors = np.random.default_rng(0).standard_normal((12, 3))
    assert evaluate(vectors, [0, 1] * 6).settings["ks"] == [1, 10]
    assert evaluate(vectors, [0, 1] * 6, vectors[:9], [0, 1] * 4 + [0]).settings["ks"] == [1]


@pytest.mark.parametrize("ks", [[0], [], [-3], [1.5], [True]])
def test_bad_ks(ks):
    with pytest.raises(InputError, match="whole numbers"):
        metrics.checked_ks(ks)


@pytest.mark.parametrize("names", [["recall"], []])
def test_bad_names(names):
    with pytest.raises(InputError, match="r@k"):
        metrics.checked_metrics(names)
