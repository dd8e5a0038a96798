"""Pickles of plain values, read without running anything.

A pickle can name any function and have it called, so one from the web is code. The files read here hold lists, dicts,
numbers and text only; whatever names a function or class is refused before it is looked up.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, NoReturn

from recollect.common.errors import DataError


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse."""
        raise DataError(f"names {module}.{name}, which would be run on reading")

    def persistent_load(self, identity: Any) -> NoReturn:
        """Refuse."""
        raise DataError("refers to something outside itself")


def read_plain_pickle(path: Path) -> Any:
    """The value in a pickle file of plain Python types.

    Raises:
        DataError: the file is missing, damaged, or would run something.
    """
    try:
        with path.open("rb") as file:
            return _Unpickler(file).load()
    except DataError as error:
        raise DataError(f"{path}: {error}, so it is not opened. Only pickles of plain values are read.") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error}).") from error
    # A damaged pickle fails in nearly any way while it is interpreted.
    except Exception as error:
        raise DataError(f"{path}: not a pickle that can be read ({type(error).__name__}: {error}).") from error
