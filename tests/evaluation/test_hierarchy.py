"""Graded metrics of labels with two levels, against their definition and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from oracles import metrics as reference
from recollect.common.errors import InputError
from recollect.evaluation import evaluate, hierarchy, ranks as ranks_module

KS = (1, 3)


@st.composite
def cases(draw):
    """Small whole numbers, so that ties between the levels are frequent; up to five classes in three coarse ones."""
    dim, number = draw(st.integers(1, 3)), st.integers(-2, 2)

    def vectors(count):
        rows = draw(st.lists(st.lists(number, min_size=dim, max_size=dim), min_size=count, max_size=count))
        return np.array(rows, dtype=np.float32).reshape(count, dim)

    kinds = draw(st.lists(st.integers(0, 2), min_size=5, max_size=5))

    def labels(count):
        fine = draw(st.lists(st.integers(0, 4), min_size=count, max_size=count))
        return fine, [kinds[label] for label in fine]

    queries = items = draw(st.integers(2, 16))
    fine, coarse = labels(queries)
    case = {"embeddings": vectors(queries), "labels": fine, "coarse_labels": coarse}
    case["ties"] = draw(st.sampled_from(["pessimistic", "optimistic"]))
    if draw(st.booleans()):
        items = draw(st.integers(1, 16))
        fine, coarse = labels(items)
        case |= {"gallery": vectors(items), "gallery_labels": fine, "gallery_coarse_labels": coarse}
    if draw(st.booleans()):
        extra = draw(st.integers(1, 5))
        case["distractors"] = vectors(extra)
        items += extra
    if draw(st.booleans()):
        case["junk"] = draw(
            st.lists(st.lists(st.integers(0, items - 1), max_size=4), min_size=queries, max_size=queries)
        )
    return case


@given(case=cases(), dtype=st.sampled_from([np.float32, np.float64]))
def test_equals_the_reference(case, dtype):
    expected = reference.evaluate(**case, ks=KS)
    for name in ("embeddings", "gallery", "distractors"):
        if name in case:
            case[name] = case[name].astype(dtype)
    if all(values is None for values in expected):
        with pytest.raises(InputError, match="has a positive"):
            evaluate(**case, ks=KS)
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks_module, "_SIDE", 6)
        patch.setattr(hierarchy, "_ENTRIES", 20)  # a few queries at a time
        found = evaluate(**case, ks=KS)
    for number, values in enumerate(expected):
        for name, column in found.per_query.items():
            wanted = np.nan if values is None else values[name]
            assert column[number] == pytest.approx(wanted, abs=1e-12, nan_ok=True), (number, name)


def _clusters(count=400, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 40, count)
    coarse = labels // 20  # two coarse classes: hundreds of positives a query, counted by sorting rows
    vectors = rng.standard_normal((2, 16))[coarse] + rng.standard_normal((40, 16))[labels]
    return (vectors + rng.standard_normal((count, 16))).astype(np.float32), labels, coarse


def test_many_items_of_the_coarse_class():
    vectors, labels, coarse = _clusters(count=700)
    few = slice(0, 25)
    expected = reference.evaluate(
        vectors[few], labels[few].tolist(), vectors, labels.tolist(), KS, None, None, "pessimistic",
        coarse[few].tolist(), coarse.tolist(),
    )  # fmt: skip
    found = evaluate(
        vectors[few], labels[few], vectors, labels, KS,
        coarse_labels=coarse[few], gallery_coarse_labels=coarse, memory=1 << 20,
    )  # fmt: skip
    for number, values in enumerate(expected):
        for name, column in found.per_query.items():
            assert column[number] == pytest.approx(values[name], abs=1e-12), (number, name)


def test_the_other_metrics_are_those_without_a_hierarchy():
    vectors, labels, coarse = _clusters()
    plain = evaluate(vectors, labels, ks=KS)
    both = evaluate(vectors, labels, ks=KS, coarse_labels=coarse)
    assert list(both.per_query) == [*plain.per_query, "h_ap", "h_ap_released", "ndcg"]
    for name, column in plain.per_query.items():
        np.testing.assert_array_equal(both.per_query[name], column, err_msg=name)
    unused = evaluate(vectors, labels, ks=KS, metrics=("r@k", "map"), coarse_labels=coarse)
    for name, column in unused.per_query.items():
        np.testing.assert_array_equal(plain.per_query[name], column, err_msg=name)
    only = evaluate(vectors, labels, metrics=("h_ap",), coarse_labels=coarse)
    assert list(only.per_query) == ["h_ap"]
    np.testing.assert_array_equal(only.per_query["h_ap"], both.per_query["h_ap"])


def test_by_hand():
    """Ranking: coarse, fine, other, coarse. Relevances 1/4, 1, 0, 1/4."""
    gallery = np.array([[0.9], [0.8], [0.7], [0.6]])
    result = evaluate(
        [[1.0]], [5], gallery, [6, 5, 7, 6], coarse_labels=[0], gallery_coarse_labels=[0, 0, 1, 0]
    ).metrics
    h_ap = (0.25 / 1 + (0.25 + 1) / 2 + (0.25 + 0.25 + 0.25) / 4) / 1.5
    assert result["h_ap"] == pytest.approx(h_ap)
    # As HAPPIER released it, the query is a second fine item: relevances 1/4, 1/2, 0, 1/4.
    released = (0.25 / 1 + (0.25 + 0.5) / 2 + (0.25 + 0.25 + 0.25) / 4) / 1.0
    assert result["h_ap_released"] == pytest.approx(released)
    ideal = 3 + 1 / np.log2(3) + 1 / np.log2(4)
    assert result["ndcg"] == pytest.approx((1 + 3 / np.log2(3) + 1 / np.log2(5)) / ideal)


def test_a_perfect_ranking_is_one():
    gallery = np.array([[0.9], [0.8], [0.7], [0.6]])
    found = evaluate([[1.0]], ["a"], gallery, list("aabc"), coarse_labels=["x"], gallery_coarse_labels=list("xxxy"))
    assert found.metrics["h_ap"] == found.metrics["ndcg"] == 1.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"coarse_labels": [0, 1, 0, 0]}, "coarse labels 0 and 1"),
        ({"coarse_labels": [0, 0]}, "4 labels but 2 coarse labels"),
        ({"coarse_labels": None, "metrics": ["h_ap"]}, "pass coarse_labels"),
        ({"coarse_labels": None, "gallery_coarse_labels": [0] * 4}, "without coarse_labels"),
        ({"gallery": np.eye(4), "gallery_labels": [0, 0, 1, 1]}, "both gallery_labels and gallery_coarse_labels"),
        ({"metrics": ["h_ap", "accuracy"]}, "unknown"),
    ],
)
def test_refusals(change, message):
    with pytest.raises(InputError, match=message):
        evaluate(**{"embeddings": np.eye(4), "labels": [0, 0, 1, 1], "coarse_labels": [0, 0, 0, 0], **change})
