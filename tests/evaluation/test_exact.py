"""Float32 decides only where it can: near ties, duplicates and collapsed models."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from oracles import metrics as reference
from recollect.common.errors import InputError
from recollect.evaluation import evaluate, exact, tiles
from recollect.evaluation.counting import GROUP, busy_groups, count_above, count_above_each, group_entries, padded


def _unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def _agree(vectors, labels, **options):
    result = evaluate(vectors, labels, ks=(1, 3, 10), **options)
    expected = reference.evaluate(vectors, list(labels), ks=(1, 3, 10), ties=options.get("ties", "pessimistic"))
    for name, column in result.per_query.items():
        wanted = [values[name] if values else np.nan for values in expected]
        np.testing.assert_allclose(column, wanted, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("kind", ["normal", "positive", "constant", "sparse"])
@pytest.mark.parametrize("dim", [3, 128, 4096])
def test_float32_errors_stay_within_the_bound(kind, dim):
    """The bound must hold with room to spare, also for vectors whose partial sums only grow."""
    rng = np.random.default_rng(dim)
    rows = rng.standard_normal((96, dim))
    if kind == "positive":
        rows = np.abs(rows)
    elif kind == "constant":
        rows = 1 + 1e-3 * rows
    elif kind == "sparse":
        rows = rows * (rng.random((96, dim)) < 0.1) + 1e-9
    vectors = torch.from_numpy(_unit(rows).astype(np.float32))
    error = ((vectors @ vectors.T).double() - vectors.double() @ vectors.double().T).abs().max()
    assert error < exact.rounding(dim, torch.float32) / 2


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


def test_collapsed_model():
    """Everything within float32's error of everything, the case in which whole rows are done in float64."""
    rng = np.random.default_rng(0)
    vectors = (_unit(rng.standard_normal((1, 32))) + 1e-7 * rng.standard_normal((150, 32))).astype(np.float32)
    _agree(vectors, np.arange(150) % 30)


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


def test_scaled_vectors_keep_their_ranks():
    rng = np.random.default_rng(9)
    vectors = rng.standard_normal((80, 12)).astype(np.float32)
    labels = rng.integers(0, 12, 80)
    wanted = evaluate(vectors, labels).per_query["map"]
    for scale in (1e-15, 1e-4, 1e4, 1e15):
        # a power of two, so that scaling itself rounds nothing
        power = np.float32(2.0 ** round(np.log2(scale)))
        np.testing.assert_array_equal(evaluate(vectors * power, labels).per_query["map"], wanted)


def test_products_that_underflow_float32_are_decided_in_float64():
    rng = np.random.default_rng(9)
    vectors = rng.standard_normal((60, 6)).astype(np.float32)
    labels = rng.integers(0, 8, 60)
    tiny = vectors * np.float32(2.0**-80)
    assert not (tiny @ tiny.T).any()
    np.testing.assert_array_equal(evaluate(tiny, labels).per_query["map"], evaluate(vectors, labels).per_query["map"])


def test_vectors_too_long_are_refused():
    with pytest.raises(InputError, match="overflow"):
        evaluate(np.full((4, 8), 1e19, np.float32), [0, 0, 1, 1])


def test_unknown_rule_for_ties():
    with pytest.raises(InputError, match="choose 'pessimistic'"):
        evaluate(np.eye(2), [0, 0], ties="lucky")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_count_above_is_strict(dtype):
    values = torch.tensor([[0.0, -0.0, 1.0, -1.0, float("-inf"), 2.0]], dtype=dtype).repeat(5, 1)
    thresholds = torch.tensor([0.0, -0.0, 1.0, float("inf"), -2.0], dtype=dtype)
    assert count_above(values, thresholds, torch.empty(30, dtype=dtype)).tolist() == [2, 2, 1, 0, 5]


def test_count_above_each_counts_only_what_is_wanted():
    torch.manual_seed(0)
    values, thresholds = torch.randn(9, 50), torch.randn(9, 6)
    for share in (0.1, 0.5, 1.0):
        wanted = torch.rand(9, 6) < share
        plain = (values.unsqueeze(1) > thresholds.unsqueeze(2)).sum(dim=2) * wanted
        assert torch.equal(count_above_each(values, thresholds, wanted, torch.empty(450)), plain)


@pytest.mark.parametrize("transposed", [False, True])
def test_picked_entries_are_those_above_the_floor(transposed):
    torch.manual_seed(1)
    values = torch.randn(32, 48)
    values = values.T if transposed else values
    floors = torch.randn(len(values)) + 1
    rows, groups = busy_groups(values, floors)
    found = {(int(r), int(c)): float(v) for r, c, v in zip(*group_entries(values, rows, groups, floors), strict=True)}
    above = (values > floors.unsqueeze(1)).nonzero().tolist()
    assert found == {(r, c): float(values[r, c]) for r, c in above}
    assert len(rows) < values.numel() // GROUP  # some groups were skipped


def test_padding_is_whole_groups():
    assert [padded(size) for size in (1, GROUP, GROUP + 1)] == [GROUP, GROUP, 2 * GROUP]


@pytest.mark.parametrize("crowded_rows", [0, 10_000])
def test_picking_entries_equals_counting_rows(monkeypatch, crowded_rows):
    """Rows counted as a whole, and entries picked out of them one by one: the same ranks, close ones included."""
    rng = np.random.default_rng(3)
    base = _unit(rng.standard_normal((4, 24)))
    vectors = base[np.arange(90) % 4] + 10.0 ** rng.uniform(-8, 0, (90, 1)) * rng.standard_normal((90, 24)) / 5
    monkeypatch.setattr(tiles, "_CROWDED_ROWS", crowded_rows)
    _agree(vectors.astype(np.float32), np.arange(90) % 9)
