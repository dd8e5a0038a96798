"""Errors for users.

Each message says what is wrong, with the value and the place, and what to do. The command line prints only the
message; tracebacks are for bugs. Raise the most specific class that fits.
"""

from __future__ import annotations


class RecollectError(Exception):
    """An error that a user can fix. The message is complete without a traceback."""


class InputError(RecollectError, ValueError):
    """An invalid argument: a wrong shape, a value out of range, lengths that differ."""


class ConfigError(RecollectError, ValueError):
    """An unknown setting, an invalid value, or settings that contradict each other."""


class DataError(RecollectError):
    """A data set that is missing, incomplete or not in the expected layout."""


class SealedError(RecollectError):
    """A part of a data set was requested where it may not be read, such as the test set during a search."""


class ImageError(DataError):
    """An image that cannot be read, or is refused. ``kind`` is the reason in one or two words, for counting."""

    def __init__(self, message: str, kind: str = "broken") -> None:
        super().__init__(message)
        self.kind = kind


class WeightsError(RecollectError):
    """A weights file that is missing, belongs to another model, or is not safe to open."""


class MissingExtraError(RecollectError, ImportError):
    """An optional package that is not installed."""


def in_one_line(error: BaseException) -> str:
    """A parser's message of several lines as one line: where it stopped and why, without the excerpt.

    Examples:
        >>> import yaml
        >>> try:
        ...     yaml.safe_load("a: [1")
        ... except yaml.YAMLError as error:
        ...     in_one_line(error)
        "line 1, column 6: expected ',' or ']', but got '<stream end>'"
    """
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is not None and problem:
        return f"line {mark.line + 1}, column {mark.column + 1}: {problem}"
    return " ".join(str(error).split())


class DataWarning(UserWarning):
    """A data set that can be used but differs from its publisher's description, e.g. other counts or missing files."""
