from __future__ import annotations

import errno
import hashlib
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from recollect.common.errors import StorageError
from recollect.common.files import (
    append_line,
    atomic_write,
    is_free,
    make_folder_for,
    new_folder,
    remove_strays,
    try_lock,
    write_json,
    write_text,
)
from recollect.common.reading import read_json, sha256


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


def test_names_that_are_not_utf_8_come_back_from_json(tmp_path: Path) -> None:
    value = {"name": "photos/\udcff\udcfe.png", "other": "é \\udcff"}
    write_json(tmp_path / "a.json", value)
    assert read_json(tmp_path / "a.json") == value


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


def test_a_folder_or_a_device_is_not_replaced(tmp_path: Path) -> None:
    for place in (tmp_path, Path("/dev/null")):
        with pytest.raises(StorageError, match="a folder or a device"):
            write_text(place, "x")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def _fails(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "disk is full.*free.*unchanged.*again"),
        (errno.EACCES, "Permission denied.*unchanged.*change the permissions"),
        (errno.EIO, "Input/output error.*unchanged"),
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


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file may have more than 100 kB."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_checkpoint_without_room_is_a_sentence(tmp_path: Path, small_files: None) -> None:
    """torch raises an error of its own that hides the reason."""
    with (
        pytest.raises(StorageError, match=r"a\.pt cannot be written: File too large.*No partial file.*Free some space"),
        atomic_write(tmp_path / "a.pt") as file,
    ):
        torch.save(torch.zeros(10**6), file)
    assert not list(tmp_path.iterdir())


def test_a_place_is_tried_before_long_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_folder_for(tmp_path / "new" / "a.npz")
    assert not list((tmp_path / "new").iterdir())
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="file is not a folder"):
        make_folder_for(tmp_path / "file" / "a.npz")

    def read_only(*arguments: object, **options: object) -> None:
        raise _fails(errno.EROFS)

    monkeypatch.setattr("pathlib.Path.touch", read_only)
    with pytest.raises(StorageError, match="Read-only"):
        make_folder_for(tmp_path / "new" / "a.npz")


def test_temporary_files_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    code = (
        "import os, sys; from recollect.common.files import atomic_write\nwith atomic_write(sys.argv[1]): os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "a")], check=False)
    write_text(tmp_path / "b", "x")
    assert len(list(tmp_path.iterdir())) == 2
    remove_strays(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


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
    with pytest.raises(StorageError, match="not empty"), new_folder(tmp_path / "empty") as folder:
        write_text(folder / "a", "y")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "empty"]
    assert (tmp_path / "empty" / "a").read_text() == "x"


def test_lines_are_appended_whole(tmp_path: Path, small_files: None) -> None:
    for line in ("one", "two"):
        append_line(tmp_path / "a", line)
    assert (tmp_path / "a").read_text() == "one\ntwo\n"
    with pytest.raises(StorageError, match="File too large"):
        append_line(tmp_path / "a", "three" * 50_000)
    assert (tmp_path / "a").read_text() == "one\ntwo\n"


HOLD = """
import sys, time
from recollect.common.files import try_lock
lock = try_lock(sys.argv[1])
print("held", flush=True)
time.sleep(600)
"""


def test_a_lock_is_held_by_one_process_and_free_when_it_dies(tmp_path: Path) -> None:
    path = tmp_path / "new" / "lock"
    assert not is_free(path)  # never taken
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert try_lock(path) is None
        assert try_lock(path, wait=0.1) is None
        assert not is_free(path)
        process.kill()
    assert is_free(path)
    assert path.exists()  # another process may be waiting on it
