"""Lists of files: text, CSV, and what is listed but not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from recollect.common.errors import DataError
from recollect.data.tables import as_number, read_csv, read_fields, read_lines, relative_to


def test_lines_have_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_bytes(b"\xef\xbb\xbf one\n\n  two words \n")
    assert list(read_lines(path)) == [(1, "one"), (3, "two words")]
    assert list(read_fields(path, 1, "name")) == [["one"], ["two words"]]
    with pytest.raises(DataError, match=r"line 1: .*'name class'"):
        list(read_fields(path, 2, "name class"))
    assert as_number("7", path, "class") == 7
    with pytest.raises(DataError, match=r"list\.txt: class .*'x'"):
        as_number("x", path, "class")


def test_columns_are_found_by_name(tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    path.write_text("label , other,path\na,?,1.png\nb,,2.png\n")
    assert list(read_csv(path, ["path", "label"], ["split"])) == [
        (2, {"path": "1.png", "label": "a", "split": ""}),
        (3, {"path": "2.png", "label": "b", "split": ""}),
    ]
    with pytest.raises(DataError, match=r"no column 'name'.*'label', 'other', 'path'"):
        list(read_csv(path, ["name"]))
    with pytest.raises(DataError, match=r"line 3: 'other' is empty"):
        list(read_csv(path, ["other"]))
    path.write_bytes(b"path,label\n\xff\xfe,a\n")
    with pytest.raises(DataError, match="UTF-8"):
        list(read_csv(path, ["path"]))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be"])
@pytest.mark.parametrize("first", ["", "sep=;\r\n", '"sep=;"\r\n'])
def test_lists_of_spreadsheets(tmp_path: Path, encoding: str, first: str) -> None:
    path = tmp_path / "list.csv"
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    path.write_bytes(f"{mark}{first}path;label\r\n1.png;Äpfel, rot\r\n2.png;\r\n".encode(encoding))
    rows = read_csv(path, ["path", "label"])
    line = 3 if first else 2
    assert next(rows) == (line, {"path": "1.png", "label": "Äpfel, rot"})
    with pytest.raises(DataError, match=f"line {line + 1}: 'label' is empty"):
        next(rows)


def test_a_spelling_is_shortened_only_if_it_names_the_same_file(tmp_path: Path) -> None:
    (tmp_path / "far" / "away").mkdir(parents=True)
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "link").symlink_to(tmp_path / "far" / "away")
    for name in ("a.png", "far/a.png", "root/a.png"):
        (tmp_path / name).touch()
    assert relative_to(tmp_path / "root", "link/../a.png") == "link/../a.png", "far/a.png, not root/a.png"
    assert relative_to(tmp_path / "root", "./x/../a.png") == "a.png"
    assert relative_to(tmp_path / "root", "../a.png") == "../a.png"
    assert relative_to(tmp_path / "root", "") == ""
