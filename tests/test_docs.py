"""The Python in README and docs runs as written, file by file, in an empty folder; commands exist; links lead somewhere.

Tutorials are run whole, commands and Python, by ``tests/docs/test_tutorials.py``.
"""

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
@pytest.mark.parametrize(
    "page", [p for p in PAGES if _blocks(p) and p.parent.name != "tutorials"], ids=lambda p: p.name
)
@pytest.mark.release
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _folders_the_pages_speak_of(tmp_path)
    names: dict[str, object] = {"__name__": "__docs__"}
    for line, source in _blocks(page):
        # Padding puts the page's own line numbers into a traceback.
        exec(compile("\n" * (line - 1) + source, str(page), "exec"), names)


def _commands(page: Path) -> list[str]:
    """Lines of a page that call recollect, without the remark behind them."""
    text = re.sub(r"^```(?:python|yaml)\n.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    text = text.replace("\\\n", " ")
    lines = re.findall(r"^(?:.*-m )?(recollect [a-z].*)$", re.sub(r"^ +", "", text, flags=re.MULTILINE), re.MULTILINE)
    lines += re.findall(r"`(recollect [a-z][^`]*)`", text)
    return [re.split(r"\s{2,}(?=[^-\s])|\s#", line)[0] for line in lines]


def _verbs(*, valued: bool = False) -> dict[str, set[str]]:
    """Every verb with its options; ``valued``: those that need a value."""
    import typer.main

    from recollect.cli.main import app

    commands = dict(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    commands |= {f"data {name}": command for name, command in commands["data"].commands.items()}
    return {
        name: {o for p in command.params if not (valued and getattr(p, "is_flag", True)) for o in p.opts}
        for name, command in commands.items()
    }


def _without_value(words: list[str], valued: set[str]) -> list[str]:
    following = [*words[1:], "--"]
    return [word for word, after in zip(words, following, strict=True) if word in valued and after.startswith("--")]


def _impossible(page: Path) -> list[str]:
    """Verbs, options and recipes that a page's commands name and that there are none of."""
    from recollect.config.recipes import available_recipes

    verbs, valued, recipes = _verbs(), _verbs(valued=True), set(available_recipes())
    families = {name.split("/")[0] for name in recipes}
    wrong = []
    for line in _commands(page):
        words = line.replace("[", "").replace("]", "").split()[1:]
        verb = " ".join(words[:2]) if " ".join(words[:2]) in verbs else words[0]
        if verb not in verbs:
            wrong.append(f"no verb: {line}")
            continue
        wrong += [f"no value for {option}: {line}" for option in _without_value(words, valued[verb])]
        options = {word.split("=")[0] for word in words if re.fullmatch(r"--?[a-z][a-z-]*(=.*)?", word)}
        wrong += [f"no option {option}: {line}" for option in sorted(options - verbs[verb] - {"--help", "--trust"})]
        named = [word for word in words if "/" in word and word.split("/")[0] in families]
        if verb == "train" and words[1:] and words[1].islower() and not words[1].startswith("-"):
            named.append(words[1])
        # A+B lays a file that is only inherited from over a recipe.
        known = {*recipes, *(f"{name}+{over}" for name in recipes for over in ("_as_released", "_as_released_2024"))}
        wrong += [f"no recipe {name}: {line}" for name in named if name not in known and not name.endswith(".yaml")]
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_commands_exist(page: Path) -> None:
    assert _impossible(page) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_within_the_project_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)", text)
    broken = [t for t in targets if "://" not in t and not t.startswith("mailto:") and not (page.parent / t).exists()]
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_files_that_a_page_names_exist(page: Path) -> None:
    """``room/file.py`` in a page is a file of the package, of one of its rooms or of the project."""
    source = ROOT / "src" / "recollect"
    places = [ROOT, ROOT / "src", source, page.parent, *(room for room in source.iterdir() if room.is_dir())]
    named = set(re.findall(r"`((?:\w+/)+\w+\.py)`", page.read_text(encoding="utf-8"))) - {"room/module.py"}
    assert not [name for name in sorted(named) if not any((place / name).exists() for place in places)]
