from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, strategies as st

from recollect.report.charts import (
    MOST_POINTS,
    Bar,
    Line,
    bar_chart,
    bin_shares,
    count_similarities,
    line_chart,
    ordered_share,
    similarity_span,
    ticks,
)


@given(st.floats(-1e4, 1e4), st.floats(1e-4, 1e6))
def test_ticks_enclose_the_range_and_are_few(low: float, width: float) -> None:
    found = ticks(low, low + width)
    assert found[0] <= low + 1e-6 * width
    assert found[-1] >= low + width - 1e-6 * width
    assert 2 <= len(found) <= 9
    assert found == sorted(found)


def _svg(figure: str) -> ElementTree.Element:
    return ElementTree.fromstring(figure[figure.index('<svg viewBox="0 0 4') : figure.rindex("</svg>") + 6])


def test_lines_lie_where_their_values_are() -> None:
    figure = line_chart([Line("a<b", [0, 10], [0.0, 1.0])], title="t", x_label="x", y_label="y")
    drawn = _svg(figure)
    path = next(e for e in drawn.iter() if e.get("class", "").startswith("line "))
    (x0, y0), (x1, y1) = (map(float, p.split()) for p in str(path.get("d"))[1:].split("L"))
    assert x0 < x1
    assert y0 > y1  # down is up on a screen
    grid = [e for e in drawn.iter() if e.get("class") == "grid"]
    heights = [float(str(e.get("y1"))) for e in grid]
    assert math.isclose(y0, max(heights), abs_tol=0.1)
    assert math.isclose(y1, min(heights), abs_tol=0.1)
    assert "a&lt;b" in figure


def test_what_is_no_number_is_left_out() -> None:
    nan = float("nan")
    assert line_chart([Line("a", [1, 2], [nan, nan])], title="t", x_label="x", y_label="y") is None
    assert line_chart([], title="t", x_label="x", y_label="y") is None
    figure = line_chart([Line("a", [1, 2, 3], [1.0, nan, 2.0])], title="t", x_label="x", y_label="y")
    assert "nan" not in figure


def test_long_lines_are_thinned_and_single_points_seen() -> None:
    many = line_chart([Line("a", list(range(5000)), [1.0] * 5000)], title="t", x_label="x", y_label="y")
    path = next(e for e in _svg(many).iter() if e.get("class", "").startswith("line "))
    assert str(path.get("d")).count("L") == MOST_POINTS - 1
    one = line_chart([Line("a", [1], [0.5])], title="t", x_label="x", y_label="y", percent=True)
    assert "<circle" in one


def test_lengths_follow_values_from_where_the_axis_begins() -> None:
    chart = bar_chart(
        [Bar("a", 60.0), Bar("b", 80.0, 1), Bar("low", 10.0)], ("x", "y"), title="T", value="r@1", low=50.0
    )
    widths = [float(width) for width in re.findall(r' width="([^"]+)" height="14"', chart)]
    assert len(widths) == 3
    assert abs(widths[1] / widths[0] - 3) < 0.02
    assert widths[2] == 0
    assert "80.0" in chart


def test_nothing_to_show_and_hostile_names() -> None:
    assert bar_chart([], (), title="T", value="r@1") is None
    chart = bar_chart([Bar("<script>", 1.0)], ("<b>",), title="T", value="r@1")
    assert "<script>" not in chart
    assert "<b>" not in chart


def _pairs(vectors: np.ndarray, labels: np.ndarray) -> tuple[list[float], list[float]]:
    positive, negative = [], []
    for i in range(len(vectors)):
        for j in range(i + 1, len(vectors)):
            (positive if labels[i] == labels[j] else negative).append(float(vectors[i] @ vectors[j]))
    return positive, negative


def test_counts_every_pair_once_across_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recollect.report.charts._PAIR_ROWS", 7)
    random = np.random.default_rng(0)
    labels = random.integers(0, 4, 40)
    vectors = random.normal(size=(40, 5)) + 1.5 * np.eye(5)[labels]
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    counted = count_similarities(vectors, labels)
    positive, negative = _pairs(vectors, labels)
    assert counted.sum(axis=1).tolist() == [len(positive), len(negative)]
    for pairs, shares in zip((positive, negative), bin_shares(counted, np.linspace(-1, 1, 21)), strict=True):
        expected = np.histogram(pairs, 20, (-1, 1))[0]
        assert np.abs(len(pairs) * shares - expected).max() < 1.01  # an edge may round either way
    area = np.mean([(p > n) + (p == n) / 2 for p in positive for n in negative])
    assert ordered_share(counted) == pytest.approx(area, abs=2e-3)
    low, high = similarity_span(counted, 0.0)
    assert low <= min(positive + negative)
    assert high >= max(positive + negative)
