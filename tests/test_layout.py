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

SIDEWAYS = {("report", "search")}
"""Neighbours of one layer: the first may import the second."""


def _files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(_text(path))


def _room(path: Path) -> str:
    parts = path.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else ""


def _imported(path: Path) -> set[str]:
    """Rooms of recollect that a file imports, at the top or inside functions."""
    rooms = set()
    for node in ast.walk(_tree(path)):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
            if node.module == "recollect":
                names = [f"recollect.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        rooms |= {name.split(".")[1] for name in names if name.startswith("recollect.")}
    return {room for room in rooms if any(room in layer for layer in LAYERS)}


def test_imports_go_down() -> None:
    height = {room: number for number, layer in enumerate(LAYERS) for room in layer}
    upwards = []
    for path in _files():
        room = _room(path)
        if not room or room not in height:
            continue
        for other in _imported(path) - {room}:
            if height[other] >= height[room] and (room, other) not in SIDEWAYS:
                upwards.append(f"{path.relative_to(SOURCE)} imports {other}")
    assert not upwards


def test_no_file_imports_itself_through_others() -> None:
    modules = {
        ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__") for path in _files()
    }
    imports: dict[str, set[str]] = {}
    for path in _files():
        own = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
        imports[own] = set()
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.ImportFrom) and node.module:
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                imports[own] |= (inner & modules) or ({node.module} & modules)
    TopologicalSorter(imports).prepare()


def test_benchmarks_and_tools_import_what_there_is() -> None:
    """They are seldom run: a name that moved would be noticed only then."""
    missing = []
    for path in [path for folder in ("benchmarks", "tools") for path in sorted((TESTS.parent / folder).glob("*.py"))]:
        for node in ast.walk(ast.parse(_text(path))):
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
