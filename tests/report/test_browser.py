"""The page in a real browser: nothing fetched, nothing complained about, nothing cut off, readable in light and dark."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from recollect.report import write_report
from report.browser import Browser, programs

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
    layout = chromium.run(_STICKING_OUT)
    assert layout["out"] == []
    assert layout["page"] <= layout["window"] == width
    contrast = chromium.run(_LOW_CONTRAST)
    assert contrast["found"] == []
    assert contrast["seen"] > 200
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
