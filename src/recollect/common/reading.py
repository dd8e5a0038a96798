"""Reading files that may be damaged or of another kind: one function per file format.

Only regular files are opened (reading a pipe could block forever). Every problem becomes an error that names the file, the
place in it and the reason.

    read_bytes, read_text    any small file
    sha256                   the hash of any file
    read_yaml, parse_yaml    YAML: recipes, configurations, settings
    read_json                JSON, of the type the caller expects
    read_npz, open_npy       arrays of numbers and text, never of Python objects
    read_torch               files of ``torch.save``, with every part checked against its checksum
    visible_entries          what a user put into a folder
"""

from __future__ import annotations

import codecs
import hashlib
import io
import json
import os
import stat
import zipfile
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import yaml
from yaml.constructor import ConstructorError

from recollect.common.errors import ConfigError, DataError, in_bytes, in_one_line, unreadable
from recollect.common.text import printable

if TYPE_CHECKING:
    from numpy.typing import NDArray

TEXT_LIMIT = 64 * 2**20
"""Maximum size in bytes of a text file that is read at once; the lists of the largest data sets have 30 MB."""
_FOLDER_DATA = frozenset(
    {"thumbs.db", "desktop.ini", "@eadir", "$recycle.bin", "system volume information", "lost+found"}
)
"""What systems write into folders of images; Synology's ``@eaDir`` has small copies of every photo."""


def open_regular(path: Path | str) -> BufferedReader:
    """A regular file, open for reading. Never blocks, as opening a pipe would.

    Raises:
        DataError: there is no such file, it cannot be read, or it is a folder, a pipe or a device.
    """
    try:
        if stat.S_ISREG(Path(path).stat().st_mode):
            return Path(path).open("rb")
    except (OSError, ValueError) as error:  # ValueError: a null character
        raise DataError(unreadable(error, path)) from error
    raise DataError(f"{path}: not a regular file (a folder, a pipe or a device).")


def read_bytes(path: Path | str, limit: int = TEXT_LIMIT) -> bytes:
    """The content of a regular file of at most ``limit`` bytes.

    Raises:
        DataError: it cannot be read, or is larger.
    """
    with open_regular(path) as file:
        if (size := os.fstat(file.fileno()).st_size) > limit:
            raise DataError(f"{path}: {in_bytes(size)} is more than the limit for such a file, {in_bytes(limit)}.")
        try:
            return file.read()
        except OSError as error:
            raise DataError(unreadable(error, path)) from error


def sha256(path: Path | str) -> str:
    """The SHA-256 of a regular file's content, in hexadecimal.

    Raises:
        DataError: there is no such file, or it is a folder, a pipe or a device.
    """
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
    file = open_regular(path)
    return io.TextIOWrapper(file, encoding_of(file.peek(2)), newline=newline)


# YAML ---------------------------------------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader without dates, which stay text, and with an error for a key that occurs twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in lines:
                    problem = f"{key.value!r} is already in line {lines[key.value]}"
                    raise ConstructorError(None, None, problem, key.start_mark)
                lines[key.value] = key.start_mark.line + 1
        return super().construct_mapping(node, deep)


_Loader.add_constructor("tag:yaml.org,2002:timestamp", yaml.SafeLoader.construct_yaml_str)  # type: ignore[type-var]


def read_yaml(path: Path | str) -> Any:
    """The value of a YAML file; None for an empty one.

    Raises:
        DataError: it cannot be read. ConfigError: it is not YAML.
    """
    return parse_yaml(read_text(path), str(path))


def parse_yaml(text: str, where: str) -> Any:
    """The value of a YAML text; ``where`` is named in errors.

    Raises:
        ConfigError: it is not YAML.

    Examples:
        >>> parse_yaml("a: [1, 2]", "here")
        {'a': [1, 2]}
        >>> parse_yaml("{a: 1, a: 2}", "here")
        Traceback (most recent call last):
        recollect.common.errors.ConfigError: here: not valid YAML (line 1, column 8: 'a' is already in line 1).
    """
    return parse_yaml_nodes(text, where)[0]


def parse_yaml_nodes(text: str, where: str) -> tuple[Any, yaml.Node | None]:
    """The value of a YAML text, and its nodes, which have positions."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        return (None if node is None else loader.construct_document(node)), node
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:  # ValueError: "!!int x"
        raise ConfigError(f"{where}: not valid YAML ({in_one_line(error)}).") from error


# JSON ---------------------------------------------------------------------------------------------------------------


def read_json(path: Path | str, kind: type[Any] = dict) -> Any:
    """The value of a JSON file.

    Args:
        path: the file.
        kind: the expected type.

    Raises:
        DataError: it cannot be read, is not JSON, or contains another type.
    """
    return parse_json(read_text(path), str(path), kind)


def parse_json(text: str, where: str, kind: type[Any] = dict) -> Any:
    """The value of a JSON text; ``where`` is named in errors.

    Raises:
        DataError: it is not JSON, or contains another type.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not a JSON file, or a damaged one ({error}).") from error
    if not isinstance(value, kind):
        raise DataError(f"{where}: contains a {type(value).__name__}, not a {kind.__name__}.")
    return value


# Arrays -------------------------------------------------------------------------------------------------------------


def read_npz(path: Path | str) -> dict[str, NDArray[Any]]:
    """Every array of an ``.npz``, by name; checksums are compared.

    Raises:
        DataError: no such file, not an ``.npz``, damaged, or with Python objects, which are never unpickled.
    """
    import numpy as np

    with open_regular(path) as file:
        try:
            with np.load(file, allow_pickle=False) as archive:
                arrays = dict(archive)
            if not all(isinstance(array, np.ndarray) for array in arrays.values()):
                raise ValueError("something in it is not an array")
            return arrays
        except Exception as error:  # a damaged file fails in nearly any way
            raise DataError(f"{path}: not an .npz of plain arrays, or a damaged one ({in_one_line(error)}).") from error


def open_npy(path: Path | str) -> NDArray[Any]:
    """The array of an ``.npy`` file, mapped into memory and not read.

    Raises:
        DataError: not an ``.npy``, shorter than declared, or with Python objects.
    """
    import numpy as np

    open_regular(path).close()
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # a damaged file fails in nearly any way
        raise DataError(f"{path}: not a readable array of numbers, or incomplete ({in_one_line(error)}).") from error


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

    with open_regular(path) as file:
        try:
            if zipfile.is_zipfile(file):
                file.seek(0)
                _refuse_damaged(path, file)
            file.seek(0)
            return torch.load(file, map_location="cpu", weights_only=True)
        except DataError:
            raise
        except Exception as error:  # a damaged file fails in nearly any way
            reason = in_one_line(error).split(". ")[0][:160]  # torch continues with advice that is not safe
            raise DataError(f"{path}: not a readable file of weights ({type(error).__name__}: {reason}).") from error


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
