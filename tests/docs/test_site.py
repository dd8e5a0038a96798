"""The documentation site: strict, complete, and searchable from a folder without a network."""

from __future__ import annotations

import dataclasses
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from recollect.config.schema import Config
from report import browser as browsers

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.release


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("without the extra docs")
    place = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(place)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return place


def test_every_setting_and_verb_is_in_the_reference(site: Path) -> None:
    settings = (site / "reference" / "settings.html").read_text("utf-8")
    for group in dataclasses.fields(Config):
        part = getattr(Config(), group.name)
        for item in dataclasses.fields(part) if dataclasses.is_dataclass(part) else ():
            assert f"{group.name}.{item.name}" in settings
    commands = (site / "reference" / "commands.html").read_text("utf-8")
    assert "recollect train" in commands
    assert "recollect data verify" in commands


def test_search_works_from_a_folder_without_a_network(site: Path) -> None:
    if browsers.programs() is None:
        pytest.skip("no chromium with chromedriver")
    with browsers.browser() as browser:
        browser.open(site / "index.html")
        browser.run(
            "const field = document.querySelector('.md-search__input'); field.focus(); field.value = 'whitening';"
            "field.dispatchEvent(new KeyboardEvent('keyup', {bubbles: true})); return true"
        )
        assert browser.until("return document.querySelectorAll('.md-search-result__item').length", 300)
        assert all(address.startswith(("file:", "data:", "blob:")) for address in browser.requests())
