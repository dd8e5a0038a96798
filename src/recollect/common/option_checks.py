"""Checks of options that may come from YAML or a caller, and so can be of any type: numbers within a range, switches."""

from __future__ import annotations

import numbers
from typing import Any

from recollect.common.errors import ConfigError


def check_number(name: str, value: Any, low: float, high: float) -> float:
    """``value`` as a float if it is a number from ``low`` to ``high``; options come from YAML, so it can be of any type.

    Raises:
        ConfigError: if it is not; the message names the range.
    """
    if not _is_number(value) or not low <= value <= high:
        raise ConfigError(f"{name} must be a number from {low:g} to {high:g}, but is {_shown(value)}.")
    return float(value)


def check_whole(name: str, value: Any, low: int, high: int) -> int:
    """``value`` as an int if it is a whole number from ``low`` to ``high``.

    Raises:
        ConfigError: if it is not; the message names the range.
    """
    if not _is_number(value) or not low <= value <= high or value != int(value):
        raise ConfigError(f"{name} must be a whole number from {low} to {high}, but is {_shown(value)}.")
    return int(value)


def check_flag(name: str, value: Any) -> bool:
    """``value`` if it is True or False.

    Raises:
        ConfigError: it is anything else.
    """
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be True or False, but is {_shown(value)}.")
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
