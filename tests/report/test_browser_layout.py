"""Charts, tables and paper in a real browser: no text over another or cut off, one scale, dark text on paper."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from recollect.report.bars import Bar, bar_chart
from recollect.report.charts import Line, histogram_pair, line_chart
from recollect.report.markup import Markup, breakable, element, join, table
from recollect.report.page import document, write_report
from recollect.report.scatter import Point, scatter_chart
from report.browser import Browser, programs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(programs() is None, reason="no chromium with chromedriver is installed"),
]

# Pairs of words of one chart that overlap, and words that stick out of it. Boxes are taller than letters by 3 pixels or more.
_COLLISIONS = """
const found = [];
for (const chart of document.querySelectorAll('svg.chart')) {
  const frame = chart.getBoundingClientRect();
  const words = [...chart.querySelectorAll('text')].map(text => [text.textContent, text.getBoundingClientRect()]);
  words.forEach(([word, a], number) => {
    if (a.left < frame.left - 2 || a.right > frame.right + 2) found.push([word, 'cut off']);
    for (const [other, b] of words.slice(number + 1))
      if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3)
        found.push([word, other]);
  });
}
return found;
"""


def _charts(*figures: Markup | None) -> Markup:
    return element("div", figures, class_="charts")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    bars = [
        Bar("recall_at_k", 89.7, 0, 0.3),
        Bar("reciprocal_rank.py:ReciprocalRank(tau=0.02)", 100.0),
        Bar("no training", 0.5, 1),
    ]
    rates = Line("run", [0, 60], [12_000.0, 98_000.0])
    trials = [Point(f"trial {n}", 10.0 ** (-n), 0.96 + n / 400, n == 1) for n in range(1, 5)]
    words = {"x_label": "learning rate", "y_label": "validation r@1"}
    pairs = histogram_pair(
        (np.ones(4), np.ones(4)), np.linspace(-0.5, 1, 5), title="t", names=("same", "other"), x_label="similarity"
    )
    long = [[breakable("x" * 190), breakable("Packages__" + "y" * 190), "6 of 30", "20 %"]]
    grid = table(["class", "is taken for", "queries", "share"], long, caption="c", numbers=False)
    body = join(
        _charts(line_chart([rates], title="t", x_label="step", y_label="images per second", from_zero=True)),
        _charts(*[scatter_chart(trials, title="t", log=True, percent=True, **words)] * 2, pairs),
        _charts(bar_chart(bars, ["trained", "not"], title="t", value="r@1")),
        element("div", grid, class_="by-class"),
    )
    path = tmp_path_factory.mktemp("layout") / "page.html"
    path.write_text(document("t", body), "utf-8")
    return path


@pytest.mark.parametrize("width", [1280, 700, 360])
def test_words_of_charts_do_not_touch(chromium: Browser, page: Path, width: int) -> None:
    chromium.look(width, 900, "light")
    chromium.open(page)
    found = chromium.run(_COLLISIONS)
    assert not found, found


@pytest.mark.parametrize("width", [1280, 700, 360])
def test_all_charts_have_one_scale_and_a_lone_one_its_numbers_beside_it(
    chromium: Browser, page: Path, width: int
) -> None:
    chromium.look(width, 900, "light")
    chromium.open(page)
    widths = chromium.run("return [...document.querySelectorAll('.chart')].map(c => c.getBoundingClientRect().width)")
    assert len(widths) == 5
    assert max(widths) - min(widths) < 1
    cards = "const [a, b] = ['.charts', '.charts > figure'].map(s => document.querySelector(s).offsetWidth);"
    assert chromium.run(f"{cards} return b / a") > 0.95
    beside = chromium.run("return [...document.querySelectorAll('.charts table')].map(t => t.checkVisibility())")
    assert beside == ([True, False, False, True, True] if width > 960 else [False] * 5)
    sizes = "getComputedStyle(t).fontSize.replace('px', '') * c.getBoundingClientRect().width / c.viewBox.baseVal.width"
    texts = f"[...document.querySelectorAll('.chart')].flatMap(c => [...c.querySelectorAll('text')].map(t => {sizes}))"
    assert chromium.run(f"return Math.min(...{texts})") > 9, "pixels"


@pytest.mark.parametrize("width", [1280, 360])
def test_long_class_names_leave_the_other_columns_in_view(chromium: Browser, page: Path, width: int) -> None:
    chromium.look(width, 900, "light")
    chromium.open(page)
    assert chromium.run(
        "const region = document.querySelector('.by-class .scroll'); return region.scrollWidth <= region.clientWidth"
    )
    first, second = chromium.run(
        "return [...document.querySelectorAll('.by-class tbody tr > *')].slice(0, 2).map(c => c.offsetWidth)"
    )
    assert 0.5 < first / second < 2


def test_no_column_is_lost_on_paper(chromium: Browser, runs: Path, tmp_path: Path) -> None:
    path = write_report([runs / "first", runs / "second"], tmp_path / "two.html")
    chromium.look(718, 1000, "light")  # A4 between its margins
    chromium.open(path)
    chromium.devtools("Emulation.setEmulatedMedia", media="print")
    try:
        widths = chromium.run(
            "return [...document.querySelectorAll('table')].filter(t => t.checkVisibility())"
            ".map(t => t.getBoundingClientRect().right)"
        )
    finally:
        chromium.devtools("Emulation.setEmulatedMedia", media="")
    assert len(widths) > 4
    assert max(widths) <= 718


def test_paper_is_white_on_a_dark_system_too(chromium: Browser, page: Path) -> None:
    chromium.look(1280, 900, "dark")
    chromium.open(page)
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    chromium.devtools("Emulation.setEmulatedMedia", media="print", features=dark)
    try:
        found = chromium.run("const s = getComputedStyle(document.body); return [s.color, s.colorScheme]")
    finally:
        chromium.devtools("Emulation.setEmulatedMedia", media="", features=dark)
    assert found == ["rgb(28, 27, 25)", "light"]
