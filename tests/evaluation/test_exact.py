"""Float32 decides only where it can: near ties, duplicates and collapsed models."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from oracles import metrics as reference
from recollect.evaluation import evaluate, ranks, tiles


def _unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def _agree(vectors, labels, **options):
    result = evaluate(vectors, labels, ks=(1, 3, 10), **options)
    expected = reference.evaluate(vectors, list(labels), ks=(1, 3, 10), ties=options.get("ties", "pessimistic"))
    for name, column in result.per_query.items():
        wanted = [values[name] if values else np.nan for values in expected]
        np.testing.assert_allclose(column, wanted, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("kind", ["normal", "positive", "constant"])
@pytest.mark.parametrize("dim", [3, 128, 4096])
def test_float32_errors_stay_within_the_bound(kind, dim):
    """The bound must hold with room to spare, also for vectors whose partial sums only grow."""
    rng = np.random.default_rng(dim)
    rows = rng.standard_normal((96, dim))
    if kind == "positive":
        rows = np.abs(rows)
    elif kind == "constant":
        rows = 1 + 1e-3 * rows
    vectors = torch.from_numpy(_unit(rows).astype(np.float32))
    error = ((vectors @ vectors.T).double() - vectors.double() @ vectors.double().T).abs().max()
    assert error < tiles.rounding(dim, torch.float32) / 2


@pytest.mark.parametrize("ties", ["pessimistic", "optimistic"])
def test_similarities_closer_than_float32_can_tell(ties):
    """Vectors that differ in the last bits: float32 products cannot order them, float64 ones can."""
    rng = np.random.default_rng(0)
    base = _unit(rng.standard_normal((6, 64)))
    labels = np.arange(120) % 6
    vectors = (base[np.arange(120) % 3] + 3e-8 * rng.standard_normal((120, 64))).astype(np.float32)
    product = vectors @ vectors.T
    assert len(np.unique(product)) < len(np.unique(vectors.astype(float) @ vectors.T.astype(float))) / 2
    _agree(vectors, labels, ties=ties)


def test_all_vectors_equal():
    vectors = np.tile(_unit(np.random.default_rng(0).standard_normal((1, 37))), (50, 1)).astype(np.float32)
    labels = np.arange(50) % 10
    pessimistic = evaluate(vectors, labels, ks=[1])
    assert pessimistic.metrics["r@1"] == 0.0
    assert (pessimistic.per_query["first_rank"] == 46).all()
    assert evaluate(vectors, labels, ks=[1], ties="optimistic").metrics["map"] == 1.0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_duplicates_tie_wherever_they_stand(dtype):
    """A copy of the positive among the negatives is a tie in any column of any tile, for odd sizes too."""
    rng = np.random.default_rng(5)
    for dim in (5, 37, 130):
        query, positive = rng.standard_normal((2, dim))
        others = -np.abs(rng.standard_normal((301, 1))) * query
        for place in (0, 1, 150, 299, 300):
            gallery = others.copy()
            gallery[7], gallery[place] = positive, positive
            if place == 7:
                continue
            labels = np.ones(301, int)
            labels[7] = 0
            arguments = (query[None].astype(dtype), [0], gallery.astype(dtype), labels)
            worse, better = (evaluate(*arguments, ties=t).metrics["first_rank"] for t in ("pessimistic", "optimistic"))
            assert worse == better + 1


def test_products_that_underflow_float32_are_decided_in_float64():
    rng = np.random.default_rng(9)
    vectors = rng.standard_normal((60, 6)).astype(np.float32)
    labels = rng.integers(0, 8, 60)
    tiny = vectors * np.float32(2.0**-80)
    assert not (tiny @ tiny.T).any()
    np.testing.assert_array_equal(evaluate(tiny, labels).per_query["map"], evaluate(vectors, labels).per_query["map"])


@pytest.mark.parametrize("per_class", [2, 4, 30, 150])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_near_ties_among_easy_and_hard_queries(per_class, dtype):
    """From one positive to hundreds, from identical vectors to distant ones, in one tile."""
    rng = np.random.default_rng(3)
    labels = np.arange(300) % (300 // per_class)
    base = _unit(rng.standard_normal((300 // per_class, 24)))
    noise = 10.0 ** rng.uniform(-8, 1, (300, 1)) * rng.standard_normal((300, 24)) / 5
    _agree((base[labels] + noise).astype(np.float32).astype(dtype), labels)


@pytest.mark.parametrize("per_class", [2, 12, 200])
def test_zeros_with_and_without_sign(per_class):
    """Zero vectors, negative zeros and duplicates: thresholds of ±0, many entries on them, and rows without a range."""
    rng = np.random.default_rng(4)
    vectors = rng.integers(-1, 2, (400, 3)).astype(np.float32)
    vectors[rng.random(400) < 0.3] = 0.0
    vectors[::2] *= -1.0
    assert (np.signbit(vectors) & (vectors == 0)).any()
    for ties in ("pessimistic", "optimistic"):
        _agree(vectors, np.arange(400) % (400 // per_class), ties=ties)


def test_collapsed_vectors_rank_the_same_in_tiles_of_every_size(monkeypatch):
    """Similarities that differ by about float64's rounding: a sum in another order would move them across a tie's edge."""
    rng = np.random.default_rng(2)
    base = _unit(rng.standard_normal((1, 64)))
    base[:, 32:] *= 1e-3
    vectors = np.tile(base, (300, 1))
    vectors[:, 32:] *= 1 + 6e-8 * rng.integers(-1, 2, (300, 32))
    vectors, labels = vectors.astype(np.float32), np.arange(300) % 60
    wanted = evaluate(vectors, labels).per_query
    own = [[i] for i in range(300)]
    found = [evaluate(vectors, labels, memory=1 << 20), evaluate(vectors, labels, vectors, labels, junk=own)]
    monkeypatch.setattr(ranks, "_SIDE", 37)
    found.append(evaluate(vectors, labels))
    for result in found:
        for name, column in wanted.items():
            np.testing.assert_array_equal(result.per_query[name], column, err_msg=name)
