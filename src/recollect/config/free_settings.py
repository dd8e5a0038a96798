"""Settings that change where images lie, how they are read and how the machine works, not what is trained.

A run that is resumed or repeated on all classes (``--final``) and a study that is resumed may change them. Everything else
is part of what is trained: ``differences`` names it where two descriptions of a study differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from recollect.common.errors import ConfigError, DataError
from recollect.config.overrides import as_mapping, parse_setting, with_settings
from recollect.config.schema import Config

_TABLES = (".csv", ".tsv")
FREE = {
    "data.root": "--root",
    "data.validation_root": "",
    "data.on_bad_image": "--skip-bad",
    "data.max_pixels": "--max-pixels",
    "data.workers": "--workers",
    "data.cache": "--cache",
    "data.prefetch_mb": "",
    "model.download": "--download",
    "batch.chunk": "--chunk",
    "run.device": "--device",
}
"""Each with the option of ``recollect train`` that sets it, if there is one."""
WITH_WEIGHTS = {**FREE, "model.weights": "--weights"}
"""Those of a run, whose starting weights may have moved: their digest is compared. Studies compare it among their settings."""


def moved_root(before: str | None, after: str | Path | None) -> str | None:
    """The new place of a run's images: ``after``, or ``before`` without one.

    A run may have been trained on a list, which is a file. Its photos in folders would have other labels, so a folder means
    the list of the same name in it.

    Raises:
        DataError: there is none.
    """
    if after is None or before is None or Path(before).suffix.lower() not in _TABLES or not Path(after).is_dir():
        return before if after is None else str(after)
    found = Path(after) / Path(before).name
    if not found.is_file():
        raise DataError(
            f"--root {after}: the run was trained on a list of images, {Path(before).name}, which is not in this folder. Give "
            "the list itself with --root."
        )
    return str(found)


def with_free_settings(config: Config, settings: Mapping[str, Any] | Iterable[str], keeps: str) -> Config:
    """``config`` with other settings of ``WITH_WEIGHTS``.

    Args:
        config: of an existing run.
        settings: ``{"data.on_bad_image": "skip"}`` or ``["data.on_bad_image=skip"]``.
        keeps: begins the error, e.g. "a resumed run keeps its settings".

    Raises:
        ConfigError: any other setting.
    """
    changes = dict(settings.items() if isinstance(settings, Mapping) else map(parse_setting, settings))
    if others := [key for key in changes if key not in WITH_WEIGHTS]:
        possible = ", ".join(f"{key} ({option})" if option else key for key, option in WITH_WEIGHTS.items())
        raise ConfigError(
            f"{keeps}: remove {', '.join(others)}. Only settings that do not change what is trained can be given: "
            f"{possible}."
        )
    if "data.root" in changes:
        changes["data.root"] = moved_root(config.data.root, changes["data.root"])
    return with_settings(config, changes) if changes else config


def free_settings_of(config: Config) -> dict[str, Any]:
    """The settings of ``WITH_WEIGHTS`` that a configuration has."""
    found: dict[str, Any] = {}
    values = as_mapping(config)
    for key in WITH_WEIGHTS:
        value: Any = values
        for name in key.split("."):
            value = value.get(name, _NOT_SET)
        if value is not _NOT_SET:
            found[key] = value
    return found


def differences(known: Mapping[str, Any], asked: Mapping[str, Any]) -> list[str]:
    """In words, where two descriptions of a study differ; settings of ``FREE`` do not count.

    Examples:
        >>> differences({"settings": {"run.seed": 0}}, {"settings": {"run.seed": 1, "data.root": "photos"}})
        ['run.seed is 0 there and 1 here']
        >>> differences({"images": "0f3a"}, {"images": "77b1"})
        ['the training images are others']
    """
    found = [
        "the training images are others"
        if name.split(".")[0] == "images"
        else f"{name} is {brief(one)} there and {brief(other)} here"
        for name, (one, other) in changes(known, asked).items()
    ]
    return list(dict.fromkeys(found))


def changes(known: Mapping[str, Any], asked: Mapping[str, Any], above: str = "") -> dict[str, tuple[Any, Any]]:
    """Both values of every setting that differs, by its dotted name; settings of ``FREE`` do not count."""
    found: dict[str, tuple[Any, Any]] = {}
    for key in dict.fromkeys([*known, *asked]):
        one, other = known.get(key), asked.get(key)
        name = f"{above}{key}".removeprefix("settings.")
        if one == other or name in FREE:
            continue
        if isinstance(one, Mapping | None) and isinstance(other, Mapping | None):
            found |= changes(one or {}, other or {}, f"{above}{key}.")
        else:
            found[name] = one, other
    return found


_NOT_SET: dict[str, Any] = {}


def brief(value: Any) -> str:
    """A value of a setting in a few letters."""
    text = "not set" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:12]}…"
