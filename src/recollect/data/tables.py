"""Lists of images in text and CSV files; shared by the sources and the index."""

from __future__ import annotations

import csv
import os
import posixpath
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from recollect.common.errors import DataError
from recollect.common.reading import open_text
from recollect.common.text import number_of
from recollect.data.registry import Source


def need(source: Source, path: Path) -> Path:
    """``path`` if it exists; otherwise raises an error."""
    if not path.exists():
        raise source.layout_error(f"{path} is missing.")
    return path


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a text list that are not blank, each with its number from 1."""
    try:
        with open_text(path) as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line.strip()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not a text file in UTF-8 ({error}).") from error


def read_fields(path: Path, count: int, what: str) -> Iterator[list[str]]:
    """The fields of each line, split at blanks; the last field may contain blanks.

    Args:
        path: the list.
        count: how many fields a line has.
        what: names of the fields, for the error about a line with another number of them.
    """
    for number, line in read_lines(path):
        fields = line.split(maxsplit=count - 1)
        if len(fields) != count:
            raise DataError(f"{path}, line {number}: expected {what!r}, found {line[:80]!r}.")
        yield fields


def read_csv(
    path: Path, columns: Sequence[str], optional: Sequence[str] = (), *, others: bool = False
) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a CSV file with a header, each with its line number; columns are found by name, in any case.

    They are separated by commas, semicolons or tabs: spreadsheets write semicolons where the comma is a decimal sign, and
    some name the separator in a first line, ``sep=;``. Rows of empty cells are left out.

    Args:
        path: the file.
        columns: columns that must exist and have a value in every row.
        optional: columns that may be absent or empty.
        others: include all other columns, where they have a value; these may have several lines.

    Raises:
        DataError: a column that is missing or named twice, an empty value, a row with more values than columns, or a
            value of several lines, as a missing quotation mark makes them.
    """
    expected = (*columns, *optional)
    try:
        with open_text(path, newline="") as file:
            start, first = file.tell(), file.readline()
            file.seek(start)
            separator = re.fullmatch(r"\s*\"?sep=(.)\"?\s*", first, re.IGNORECASE)
            reader = csv.DictReader(
                file, delimiter=separator[1] if separator else max(",;\t", key=first.count), restval=""
            )
            if separator:
                next(reader.reader)  # not a row, but a line that errors count
            header = [column.strip() for column in reader.fieldnames or ()]
            header = [column.lower() if column.lower() in expected else column for column in header]
            reader.fieldnames = header
            if wrong := [
                name for name in expected if header.count(name) > 1 or (name in columns and name not in header)
            ]:
                names = ", ".join(map(repr, header)) or "nothing"
                raise DataError(
                    f"{path}: there is no column {wrong[0]!r}, or more than one; the first line names {names}. "
                    f"Expected: {','.join(expected)}."
                )
            for row in reader:
                values = {column: (row.get(column) or "").strip() for column in (header if others else expected)}
                extra: Any = row.pop(None, None) or []
                if not any(cell.strip() for cell in (*row.values(), *extra) if cell):
                    continue
                torn = [column for column in expected if "\n" in (row.get(column) or "").strip()]
                if torn or any(cell.strip() for cell in extra):
                    # A quotation mark that is missing swallows the last line break too.
                    breaks = "".join([cell or "" for cell in (*row.values(), *extra)]).rstrip().count("\n")
                    count = f"{len(row) + len(extra)} values for {number_of(len(row), 'column')}"
                    raise DataError(
                        f"{path}, line {reader.line_num - breaks}: "
                        f"{f'the value of {torn[0]!r} has several lines' if torn else count}. A quotation mark may be "
                        f"missing; put a value that contains {reader.reader.dialect.delimiter!r} between quotation marks."
                    )
                if empty := [column for column in columns if not values[column]]:
                    raise DataError(f"{path}, line {reader.line_num}: {empty[0]!r} is empty; every row needs a value.")
                yield reader.line_num, values
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not a CSV file in UTF-8 ({error}). Save it as UTF-8.") from error
    except csv.Error as error:
        raise DataError(f"{path}: not a CSV file ({error}).") from error


def relative_to(root: Path, name: str) -> str:
    """A listed path as a path relative to ``root``, with ``/``, so that a set does not depend on its folder.

    Absolute paths below ``root`` are shortened, and ``./a.jpg`` and ``b//../a.jpg`` are ``a.jpg``. Backslashes are read as
    separators if that is how a file is found: the list was then written on Windows.
    """
    if "\\" in name and os.sep == "/" and not (root / name).exists():
        slashes = name.replace("\\", "/")
        name = slashes if (root / slashes).exists() else name
    normal = posixpath.normpath(name) if name else name
    # The shortest spelling, unless a link makes that another file: ``link/..`` need not be its folder.
    if ".." not in name.split("/") or os.path.realpath(root / name) == os.path.realpath(root / normal):
        name = normal
    path = Path(name)
    if path.is_absolute():
        for base in (root.absolute(), root.resolve()):
            if path.is_relative_to(base):
                return path.relative_to(base).as_posix()
    return name


def as_number(text: str, path: Path, what: str) -> int:
    """``text`` as a whole number; raises an error that names the list."""
    try:
        return int(text)
    except ValueError as error:
        raise DataError(f"{path}: {what} must be a number, found {text!r}.") from error
