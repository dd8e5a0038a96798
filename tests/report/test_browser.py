"""Pages in a real browser: nothing fetched or cut off, readable in light, dark and on paper, by keyboard and pointer."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from recollect.report.charts import Bar, Line, Point, bar_chart, line_chart, scatter_chart, similarity_charts
from recollect.report.markup import Markup, breakable, element, join, table
from recollect.report.page import document, write_report
from report.browser import Browser, programs
from report.report_runs import made_result

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(programs() is None, reason="no chromium with chromedriver is installed"),
]

# Text against the first opaque ground behind it, by WCAG's formula; 4.5 is AA for text of normal size.
_LOW_CONTRAST = """
const channel = c => { c /= 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
const light = rgb => 0.2126 * channel(rgb[0]) + 0.7152 * channel(rgb[1]) + 0.0722 * channel(rgb[2]);
const parse = text => (text.match(/[\\d.]+/g) || []).map(Number);
const found = [];
let seen = 0;
document.querySelectorAll('details').forEach(d => d.open = true);
for (const element of document.querySelectorAll('body *')) {
  const own = [...element.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
  if (!own || element.closest('.skip, script, dialog, .missing') || !element.getClientRects().length) continue;
  const style = getComputedStyle(element);
  const ink = parse(element.closest('svg') ? style.fill : style.color);
  let ground = null;
  for (let at = element; at && !ground; at = at.parentElement) {
    const colour = parse(getComputedStyle(at).backgroundColor);
    if (colour.length === 3 || colour[3] === 1) ground = colour;
  }
  const [a, b] = [light(ink), light(ground || [255, 255, 255])].sort((x, y) => y - x);
  const ratio = (a + 0.05) / (b + 0.05);
  seen += 1;
  if (ratio < 4.5) found.push([element.tagName, ratio, element.textContent.slice(0, 40)]);
}
return {seen, found};
"""

# What sticks out of the window sideways, unless a scrolling region around it takes care of it.
_STICKING_OUT = """
const out = [];
for (const element of document.querySelectorAll('body *')) {
  if (element.closest('.skip')) continue;
  const box = element.getBoundingClientRect();
  if (box.right <= innerWidth + 1 && box.left >= -1) continue;
  let inside = false;
  for (let at = element.parentElement; at; at = at.parentElement)
    if (['auto', 'scroll', 'hidden'].includes(getComputedStyle(at).overflowX)) inside = true;
  if (!inside) out.push([element.tagName, box.left, box.right]);
}
return {out, page: document.documentElement.scrollWidth, window: innerWidth};
"""


@pytest.fixture(scope="module")
def page(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    copies = [Path(shutil.copytree(made / name, folder / name)) for name in ("first", "second")]
    return write_report(copies, folder / "report.html")


def check_layout(chromium: Browser, width: int, texts: int) -> None:
    """Nothing sticks out of the page, and all of more than so many texts can be read."""
    layout, contrast = chromium.run(_STICKING_OUT), chromium.run(_LOW_CONTRAST)
    assert (layout["out"], contrast["found"]) == ([], [])
    assert layout["page"] <= layout["window"] == width
    assert contrast["seen"] > texts


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (1200, "dark"), (400, "light"), (320, "dark")])
@pytest.mark.release
def test_the_page_stands_on_its_own(chromium: Browser, page: Path, tmp_path: Path, width: int, scheme: str) -> None:
    chromium.look(width, 900, scheme)
    chromium.open(page)
    assert chromium.log("browser") == []
    asked = chromium.requests()
    assert asked[0] == page.as_uri()
    assert [address for address in asked[1:] if not address.startswith("data:image/")] == []
    assert len(asked) > 3
    check_layout(chromium, width, 200)
    ground = chromium.run("return getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(23, 22, 20)") == (scheme == "dark")
    image = chromium.screenshot(tmp_path / "page.png")
    assert image.stat().st_size > 20_000
    assert chromium.run("return [...document.images].every(i => i.complete && i.naturalWidth > 0)")
    assert chromium.run(
        "return [...document.querySelectorAll('.pic')].every(p => getComputedStyle(p).backgroundImage.startsWith('url'))"
    )


def test_a_class_name_does_not_become_an_element(chromium: Browser, page: Path) -> None:
    chromium.open(page)
    assert chromium.run("return document.querySelectorAll('img[src=x], body script').length") == 1
    assert chromium.run("return document.querySelector('main').textContent.includes('<img src=x onerror=alert(1)>')")
    assert chromium.run("return !/[\\u202a-\\u202e\\u2066-\\u2069]/.test(document.documentElement.outerHTML)")
    # What the script writes is text too: the file's name in the dialog, the class in the filter.
    chromium.run("[...document.querySelectorAll('.pic')].find(p => p.title.includes('<script>')).click()")
    assert "<script>alert(1)<" in chromium.run("return document.querySelector('dialog dd').textContent")
    assert chromium.run("return document.querySelectorAll('dialog script, dialog img').length") == 0
    assert chromium.log("browser") == []


def test_pictures_enlarge_with_the_keyboard(chromium: Browser, page: Path) -> None:
    chromium.look(1200, 900, "light")
    chromium.open(page)
    chromium.run("document.querySelector('.pic[tabindex=\"0\"]').focus()")
    chromium.press("ArrowRight", 39)
    label = chromium.run("return document.activeElement.getAttribute('aria-label')")
    chromium.press("Enter", 13)
    assert chromium.run("return document.querySelector('dialog').open")
    told = chromium.run("return document.querySelector('dialog dl').textContent")
    assert all(word in told for word in ("File", "Class", "Similarity"))
    assert chromium.run("return document.querySelector('.big-picture').getAttribute('aria-label')") == label
    assert chromium.run("return document.querySelector('.big-picture').getBoundingClientRect().width") > 300
    chromium.press("ArrowRight", 39)
    assert chromium.run("return document.querySelector('.big-picture').getAttribute('aria-label')") != label
    chromium.press("Escape", 27)
    assert not chromium.run("return document.querySelector('dialog').open")
    assert chromium.run("return document.activeElement.matches('.pic')")  # back where it was


def test_rows_are_filtered_by_class(chromium: Browser, page: Path) -> None:
    chromium.open(page)
    typed = "const f = document.getElementById('filter'); f.value = {}; f.dispatchEvent(new Event('input'));"
    count = "return [...document.querySelectorAll('[data-classes]')].filter(e => !e.hidden).length"
    everything = chromium.run(count)
    chromium.run(typed.format("'test-04'"))
    some = chromium.run(count)
    assert 0 < some < everything
    assert "rows" in chromium.run("return document.getElementById('filtered').textContent")
    assert chromium.run(
        "const rows = [...document.querySelectorAll('[data-classes]')];"
        "return rows.every(row => row.hidden === !row.dataset.classes.includes('test-04'))"
    )
    # Rows of tables are known by the classes in them, not by their numbers; a whole name is that class alone.
    shown = "return [...document.querySelectorAll('.by-class tbody tr')].filter(r => !r.hidden).map(r => r.textContent)"
    assert all("test-04" in row for row in chromium.run(shown))
    chromium.run(typed.format("'%'"))
    assert chromium.run(shown) == []
    chromium.run(typed.format("'TEST-0'"))  # not test-00, which contains it
    assert chromium.run(
        "const rows = [...document.querySelectorAll('[data-classes]')];"
        "return rows.every(row => row.hidden === !JSON.parse(row.dataset.classes).includes('test-0'))"
    )
    assert 0 < chromium.run(count) < everything
    chromium.run(typed.format("''"))
    assert chromium.run(count) == everything


def test_the_map_answers_to_pointer_and_keys(chromium: Browser, page: Path) -> None:
    chromium.look(1200, 900, "dark")
    chromium.open(page)
    assert chromium.run("return document.querySelectorAll('canvas.plane').length") == 3
    chromium.run("document.querySelector('canvas.plane').focus()")
    before = chromium.until("return document.querySelector('canvas.plane').toDataURL()")
    for key, code in (("+", 187), ("ArrowRight", 39), ("+", 187)):
        chromium.press(key, code)
    tip = chromium.until("const t = document.querySelector('.tip'); return t.hidden ? '' : t.textContent")
    assert ".png" in tip
    chromium.until(f"return document.querySelector('canvas.plane').toDataURL() !== {before!r}")
    assert chromium.log("browser") == []


def test_without_its_script_the_page_says_everything(chromium: Browser, page: Path, tmp_path: Path) -> None:
    chromium.look(1200, 900, "light")
    chromium.devtools("Emulation.setScriptExecutionDisabled", value=True)
    try:
        chromium.open(page)
        shown = "document.querySelectorAll('img.plane').length"
        found = chromium.devtools(
            "Runtime.evaluate", expression=f"[{shown}, !document.querySelector('canvas, dialog')]+''"
        )
        assert found["result"]["value"] == "3,true"
        hidden = chromium.devtools("Runtime.evaluate", expression="document.querySelector('.filter').hidden")
        assert hidden["result"]["value"] is True
        assert chromium.screenshot(tmp_path / "page.png").stat().st_size > 20_000
    finally:
        chromium.devtools("Emulation.setScriptExecutionDisabled", value=False)


def test_the_keyboard_reaches_everything(chromium: Browser, page: Path) -> None:
    chromium.look(1200, 900, "light")
    chromium.open(page)
    reached = []
    for _ in range(400):
        chromium.press("Tab", 9)
        here = chromium.run(
            "const e = document.activeElement; const s = getComputedStyle(e);"
            "return [e.tagName, e.textContent.slice(0, 30), s.outlineStyle, e.getBoundingClientRect().left]"
        )
        if here[0] == "BODY":
            break
        assert here[2] != "none", f"nothing shows that {here[:2]} has the focus"
        reached.append(here)
    assert reached[0][1] == "Skip to the content"
    assert reached[0][3] >= 0  # visible once it has the focus
    names = [tag for tag, *_ in reached]
    assert names.count("A") == 11
    assert names.count("SUMMARY") >= 4
    assert names.count("DIV") >= 5  # tables, so that wide ones can be scrolled
    assert names.count("INPUT") == 1
    assert names.count("CANVAS") == 3
    # A row of pictures is one stop; arrow keys go on inside.
    assert 5 < names.count("SPAN") < chromium.run("return document.querySelectorAll('[data-pics]').length + 1")


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
def charts_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
    model, images = made_result("t", 0.5)
    long = [[breakable("x" * 190), breakable("Packages__" + "y" * 190), "6 of 30", "20 %"]]
    grid = table(["class", "is taken for", "queries", "share"], long, caption="c", numbers=False)
    body = join(
        _charts(line_chart([rates], title="t", x_label="step", y_label="images per second", from_zero=True)),
        _charts(*[scatter_chart(trials, title="t", log=True, percent=True, **words)] * 2),
        similarity_charts([model], images),
        _charts(bar_chart(bars, ["trained", "not"], title="t", value="r@1")),
        _charts(line_chart([batches], title="t", y_label="r@1", percent=True, log_ticks=batches.x, **long_name)),
        element("div", grid, class_="by-class"),
    )
    path = tmp_path_factory.mktemp("layout") / "page.html"
    path.write_text(document("t", body), "utf-8")
    return path


@pytest.mark.parametrize("width", [1280, 700, 360])
def test_words_of_charts_do_not_touch(chromium: Browser, charts_page: Path, width: int) -> None:
    chromium.look(width, 900, "light")
    chromium.open(charts_page)
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


def test_paper_is_white_on_a_dark_system_too(chromium: Browser, charts_page: Path) -> None:
    chromium.look(1280, 900, "dark")
    chromium.open(charts_page)
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    chromium.devtools("Emulation.setEmulatedMedia", media="print", features=dark)
    try:
        found = chromium.run("const s = getComputedStyle(document.body); return [s.color, s.colorScheme]")
    finally:
        chromium.devtools("Emulation.setEmulatedMedia", media="", features=dark)
    assert found == ["rgb(28, 27, 25)", "light"]
