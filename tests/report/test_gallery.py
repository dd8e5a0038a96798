from __future__ import annotations

import numpy as np

from recollect.evaluation import Evaluation, evaluate
from recollect.report.atlas import Atlas
from recollect.report.gallery import best, changed, rows_of_results, worst
from recollect.report.measured import Contender
from recollect.report.shown_images import Shown


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
    large = Evaluation(
        {"first_rank": result.values("first_rank"), "map@r": result.values("map")}, result.labels, result.positives
    )
    assert best(large, 5) == [1, 3, 0]


def test_changed_prefers_what_came_to_the_top() -> None:
    before, after = _result([50, 4, 1, 3, np.nan], [0, 1, 2, 3, 4]), _result([2, 1, 1, 9, np.nan], [0, 1, 2, 3, 4])
    assert changed(before, after) == [1, 0]
    assert changed(after, before) == [3]


def test_marks_tell_right_from_wrong_without_colour() -> None:
    vectors = np.array([[1, 0], [0.9, 0.1], [0.95, -0.3], [0, 1]], np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    labels = np.array([0, 0, 1, 1])
    result = evaluate(vectors, labels, ks=(1,), metrics=("r@k", "map", "first_rank"))
    shown = Shown("set", "test", list("abcd"), labels, ["<zero>", "one"], 4)
    contender = Contender("model", "", vectors, result)
    page = rows_of_results(
        [0, 2], [contender], shown, Atlas(None, list("abcd"), ["<zero>"] * 4), top=3, twins={0: frozenset({0, 2})}
    )
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
