from __future__ import annotations

import numpy as np

from recollect.evaluation import Evaluation, evaluate
from recollect.report.galleries import best, changed, confused_pairs, in_rank_order, rows_of_results, worst
from recollect.report.map import Atlas
from recollect.report.results import ModelResult, ReportImages
from recollect.search.exact import Neighbours


def _result(first: list[float], labels: list[int], map_: list[float] | None = None) -> Evaluation:
    ranks = np.array(first)
    values = {"first_rank": ranks, "map": np.array(map_ or [1 / r for r in first])}
    return Evaluation(values, np.array(labels), np.where(np.isnan(ranks), 0, 1))


def test_worst_are_the_latest_a_class_once_and_never_a_right_one() -> None:
    result = _result([1, 9, 8, 2, np.nan], [0, 1, 1, 2, 3])
    assert worst(result, 5) == [1, 3, 2]
    assert worst(result, 2) == [1, 3]


def test_best_have_everything_first() -> None:
    result = _result([1, 1, 5, 1], [0, 0, 1, 2], [0.7, 1.0, 0.1, 0.9])
    assert best(result, 2) == [1, 3]
    assert best(result, 5) == [1, 3, 0]


def test_changed_prefers_what_came_to_the_top() -> None:
    before, after = _result([50, 4, 1, 3, np.nan], [0, 1, 2, 3, 4]), _result([2, 1, 1, 9, np.nan], [0, 1, 2, 3, 4])
    assert changed(before, after) == [1, 0]
    assert changed(after, before) == [3]


def test_marks_tell_right_from_wrong_without_colour() -> None:
    vectors = np.array([[1, 0], [0.9, 0.1], [0.95, -0.3], [0, 1]], np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    labels = np.array([0, 0, 1, 1])
    result = evaluate(vectors, labels, ks=(1,), metrics=("r@k", "map", "first_rank"))
    shown = ReportImages("set", "test", list("abcd"), labels, ["<zero>", "one"], 4)
    model = ModelResult("model", "", vectors, result)
    page = rows_of_results([0, 2], [model], shown, Atlas(None), {0: frozenset({0, 2})})
    first, second = page.split("<article")[1:]
    assert [mark in part for part in (first.split("<li")[1:]) for mark in ("✓",)] == [True, False, False]
    assert [mark in part for part in (second.split("<li")[1:]) for mark in ("✓",)] == [False, False, True]
    assert first.count('class="right"') == first.count("✓") == first.count(", right:") == 1
    assert first.count('class="wrong"') == first.count("✗") == first.count(", wrong:") == 2
    assert first.count("near-duplicate</span>") == 1
    assert "near-duplicate" not in second
    assert "at rank 1" in first
    assert "at rank 3" in second
    assert "<zero>" not in page


def test_ties_are_shown_as_they_are_counted() -> None:
    """Exact copies under two labels: the evaluation counts the negative first, and so do the results."""
    labels = np.array([0, 0, 1, 1])
    found = Neighbours(np.array([[1, 2, 3], [0, 2, 3], [3, 0, 1], [2, 0, 1]]), np.ones((4, 3), np.float32))
    ordered = in_rank_order(found, np.arange(4), labels, np.array([2.0, 1.0, 3.0, np.nan]))
    assert ordered.indices.tolist() == [[2, 1, 3], [0, 2, 3], [0, 1, 3], [2, 0, 1]]
    other_way = Neighbours(np.array([[2, 1, 3]]), np.array([[0.5, 0.5 - 1e-7, 0.1]], np.float32))
    assert in_rank_order(other_way, np.arange(1), labels, np.array([1.0])).indices.tolist() == [[1, 2, 3]]
    assert [(pair.query_class, pair.times) for pair in confused_pairs(labels, ordered)] == [(0, 1), (1, 1)]
