from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import pytest

from recollect.common.errors import DataError
from recollect.common.files import atomic_write, inside, read_json, sha256, write_json, write_text


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    with atomic_write(tmp_path / "new" / "a.bin") as file:
        file.write(b"abc")
        assert not (tmp_path / "new" / "a.bin").exists()  # not before it is complete
    assert (tmp_path / "new" / "a.bin").read_bytes() == b"abc"
    assert sha256(tmp_path / "new" / "a.bin") == hashlib.sha256(b"abc").hexdigest()


def test_a_crash_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "old")

    def crash() -> None:
        with atomic_write(tmp_path / "a.txt", "w") as file:
            file.write("half of the n")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        crash()
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "old"


def test_permissions_are_the_usual_ones(tmp_path: Path) -> None:
    mask = os.umask(0o027)
    try:
        write_text(tmp_path / "a.txt", "x")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == 0o640


def test_json_round_trip(tmp_path: Path) -> None:
    value = {"z": [1, 2.5, None], "a": "Straße"}
    write_json(tmp_path / "a.json", value)
    assert read_json(tmp_path / "a.json") == value
    assert list(read_json(tmp_path / "a.json")) == ["z", "a"]
    with pytest.raises(ValueError):
        write_json(tmp_path / "a.json", float("nan"))
    assert read_json(tmp_path / "a.json") == value


def test_broken_json_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent\.json: no such file"):
        read_json(tmp_path / "absent.json")
    for content in (b"{", b"\xff\xfe\x00"):
        (tmp_path / "bad.json").write_bytes(content)
        with pytest.raises(DataError, match=r"bad\.json: not a JSON file"):
            read_json(tmp_path / "bad.json")


def test_paths_stay_inside_their_root(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (tmp_path / "secret").write_text("x")
    (root / "link").symlink_to(tmp_path / "secret")
    (root / "sub" / "up").symlink_to(tmp_path)
    assert inside(root, "sub/a.jpg") == root / "sub" / "a.jpg"
    assert inside(root, "sub/../a.jpg").resolve() == (root / "a.jpg").resolve()
    for outside in ("../secret", str(tmp_path / "secret"), "link", "sub/up/secret", "sub/../../secret"):
        with pytest.raises(DataError, match="outside the folder"):
            inside(root, outside)
    assert inside(root, "../secret", allow_outside=True).read_text() == "x"


def test_a_sibling_with_the_same_beginning_is_outside(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root2").mkdir()
    with pytest.raises(DataError):
        inside(tmp_path / "root", "../root2/a.jpg")
