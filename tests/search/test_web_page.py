"""The page of the service in a real browser: upload, click on, filter, threshold, keyboard, narrow, dark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")

from recollect.search import Index
from report.browser import Browser, browser, programs
from report.test_browser import check_layout
from search.live_service import Client, running
from search.toy_model import ToyEncoder, make_photos

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(programs() is None, reason="no chromium with chromedriver is installed"),
]

EVIL = "<img src=x onerror=alert(1)>"
_IDS = "return [...document.querySelectorAll('#results li:not([hidden]) .card')].map(c => c.dataset.id)"
_READY = "return document.querySelectorAll('.examples .card').length"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_photos(tmp_path_factory.mktemp("page") / "photos", classes=6, each=8, size=48)
    (folder / "class5").rename(folder / EVIL.replace("/", ""))
    return folder


@pytest.fixture(scope="module")
def index(photos: Path) -> Iterator[Index]:
    with Index.create(photos.parent / "x.index", ToyEncoder()) as made:
        made.sync(photos)
        made.set_calibration({"same": {"similarity": 0.97}, "similar": {"similarity": 0.6}})
        yield made


@pytest.fixture(scope="module")
def service(index: Index) -> Iterator[Client]:
    with running(index) as opened:
        yield opened


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


def _uploaded(chromium: Browser, service: Client, photo: Path) -> list[str]:
    chromium.visit(f"{service.address}/")
    chromium.until(_READY)
    chromium.choose("#file", photo)
    chromium.until("return document.querySelectorAll('.card[data-similarity]').length")
    found: list[str] = chromium.run(_IDS)
    return found


def test_upload_click_on_and_back(chromium: Browser, service: Client, index: Index, photos: Path) -> None:
    chromium.look(1200, 900, "light")
    photo = photos / "class1" / "2.png"
    chromium.visit(f"{service.address}/")
    chromium.until(_READY)
    examples = chromium.run(_IDS)
    assert len({name.split("/")[0] for name in examples[:6]}) == 6, "images of different labels to begin with"
    assert chromium.run("return [-0.0004, 0.0004].map(s => decimals(s, 3))") == ["0.000", "0.000"]
    found = _uploaded(chromium, service, photo)
    assert found == [match.id for match in index.search(photo, 24)]
    first = chromium.run(
        "const c = document.querySelector('.card'); return [c.textContent.replace(/\\s+/g, ' ').trim(), c.ariaLabel]"
    )
    assert all(text in first[0] for text in ("1.000", "same", "class1", "2.png"))
    assert "similarity 1.00, same" in first[1]
    text = "return document.getElementById('{}').textContent"
    assert chromium.run(text.format("asked")) == "Results for 2.png"
    assert chromium.run(text.format("marks")) == "same from 0.97, similar from 0.60"
    chromium.until(
        "return [...document.images].filter(i => i.loading !== 'lazy').every(i => i.complete && i.naturalWidth)"
    )
    chromium.run("document.querySelectorAll('.card')[3].click()")
    chromium.until(f"return decodeURIComponent(location.hash.slice(1)) === {found[3]!r}")
    expected = [match.id for match in index.search_id(found[3], 24)]
    chromium.until(f"return document.querySelector('.card').dataset.id === {expected[0]!r}")
    assert chromium.run(_IDS) == expected
    assert chromium.run(text.format("asked")) == f"Results for {found[3]}"
    chromium.run("history.back()")
    chromium.until(f"return document.querySelector('.card').dataset.id === {found[0]!r}")
    assert chromium.run(_IDS) == found
    _uploaded(chromium, service, photos / EVIL / "0.png")  # a label does not become an element
    assert chromium.run(f"return document.body.textContent.includes({EVIL!r})")
    assert chromium.run("return document.querySelectorAll('img[src=x]').length") == 0
    assert chromium.log("browser") == []
    asked = chromium.requests()
    assert [address for address in asked if not address.startswith((service.address, "blob:"))] == []


def test_filter_threshold_and_number(chromium: Browser, service: Client, index: Index, photos: Path) -> None:
    photo = photos / "class1" / "2.png"
    _uploaded(chromium, service, photo)
    assert "class3" in chromium.run("return [...document.querySelectorAll('#labels option')].map(o => o.value)")
    change = "const e = document.getElementById('{0}'); e.value = {1!r}; e.dispatchEvent(new Event('{2}'))"
    chromium.run(change.format("label", "class3", "change"))
    kept = [match.id for match in index.search(photo, 24, {"label": "class3"})]
    chromium.until(f"return document.querySelectorAll('.card').length === {len(kept)}")
    assert chromium.run(_IDS) == kept
    chromium.run(change.format("label", "no such", "change"))
    chromium.until("return document.querySelectorAll('.card').length === 0")
    status = "return document.getElementById('status').textContent"
    assert chromium.run(status) == "No other image has the label “no such”."
    chromium.run(change.format("label", "", "change"))
    chromium.until("return document.querySelectorAll('.card').length === 24")
    similar = [match for match in index.search(photo, 24) if match.similarity >= 0.8]
    chromium.run(change.format("threshold", "0.8", "input"))
    assert chromium.run(_IDS) == [match.id for match in similar]
    assert f"{len(similar)} of 24" in chromium.run(status)
    chromium.run(change.format("count", "12", "change"))
    chromium.until("return document.querySelectorAll('.card').length === 12")


def test_the_keyboard_is_enough_and_errors_are_shown(
    chromium: Browser, service: Client, photos: Path, tmp_path: Path
) -> None:
    chromium.look(1200, 900, "light")
    chromium.visit(f"{service.address}/")
    chromium.until(_READY)
    for name, message in (("bad.png", "not a readable image"), ("notes.txt", "That is not an image.")):
        (tmp_path / name).write_bytes(b"not an image")
        chromium.choose("#file", tmp_path / name)
        chromium.until(f"return document.getElementById('status').textContent.includes({message!r})")
    chromium.visit(f"{service.address}/")
    reached = []
    for _ in range(8):
        chromium.press("Tab", 9)
        reached.append(chromium.run("return document.activeElement.id || document.activeElement.className"))
    assert {"file", "camera", "label", "threshold", "count"} <= set(reached)
    found = _uploaded(chromium, service, photos / "class1" / "2.png")
    chromium.run("document.activeElement.blur()")
    chromium.press("ArrowDown", 40)
    chromium.press("ArrowRight", 39)
    assert chromium.run("return document.activeElement.dataset.id") == found[1]
    assert chromium.run("return getComputedStyle(document.activeElement).outlineStyle") != "none"
    clicked = found[1]
    chromium.run("document.activeElement.click()")  # what Enter does on a button
    chromium.until(f"return decodeURIComponent(location.hash.slice(1)) === {clicked!r}")
    chromium.run("document.activeElement.blur()")
    chromium.press("/", 191)
    assert chromium.run("return document.activeElement.id") == "label"
    chromium.press("Escape", 27)
    assert chromium.run("return document.activeElement.tagName") == "BODY"


def test_pictures_are_large_names_are_whole_and_a_missing_picture_is_said(chromium: Browser, tmp_path: Path) -> None:
    long = "a_name_that_would_not_fit_on_one_line_of_a_tile_of_this_width.png"
    photos = make_photos(tmp_path / "p", classes=1, each=3, size=48) / "class0"
    (photos / "0.png").rename(photos / "line\nbreak.png")
    (photos / "1.png").rename(photos / long)
    with Index.create(tmp_path / "x", ToyEncoder()) as index:
        index.sync(photos)
        (photos / "2.png").unlink()
        with running(index) as client:
            chromium.look(1200, 900, "light")
            chromium.visit(f"{client.address}/")
            chromium.until(f"{_READY} === 3")
            chromium.until("return [...document.querySelectorAll('.card img')].every(i => i.complete)")
            shown = chromium.run(
                "return Object.fromEntries([...document.querySelectorAll('.card')].map(c => [c.dataset.id, "
                "[c.querySelector('.frame').textContent.trim(), c.offsetWidth]]))"
            )
            name = chromium.run(
                f"const n = [...document.querySelectorAll('.name')].find(n => n.textContent.includes({long!r}));"
                "return [n.scrollWidth <= n.clientWidth || n.scrollWidth <= n.parentElement.clientWidth, "
                "getComputedStyle(n).textOverflow]"
            )
    assert {key: text for key, (text, _) in shown.items()} == {"line\nbreak.png": "", long: "", "2.png": "no picture"}
    assert all(width > 190 for _, width in shown.values())
    assert name == [True, "clip"]


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (1200, "dark"), (400, "light"), (320, "dark")])
@pytest.mark.release
def test_nothing_is_cut_off_and_all_can_be_read(
    chromium: Browser, service: Client, photos: Path, tmp_path: Path, width: int, scheme: str
) -> None:
    chromium.look(width, 900, scheme)
    _uploaded(chromium, service, photos / "class1" / "2.png")
    check_layout(chromium, width, 60)
    assert chromium.screenshot(tmp_path / f"page-{width}-{scheme}.png").stat().st_size > 10_000
