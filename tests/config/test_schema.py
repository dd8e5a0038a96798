from __future__ import annotations

import re
import typing
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from recollect.common.errors import ConfigError
from recollect.config import schema
from recollect.config.resolve import resolve, setting_keys
from recollect.config.schema import Config, Range


def _numeric() -> dict[str, Range]:
    result = {}
    groups = typing.get_type_hints(Config)
    for group, kind in groups.items():
        if is_dataclass(kind):
            hints = typing.get_type_hints(kind)
            for item in fields(kind):
                if {int, float} & {hints[item.name], *_inner(hints[item.name])}:
                    result[f"{group}.{item.name}"] = item.metadata.get("range")
    return result


def _inner(hint: Any) -> set[Any]:
    return {part for argument in typing.get_args(hint) for part in (argument, *_inner(argument))}


NUMERIC = _numeric()


def test_every_numeric_setting_states_its_range() -> None:
    assert len(NUMERIC) > 25
    assert [name for name, stated in NUMERIC.items() if stated is None] == []


def _settings(name: str, value: float) -> list[str]:
    lists = ("data.crop_scale", "model.scales", "optimizer.milestones", "loss.dims")
    text = repr([value, value] if name == "data.crop_scale" else [value]) if name in lists else repr(value)
    return [f"{name}={text}"]


@pytest.mark.parametrize("name", NUMERIC)
def test_values_outside_are_refused_with_the_range(name: str) -> None:
    stated = NUMERIC[name]
    outside = [stated.low - 1, stated.high * 2 + 1, -(10**30), 10**30, 10**400]
    outside += [stated.low] * stated.above + [stated.high] * stated.below
    for value in (value for value in outside if value not in stated):
        with pytest.raises(ConfigError, match=re.escape(name)):
            resolve(None, _settings(name, value))


def test_every_setting_says_what_it_means() -> None:
    assert schema.meanings().keys() == set(setting_keys())
