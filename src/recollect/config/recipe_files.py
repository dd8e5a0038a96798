"""Recipe files: found by name, read with their comments, and merged along their inheritance.

A recipe is a stack of layers, each a mapping of settings; a higher layer overrides the ones below. A plain file is one
layer above those it ``inherits``. A file with ``rows`` is a family: every row is a recipe called ``<file>/<row>``, made of
the file's layers, then those of each word of the row's name (``words``), then the row's published numbers, which
``columns`` names. ``docs/recipes.md`` explains it with an example. Comments at the end of a line are kept, so that
``recollect recipes NAME`` can show the source of each value. This file does not know what a setting means:
``overrides.py`` turns the values into a ``Config``.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import yaml

from recollect.common import plugins
from recollect.common.errors import ConfigError
from recollect.common.reading import compose_yaml, parse_yaml, read_yaml_text
from recollect.common.text import did_you_mean

FOLDER = Path(__file__).resolve().parent.parent / "recipes"
_STRUCTURE = frozenset(
    {"inherits", "description", "note", "like", "words", "columns", "rows"}
)  # keys that are not settings


@dataclass(frozen=True)
class Layer:
    """Settings from one place.

    Args:
        where: that place, e.g. ``sop.yaml`` or ``sop.yaml: vit-b16``.
        values: nested settings, and texts about them (``description``, ``note``, …).
        comments: the comment after a value on its line, by dotted key.
        word: the word of a row's name that the layer belongs to; empty for a file.
    """

    where: str
    values: Mapping[str, Any]
    comments: Mapping[str, str]
    word: str = ""


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
        origins: where each setting comes from, by its dotted key.
    """

    name: str
    description: str
    notes: tuple[str, ...]
    values: dict[str, Any]
    origins: dict[str, Origin]

    @property
    def trains(self) -> bool:
        """False for a row of the paper that is measured without training."""
        return bool(self.values.get("run", {}).get("epochs") != 0)

    @property
    def published(self) -> dict[str, dict[str, float]]:
        """Published numbers in percent, see ``published_tests``."""
        return published_tests(self.values.get("published"))


def available_recipes() -> dict[str, Path]:
    """Built-in recipes by name, with the file of each. Files whose name begins with ``_`` are only inherited from."""
    return dict(_built_in())


@cache
def _built_in() -> dict[str, Path]:
    found = {}
    for path in sorted(FOLDER.rglob("*.yaml")):
        relative = path.relative_to(FOLDER)
        if not any(part.startswith("_") for part in relative.parts):
            stem, rows = relative.with_suffix("").as_posix(), _rows(path)
            found.update({f"{stem}/{row}": path for row in rows} if rows else {stem: path})
    return found


def load_recipe(name: str | Path) -> Recipe:
    """A recipe by name or path, its inheritance resolved; ``A+B`` is B laid over A, as by ``inherits: [A, B]``.

    Raises:
        ConfigError: no such recipe, a family instead of a recipe, invalid YAML, or circular inheritance.
    """
    first, *over = [str(name)] if Path(name).is_file() else str(name).split("+")
    path, row = find_recipe(first)
    if row is None and (members := family(first)):
        raise ConfigError(
            f"{first} is a family of {len(members)} recipes: choose one, such as {members[0]}. recollect recipes {first} "
            "lists them."
        )
    layers = _inherited([first, *over], None, ())
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    for layer in layers:
        settings = {key: value for key, value in layer.values.items() if key not in _STRUCTURE}
        _merge(values, settings)
        for key in _leaves(settings):
            origins[key] = Origin(layer.where, layer.comments.get(key, ""))
    notes: list[str] = []
    for layer in layers:
        # null removes the notes of lower layers: notes about training do not apply to the untrained network.
        notes = [] if layer.values.get("note", "") is None else notes + _listed(layer.values.get("note"))
    own = values.get("name") if row is None and "name" in _read(path).values else _name(path, row)
    values["name"] = "+".join([str(own), *over])
    return Recipe(values["name"], _description(path, row, layers), tuple(dict.fromkeys(notes)), values, origins)


def published_tests(published: Any) -> dict[str, dict[str, float]]:
    """Published numbers by test set and metric, in percent: ``{"sop/test": {"r@1": 82.8, …}}``.

    A test set is named as in ``recollect eval``, ``DATA/SPLIT``; numbers that a recipe gives without a test set have
    the key ``""``.
    """
    found: dict[str, dict[str, float]] = {}
    for key, value in published.items() if isinstance(published, Mapping) else ():
        numbers = value if isinstance(value, Mapping) else {key: value}
        test = found.setdefault(str(key) if isinstance(value, Mapping) else "", {})
        test.update(
            {str(k): float(v) for k, v in numbers.items() if isinstance(v, int | float) and not isinstance(v, bool)}
        )
    return {test: metrics for test, metrics in found.items() if metrics}


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
    known = available_recipes()
    named = len(words) == 1 and (words[0] in known or words[0].endswith((".yaml", ".yml")))
    names = [] if named else [name for name in known if all(word.lower() in name for word in words)]
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
    known = _built_in()
    if (path := known.get(str(name))) is not None:
        return path, str(name).removeprefix(_name(path, None)).lstrip("/") or None
    for folder in (*([] if below is None else [below]), Path(), FOLDER):
        for candidate, row in _readings(folder / name):
            if candidate.is_file() and (row is None or row in _rows(candidate)):
                return candidate, row
    if str(name) and Path(name).is_dir():
        raise ConfigError(f"{str(name)!r} is a folder, not a recipe: to train on its images, use --data {name}.")
    parts = [part for part in str(name).split("/") if part]
    close = [other for other in known if parts and all(part in other for part in parts)]
    hint = f" Did you mean {close[0]}?" if close else did_you_mean(str(name), known)
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


def _layers(path: Path, row: str | None, seen: tuple[Path, ...]) -> list[Layer]:
    """All layers of a recipe, lowest first."""
    path = path.resolve()
    if path in seen:
        raise ConfigError(f"{path}: circular inheritance of recipes: {' → '.join(p.name for p in (*seen, path))}.")
    layer = _read(path)
    stack = _inherited(_listed(layer.values.get("inherits")), path.parent, (*seen, path))
    stack.append(layer)
    if row is None:
        return stack
    words = [part for word in row.split("/") for part in _word(word, stack, path, ())]
    return [*stack, *words, _published(path, row, stack)]


def _inherited(parents: Iterable[str], below: Path | None, seen: tuple[Path, ...]) -> list[Layer]:
    """The layers of several recipes, each laid over those before it."""
    stack: list[Layer] = []
    for parent in parents:
        file, row = find_recipe(parent, below)
        added = _layers(file, row, seen)
        # A file layered over a row may define more settings for the words of that row's name, as _as_released.yaml does.
        # They are applied at the position of the word, so that later words of the name still override them.
        for word in dict.fromkeys(part.word for part in stack if part.word):
            place = max(number for number, part in enumerate(stack) if part.word == word) + 1
            stack[place:place] = _said_of(word, added)
        stack += added
    return stack


def _said_of(word: str, stack: Iterable[Layer]) -> list[Layer]:
    """The settings of a word of a row's name, file by file."""
    prefix = f"words.{word}."
    return [
        Layer(
            f"{layer.where}: {word}",
            said,
            {key.removeprefix(prefix): text for key, text in layer.comments.items() if key.startswith(prefix)},
            word,
        )
        for layer in stack
        if (said := layer.values.get("words", {}).get(word))
    ]


def _word(word: str, stack: list[Layer], path: Path, seen: tuple[str, ...]) -> list[Layer]:
    """The layers of a word of a row's name: those it is ``like``, then its own, file by file."""
    if word in seen:
        raise ConfigError(f"{path}: circular use of 'like' among words: {' → '.join((*seen, word))}.")
    own = _said_of(word, stack)
    if not own:
        raise ConfigError(f"{path}: the word {word!r} in the name of a row is not defined: add it under 'words'.")
    likes = [part.values["like"] for part in own if "like" in part.values][-1:]
    return [part for like in likes for part in _word(like, stack, path, (*seen, word))] + own


def _published(path: Path, row: str, stack: list[Layer]) -> Layer:
    """The row's name, which recipes that inherit it keep, and its numbers under the names given by ``columns``."""
    numbers = _listed(_rows(path)[row])
    said = [layer.values["columns"] for layer in stack if "columns" in layer.values]
    columns: Mapping[str, list[str]] = said[-1] if said else {}
    names = [(test, metric) for test, metrics in columns.items() for metric in metrics]
    if numbers and len(numbers) != len(names):
        raise ConfigError(f"{path}: row {row} has {len(numbers)} numbers for {len(names)} columns.")
    published: dict[str, Any] = {"row": _name(path, row)}
    for (test, metric), number in zip(names, numbers, strict=False):
        if number is not None:
            published.setdefault(test, {})[metric] = number
    comment = stack[-1].comments.get(f"rows.{row}", "")
    return Layer(stack[-1].where, {"published": published}, {"published": comment})


def _description(path: Path, row: str | None, layers: list[Layer]) -> str:
    parts = [_read(path).values.get("description", "")]
    for word in [] if row is None else row.split("/"):
        said = [layer.values.get("words", {}).get(word, {}).get("description") for layer in layers]
        parts += [text for text in said if text][-1:]
    return ", ".join(str(part) for part in parts if part)


def _read(path: Path) -> Layer:
    """A file as a layer; read again only when it has changed."""
    status = path.stat()
    return _read_once(path.absolute(), status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=256)
def _read_once(path: Path, changed: int, size: int) -> Layer:
    text = read_yaml_text(path)
    values = parse_yaml(text, str(path))
    # A recipe and the code it names are kept together, so paths are relative to the recipe.
    values = (
        {} if values is None else plugins.in_strings(values, lambda name: plugins.absolute_reference(name, path.parent))
    )
    comments = dict(_comments(compose_yaml(text, str(path)), text.splitlines(), ""))
    _check_structure(path, values)
    return Layer(path.relative_to(FOLDER).as_posix() if path.is_relative_to(FOLDER) else str(path), values, comments)


def _check_structure(path: Path, values: Any) -> None:
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: a recipe must be a mapping of keys to values, not a {type(values).__name__}.")
    rules: tuple[tuple[str, Any, str], ...] = (
        ("words", Mapping, "a word's settings, e.g. {optimizer: {lr: 1.0e-4}}"),
        ("columns", list, "the metrics of a test set, e.g. [r@1, r@10]"),
        ("rows", list | None, "a row's published numbers, e.g. [80.7, 88.3], or null"),
    )
    parents = values.get("inherits", [])
    if not all(isinstance(parent, str) for parent in _listed(parents)):
        raise ConfigError(f"{path}: inherits must be a list of recipes, but is {parents!r}.")
    for key, kind, meaning in rules:
        found = values.get(key, {})
        if not isinstance(found, Mapping):
            raise ConfigError(f"{path}: {key} must map names to values, but is {found!r}.")
        for name, value in found.items():
            if not isinstance(value, kind):
                raise ConfigError(f"{path}: {key}: {name} must be {meaning}, but is {value!r}.")


def _comments(node: yaml.Node | None, lines: list[str], key: str, around: str = "") -> Iterator[tuple[str, str]]:
    """Dotted keys with the comment after their value; a comment after ``{…}`` belongs to everything inside."""
    if node is None:
        return
    end, comment = node.end_mark, around
    if end.line < len(lines) and (rest := lines[end.line][end.column :].lstrip()).startswith("#"):
        comment = rest.lstrip("# ").rstrip()
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            yield from _comments(value, lines, f"{key}.{name.value}".lstrip("."), comment if node.flow_style else "")
    elif comment:
        yield key, comment


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
    if value is None:
        return []
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str | Mapping) else [value]
