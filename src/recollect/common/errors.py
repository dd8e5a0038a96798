"""Errors for users.

Each message says what is wrong, with the value and the place, and what to do. The command line prints only the
message; tracebacks are for bugs. Raise the most specific class that fits.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType


class RecollectError(Exception):
    """An error that a user can fix. The message is complete without a traceback."""


class InputError(RecollectError, ValueError):
    """An invalid argument: a wrong shape, a value out of range, lengths that differ."""


class ConfigError(RecollectError, ValueError):
    """An unknown setting, an invalid value, or settings that contradict each other."""


class DataError(RecollectError):
    """A data set that is missing, incomplete or not in the expected layout."""


class SplitNotAllowedError(RecollectError):
    """A part of a data set was requested where it may not be read, such as the test set during a search."""


class ImageError(DataError):
    """An image that cannot be read, or is refused.

    Attributes:
        reason: what is wrong with it. kind: the same in one or two words, for counting.
        name: the file, or another name of the image, if known.
    """

    def __init__(self, reason: str, kind: str = "broken", name: str | None = None) -> None:
        super().__init__(reason if name is None else f"{name}: {reason}")
        self.reason, self.kind, self.name = reason, kind, name


class WeightsError(RecollectError):
    """A weights file that is missing, belongs to another model, or is not safe to open."""


class MissingExtraError(RecollectError, ImportError):
    """An optional package that is not installed."""


class DataWarning(UserWarning):
    """A data set that can be used but differs from its publisher's description, e.g. other counts or missing files."""


class StorageError(DataError):
    """A file that cannot be written: no space, no permission, a read-only or broken disk."""


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""No room for a file: on the disk, in the user's quota, or by a limit on one file."""


def storage_error(error: Exception, path: Path, *, existed: bool | None = False) -> StorageError:
    """The error for a failed write.

    Args:
        error: the system's error; a ``ValueError`` for a path with a null character.
        path: the file being written.
        existed: whether there is an earlier file of that name, which is unchanged; None if that is not known.
    """
    number = getattr(error, "errno", None)
    reason, advice = getattr(error, "strerror", None) or str(error), ""
    if number in FULL:
        reason = "the disk is full" if number == errno.ENOSPC else reason
        with contextlib.suppress(OSError):
            folder = path.absolute().parent
            reason += f": {in_bytes(shutil.disk_usage(folder).free)} are free in {folder}"
        advice = " Free some space, then run the same command again."
    elif number in (errno.EACCES, errno.EPERM, errno.EROFS):
        advice = f" Choose another place, or change the permissions of {path.parent}."
    safe = f" The earlier {path.name} is unchanged." if existed else " No partial file was left behind."
    return StorageError(f"{path} cannot be written: {reason}.{'' if existed is None else safe}{advice}")


def causes(error: BaseException) -> Iterator[BaseException]:
    """The error and its causes: libraries wrap those of the system."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def unreadable(error: Exception, path: Path | str) -> str:
    """The message for a file that cannot be read."""
    if isinstance(error, FileNotFoundError):
        return f"{path}: no such file."
    return f"{path} cannot be read ({getattr(error, 'strerror', None) or error})."


def in_bytes(count: int) -> str:
    """A number of bytes with about three digits.

    Examples:
        >>> [in_bytes(count) for count in (12, 3_400, 5_600_000, 7_800_000_000)]
        ['12 bytes', '3.4 kB', '5.6 MB', '7.8 GB']
    """
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"


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


def require(module: str, extra: str, purpose: str) -> ModuleType:
    """Import ``module``, or raise an error that names the extra of recollect to install.

    Args:
        module: what to import, e.g. ``"faiss"``.
        extra: the extra in ``pyproject.toml`` that installs it, e.g. ``"index"``.
        purpose: what needs it, as the start of a sentence, e.g. ``"approximate search"``.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f'{purpose} needs the package {module!r}: install it with  pip install "recollect[{extra}]".'
        ) from error
