"""Makes an ``ImageSet`` from a list of files and classes; shared by the sources.

Reads text and CSV lists, finds missing files, and handles them. It does not depend on any data set.
"""

from __future__ import annotations

import csv
import os
import posixpath
import re
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from recollect.common.errors import ConfigError, DataError, DataWarning
from recollect.common.reading import open_text
from recollect.common.text import number_of
from recollect.data.image_set import ImageSet
from recollect.data.registry import Source

MISSING = ("error", "drop", "keep")
"""What to do with listed images that have no file: raise an error, leave them out with a warning, or keep them."""


def make_set(
    source: Source,
    root: Path,
    split: str,
    names: Sequence[str],
    classes: Sequence[int] | Sequence[str],
    *,
    missing: str = "error",
    boxes: NDArray[np.float64] | None = None,
    titles: Mapping[int, str] | None = None,
    coarse: Mapping[Any, str] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> ImageSet:
    """The set of listed images; its classes are numbered in the order of their sorted keys.

    Args:
        source: the data set, for its name and for error messages.
        root: the folder that ``names`` are below.
        split: the part this is.
        names: one path per listed image.
        classes: one key per image, all numbers or all text.
        missing: ``"error"``, ``"drop"`` or ``"keep"``, see ``MISSING``.
        boxes: one box per image.
        titles: the class name of each key, if not ``str(key)``.
        coarse: the coarser class that the class of a key belongs to.
        facts: see ``ImageSet``.
    """
    if missing not in MISSING:
        raise ConfigError(f"missing={missing!r} is unknown: choose one of {', '.join(MISSING)}.")
    if not names:
        raise source.trouble(f"the list of the split {split!r} below {root} is empty.")
    keys, labels = np.unique(np.asarray(classes), return_inverse=True)
    group_names: list[str] = []
    groups = None
    if coarse is not None:
        named, groups = np.unique([coarse[key] for key in keys.tolist()], return_inverse=True)
        group_names = [str(name) for name in named]
    images = ImageSet(
        source.name,
        names,
        labels.astype(np.int64),
        [str(key) if titles is None else titles[key] for key in keys.tolist()],
        root=root,
        split=split,
        boxes=boxes,
        coarse_labels=groups[labels] if groups is not None else None,
        coarse_names=group_names,
        facts=facts or {},
    )
    if missing == "keep":
        return images
    absent = find_missing(root, names)
    if not absent.any():
        return images
    count, examples = int(absent.sum()), [names[i] for i in np.flatnonzero(absent)[:3].tolist()]
    sentence = f"{count:,} of {len(names):,} images of the split {split!r} are not below {root}, e.g. {examples[0]}"
    if missing == "error":
        raise source.trouble(f"{sentence}. Complete the copy, or leave them out with --skip-bad (missing='drop').")
    if absent.all():
        raise source.trouble(f"{sentence}.")
    warnings.warn(f"{source.name}: {sentence}; they are left out.", DataWarning, stacklevel=3)
    left_out = {**images.facts.get("left_out", {}), "missing": count}
    return replace(images.subset(np.flatnonzero(~absent)), facts={**images.facts, "left_out": left_out})


def find_missing(root: Path, names: Sequence[str]) -> NDArray[np.bool_]:
    """Which of ``names`` have no file below ``root``.

    Each folder is listed once, which for a million files takes seconds where a million look-ups take minutes.
    """
    folders: dict[str, frozenset[str]] = {}
    absent = np.zeros(len(names), dtype=bool)
    for index, name in enumerate(names):
        folder, file = os.path.split(name)
        if folder not in folders:
            try:
                folders[folder] = frozenset(os.listdir(root / folder))  # noqa: PTH208 (names, not paths)
            except OSError:
                folders[folder] = frozenset()
        # Check names missing from the listing again: some systems accept another case or spelling.
        absent[index] = file not in folders[folder] and not (root / name).exists()
    return absent


def need(source: Source, path: Path) -> Path:
    """``path`` if it exists; otherwise raises an error."""
    if not path.exists():
        raise source.trouble(f"{path} is missing.")
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


def read_csv(path: Path, columns: Sequence[str], optional: Sequence[str] = ()) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a CSV file with a header, each with its line number; columns are found by name, in any case.

    Args:
        path: the file.
        columns: columns that must exist and have a value in every row.
        optional: columns that may be absent or empty; other columns are ignored.
    """
    try:
        with open_text(path, newline="") as file:
            reader = table_reader(file)
            known = (*columns, *optional)
            named = [column.strip() for column in reader.fieldnames or ()]
            header = [column.lower() if column.lower() in known else column for column in named]
            reader.fieldnames = header
            absent = [column for column in columns if column not in header]
            if not header:
                raise DataError(f"{path}: an empty file. Its first line must name the columns {','.join(columns)}.")
            if absent:
                raise DataError(
                    f"{path}: there is no column {', '.join(map(repr, absent))}; the first line names the columns "
                    f"{', '.join(map(repr, header))}. Expected: {','.join([*columns, *optional])}."
                )
            refuse_repeated(path, header, known)
            for row in reader:
                if is_blank(row):
                    continue
                refuse_torn(path, reader, row, known)
                values = {column: (row.get(column) or "").strip() for column in (*columns, *optional)}
                empty = [column for column in columns if not values[column]]
                if empty:
                    raise DataError(f"{path}, line {reader.line_num}: {empty[0]!r} is empty; every row needs a value.")
                yield reader.line_num, values
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not a CSV file in UTF-8 ({error}). Save it as UTF-8.") from error
    except csv.Error as error:
        raise DataError(f"{path}: not a CSV file ({error}).") from error


def table_reader(file: TextIO) -> csv.DictReader[str]:
    """Rows of a table whose first line names the columns, separated by commas, semicolons or tabs.

    Spreadsheets separate by semicolons where the comma is a decimal sign; a first line ``sep=;`` says so.

    Examples:
        >>> import io
        >>> [row["label"] for row in table_reader(io.StringIO("path;label\\na.jpg;cat\\n"))]
        ['cat']
    """
    start = file.tell()
    first = file.readline()
    file.seek(start)
    named = re.fullmatch(r"\s*\"?sep=(.)\"?\s*", first, re.IGNORECASE)
    reader = csv.DictReader(file, delimiter=named[1] if named else max(",;\t", key=first.count), restval="")
    if named:
        next(reader.reader)  # not a row, but a line that errors count
    return reader


def refuse_repeated(path: Path, header: Sequence[str], known: Collection[str]) -> None:
    """Refuse a table with two columns of one name, of which only one would be read.

    Args:
        path: the table.
        header: its columns, with the names of ``known`` in lower case.
        known: the columns that are read.
    """
    for column in header:
        if column in known and header.count(column) > 1:
            raise DataError(
                f"{path}: the first line names the column {column!r} twice. Rename or remove one of the two."
            )


def refuse_torn(path: Path, reader: csv.DictReader[str], row: Mapping[Any, Any], known: Collection[str]) -> None:
    """Refuse a row whose quotation marks are missing: several lines in a cell of ``known``, or more cells than columns."""
    torn = [column for column in known if "\n" in (row.get(column) or "").strip()]
    extra = any(cell.strip() for cell in row.get(None) or ())
    if not torn and not extra:
        return
    cells = _cells(row)
    breaks = "".join(cells).rstrip().count("\n")  # a quotation mark that is missing swallows the last line break too
    where = f"{path}, line {reader.line_num - breaks}"
    if torn:
        raise DataError(
            f"{where}: the value of {torn[0]!r} has several lines. If a quotation mark is missing at its end, add it; "
            "otherwise write the value in one line."
        )
    raise DataError(
        f"{where}: {len(cells)} values for {number_of(len(reader.fieldnames or ()), 'column')}. Put a value that contains "
        f"{reader.reader.dialect.delimiter!r} between quotation marks."
    )


def is_blank(row: Mapping[Any, Any]) -> bool:
    """Whether every cell of a row is empty: spreadsheets write such rows after the last one that was ever filled.

    Examples:
        >>> is_blank({"path": "", "label": " ", None: [""]}), is_blank({"path": "", "label": "cat"})
        (True, False)
    """
    return not any(cell.strip() for cell in _cells(row))


def _cells(row: Mapping[Any, Any]) -> list[str]:
    """Every cell of a row, those beyond its columns included."""
    return [cell or "" for value in row.values() for cell in (value if isinstance(value, list) else [value])]


def relative_to(root: Path, name: str) -> str:
    """A listed path as a path relative to ``root``, with ``/``, so that a set does not depend on its folder.

    Absolute paths below ``root`` are shortened, and ``./a.jpg`` and ``b//../a.jpg`` are ``a.jpg``. Backslashes are read as
    separators if that is how a file is found: the list was then written on Windows.
    """
    if "\\" in name and os.sep == "/" and not (root / name).exists():
        slashes = name.replace("\\", "/")
        name = slashes if (root / slashes).exists() else name
    name = _normal(root, name) if name else name
    path = Path(name)
    if path.is_absolute():
        for base in (root.absolute(), root.resolve()):
            if path.is_relative_to(base):
                return path.relative_to(base).as_posix()
    return name


def _normal(root: Path, name: str) -> str:
    """``name`` in its shortest spelling, unless a link makes that another file: ``link/..`` need not be its folder."""
    normal = posixpath.normpath(name)
    if ".." in name.split("/") and os.path.realpath(root / name) != os.path.realpath(root / normal):
        return name
    return normal


def as_number(text: str, path: Path, what: str) -> int:
    """``text`` as a whole number; raises an error that names the list."""
    try:
        return int(text)
    except ValueError as error:
        raise DataError(f"{path}: {what} must be a number, found {text!r}.") from error
