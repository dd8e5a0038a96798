"""Turns a recipe and the user's ``a.b=c`` settings into a ``Config``, with helpful errors.

A recipe is a mapping with one key per component and possibly ``published``. A recipe overrides what it inherits
(``recipe_files.py`` reads them), and the user's settings override the recipe. Built-in recipes are in
``recollect/recipes``. The error for an unknown key suggests the closest existing one.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from recollect.common.errors import ConfigError
from recollect.common.reading import parse_yaml
from recollect.common.text import did_you_mean
from recollect.config.recipe_files import available_recipes, load_recipe, published_tests
from recollect.config.schema import Config
from recollect.data.registry import find_source, is_source, refuse_two_meanings

__all__ = [
    "as_mapping",
    "available_recipes",
    "from_mapping",
    "known_keys",
    "load_recipe",
    "missing_groups",
    "parse_setting",
    "published_tests",
    "resolve",
    "with_data",
    "with_settings",
]


def resolve(
    recipe: str | Path | None = None,
    settings: Mapping[str, Any] | Iterable[str] = (),
    *,
    data: str | Path | None = None,
    root: str | Path | None = None,
) -> Config:
    """The configuration from a recipe and the user's own settings.

    Args:
        recipe: the name of a built-in recipe, or a path; None for the defaults, or with ``data`` for ``folder``.
        settings: ``{"batch.size": 392}`` or ``["batch.size=392", …]``; values as in YAML.
        data: a folder of images, the name of a data set, or a reference. root: the folder of the data set.

    Raises:
        ConfigError: an unknown key, a value of the wrong kind, or settings that exclude each other.

    Examples:
        >>> config = resolve(None, ["batch.size=64", "optimizer.lr=3e-4"])
        >>> config.batch.size, config.optimizer.lr
        (64, 0.0003)
    """
    recipe, given = with_data(recipe, settings, data, root)
    values: dict[str, Any] = {} if recipe is None else load_recipe(recipe).values
    for key, value in given.items():
        _assign(values, key, value)
    _judge_folders(values)
    return _with_class_split(from_mapping(values, "the settings" if recipe is None else str(recipe)))


def with_data(
    recipe: str | Path | None,
    settings: Mapping[str, Any] | Iterable[str] = (),
    data: str | Path | None = None,
    root: str | Path | None = None,
) -> tuple[str | Path | None, dict[str, Any]]:
    """The recipe and settings that ``resolve`` uses: ``data`` and ``root`` become settings.

    Raises:
        ConfigError: a folder is given for a recipe whose images are generated, ``data`` may be a data set or a folder, or
            one of two arguments would have no effect.
    """
    pairs = dict(settings.items() if isinstance(settings, Mapping) else map(parse_setting, settings))
    chosen: dict[str, Any] = {}
    if data is not None and root is None:
        refuse_two_meanings(str(data))
    if data is not None and is_source(str(data)):
        chosen["data.name"] = str(data)
    elif data is not None:
        if root is not None:
            raise ConfigError(f"--data {data} names no data set, so it is the folder: remove --root {root}.")
        if recipe is not None:
            _refuse_folder(recipe, data)
        root = data
    if root is not None:
        chosen["data.root"] = str(root)
    if twice := chosen.keys() & pairs:
        raise ConfigError(f"{twice.pop()} is given twice, by --data or --root and as a setting: keep one of them.")
    if recipe is None and data is not None:
        recipe = "glyphs" if data == "glyphs" else "folder"
    return recipe, {**chosen, **pairs}


def _refuse_folder(recipe: str | Path, folder: str | Path) -> None:
    named = resolve(recipe).data.name
    if not find_source(named).needs_root:
        raise ConfigError(
            f"the recipe {recipe} trains on {named}, which is generated and has no folder; {folder} would be ignored. "
            f"To train on it leave the recipe out (--data {folder}), or keep the recipe's other settings with "
            f"--set data.name=folder --set data.root={folder}."
        )


def _judge_folders(values: dict[str, Any]) -> None:
    """Training on your own folder always ends with a verdict, whatever the recipe."""
    data, run = values.get("data"), values.setdefault("run", {})
    if isinstance(data, Mapping) and data.get("name") == "folder" and isinstance(run, dict):
        run.setdefault("verdict", True)


def _with_class_split(config: Config) -> Config:
    """Record a folder's class split explicitly, so that a new default cannot change old runs."""
    if config.data.name != "folder":
        return config
    return replace(config, data=replace(config.data, options={"class_split": "balanced", **config.data.options}))


def with_settings(config: Config, settings: Mapping[str, Any]) -> Config:
    """``config`` with some settings changed, by the same keys and under the same rules as ``resolve``.

    Examples:
        >>> with_settings(resolve("glyphs"), {"optimizer.lr": 2e-4}).optimizer.lr
        0.0002
    """
    values = as_mapping(config)
    for key, value in settings.items():
        _assign(values, key, value)
    return from_mapping(values, config.name)


def from_mapping(values: Mapping[str, Any], source: str) -> Config:
    """A configuration from nested plain values, e.g. those of ``config.yaml``; ``source`` is named in errors."""
    config: Config = _build(Config, values, "", source)
    return config


def missing_groups(values: Mapping[str, Any]) -> list[str]:
    """The groups of settings that are missing from plain values; a complete configuration misses none."""
    return [part.name for part in fields(Config) if part.name not in values]


def as_mapping(config: Config) -> dict[str, Any]:
    """The configuration as plain values that YAML and JSON can hold; ``from_mapping`` reads it back."""
    plain = _plain(asdict(config))
    if not isinstance(plain, dict):
        raise TypeError("a configuration is a mapping")
    return plain


def parse_setting(text: str) -> tuple[str, Any]:
    """Split ``"a.b=c"`` into its key and value.

    Raises:
        ConfigError: there is no ``=``, or the value is not valid YAML.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"{text!r} is not a setting: write key=value, e.g. batch.size=392.")
    return key.strip(), parse_yaml(value, f"the value of {text[:80]!r}")


def known_keys() -> list[str]:
    """Every key that ``--set`` takes, e.g. ``batch.size``."""
    hints = typing.get_type_hints(Config)
    return [
        f"{part.name}.{item.name}"
        for part in fields(Config)
        if is_dataclass(t := hints[part.name])
        for item in fields(t)
    ]


def _assign(values: dict[str, Any], key: str, value: Any) -> None:
    *folders, last = key.split(".")
    if not folders and last not in {item.name for item in fields(Config)}:
        matches = [known for known in known_keys() if known.endswith(f".{last}")]
        hint = f" Did you mean {matches[0]}?" if matches else did_you_mean(key, known_keys())
        raise ConfigError(f"there is no setting {key!r}.{hint}")
    for name in folders:
        inner = values.setdefault(name, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"there is no setting {key!r}: {name} is a value, not a group.")
        values = inner
    values[last] = value


def _build(kind: Any, values: Any, prefix: str, source: str) -> Any:
    if not isinstance(values, Mapping):
        raise ConfigError(f"{source}: {prefix.rstrip('.')} must be a group of settings, not {_shown(values)}.")
    hints = typing.get_type_hints(kind)
    for key in values:
        if key not in hints:
            raise ConfigError(
                f"{source}: there is no setting {prefix + str(key)!r}.{did_you_mean(str(key), hints)} "
                f"{'Settings here' if prefix else 'Groups of settings'}: {', '.join(hints)}."
            )
    built = {}
    for key, value in values.items():
        hint = hints[key]
        where = f"{source}: {prefix}{key}"
        built[key] = (
            _build(hint, value, f"{prefix}{key}.", source) if is_dataclass(hint) else _convert(value, hint, where)
        )
    return kind(**built)


def _convert(value: Any, hint: Any, where: str) -> Any:
    """``value`` as the annotated type; raises an error that says what it must be."""
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    for option in options:
        converted = _as_one(value, option)
        if converted is not _NO:
            return converted
    wanted = " or ".join(_describe(option) for option in options)
    raise ConfigError(f"{where} is {_shown(value)}: it must be {wanted}.")


def _shown(value: Any) -> str:
    """A value, shortened for a message."""
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:100]}…"


_NO = object()


def _as_one(value: Any, kind: Any) -> Any:
    if kind is type(None):
        return None if value is None else _NO
    if get_origin(kind) is Literal:
        return value if isinstance(value, str) and value in get_args(kind) else _NO
    if get_origin(kind) is tuple:
        return _as_tuple(value, get_args(kind))
    if kind is float:
        return _as_float(value)
    if kind is int:
        return value if isinstance(value, int) and not isinstance(value, bool) else _NO
    if kind in (bool, str):
        return value if isinstance(value, kind) else _NO
    return dict(value) if isinstance(value, Mapping) else _NO


def _as_float(value: Any) -> Any:
    # YAML reads 1e-4 as text, because its numbers need a decimal point.
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return _NO
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return _NO
    return number if math.isfinite(number) else _NO


def _as_tuple(value: Any, kinds: tuple[Any, ...]) -> Any:
    if not isinstance(value, list | tuple):
        return _NO
    expected = [kinds[0]] * len(value) if kinds[-1] is Ellipsis else list(kinds)
    if len(expected) != len(value):
        return _NO
    items = [_as_one(item, kind) for item, kind in zip(value, expected, strict=True)]
    return _NO if any(item is _NO for item in items) else tuple(items)


def _describe(kind: Any) -> str:
    if kind is type(None):
        return "null"
    if get_origin(kind) is Literal:
        return " or ".join(map(str, get_args(kind)))
    if get_origin(kind) is tuple:
        return "a list of words" if get_args(kind)[0] is str else "a list of numbers"
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}
    return names.get(kind, "a mapping")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value
