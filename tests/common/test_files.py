from __future__ import annotations

import errno
import hashlib
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from recollect.common.files import (
    append_line,
    atomic_write,
    make_folder_for,
    new_folder,
    remove_strays,
    sha256,
    write_json,
    write_text,
)
from recollect.common.reading import read_json
from recollect.common.refusals import StorageError


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


def test_names_that_are_not_utf_8_come_back_from_json(tmp_path: Path) -> None:
    value = {"name": "photos/\udcff\udcfe.png", "other": "é \\udcff"}
    write_json(tmp_path / "a.json", value)
    assert read_json(tmp_path / "a.json") == value


def test_json_round_trip(tmp_path: Path) -> None:
    value = {"z": [1, 2.5, None], "a": "Straße"}
    write_json(tmp_path / "a.json", value)
    assert read_json(tmp_path / "a.json") == value
    assert list(read_json(tmp_path / "a.json")) == ["z", "a"]
    with pytest.raises(ValueError):
        write_json(tmp_path / "a.json", float("nan"))
    assert read_json(tmp_path / "a.json") == value


def test_links_in_a_circle_and_null_characters_are_sentences(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    for name in ("a", "x\0y"):
        with pytest.raises(StorageError):
            write_text(tmp_path / name, "x")


def test_a_link_is_followed_and_stays(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there" / "file")
    for text in ("new", "newer"):  # a link to nothing, then one to a file
        write_text(tmp_path / "link", text)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "there" / "file").read_text() == text
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["file"]


def test_permissions_of_a_replaced_file_are_kept(tmp_path: Path) -> None:
    write_text(tmp_path / "a", "x")
    (tmp_path / "a").chmod(0o600)
    write_text(tmp_path / "a", "y")
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600


@pytest.mark.skipif(sys.platform == "win32", reason="pipes and devices of Unix")
def test_pipes_and_devices_are_written_through(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append((tmp_path / "pipe").read_text()))
    reader.start()
    write_text(tmp_path / "pipe", "through")
    reader.join()
    assert found == ["through"]
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    write_text("/dev/null", "nothing")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    with pytest.raises(StorageError, match="folder"):
        write_text(tmp_path, "x")


@pytest.mark.skipif(sys.platform == "win32", reason="pipes of Unix")
def test_a_pipe_without_a_reader_is_refused_and_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recollect.common.files._PIPE_PATIENCE", 0.1)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StorageError, match="no process reads"):
        write_text(tmp_path / "pipe", "x")


def _fails(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "disk is full.*needed.*free.*unchanged.*again"),
        (errno.EDQUOT, "quota"),
        (errno.EROFS, "read-only"),
        (errno.EACCES, "permission"),
        (errno.EIO, "disk reports an error"),
    ],
)
def test_what_the_system_refuses_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    """At the moment of writing, of flushing and of renaming; libraries that hide the reason included."""
    write_text(tmp_path / "a", "old")

    def refuse(*arguments: object) -> None:
        raise _fails(number)

    for place in ("os.fsync", "pathlib.Path.replace"):
        with monkeypatch.context() as patch:
            patch.setattr(place, refuse)
            with pytest.raises(StorageError, match=words):
                write_text(tmp_path / "a", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "old"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_device_is_a_sentence() -> None:
    with pytest.raises(StorageError, match="disk is full"):
        write_text("/dev/full", "x" * 10_000)
    with pytest.raises(StorageError, match="disk is full"):
        append_line("/dev/full", "x")


def test_other_errors_inside_the_block_are_left_alone(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), atomic_write(tmp_path / "a"):
        (tmp_path / "absent").read_bytes()
    assert not list(tmp_path.iterdir())


def test_too_little_room_is_noticed_before_writing(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"disk is full.*needed"), atomic_write(tmp_path / "a", size=2**60) as _:
        pytest.fail("was opened")
    assert not list(tmp_path.iterdir())


def test_names_too_long(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="too long"):
        make_folder_for(tmp_path / ("x" * 300))
    with pytest.raises(StorageError, match="too long"):
        write_text(tmp_path / ("x" * 300), "x")
    longest = tmp_path / ("ü" * 127)  # 254 bytes: a temporary name beside it must be shorter
    write_text(longest, "x")
    assert longest.read_text() == "x"


def test_a_place_is_tried_before_long_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_folder_for(tmp_path / "new" / "a.npz")
    assert not list((tmp_path / "new").iterdir())
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="cannot be used"):
        make_folder_for(tmp_path / "file" / "a.npz")

    def read_only(*arguments: object, **options: object) -> int:
        raise _fails(errno.EROFS)

    monkeypatch.setattr("os.open", read_only)
    with pytest.raises(StorageError, match="read-only"):
        make_folder_for(tmp_path / "new" / "a.npz")


WRITE_AND_WAIT = """
import sys, time
from recollect.common.files import atomic_write, new_folder
opened = atomic_write if sys.argv[1] == "file" else new_folder
with opened(sys.argv[2]) as place:
    print("open", flush=True)
    time.sleep(600)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="kills as Unix does")
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_strays_of_dead_processes_are_removed_and_those_of_living_ones_stay(tmp_path: Path, kind: str) -> None:
    command = [sys.executable, "-c", WRITE_AND_WAIT, kind, str(tmp_path / "a")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert len(list(tmp_path.glob(".a.*.part"))) == 1
        write_text(tmp_path / "b", "x")
        assert remove_strays(tmp_path) == []
        assert len(list(tmp_path.glob(".a.*.part"))) == 1  # alive
        process.kill()
    write_text(tmp_path / "b", "y")
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_trying_a_place_removes_strays(tmp_path: Path) -> None:
    stray = tmp_path / ".i.db.4000000-0123abcd.part"
    stray.touch()
    make_folder_for(tmp_path / "i.db")
    assert not stray.exists()


def test_other_files_that_end_in_part_stay(tmp_path: Path) -> None:
    for name in ("x.npy.part", ".hidden.part", ".a.12-xyz.part"):
        (tmp_path / name).write_text("x")
    assert remove_strays(tmp_path) == []
    assert len(list(tmp_path.iterdir())) == 3


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    with new_folder(tmp_path / "deep" / "run") as folder:
        write_text(folder / "a", "x")
        assert not (tmp_path / "deep" / "run").exists()
    assert (tmp_path / "deep" / "run" / "a").read_text() == "x"
    with pytest.raises(StorageError), new_folder(tmp_path / "other") as folder:
        write_text(folder, "x")
    (tmp_path / "empty").mkdir()
    with new_folder(tmp_path / "empty") as folder:
        write_text(folder / "a", "x")
    with pytest.raises(StorageError, match="already"), new_folder(tmp_path / "empty") as folder:
        write_text(folder / "a", "y")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "empty"]
    assert (tmp_path / "empty" / "a").read_text() == "x"


def test_lines_are_appended_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for line in ("one", "two"):
        append_line(tmp_path / "a", line)
    assert (tmp_path / "a").read_text() == "one\ntwo\n"
    write = os.write

    def half(handle: int, content: memoryview) -> int:
        if len(content) < 5:
            raise _fails(errno.ENOSPC)
        return write(handle, content[: len(content) // 2])

    monkeypatch.setattr("os.write", half)
    with pytest.raises(StorageError, match="disk is full"):
        append_line(tmp_path / "a", "three and more")
    assert (tmp_path / "a").read_text() == "one\ntwo\n"
