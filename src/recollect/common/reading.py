"""Reading files that may be damaged, hostile or of another kind: one function per file format.

Before anything is used or allocated, each function checks that the file is a regular one (reading a pipe could block
forever), that its size, encoding, depth and types are plausible, and that its declared size matches its content. Every
problem becomes an error that names the file, the place in it and the reason. YAML is in ``yaml_text.py``.

    read_bytes, read_text    any small file
    read_json                JSON, of the type the caller expects
    read_json_lines          one JSON object per line; damaged lines are skipped with a remark
    read_npz, open_npy       arrays of numbers and text, never of Python objects
    read_torch               files of ``torch.save``, with every part checked against its checksum
    visible_entries          what a user put into a folder
"""

from __future__ import annotations

import codecs
import io
import json
import math
import os
import stat
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar, overload

from recollect.common.errors import DataError, in_one_line
from recollect.common.refusals import in_bytes, unreadable
from recollect.common.words import printable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

T = TypeVar("T")

TEXT_LIMIT = 64 * 2**20
"""Maximum size in bytes of a text file that is read at once; the lists of the largest data sets have 30 MB."""
DEPTH_LIMIT = 64
"""How deeply lists and mappings may be nested; recollect's own files need 8."""
_DEFLATE_LIMIT = 1040
"""Maximum number of bytes per compressed byte in a ZIP file: 1,032, and some for the ends."""

_FOLDER_DATA = frozenset(
    {"thumbs.db", "desktop.ini", "@eadir", "$recycle.bin", "system volume information", "lost+found"}
)
"""What systems write into folders of images; Synology's ``@eaDir`` has small copies of every photo."""


def open_regular(path: Path | str) -> int:
    """A file descriptor of a regular file. Never blocks, as opening a pipe would.

    Raises:
        DataError: there is no such file, it cannot be read, or it is a folder, a pipe or a device.
    """
    try:
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        handle = os.open(path, flags)
    except (OSError, ValueError) as error:  # ValueError: a null character
        raise DataError(unreadable(error, path)) from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise DataError(f"{path}: not a regular file (a folder, a pipe or a device).")
    return handle


def read_bytes(path: Path | str, limit: int = TEXT_LIMIT) -> bytes:
    """The content of a regular file of at most ``limit`` bytes.

    Raises:
        DataError: it cannot be read, or is larger.
    """
    with os.fdopen(open_regular(path), "rb") as file:
        if (size := os.fstat(file.fileno()).st_size) > limit:
            raise DataError(f"{path}: {in_bytes(size)} is more than the limit for such a file, {in_bytes(limit)}.")
        try:
            content = file.read(limit + 1)
        except OSError as error:
            raise DataError(unreadable(error, path)) from error
    if len(content) > limit:  # files of /proc report a size of 0
        raise DataError(f"{path}: more than {in_bytes(limit)}.")
    return content


def read_text(path: Path | str, limit: int = TEXT_LIMIT) -> str:
    """The content of a text file in UTF-8, or in UTF-16 with a byte-order mark; the mark is left out.

    Raises:
        DataError: it cannot be read, or is not UTF-8.
    """
    content = read_bytes(path, limit)
    try:
        return content.decode(encoding_of(content))
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}: not a text file in UTF-8 (line {line}: byte 0x{content[error.start]:02x}). Save it as UTF-8."
        ) from error


def encoding_of(start: bytes) -> str:
    """The encoding of a text by its first bytes: spreadsheets on Windows save "Unicode text" as UTF-16.

    Examples:
        >>> encoding_of(b"\\xff\\xfep\\x00"), encoding_of(b"path")
        ('utf-16', 'utf-8-sig')
    """
    return "utf-16" if start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"


def open_text(path: Path | str, newline: str | None = None) -> TextIO:
    """A regular file to be read as text, in the encoding of ``encoding_of``."""
    file = os.fdopen(open_regular(path), "rb")
    return io.TextIOWrapper(file, encoding_of(file.peek(2)), newline=newline)


# JSON ---------------------------------------------------------------------------------------------------------------


@overload
def read_json(path: Path | str) -> Any: ...
@overload
def read_json(path: Path | str, kind: type[T]) -> T: ...
def read_json(path: Path | str, kind: Any = object) -> Any:
    """The value of a JSON file.

    Args:
        path: the file.
        kind: the expected type, e.g. ``dict``.

    Raises:
        DataError: it cannot be read, is not JSON, is nested too deeply, or contains another type.
    """
    return parse_json(read_text(path), str(path), kind)


@overload
def parse_json(text: str, where: str) -> Any: ...
@overload
def parse_json(text: str, where: str, kind: type[T]) -> T: ...
def parse_json(text: str, where: str, kind: Any = object) -> Any:
    """The value of a JSON text; ``where`` is named in errors.

    Raises:
        DataError: it is not JSON, is nested too deeply, or contains another type.
    """
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise DataError(f"{where}: nested too deeply to be a file of recollect.") from error
    except ValueError as error:  # also numbers of more than 4,300 digits
        raise DataError(f"{where}: not a JSON file, or a damaged one ({error}).") from error
    if text.count("[") + text.count("{") > DEPTH_LIMIT and _depth(value) > DEPTH_LIMIT:
        raise DataError(f"{where}: nested too deeply to be a file of recollect.")
    if not isinstance(value, kind):
        raise DataError(f"{where}: contains a {type(value).__name__}, not a {kind.__name__}.")
    return value


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level and depth <= DEPTH_LIMIT:
        depth += 1
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return depth


def read_json_lines(
    path: Path | str, remark: Callable[[str], None], sound: Callable[[dict[str, Any]], bool] = lambda record: True
) -> list[dict[str, Any]]:
    """The objects of a file with one JSON object per line. Damaged lines are skipped.

    Args:
        path: the file.
        remark: called with one sentence if lines were skipped. An incomplete last line is normal after a crash.
        sound: returns whether a record has everything its reader needs.

    Raises:
        DataError: the file cannot be read at all.
    """
    found: list[dict[str, Any]] = []
    damaged: list[int] = []
    lines = read_bytes(path, limit=16 * TEXT_LIMIT).split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = parse_json(line.decode("utf-8"), str(path), dict)
            if not sound(record):
                raise DataError("is incomplete")
            found.append(record)
        except (DataError, UnicodeDecodeError):
            damaged.append(number)
    if damaged == [len(lines)]:
        remark(f"{path}: the last line is incomplete, probably after a crash, and is skipped.")
    elif damaged:
        first = (
            f"line {damaged[0]}" if len(damaged) == 1 else f"{len(damaged)} lines, the first of them line {damaged[0]},"
        )
        remark(f"{path}: {first} cannot be read and {'is' if len(damaged) == 1 else 'are'} skipped.")
    return found


# Arrays -------------------------------------------------------------------------------------------------------------


def read_npz(path: Path | str) -> dict[str, NDArray[Any]]:
    """Every array of an ``.npz``, by name. Sizes are checked before anything is allocated, checksums while reading.

    Raises:
        DataError: no such file, not an ``.npz``, damaged, too large for the free memory, or with Python objects, which
            are never unpickled.
    """
    import numpy as np

    from recollect.common.memory import available_bytes

    with os.fdopen(open_regular(path), "rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                _refuse_bomb(path, archive, available_bytes())
                found = {}
                for info in archive.infolist():
                    with archive.open(info) as member:
                        _refuse_header(path, info, member)
                    with archive.open(info) as member:
                        name = info.filename.removesuffix(".npy")
                        found[name] = np.lib.format.read_array(member, allow_pickle=False)
                        member.read(1)  # the checksum is compared at the end
                return found
        except DataError:
            raise
        except _BROKEN as error:
            raise DataError(f"{path}: not an .npz of plain arrays, or a damaged one ({in_one_line(error)}).") from error


_BROKEN = (
    OSError, EOFError, ValueError, KeyError, TypeError, IndexError, OverflowError, AttributeError, SyntaxError,
    RecursionError, MemoryError, NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""Exceptions that reading a damaged ZIP file or array can raise."""


def _refuse_bomb(path: Path | str, archive: zipfile.ZipFile, free: int) -> None:
    total = sum(info.file_size for info in archive.infolist())
    for info in archive.infolist():
        if info.file_size > _DEFLATE_LIMIT * max(info.compress_size, 1):
            raise DataError(
                f"{path}: {info.filename} declares {in_bytes(info.file_size)} in {in_bytes(info.compress_size)}, which "
                "is impossible: the file is damaged or hostile."
            )
    if total > free:
        raise DataError(f"{path}: its arrays need {in_bytes(total)} of memory, but only {in_bytes(free)} is free.")


def _refuse_header(path: Path | str, info: zipfile.ZipInfo, member: Any) -> None:
    """Check that the size declared in an array's header, which would be allocated, matches the file."""
    shape, _, dtype = _header(member)
    if dtype.hasobject:
        raise DataError(f"{path}: {info.filename} contains Python objects, which are not read.")
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize + member.tell() != info.file_size:
        raise DataError(
            f"{path}: {info.filename} declares {shape} of {dtype}, but has {in_bytes(info.file_size)}: it is damaged."
        )


def _header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    import numpy as np

    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    if version in ((2, 0), (3, 0)):
        # Version 3 differs from 2 in the encoding of field names, and recollect writes no records.
        return np.lib.format.read_array_header_2_0(file)
    raise ValueError(f"version {version} of the format is unknown")


def open_npy(path: Path | str) -> NDArray[Any]:
    """The array of an ``.npy`` file, mapped into memory and not read.

    Raises:
        DataError: not an ``.npy``, shorter or longer than declared, or with Python objects.
    """
    import numpy as np

    with os.fdopen(open_regular(path), "rb") as file:
        try:
            shape, fortran, dtype = _header(file)
            announced, size = file.tell() + math.prod(shape) * dtype.itemsize, os.fstat(file.fileno()).st_size
            if dtype.hasobject or min(shape, default=0) < 0:
                raise DataError(f"{path}: contains Python objects, which are not read.")
            if announced != size:
                raise DataError(
                    f"{path}: declares {in_bytes(announced)}, but has {in_bytes(size)}: it is incomplete or damaged."
                )
            if size == file.tell():  # nothing can be mapped
                return np.empty(shape, dtype)
            order: Any = "F" if fortran else "C"
            return np.memmap(file, dtype=dtype, mode="r", offset=file.tell(), shape=shape, order=order)
        except DataError:
            raise
        except _BROKEN as error:
            raise DataError(f"{path}: not a readable array of numbers ({in_one_line(error)}).") from error


# Checkpoints --------------------------------------------------------------------------------------------------------


def read_torch(path: Path | str) -> Any:
    """The content of a file written by ``torch.save``, on the CPU; no code in the file is ever run.

    ``torch.load`` does not check the checksums that ``torch.save`` writes, so a flipped bit would silently become another
    weight. They are checked here first.

    Raises:
        DataError: it cannot be read, a part does not match its checksum, or it contains more than tensors and plain
            values.
    """
    import torch

    with os.fdopen(open_regular(path), "rb") as file:
        try:
            if zipfile.is_zipfile(file):
                file.seek(0)
                _refuse_damaged(path, file)
            file.seek(0)
            return torch.load(file, map_location="cpu", weights_only=True)
        except DataError:
            raise
        except Exception as error:  # a damaged file fails in nearly any way
            said = in_one_line(error).split(". ")[0][:160]  # torch continues with advice that is not safe
            raise DataError(f"{path}: not a readable file of weights ({type(error).__name__}: {said}).") from error


def _refuse_damaged(path: Path | str, file: Any) -> None:
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            # torch stores without compression: the content cannot be larger than the file.
            if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
                raise DataError(f"{path}: {info.filename} is compressed, which torch.save does not do.")
        if (name := archive.testzip()) is not None:
            raise DataError(f"{path}: damaged; {name} does not match its checksum.")


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder, or a link to one."""
    try:
        return entry.is_dir()
    except OSError:  # a link to itself, or a drive that is no longer there
        return False


def visible_entries(folder: Path) -> list[os.DirEntry[str]]:
    """The content of a folder, without hidden files and files written by the operating system."""
    try:
        with os.scandir(folder) as entries:
            return [
                entry
                for entry in entries
                if not entry.name.startswith((".", "__MACOSX")) and entry.name.lower() not in _FOLDER_DATA
            ]
    except OSError as error:
        raise DataError(f"{printable(str(folder))}: the folder cannot be read ({error.strerror}).") from error
