"""Pickles of plain values, read without running anything.

A pickle can name any function and have it called, so a pickle from the web is code. The files read here hold lists, dicts,
numbers and text, and some hold numpy arrays of those. ``_Allowed`` is the complete list of accepted names, replaced by
our own functions, which accept only numbers and text: numpy's own would take a dtype that reads objects from raw bytes.
Every other name is refused before it is looked up.
"""

from __future__ import annotations

import io
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np

from recollect.common.errors import DataError
from recollect.common.reading import TEXT_LIMIT, read_bytes

_SIMPLE = re.compile(r"[biufUS]\d{1,4}")  # kinds of numpy numbers and text; no objects, records or dates


def read_plain_pickle(path: Path) -> Any:
    """The value in a pickle file of plain Python types; numpy's arrays and numbers become lists and numbers.

    Raises:
        DataError: the file is missing, damaged, or would run code.
    """
    content = read_bytes(path, limit=4 * TEXT_LIMIT)
    try:
        return _Unpickler(io.BytesIO(content)).load()
    except DataError as error:
        raise DataError(f"{path}: {error}, so it is not read. Only pickles of plain values are supported.") from error
    # A damaged pickle can raise almost any exception while it is interpreted.
    except Exception as error:
        raise DataError(f"{path}: not a readable pickle ({type(error).__name__}: {error}).") from error


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """The allow-list's replacement for the name; anything else is refused."""
        known = _ALLOWED.get((module.replace("numpy.core.", "numpy._core."), name))
        if known is None:
            raise DataError(f"names {module}.{name}, which would be run when reading it")
        return known


class _Kind:
    """Stands for ``numpy.dtype``."""

    def __init__(self, text: Any) -> None:
        if not isinstance(text, str) or not _SIMPLE.fullmatch(text):
            raise DataError(f"holds an array of kind {str(text)[:40]!r}, where numbers or text are expected")
        self.dtype = np.dtype(text)

    def __setstate__(self, state: Any) -> None:
        # (version, byte order, subtype, names, fields, …): only the byte order may be given.
        if not isinstance(state, tuple) or len(state) < 5 or any(part is not None for part in state[2:5]):
            raise DataError("holds an array of records, where numbers or text are expected")
        self.dtype = self.dtype.newbyteorder(state[1])


class _Array(list[Any]):
    """Stands for ``numpy.ndarray``: an empty list that its state fills."""

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, content = state
        self[:] = _Allowed().from_buffer(content, kind, shape, "F" if fortran is True else "C")


class _Allowed:
    """Functions for the names in numpy's pickles. Bound methods, because a pickle cannot set their attributes."""

    def kind(self, text: Any, *flags: Any) -> _Kind:
        return _Kind(text)

    def empty(self, *ignored: Any) -> _Array:
        return _Array()

    def from_buffer(self, content: Any, kind: Any, shape: Any, order: Any = "C") -> list[Any]:
        if not isinstance(kind, _Kind) or not isinstance(content, bytes | bytearray):
            raise DataError("holds an array of objects, where numbers or text are expected")
        values = np.frombuffer(content, kind.dtype).reshape(shape, order=order).tolist()
        return values if isinstance(values, list) else [values]

    def scalar(self, kind: Any, content: Any) -> Any:
        return self.from_buffer(content, kind, (1,))[0]

    def encode(self, text: Any, encoding: Any = "latin1") -> bytes:
        if encoding not in ("latin1", "latin-1") or not isinstance(text, str):
            raise DataError("encodes text in an unexpected way")
        return text.encode("latin1")

    def no_bytes(self) -> bytes:
        return b""


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy._core.multiarray", "_reconstruct"): _Allowed().empty,
    ("numpy._core.multiarray", "scalar"): _Allowed().scalar,
    ("numpy._core.numeric", "_frombuffer"): _Allowed().from_buffer,
    ("numpy", "ndarray"): "numpy.ndarray",  # only passed to _reconstruct
    ("numpy", "dtype"): _Allowed().kind,
    ("_codecs", "encode"): _Allowed().encode,  # how protocols before 3 write bytes,
    ("__builtin__", "bytes"): _Allowed().no_bytes,  # and how they write none
}
