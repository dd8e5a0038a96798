"""Recipe files: found by name, read with their comments, and merged along their inheritance.

A recipe is a stack of layers, each a mapping of settings; a higher layer overrides the ones below. A plain file is one
layer above those it ``inherits``. A file with ``rows`` is a family: every row is a recipe called ``<file>/<row>``, made of
the file's layers, then those of each word of the row's name (``words``), then the row's published numbers, which
``columns`` names. ``docs/recipes.md`` explains it with an example. Comments at the end of a line are kept, so that
``recollect recipes NAME`` can show the source of each value. This file does not know what a setting means:
``resolve.py`` turns the values into a ``Config``.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from recollect.common import plugins
from recollect.common.errors import ConfigError
from recollect.common.reading import parse_yaml_nodes, read_text
from recollect.common.text import did_you_mean

FOLDER = Path(__file__).resolve().parent.parent / "recipes"
_STRUCTURE = frozenset({"inherits", "description", "note", "like", "words", "columns", "rows"})
"""Keys that are not settings."""
_PARTS: dict[str, Any] = {"words": Mapping, "columns": list, "rows": list | None}
"""Those of a family, with the kind of their values."""


@dataclass(frozen=True)
class Layer:
    """Settings from one place.

    Args:
        where: that place, e.g. ``sop.yaml`` or ``sop.yaml: vit-b16``.
        values: nested settings, and texts about them (``description``, ``note``, …).
        node: the part of the YAML file that they were read from. lines: of that file.
        word: the word of a row's name that the layer belongs to; empty for a file.
    """

    where: str
    values: Mapping[str, Any]
    node: yaml.Node | None
    lines: Sequence[str]
    word: str = ""

    def comment(self, key: str) -> str:
        """The comment after the value of a setting, on its line; one after ``{…}`` belongs to everything inside."""
        node, comment = self.node, ""
        for name in (None, *key.split(".")):
            inner = node if name is None else _child(node, name)
            if inner is None:
                break
            around = comment if isinstance(node, yaml.MappingNode) and node.flow_style else ""
            rest = "".join(self.lines[inner.end_mark.line : inner.end_mark.line + 1])[inner.end_mark.column :].strip()
            node, comment = inner, rest.lstrip("# ") if rest.startswith("#") else around
        return "" if isinstance(node, yaml.MappingNode) and not node.flow_style else comment


@dataclass(frozen=True)
class Origin:
    """Where a value was set last, and its comment."""

    where: str
    comment: str = ""


@dataclass(frozen=True)
class Recipe:
    """A recipe with everything it inherits.

    Args:
        name: what ``recollect train`` takes.
        description: one line.
        notes: sentences that belong to it, e.g. that its settings were never published.
        values: nested settings, ``published`` among them.
        layers: what they were merged from, lowest first.
    """

    name: str
    description: str
    notes: tuple[str, ...]
    values: dict[str, Any]
    layers: Sequence[Layer]

    @property
    def trains(self) -> bool:
        """False for a row of the paper that is measured without training."""
        return bool(self.values.get("run", {}).get("epochs") != 0)

    @property
    def published(self) -> dict[str, dict[str, float]]:
        """Published numbers in percent, see ``published_tests``."""
        return published_tests(self.values.get("published"))

    @property
    def origins(self) -> dict[str, Origin]:
        """Where each setting comes from, by its dotted key."""
        return {
            key: Origin(layer.where, layer.comment(key))
            for layer in self.layers
            for key in _leaves(layer.values)
            if key.split(".")[0] not in _STRUCTURE
        }


def available_recipes() -> dict[str, Path]:
    """Built-in recipes by name, with the file of each. Files whose name begins with ``_`` are only inherited from."""
    paths = {}
    for path in sorted(FOLDER.rglob("*.yaml")):
        stem = _name(path, None)
        if "/_" not in f"/{stem}":
            paths.update({f"{stem}/{row}": path for row in _rows(path)} or {stem: path})
    return paths


def load_recipe(name: str | Path) -> Recipe:
    """A recipe by name or path, its inheritance resolved; ``A+B`` is B laid over A, as by ``inherits: [A, B]``.

    Raises:
        ConfigError: no such recipe, a family instead of a recipe, invalid YAML, or circular inheritance.
    """
    first, *over = [str(name)] if Path(name).is_file() else str(name).split("+")
    path, row = find_recipe(first)
    if row is None and (members := list(_rows(path))):
        raise ConfigError(
            f"{first} is a family of {len(members)} recipes: choose one, such as {first}/{members[0]}. recollect recipes "
            f"{first} lists them."
        )
    layers = _stack([first, *over])
    values: dict[str, Any] = {}
    notes: list[str] = []
    for layer in layers:
        _merge(values, {key: value for key, value in layer.values.items() if key not in _STRUCTURE})
        # null removes the notes of lower layers: notes about training do not apply to the untrained network.
        notes = [] if layer.values.get("note", "") is None else notes + _listed(layer.values.get("note"))
    descriptions = [_read(path).values.get("description", "")]
    for word in [] if row is None else row.split("/"):
        texts = [layer.values.get("words", {}).get(word, {}).get("description") for layer in layers]
        descriptions += [text for text in texts if text][-1:]
    own = values.get("name") if row is None and "name" in _read(path).values else _name(path, row)
    values["name"] = "+".join([str(own), *over])
    return Recipe(values["name"], ", ".join(filter(None, descriptions)), tuple(dict.fromkeys(notes)), values, layers)


def published_tests(published: Any) -> dict[str, dict[str, float]]:
    """Published numbers by test set and metric, in percent: ``{"sop/test": {"r@1": 82.8, …}}``.

    A test set is named as in ``recollect eval``, ``DATA/SPLIT``; numbers that a recipe gives without a test set have
    the key ``""``.
    """
    tests: dict[str, dict[str, float]] = {}
    for key, value in published.items() if isinstance(published, Mapping) else ():
        test, numbers = (str(key), value) if isinstance(value, Mapping) else ("", {key: value})
        figures = {str(k): float(v) for k, v in numbers.items() if isinstance(v, int | float)}
        tests.setdefault(test, {}).update(figures)
    return {test: metrics for test, metrics in tests.items() if metrics}


def find_recipes(words: Sequence[str] = ()) -> Recipe | list[Recipe]:
    """The recipe that the words name, or the recipes whose names have every one of them; all without words.

    Args:
        words: a recipe's name, a YAML file, the name of a family, or parts of names.

    Raises:
        ConfigError: there is none; the message has the closest that exists.

    Example:
        >>> all(recipe.name.startswith("cars196") for recipe in find_recipes(["cars196", "r50"]))
        True
    """
    every = available_recipes()
    is_name = len(words) == 1 and (words[0] in every or words[0].endswith((".yaml", ".yml")))
    names = [] if is_name else [name for name in every if all(word.lower() in name for word in words)]
    # If no recipe contains the words, treat them as one name: a user's file, or a misspelt name with a suggestion.
    if not names and "+" not in words[0]:
        names = family(" ".join(words))
    return [load_recipe(name) for name in names] if names else load_recipe(" ".join(words))


def family(name: str | Path) -> list[str]:
    """The names of a family's recipes, in order; none if ``name`` is a recipe itself.

    Raises:
        ConfigError: there is no such recipe or family.
    """
    path, row = find_recipe(name)
    return [] if row is not None else [f"{Path(name).with_suffix('').as_posix()}/{row}" for row in _rows(path)]


def find_recipe(name: str | Path, below: Path | None = None) -> tuple[Path, str | None]:
    """The file of a recipe, and its row there if the file is a family.

    Args:
        name: name of a built-in recipe, or a path; the path of a family is followed by the row, as in ``mine/r50/rsk``.
        below: another folder to search.

    Raises:
        ConfigError: there is no such recipe; the message suggests the closest one.
    """
    path = Path(name)
    # Names of built-in recipes come first; a path with an ending, or a part to inherit from, is the user's own.
    built_in = not path.suffix and "/_" not in f"/{path.as_posix()}"
    for folder in (FOLDER if built_in else None, below, Path(), FOLDER):
        for candidate, row in () if folder is None else _readings(folder / path):
            if candidate.is_file() and (row is None or row in _rows(candidate)):
                return candidate, row
    if str(name) and Path(name).is_dir():
        raise ConfigError(f"{str(name)!r} is a folder, not a recipe: to train on its images, use --data {name}.")
    every = available_recipes()
    close = [other for other in every if path.parts and all(part in other for part in path.parts)]
    hint = f" Did you mean {close[0]}?" if close else did_you_mean(str(name), every)
    raise ConfigError(
        f"there is no recipe {str(name)!r}.{hint} recollect recipes lists them; a path to a YAML file works too."
    )


def _readings(path: Path) -> Iterator[tuple[Path, str | None]]:
    """``a/b/c`` as the file ``a/b/c``, as ``a/b/c.yaml``, as row ``c`` of ``a/b.yaml``, and as row ``b/c`` of ``a``."""
    yield path, None
    for start in (path, *path.parents):
        if start.name:
            rest = path.relative_to(start).as_posix()
            yield start.with_name(f"{start.name}.yaml"), None if rest == "." else rest


def _rows(path: Path) -> Mapping[str, Any]:
    rows: Mapping[str, Any] = _read(path).values.get("rows", {})
    return rows


def _name(path: Path, row: str | None) -> str:
    inside = path.is_relative_to(FOLDER)
    stem = path.relative_to(FOLDER).with_suffix("").as_posix() if inside else path.stem
    return stem if row is None else f"{stem}/{row}"


def _stack(names: Iterable[str], below: Path | None = None, seen: tuple[Path, ...] = ()) -> list[Layer]:
    """All layers of several recipes, lowest first: each recipe is laid over those before it."""
    stack: list[Layer] = []
    for name in names:
        path, row = find_recipe(name, below)
        path = path.resolve()
        if path in seen:
            raise ConfigError(f"{path}: circular inheritance of recipes: {' → '.join(p.name for p in (*seen, path))}.")
        file = _read(path)
        added = [*_stack(map(str, _listed(file.values.get("inherits"))), path.parent, (*seen, path)), file]
        if row is not None:
            words = [layer for word in row.split("/") for layer in _word(word, added, path, ())]
            added += [*words, _published(path, row, added)]
        # A file layered over a row may define more settings for the words of that row's name, as _as_released.yaml does.
        # They are applied at the position of the word, so that later words of the name still override them.
        for word in dict.fromkeys(layer.word for layer in stack if layer.word):
            place = max(number for number, layer in enumerate(stack) if layer.word == word) + 1
            stack[place:place] = _settings_of(word, added)
        stack += added
    return stack


def _settings_of(word: str, stack: Iterable[Layer]) -> list[Layer]:
    """The settings of a word of a row's name, file by file."""
    return [
        Layer(f"{layer.where}: {word}", values, _child(_child(layer.node, "words"), word), layer.lines, word)
        for layer in stack
        if (values := layer.values.get("words", {}).get(word))
    ]


def _word(word: str, stack: list[Layer], path: Path, seen: tuple[str, ...]) -> list[Layer]:
    """The layers of a word of a row's name: those it is ``like``, then its own, file by file."""
    if word in seen:
        raise ConfigError(f"{path}: circular use of 'like' among words: {' → '.join((*seen, word))}.")
    own = _settings_of(word, stack)
    if not own:
        raise ConfigError(f"{path}: the word {word!r} in the name of a row is not defined: add it under 'words'.")
    likes = [part.values["like"] for part in own if "like" in part.values][-1:]
    return [part for like in likes for part in _word(like, stack, path, (*seen, word))] + own


def _published(path: Path, row: str, stack: list[Layer]) -> Layer:
    """The row's name, which recipes that inherit it keep, and its numbers under the names given by ``columns``."""
    numbers = _listed(_rows(path)[row])
    columns = [layer.values["columns"] for layer in stack if "columns" in layer.values][-1:]
    names = [(test, metric) for tests in columns for test, metrics in tests.items() for metric in metrics]
    if numbers and len(numbers) != len(names):
        raise ConfigError(f"{path}: row {row} has {len(numbers)} numbers for {len(names)} columns.")
    published: dict[str, Any] = {"row": _name(path, row)}
    for (test, metric), number in zip(names, numbers, strict=False):
        if number is not None:
            published.setdefault(test, {})[metric] = number
    file = stack[-1]
    return Layer(file.where, {"published": published}, _child(_child(file.node, "rows"), row), file.lines)


def _child(node: yaml.Node | None, name: str) -> yaml.Node | None:
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    return next((value for key, value in pairs if key.value == name), None)


def _read(path: Path) -> Layer:
    """A file as a layer; read again only when it has changed."""
    status = path.stat()
    return _read_once(path.absolute(), status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=256)
def _read_once(path: Path, changed: int, size: int) -> Layer:
    text = read_text(path)
    values, node = parse_yaml_nodes(text, str(path))
    if ".py:" in text:  # a recipe and the code it names are kept together, so paths are relative to the recipe
        values = plugins.map_strings(values, lambda name: plugins.absolute_reference(name, path.parent))
    values = {} if values is None else values
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: a recipe must be a mapping of keys to values, not a {type(values).__name__}.")
    for key, kind in _PARTS.items():
        part = values.get(key, {})
        if not isinstance(part, Mapping) or not all(isinstance(value, kind) for value in part.values()):
            raise ConfigError(f"{path}: {key} must be a mapping, as docs/recipes.md shows it, but is {part!r}.")
    where = path.relative_to(FOLDER).as_posix() if path.is_relative_to(FOLDER) else str(path)
    return Layer(where, values, node, text.splitlines())


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, Mapping) and key != "published":
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def _merge(into: dict[str, Any], values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict) and key != "published":
            _merge(into[key], value)
        else:
            into[key] = copy.deepcopy(value)  # files are read once and shared, so they must not be changed


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [] if value is None else [value]
