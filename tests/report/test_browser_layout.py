"""Charts, tables and paper in a real browser: no text over another or cut off, one scale, dark text on paper."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from recollect.report.charts import Bar, Line, Point, bar_chart, line_chart, scatter_chart, similarity_chart
from recollect.report.markup import Markup, breakable, element, join, table
from recollect.report.page import document, write_report
from report.browser import Browser, programs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(programs() is None, reason="no chromium with chromedriver is installed"),
]

# Pairs of words of one chart that touch, and words that stick out of it. How tall a line is differs by font; no letter
# reaches higher above its base line than 0.8 of the font size or lower than 0.25.
_COLLISIONS = """
const found = [];
for (const chart of document.querySelectorAll('svg.chart')) {
  const frame = chart.getBoundingClientRect();
  const words = [...chart.querySelectorAll('text')].map(text => {
    const size = parseFloat(getComputedStyle(text).fontSize), base = text.y.baseVal[0].value, box = text.getBBox();
    const corners = [[box.x, base - 0.8 * size], [box.x + box.width, base + 0.25 * size]].map(
      ([x, y]) => new DOMPoint(x, y).matrixTransform(text.getScreenCTM()));
    const [left, right] = corners.map(corner => corner.x).sort((a, b) => a - b);
    const [top, bottom] = corners.map(corner => corner.y).sort((a, b) => a - b);
    return [text.textContent, {left, right, top, bottom}];
  });
  words.forEach(([word, a], number) => {
    if (a.left < frame.left || a.right > frame.right || a.top < frame.top || a.bottom > frame.bottom)
      found.push([word, 'cut off']);
    for (const [other, b] of words.slice(number + 1))
      if (a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom) found.push([word, other]);
  });
}
return found;
"""

# Letters as wide as a typewriter's, wider than those of the fonts that browsers choose: the outcome is the same on any machine.
_WIDE = """
for (const text of document.querySelectorAll('.chart text'))
  text.setAttribute('textLength', 0.605 * text.textContent.length + 'em')
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
    batches = Line("run", [16.0 * 2**n for n in range(11)], [0.9] * 11)
    long_name = {"x_label": "Images of WWW per batch, model.head.option_" + "m" * 40}
    words = {"x_label": "learning rate", "y_label": "validation r@1"}
    pairs = similarity_chart(np.full((2, 4), 0.25), np.linspace(-0.5, 1, 5), title="t", top=0.25)
    long = [[breakable("x" * 190), breakable("Packages__" + "y" * 190), "6 of 30", "20 %"]]
    grid = table(["class", "is taken for", "queries", "share"], long, caption="c", numbers=False)
    body = join(
        _charts(line_chart([rates], title="t", x_label="step", y_label="images per second", from_zero=True)),
        _charts(*[scatter_chart(trials, title="t", log=True, percent=True, **words)] * 2, pairs),
        _charts(bar_chart(bars, ["trained", "not"], title="t", value="r@1")),
        _charts(line_chart([batches], title="t", y_label="r@1", percent=True, log_ticks=batches.x, **long_name)),
        element("div", grid, class_="by-class"),
    )
    path = tmp_path_factory.mktemp("layout") / "page.html"
    path.write_text(document("t", body), "utf-8")
    return path


@pytest.mark.parametrize("width", [1280, 700, 360])
def test_words_of_charts_do_not_touch(chromium: Browser, page: Path, width: int) -> None:
    chromium.look(width, 900, "light")
    chromium.open(page)
    chromium.run(_WIDE)
    found = chromium.run(_COLLISIONS)
    assert not found, found


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
