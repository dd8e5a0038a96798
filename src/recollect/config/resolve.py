"""Turns a recipe and the user's settings into a ``Config``, with errors that suggest the closest existing key.

A recipe overrides what it inherits (``recipes.py`` reads it), and the user's settings override the recipe. Settings are
values by dotted key, ``{"batch.size": 392}``; only ``--set`` and Python may give them as text, which ``parse_settings``
reads. The second half of the file is about settings of existing runs: which of them may change, how two descriptions
differ, and names of the user's own code in them.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, fields, is_dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from recollect.common import plugins
from recollect.common.errors import ConfigError, DataError
from recollect.common.reading import parse_yaml
from recollect.common.text import did_you_mean
from recollect.config.recipes import load_recipe
from recollect.config.schema import Config, DataConfig
from recollect.data.registry import check_ambiguous_name, find_source, is_source

Settings = Mapping[str, Any] | Iterable[str]
"""``{"batch.size": 392}``, or ``["batch.size=392"]`` with values as in YAML."""


def resolve(
    recipe: str | Path | None = None,
    settings: Settings = (),
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
    recipe, changes = with_data(recipe, settings, data, root)
    values: dict[str, Any] = {} if recipe is None else load_recipe(recipe).values
    _assign(values, changes)
    if _data_set(values) == "folder":
        # Training on your own folder always ends with a verdict, whatever the recipe, and its class split is recorded, so
        # that a new default cannot change old runs.
        _assign_default(values, "run", "verdict", True)
        _assign_default(values["data"], "options", "class_split", "balanced")
    return from_mapping(values, "the settings" if recipe is None else str(recipe))


def default_recipe(data: object = None, root: str | Path | None = None) -> str:
    """The recipe of a training that names none: for the user's images ``data``, or for the embedded characters.

    Raises:
        ConfigError: there is only a root, which those characters do not have.
    """
    if data is None and root is not None:
        raise ConfigError(f"--root {root} is the folder of which data set? For your own images: --data {root}.")
    return "glyphs" if data in (None, "glyphs") else "folder"


def with_data(
    recipe: str | Path | None, settings: Settings = (), data: str | Path | None = None, root: str | Path | None = None
) -> tuple[str | Path | None, dict[str, Any]]:
    """The recipe and settings that ``resolve`` uses: ``data`` and ``root`` become settings.

    Raises:
        ConfigError: a folder is given for a recipe whose images are generated, ``data`` may be a data set or a folder, or
            one of two arguments would have no effect.
    """
    pairs = parse_settings(settings)
    if data is None:
        place = {} if root is None else {"data.root": str(root)}
    elif is_source(str(data)):
        if root is None:
            check_ambiguous_name(str(data))
        place = {"data.name": str(data)} | ({} if root is None else {"data.root": str(root)})
    elif root is not None:
        raise ConfigError(f"--data {data} names no data set, so it is the folder: remove --root {root}.")
    else:
        place = {"data.root": str(data)}
        name = "folder" if recipe is None else _data_set(load_recipe(recipe).values)
        if not find_source(name).needs_root:
            raise ConfigError(
                f"the recipe {recipe} trains on {name}, which is generated and has no folder; {data} would be ignored. "
                f"To train on it leave the recipe out (--data {data}), or keep the recipe's other settings with "
                f"--set data.name=folder --set data.root={data}."
            )
    if twice := place.keys() & pairs:
        raise ConfigError(f"{twice.pop()} is given twice, by --data or --root and as a setting: keep one of them.")
    return recipe if recipe is not None or data is None else default_recipe(data), {**place, **pairs}


def _data_set(values: Mapping[str, Any]) -> Any:
    data = values.get("data")
    return data.get("name", DataConfig.name) if isinstance(data, Mapping) else DataConfig.name


def _assign_default(values: dict[str, Any], group: str, name: str, value: Any) -> None:
    if isinstance(inner := values.get(group, {}), Mapping):  # otherwise it is refused with the other values
        values[group] = {name: value, **inner}


def with_settings(config: Config, settings: Mapping[str, Any]) -> Config:
    """``config`` with some settings changed, by the same keys and under the same rules as ``resolve``.

    Examples:
        >>> with_settings(resolve("glyphs"), {"optimizer.lr": 2e-4}).optimizer.lr
        0.0002
    """
    values = as_mapping(config)
    _assign(values, settings)
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
    plain: dict[str, Any] = _plain(asdict(config))
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def parse_settings(settings: Settings | None, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Settings as values by key; texts are split at ``=``, their values read as YAML.

    Args:
        settings: of ``--set``. options: settings given by other options, which come first in the result.

    Raises:
        ConfigError: there is no ``=``, the value is not valid YAML, or a key is given twice.

    Examples:
        >>> parse_settings(["batch.size=64", "loss.name=smooth_ap"])
        {'batch.size': 64, 'loss.name': 'smooth_ap'}
    """
    if isinstance(settings, Mapping):
        return dict(settings)
    values = dict(options or {})
    for text in settings or ():
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not key:
            raise ConfigError(f"{text!r} is not a setting: write key=value, e.g. batch.size=392.")
        if key in values:
            raise ConfigError(f"--set {text}: {key} is already given, by another option or --set: keep one of them.")
        values[key] = parse_yaml(value, f"the value of {text[:80]!r}")
    return values


def setting_keys() -> list[str]:
    """Every key that ``--set`` takes, e.g. ``batch.size``."""
    groups = {name: kind for name, kind in typing.get_type_hints(Config).items() if is_dataclass(kind)}
    return [f"{name}.{item.name}" for name, kind in groups.items() for item in fields(kind)]


def _assign(values: dict[str, Any], settings: Mapping[str, Any]) -> None:
    """Set values by their dotted keys, in place."""
    for key, value in settings.items():
        *groups, last = key.split(".")
        if not groups and last not in {item.name for item in fields(Config)}:
            matches = [name for name in setting_keys() if name.endswith(f".{last}")]
            hint = f" Did you mean {matches[0]}?" if matches else did_you_mean(key, setting_keys())
            raise ConfigError(f"there is no setting {key!r}.{hint}")
        inner = values
        for name in groups:
            inner = inner.setdefault(name, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"there is no setting {key!r}: {name} is a value, not a group.")
        inner[last] = value


def _build(kind: Any, values: Any, prefix: str, source: str) -> Any:
    if not isinstance(values, Mapping):
        raise ConfigError(f"{source}: {prefix.rstrip('.')} must be a group of settings, not {brief(values)}.")
    hints = typing.get_type_hints(kind)
    built = {}
    for key, value in values.items():
        if key not in hints:
            raise ConfigError(
                f"{source}: there is no setting {prefix + str(key)!r}.{did_you_mean(str(key), hints)} "
                f"{'Settings here' if prefix else 'Groups of settings'}: {', '.join(hints)}."
            )
        if is_dataclass(hints[key]):
            built[key] = _build(hints[key], value, f"{prefix}{key}.", source)
            continue
        try:
            built[key] = _convert(value, hints[key])
        except (ValueError, OverflowError) as error:
            kind_of_value = _describe(hints[key])
            raise ConfigError(
                f"{source}: {prefix}{key} is {brief(repr(value))}: it must be {kind_of_value}."
            ) from error
    return kind(**built)


def _convert(value: Any, hint: Any) -> Any:
    """``value`` as the annotated type, or a ``ValueError``."""
    kind, inner = get_origin(hint), get_args(hint)
    if kind in (Union, types.UnionType):
        for option in inner:
            with suppress(ValueError, OverflowError):
                return _convert(value, option)
    elif kind is tuple and isinstance(value, list | tuple):
        kinds = [inner[0]] * len(value) if inner[-1] is Ellipsis else inner
        return tuple(_convert(item, option) for item, option in zip(value, kinds, strict=True))
    elif kind is Literal and isinstance(value, str) and value in inner:
        return value
    elif kind is Mapping and isinstance(value, Mapping):
        return dict(value)
    elif hint is float and isinstance(value, int | float | str) and not isinstance(value, bool):
        # Also from text: YAML reads 1e-4 as text, because its numbers need a decimal point.
        if math.isfinite(float(value)):
            return float(value)
    elif kind is None and isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    raise ValueError


def _describe(hint: Any) -> str:
    kind, inner = get_origin(hint), get_args(hint)
    if kind in (Union, types.UnionType):
        return " or ".join(map(_describe, inner))
    if kind is Literal:
        return " or ".join(inner)
    if kind is tuple:
        return "a list of words" if inner[0] is str else "a list of numbers"
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a word", type(None): "null"}
    return names.get(hint, "a mapping")


# Settings of an existing run ----------------------------------------------------------------------------------------

CHANGEABLE = {
    "data.root": "--root",
    "data.validation_root": "",
    "data.on_bad_image": "--skip-bad",
    "data.max_pixels": "--max-pixels",
    "data.workers": "--workers",
    "data.worker_type": "--worker-type",
    "data.cache": "--cache",
    "data.prefetch_mb": "",
    "model.download": "--download",
    "batch.chunk": "--chunk",
    "run.device": "--device",
    "run.shard": "",
    "run.activation_checkpointing": "",
}
"""Settings that change where images lie, how they are read and how the machine works, not what is trained: a run or study
that is resumed, or repeated on all classes (``--final``), may change them. Each with its option of ``recollect train``."""
CHANGEABLE_FOR_RUNS = {**CHANGEABLE, "model.weights": "--weights"}
"""Those of a run, whose starting weights may have moved: their digest is compared. Studies compare it among their settings."""


def with_changes(config: Config, settings: Settings, keeps: str) -> Config:
    """``config`` with other settings of ``CHANGEABLE_FOR_RUNS``.

    Args:
        config: of an existing run.
        settings: ``{"data.on_bad_image": "skip"}`` or ``["data.on_bad_image=skip"]``.
        keeps: begins the error, e.g. "a resumed run keeps its settings".

    Raises:
        ConfigError: any other setting.
    """
    pairs = parse_settings(settings)
    if others := pairs.keys() - CHANGEABLE_FOR_RUNS:
        possible = ", ".join(f"{key} ({option})" if option else key for key, option in CHANGEABLE_FOR_RUNS.items())
        raise ConfigError(
            f"{keeps}: remove {', '.join(sorted(others))}. Only settings that do not change what is trained can be given: "
            f"{possible}."
        )
    if "data.root" in pairs:
        pairs["data.root"] = relocated_root(config.data.root, pairs["data.root"])
    return with_settings(config, pairs) if pairs else config


def changeable_settings(config: Config) -> dict[str, Any]:
    """The settings of ``CHANGEABLE_FOR_RUNS`` as a configuration has them."""
    return {key: attrgetter(key)(config) for key in CHANGEABLE_FOR_RUNS}


def relocated_root(before: str | None, after: str | Path | None) -> str | None:
    """The new place of a run's images: ``after``, or ``before`` without one.

    A run may have been trained on a list, which is a file. Its photos in folders would have other labels, so a folder means
    the list of the same name in it.

    Raises:
        DataError: there is none.
    """
    if after is None:
        return before
    if before is None or Path(before).suffix.lower() not in (".csv", ".tsv") or not Path(after).is_dir():
        return str(after)
    table = Path(after) / Path(before).name
    if not table.is_file():
        raise DataError(
            f"--root {after}: the run was trained on a list of images, {table.name}, which is not in this folder. Give the "
            "list itself with --root."
        )
    return str(table)


def differences(recorded: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """In words, where two descriptions of a study differ; settings of ``CHANGEABLE`` do not count.

    Examples:
        >>> differences({"settings": {"run.seed": 0}}, {"settings": {"run.seed": 1, "data.root": "photos"}})
        ['run.seed is 0 there and 1 here']
        >>> differences({"images": "0f3a"}, {"images": "77b1"})
        ['the training images differ']
    """
    sentences = [
        "the training images differ"
        if name.split(".")[0] == "images"
        else f"{name} is {brief(one)} there and {brief(other)} here"
        for name, (one, other) in changes(recorded, current).items()
    ]
    return list(dict.fromkeys(sentences))


def changes(recorded: Mapping[str, Any], current: Mapping[str, Any], above: str = "") -> dict[str, tuple[Any, Any]]:
    """Both values of every setting that differs, by its dotted name; settings of ``CHANGEABLE`` do not count."""
    both: dict[str, tuple[Any, Any]] = {}
    for key in dict.fromkeys([*recorded, *current]):
        one, other = recorded.get(key), current.get(key)
        name = f"{above}{key}".removeprefix("settings.")
        if one == other or name in CHANGEABLE:
            continue
        if isinstance(one, Mapping | None) and isinstance(other, Mapping | None):
            both |= changes(one or {}, other or {}, f"{above}{key}.")
        else:
            both[name] = one, other
    return both


def brief(value: Any) -> str:
    """A value of a setting in a few letters."""
    text = "not set" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:12]}…"


# Names of your own code ---------------------------------------------------------------------------------------------


_NAMES = (
    "data.name", "data.augmentation", "model.init", "loss.name", "loss.options", "optimizer.name", "run.select",
    "run.loggers",
)  # fmt: skip
"""Settings that can be references, or contain some."""


def with_names(config: Config, change: Callable[[str], str]) -> Config:
    """``config`` with ``change`` applied to every name that can be a reference, names among a loss's options included."""
    names = {key: plugins.map_strings(attrgetter(key)(config), change) for key in _NAMES}
    names["run.logger_options"] = {change(name): options for name, options in config.run.logger_options.items()}
    return with_settings(config, names)


def absolute_names(config: Config) -> Config:
    """``config`` with absolute paths in references, as a run stores them; in recipes they are relative to the recipe."""
    return with_names(config, lambda name: plugins.absolute_reference(name, Path.cwd()))


def untrusted_names(config: Config) -> Config:
    """``config`` as read from a run, which may be someone else's: its references are followed only with ``--trust``."""
    return with_names(config, plugins.mark_untrusted)


def short_names(config: Config) -> Config:
    """``config`` to be shown to others: references without folders of this machine and marks of ``untrusted_names``."""
    return with_names(config, plugins.short)
