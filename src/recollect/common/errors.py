"""Errors meant for the person at the keyboard.

Each message says what was wrong, with the value and the place, and what to do. The command line prints the
message alone; a traceback is kept for errors that are ours. Raise the narrowest class that fits.
"""

from __future__ import annotations


class RecollectError(Exception):
    """Anything a user can put right. Its message is complete in itself."""


class InputError(RecollectError, ValueError):
    """An argument that cannot be: a wrong shape, a value out of range, lengths that differ."""


class ConfigError(RecollectError, ValueError):
    """A setting that is unknown, or two that exclude each other."""


class DataError(RecollectError):
    """A data set that is missing, incomplete or not in the layout it should have."""


class SealedError(RecollectError):
    """A part of a data set that was asked for where it may not be read, as the test set during a search."""


class ImageError(DataError):
    """One image file that cannot be read, or may not be. ``kind`` is the reason in a word or two, to count by."""

    def __init__(self, message: str, kind: str = "broken") -> None:
        super().__init__(message)
        self.kind = kind


class WeightsError(RecollectError):
    """A weights file that is missing, of another model, or not safe to open."""


class MissingExtraError(RecollectError, ImportError):
    """An optional package that is not installed."""


def in_one_line(error: BaseException) -> str:
    """What a parser says over several lines, as one: where it stopped and why, without the drawing.

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
    """A data set that can be used but is not what its publisher describes, e.g. other counts or missing files."""
