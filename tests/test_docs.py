"""The Python in README and docs runs as written, file by file, in an empty folder; links lead somewhere."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in PAGES if page.exists()]


def _blocks(page: Path) -> list[tuple[int, str]]:
    """Python blocks of a page with the line they begin at."""
    text = page.read_text(encoding="utf-8")
    found = re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [(text[: match.start()].count("\n") + 2, match.group(1)) for match in found]


def _folders_the_pages_speak_of(here: Path) -> None:
    """``photos``: 8 classes of 5 images; ``revisited``: a benchmark of 3 images and 2 queries, with distractors."""
    generator = np.random.default_rng(0)
    for label in range(8):
        (here / "photos" / f"class{label}").mkdir(parents=True)
        for number in range(5):
            pixels = generator.integers(0, 256, (40, 48, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(here / "photos" / f"class{label}" / f"{number}.jpg")
    root = here / "revisited"
    names = ["roxford5k/jpg/a.jpg", "roxford5k/jpg/b.jpg", "roxford5k/jpg/q.jpg", "revisitop1m/jpg/d.jpg"]
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 30)).save(root / name)
    truth = [{"bbx": [1.0, 2.0, 20.0, 25.0], "easy": [0], "hard": [1], "junk": []}]
    content = {"imlist": ["a", "b"], "qimlist": ["q"], "gnd": truth}
    (root / "roxford5k" / "gnd_roxford5k.pkl").write_bytes(pickle.dumps(content))
    (root / "revisitop1m" / "revisitop1m.txt").write_text("d.jpg\n")


@pytest.mark.filterwarnings("ignore::recollect.common.errors.DataWarning")
@pytest.mark.parametrize("page", [p for p in PAGES if _blocks(p)], ids=lambda p: p.name)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _folders_the_pages_speak_of(tmp_path)
    names: dict[str, object] = {"__name__": "__docs__"}
    for line, source in _blocks(page):
        # Padding puts the page's own line numbers into a traceback.
        exec(compile("\n" * (line - 1) + source, str(page), "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_within_the_project_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)", text)
    broken = [t for t in targets if "://" not in t and not t.startswith("mailto:") and not (page.parent / t).exists()]
    assert not broken
