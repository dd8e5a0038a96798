"""The rooms of the package: imports go down only, and no file imports itself through others."""

from __future__ import annotations

import ast
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import recollect

SOURCE = Path(recollect.__file__).parent
TESTS = Path(__file__).parent

LAYERS = (
    {"common"},
    {"data"},
    {"models", "losses"},
    {"evaluation"},
    {"step", "config"},
    {"inference"},
    {"training"},
    {"report", "search"},
    {"studies"},
    {"cli"},
)
"""From the lowest. A room imports rooms of lower layers, and itself; the exceptions are below."""

SIDEWAYS = {"recollect.report": {"recollect.search"}}
"""Neighbours of one layer that may be imported."""


@cache
def _imports() -> dict[str, set[str]]:
    """What each module of recollect imports of recollect, at the top or inside functions."""
    paths = {
        ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__"): path
        for path in SOURCE.rglob("*.py")
    }
    imports: dict[str, set[str]] = {name: set() for name in paths}
    for name, path in paths.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                imports[name] |= (inner & paths.keys()) or ({node.module} & paths.keys())
    return imports


def test_imports_go_down() -> None:
    height = {f"recollect.{room}": number for number, layer in enumerate(LAYERS) for room in layer}
    for name, others in _imports().items():
        room, *rooms = (".".join(each.split(".")[:2]) for each in (name, *others))
        for other in {each for each in rooms if each != room and {each, room} <= height.keys()} - SIDEWAYS.get(
            room, set()
        ):
            assert height[other] < height[room], f"{name} imports {other}"


def test_no_file_imports_itself_through_others() -> None:
    TopologicalSorter(_imports()).prepare()


def test_benchmarks_and_tools_import_what_there_is() -> None:
    """They are seldom run: a name that moved would be noticed only then."""
    missing = []
    for path in [path for folder in ("benchmarks", "tools") for path in sorted((TESTS.parent / folder).glob("*.py"))]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "recollect":
                names = [f"from {node.module} import {name.name}" for name in node.names]
                missing += [f"{path.name}: {name}" for name in names if not _can_be_run(name)]
    assert not missing


def _can_be_run(statement: str) -> bool:
    try:
        exec(statement, {})
    except ImportError:
        return False
    return True
