from __future__ import annotations

import io
import json
import os
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from recollect.common.errors import ConfigError, DataError
from recollect.common.reading import (
    TEXT_LIMIT,
    open_npy,
    parse_yaml,
    read_bytes,
    read_json,
    read_npz,
    read_text,
    read_torch,
)


def test_only_regular_files_of_a_sane_size_are_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        read_bytes(tmp_path / "absent")
    with pytest.raises(DataError, match="regular"):
        read_bytes(tmp_path)
    with pytest.raises(DataError, match="cannot be read"):
        read_bytes("a\0b")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(DataError, match="loop cannot be read"):
        read_bytes(tmp_path / "loop")
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", TEXT_LIMIT + 1)
    with pytest.raises(DataError, match="more than"):
        read_bytes(tmp_path / "large")


@pytest.mark.skipif(sys.platform == "win32", reason="pipes of Unix")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for read in (read_bytes, read_text, read_json, read_npz, open_npy, read_torch):
        with pytest.raises(DataError, match="regular"):
            read(tmp_path / "pipe")  # type: ignore[operator]


def test_text_names_the_line_that_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one\ntw\xff")
    with pytest.raises(DataError, match=r"line 2.*0xff"):
        read_text(tmp_path / "a")
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbfone")
    assert read_text(tmp_path / "a") == "one"


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe\x00", b"[" * 100_000, b'{"a": nul}', b"[1]", b"null", b"{} {}"]
)
def test_damaged_json_is_a_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.json").write_bytes(content)
    with pytest.raises(DataError, match=r"bad\.json"):
        read_json(tmp_path / "bad.json", dict)


def test_arrays_come_back(tmp_path: Path) -> None:
    arrays = {"a": np.arange(6.0).reshape(2, 3), "b": np.array(["x", "yy"]), "c": np.array(3), "d": np.empty((0, 4))}
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "x.npz", **arrays)  # type: ignore[operator]
        result = read_npz(tmp_path / "x.npz")
        assert list(result) == list(arrays)
        for name, array in arrays.items():
            np.testing.assert_array_equal(result[name], array)
            np.save(tmp_path / "x.npy", np.asfortranarray(array))
            np.testing.assert_array_equal(open_npy(tmp_path / "x.npy"), array)


def _npy(header: bytes, content: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + content


HOSTILE_ARRAYS = {
    "object": _npy(b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n", b"x" * 8),
    "huge": _npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }\n", b"x" * 8),
    "text": _npy(b"{'descr': 'x', 'fortran_order': 0, 'shape': 'y', }\n"),
    "short": b"\x93NUMPY",
    "version": b"\x93NUMPY\x09\x00" + b"\0" * 20,
    "empty": b"",
}


@pytest.mark.parametrize("name", HOSTILE_ARRAYS)
def test_hostile_arrays_are_refused(tmp_path: Path, name: str) -> None:
    content = HOSTILE_ARRAYS[name]
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(DataError, match=r"x\.npy"):
        open_npy(tmp_path / "x.npy")
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("a.npy", content)
    with pytest.raises(DataError, match=r"x\.npz"):
        read_npz(tmp_path / "x.npz")


def test_a_changed_byte_of_an_archive_is_noticed(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.arange(1000.0))
    content = bytearray((tmp_path / "x.npz").read_bytes())
    content[5000] ^= 1
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(DataError, match="CRC"):
        read_npz(tmp_path / "x.npz")


def _saved(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


CHECKPOINT = {"model": {"weight": torch.arange(100.0)}, "step": 3}
SAVED = _saved(CHECKPOINT)


@given(place=st.integers(0, 8 * len(SAVED) - 1))
def test_a_flipped_bit_of_a_checkpoint_never_becomes_another_weight(place: int) -> None:
    import tempfile

    content = bytearray(SAVED)
    content[place // 8] ^= 1 << place % 8
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        try:
            result = read_torch(file.name)
        except DataError:
            return
    assert result["step"] == 3  # a bit that means nothing
    assert torch.equal(result["model"]["weight"], CHECKPOINT["model"]["weight"])  # type: ignore[index]


def test_checkpoints_that_are_something_else(tmp_path: Path) -> None:
    for content in (b"", b"nonsense", SAVED[:-100], json.dumps({}).encode()):
        (tmp_path / "x.pt").write_bytes(content)
        with pytest.raises(DataError, match=r"x\.pt"):
            read_torch(tmp_path / "x.pt")
    with zipfile.ZipFile(tmp_path / "x.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/0", b"\0" * 10**6)
    with pytest.raises(DataError, match="compressed"):
        read_torch(tmp_path / "x.pt")


@pytest.mark.parametrize(
    "text",
    [
        "[" * 3000,
        "!!int x",
        "!!python/object/apply:os.system [touch run]",
        "{[a]: b}",
        "*absent",
        "a: b: c",
        "--- a\n--- b",
    ],
)
def test_what_is_not_yaml_is_a_sentence(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^there: not valid YAML"):
        parse_yaml(text, "there")
