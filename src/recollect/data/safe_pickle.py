"""Pickles of plain values, read without running anything.

A pickle can name any function and have it called, so one from the web is code. The files read here hold lists, dicts,
numbers and text, and some hold numpy arrays of those. What numpy's own pickles name is answered by stand-ins defined
here, which accept numbers and text only; every other name is refused before it is looked up.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import re
from pathlib import Path
from typing import Any

import numpy as np

from recollect.common.errors import DataError

_SIMPLE = re.compile(r"[biufUS]\d{1,4}")  # kinds of numpy numbers and text; objects, records and dates are none


_MEMO = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any) -> None:
        super().__init__(file)
        # Anew for every file: a pickle may set attributes of what it is handed.
        self._stand_ins = _stand_ins()

    def find_class(self, module: str, name: str) -> Any:
        """A stand-in for what numpy's pickles name; anything else is refused."""
        known = re.sub(r"^numpy\.core\b", "numpy._core", module), name
        if known not in self._stand_ins:
            raise DataError(f"names {module}.{name}, which would be run on reading")
        return self._stand_ins[known]

    def persistent_load(self, identity: Any) -> Any:
        """Refuse."""
        raise DataError("refers to something outside itself")


def read_plain_pickle(path: Path) -> Any:
    """The value in a pickle file of plain Python types; numpy's arrays and numbers become lists and numbers.

    Raises:
        DataError: the file is missing, damaged, or would run something.
    """
    try:
        content = path.read_bytes()
        _refuse_bombs(content)
        return _plain(_Unpickler(io.BytesIO(content)).load(), {})
    except DataError as error:
        raise DataError(f"{path}: {error}, so it is not opened. Only pickles of plain values are read.") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error}).") from error
    # A damaged pickle fails in nearly any way while it is interpreted.
    except Exception as error:
        raise DataError(f"{path}: not a pickle that can be read ({type(error).__name__}: {error}).") from error


def _refuse_bombs(content: bytes) -> None:
    """Refuse numbers that make the unpickler set memory aside for what the file is too short to hold.

    The memo is a table as long as its largest index, and a frame or a string is given its place before it is read.
    Honest pickles number what they remember from 0, and need at least a byte for each.
    """
    number: Any
    for opcode, number, _ in pickletools.genops(content):  # itself refuses strings that end too late
        if opcode.name in _MEMO and not 0 <= number <= len(content):
            raise DataError(f"remembers a value under number {number}, more than its {len(content):,} bytes can need")
        if opcode.name == "FRAME" and number > len(content):
            raise DataError(f"announces {number:,} bytes and has {len(content):,}")


class _Array:
    """An array while its pickle is read, then its values."""

    value: Any = None


def _stand_ins() -> dict[tuple[str, str], Any]:
    """What pickles of numpy arrays and numbers name, by module and name, without numpy's own code."""

    class Kind:
        """``numpy.dtype``."""

        def __init__(self, text: Any = None, *flags: Any) -> None:
            if not isinstance(text, str) or not _SIMPLE.fullmatch(text):
                raise DataError(f"holds an array of kind {str(text)[:40]!r}, where numbers or text are expected")
            self.dtype = np.dtype(text)

        def __setstate__(self, state: Any) -> None:
            # (version, byte order, subtype, names, fields, …): only the order may say something.
            if not isinstance(state, tuple) or len(state) < 5 or any(part is not None for part in state[2:5]):
                raise DataError("holds an array of records, where numbers or text are expected")
            self.dtype = self.dtype.newbyteorder(state[1])

    class Array(_Array):
        """``numpy.ndarray``, to be filled by its state."""

        def __init__(self, *ignored: Any) -> None:
            """numpy's pickles ask for an empty array first."""

        def __setstate__(self, state: Any) -> None:
            _, shape, kind, fortran, content = state
            self.value = values(content, kind, shape, "F" if fortran is True else "C")

    def values(content: Any, kind: Any, shape: Any, order: Any) -> Any:
        if not isinstance(kind, Kind) or not isinstance(content, bytes | bytearray):
            raise DataError("holds an array of objects, where numbers or text are expected")
        return np.frombuffer(content, kind.dtype).reshape(shape, order=order).tolist()

    def from_buffer(content: Any, kind: Any, shape: Any, order: Any = "C") -> Any:
        array = Array()
        array.value = values(content, kind, shape, order)
        return array

    def scalar(kind: Any, content: Any) -> Any:
        return values(content, kind, (1,), "C")[0]

    def encode(text: Any, encoding: Any = "latin1") -> bytes:
        if encoding not in ("latin1", "latin-1") or not isinstance(text, str):
            raise DataError("encodes text in an unexpected way")
        return text.encode("latin1")

    def no_bytes() -> bytes:
        return b""

    return {
        ("numpy._core.multiarray", "_reconstruct"): Array,
        ("numpy._core.multiarray", "scalar"): scalar,
        ("numpy._core.numeric", "_frombuffer"): from_buffer,
        ("numpy", "ndarray"): Array,
        ("numpy", "dtype"): Kind,
        ("_codecs", "encode"): encode,  # how protocols before 3 write bytes,
        ("__builtin__", "bytes"): no_bytes,  # and how they write none
    }


def _plain(value: Any, known: dict[int, Any]) -> Any:
    """``value`` with arrays as lists. Each container is copied once: a pickle may hold one many times, or in itself."""
    if isinstance(value, _Array):
        return value.value
    if id(value) in known:
        return known[id(value)]
    if isinstance(value, list):
        made: list[Any] = []
        known[id(value)] = made
        made.extend(_plain(item, known) for item in value)
        return made
    if isinstance(value, dict):
        table: dict[Any, Any] = {}
        known[id(value)] = table
        table.update((key, _plain(item, known)) for key, item in value.items())
        return table
    if isinstance(value, tuple):
        known[id(value)] = made_tuple = tuple(_plain(item, known) for item in value)
        return made_tuple
    if value is None or isinstance(value, str | bytes | bool | int | float):
        return value
    raise DataError(f"holds a {type(value).__name__}, where plain values are expected")
