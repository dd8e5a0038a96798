"""Each metric on ranks small enough to do by hand."""

from __future__ import annotations

import math

import pytest
import torch

from recollect.common.errors import InputError
from recollect.evaluation import metrics
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
    tile = RankTile(torch.tensor([0, 1]), POSITIVES, RANKS, torch.zeros(2, 3))
    names = metrics.checked_metrics(None)
    assert list(metrics.compute(tile, names, [1, 10])) == metrics.columns(names, [1, 10])
    assert metrics.columns(["r@k", "map"], [1, 10]) == ["r@1", "r@10", "map"]


def test_limits():
    positives = torch.tensor([3, 1])
    assert metrics.limits_for(["r@k"], [1, 10])(positives, 3).tolist() == [[10, 0, 0], [10, 0, 0]]
    assert metrics.limits_for(["recall@k"], [2])(positives, 3).tolist() == [[2, 1, 0], [2, 1, 0]]
    assert metrics.limits_for(["map@r"], [1])(positives, 3).tolist() == [[3, 2, 1], [1, 0, 0]]
    both = metrics.limits_for(["r@k", "map@r"], [10])(positives, 3).tolist()
    assert both == [[10, 2, 1], [10, 0, 0]]
    assert (metrics.limits_for(["map"], [1])(positives, 3) > 1 << 32).all()


@pytest.mark.parametrize("ks", [[0], [], [-3], [1.5], [True]])
def test_bad_ks(ks):
    with pytest.raises(InputError, match="whole numbers from 1 on"):
        metrics.checked_ks(ks)


@pytest.mark.parametrize("names", [["recall"], []])
def test_bad_names(names):
    with pytest.raises(InputError, match="choose from r@k"):
        metrics.checked_metrics(names)
