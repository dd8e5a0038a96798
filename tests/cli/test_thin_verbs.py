"""Verbs parse, call one public function and print: held by their code, and for some by what arrives there.

``cli/paper.py`` and ``cli/serve.py`` are run here with a stand-in for what they call.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import recollect
from recollect.cli.app import app
from recollect.search.store_protocol import StoreError

ROOM = Path(recollect.__file__).parent / "cli"
SHARED = ("__init__.py", "app.py", "last_net.py", "options.py", "eval_tables.py")
"""Files that are not of one verb."""
SHOWING = {
    "recollect.data.summary",  # how many files were used and left out, in a sentence
    "recollect.config.overrides.as_mapping",
    "recollect.models.weight_files.find_weights",
    "recollect.models.weight_files.FOLDER_VARIABLE",
}
"""What turns results into text and is used for nothing else."""
MOST_STATEMENTS = 20
"""In the body of a command, nested ones included."""


def _verbs() -> list[Path]:
    return sorted(path for path in ROOM.glob("*.py") if path.name not in SHARED)


def _documented() -> dict[str, set[str]]:
    """The table of ``docs/extend.md``: command → functions."""
    page = (Path(__file__).parents[2] / "docs" / "extend.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `recollect (\w+)` \| (.+) \|$", page, re.MULTILINE)
    return {verb: set(re.findall(r"`([A-Za-z_]+)`", functions)) for verb, functions in rows}


def _from_the_package(tree: ast.Module) -> set[str]:
    """Names that a file takes from the package at run time, dotted, but for those of ``cli`` and ``common``."""
    hidden = {
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for child in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if node in hidden:
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "recollect":
            if not node.module.startswith(("recollect.cli", "recollect.common")):
                found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "recollect":
            found.add(f"recollect.{node.attr}")
    return found


@pytest.mark.parametrize("path", _verbs(), ids=lambda path: path.stem)
def test_a_verb_calls_its_public_function_and_nothing_below_it(path: Path) -> None:
    used = _from_the_package(ast.parse(path.read_text(encoding="utf-8"))) - SHOWING
    functions = {name.removeprefix("recollect.") for name in used}
    assert functions, "it calls something"
    assert functions <= set(recollect.__all__), "only public functions"
    assert functions <= _documented()[path.stem], "the table of docs/extend.md names what it calls"


@pytest.mark.parametrize("path", _verbs(), ids=lambda path: path.stem)
def test_a_command_has_few_statements(path: Path) -> None:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and any("command" in ast.unparse(mark) for mark in node.decorator_list):
            inner = [child for part in node.body for child in ast.walk(part) if isinstance(child, ast.stmt)]
            assert len(inner) <= MOST_STATEMENTS, len(inner)


def test_every_command_is_documented_with_functions_that_exist() -> None:
    commands = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    documented = _documented()
    assert set(documented) == commands == {path.stem for path in _verbs()}
    for verb, functions in documented.items():
        assert functions <= set(recollect.__all__), verb
        for name in functions:
            assert (getattr(recollect, name).__doc__ or "").strip(), name


def test_paper_hands_on_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def written(runs: list[Path], out: Path, *, overwrite: bool) -> Path:
        seen.append((runs, out, overwrite))
        return out

    monkeypatch.setattr("recollect.studies.paper_page.write_paper", written)
    for words in (["paper"], ["paper", "a", "b", "--out", "c.html", "--overwrite"]):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        assert done.stdout.strip() == str(seen[-1][1])
    assert seen == [([], Path("paper.html"), False), ([Path("a"), Path("b")], Path("c.html"), True)]


def test_serve_tells_where_and_keeps_the_token_to_writers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Opened:
        address = "shop.index"

        def __enter__(self) -> Opened:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def __len__(self) -> int:
            return 1234

    made: list[tuple[Any, Any]] = []
    seen: list[dict[str, Any]] = []

    def create(index: Any, limits: Any, on_ready: Any) -> str:
        made.append((limits, on_ready))
        return "app"

    monkeypatch.setattr("recollect.search.serving.Index.open", lambda *words, **more: Opened())
    monkeypatch.setattr("recollect.search.service.create_app", create)
    monkeypatch.setattr("recollect.search.batching.warm_up", lambda index: None)
    monkeypatch.setattr("uvicorn.run", lambda app, **options: (made[-1][1](), seen.append(options)))
    monkeypatch.delenv("RECOLLECT_TOKEN", raising=False)
    done = CliRunner().invoke(app, ["serve", "shop.index", "--host", "::1", "--port", "81", "--allow-host", "a.org"])
    assert done.exit_code == 0, done.output
    assert "1,234 images" in done.output
    assert "http://[::1]:81/" in done.stdout
    assert (made[0][0].token, seen[0]["port"]) == (None, 81)
    assert "a.org" in made[0][0].hosts
    (tmp_path / "token").write_text("a-secret-of-enough-length-0123456789\n")
    done = CliRunner().invoke(app, ["serve", "shop.index", "--write", "--token-file", str(tmp_path / "token")])
    assert made[1][0].token == "a-secret-of-enough-length-0123456789"
    assert "a-secret" not in done.output
    done = CliRunner().invoke(app, ["serve", "shop.index", "--write"])
    assert made[2][0].token in done.stderr
    assert made[2][0].token not in done.stdout

    def damaged(index: object) -> None:
        raise StoreError("shop.index: a damaged one.")

    monkeypatch.setattr("recollect.search.batching.warm_up", damaged)
    done = CliRunner().invoke(app, ["serve", "shop.index"])
    assert isinstance(done.exception, StoreError), "before the server starts, which would show a traceback"
    assert len(seen) == 3
