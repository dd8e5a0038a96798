"""Bars: as long as their values, named, with their numbers in a table."""

from __future__ import annotations

import re

from recollect.report.bars import Bar, bar_chart


def test_lengths_follow_values_from_where_the_axis_begins() -> None:
    chart = bar_chart(
        [Bar("a", 60.0), Bar("b", 80.0, 1), Bar("low", 10.0)], ("x", "y"), title="T", value="r@1", low=50.0
    )
    assert chart is not None
    widths = [float(width) for width in re.findall(r' width="([^"]+)" height="14"', chart)]
    assert len(widths) == 3
    assert abs(widths[1] / widths[0] - 3) < 0.02
    assert widths[2] == 0
    assert "80.0" in chart


def test_a_long_name_is_shortened_in_the_drawing_and_whole_in_the_table() -> None:
    name = "reciprocal_rank.py:ReciprocalRank(tau=0.02, query=excluded)"
    chart = bar_chart([Bar(name, 60.0), Bar("b", 80.0)], ("x",), title="T", value="r@1")
    assert chart is not None
    drawn = re.findall(r'class="label">([^<]*)<', chart)
    assert any(text.startswith("reciprocal_") and text.endswith("=excluded)") for text in drawn)
    assert all(len(text) <= 26 for text in drawn)
    assert chart.count(name) == 2, "the hint and the table"


def test_nothing_to_show_and_hostile_names() -> None:
    assert bar_chart([], (), title="T", value="r@1") is None
    chart = bar_chart([Bar("<script>", 1.0)], ("<b>",), title="T", value="r@1")
    assert chart is not None
    assert "<script>" not in chart
    assert "<b>" not in chart
