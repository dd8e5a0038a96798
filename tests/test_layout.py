"""The rooms of the package: imports go down only, and a name says where a thing lives."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import recollect

SOURCE = Path(recollect.__file__).parent
TESTS = Path(__file__).parent

LAYERS = (
    {"common"},
    {"data", "models", "losses"},
    {"evaluation"},
    {"step", "config"},
    {"inference"},
    {"training"},
    {"report", "search"},
    {"tuning", "studies"},
    {"cli"},
)
"""From the lowest. A room imports rooms of lower layers, and itself; the exceptions are below."""

BESIDE = {("report", "search"), ("studies", "tuning")}
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
            if height[other] >= height[room] and (room, other) not in BESIDE:
                upwards.append(f"{path.relative_to(SOURCE)} imports {other}")
    assert not upwards


def test_every_room_has_its_layer() -> None:
    rooms = {_room(path) for path in _files()} - {""}
    assert rooms == set.union(*LAYERS)


def test_a_file_name_occurs_once() -> None:
    places = defaultdict(list)
    for path in _files():
        if _room(path) != "cli":  # one file per verb, named after it
            places[path.name].append(path.relative_to(SOURCE).as_posix())
    repeated = {name: found for name, found in places.items() if len(found) > 1}
    assert set(repeated) <= {"__init__.py", "reference.py", "registry.py"}, repeated


def test_a_class_name_occurs_once() -> None:
    places = defaultdict(list)
    for path in _files():
        for node in _tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(path.relative_to(SOURCE).as_posix())
    assert not {name: found for name, found in places.items() if len(found) > 1}


def test_files_are_rooms_of_a_sensible_size() -> None:
    lengths = {path.relative_to(SOURCE).as_posix(): len(_text(path).splitlines()) for path in _files()}
    assert not {name: length for name, length in lengths.items() if length > 475}


def test_short_files_join_a_neighbour() -> None:
    """But for the files of verbs, which are named after them."""
    short = [path for path in _files() if len(_text(path).splitlines()) < 40 and _room(path) not in ("", "cli")]
    assert not [path for path in short if path.name != "__init__.py"]


def test_every_module_has_a_test() -> None:
    """A test file whose name begins with the module's, or one that names it: by import, or as ``room/module.py``."""
    texts = {path: _text(path) for path in sorted(TESTS.rglob("*.py"))}
    names = [path.name for path in texts]
    everything = "\n".join(texts.values())
    named = set(re.findall(r"recollect(?:\.\w+)+", everything))
    for package, modules in re.findall(r"from (recollect[\w.]*) import ([^(\n]+)$", everything, re.MULTILINE):
        named |= {f"{package}.{module.split(' as ')[0].strip()}" for module in modules.split(",")}
    without = []
    for path in _files():
        place = path.relative_to(SOURCE)
        dotted = ".".join(("recollect", *place.with_suffix("").parts))
        if not place.parent.name or path.name == "__init__.py" or any(n.startswith(f"test_{path.stem}") for n in names):
            continue
        if dotted not in named and place.as_posix() not in everything:
            without.append(place.as_posix())
    assert not without, "give each a test file, or name it in the one that tests it"


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
