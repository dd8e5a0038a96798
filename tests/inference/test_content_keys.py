"""What identifies an image: its content, remembered with the file's times."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import numpy as np
import pytest

from recollect.common.files import cache_folder
from recollect.data import ImageSet
from recollect.inference import content_keys as keys_of
from recollect.inference.content_keys import content_keys, set_digest


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path / "cache"))


def files(root: Path, contents: dict[str, bytes], age: float = 100.0) -> ImageSet:
    for name, content in contents.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        os.utime(path, (time.time() - age, time.time() - age))
    return ImageSet("x", list(contents), np.zeros(len(contents), np.int64), ["c"], root=root)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    read: list[str | None] = []
    digest = keys_of._digest

    def counting(path: str | None) -> bytes | None:
        read.append(path)
        return digest(path)

    monkeypatch.setattr(keys_of, "_digest", counting)
    return read


def test_a_key_is_the_content_wherever_it_lies(tmp_path: Path) -> None:
    one = files(tmp_path / "a", {"x.png": b"one", "y.png": b"two"})
    other = files(tmp_path / "b", {"renamed/z.png": b"two", "q.png": b"one"})
    assert content_keys(one)[0].tobytes() == hashlib.sha256(b"one").digest()[:16]
    assert content_keys(one).tolist() == content_keys(other)[::-1].tolist()
    assert set_digest(one, content_keys(one)) != set_digest(other, content_keys(other))


def test_settled_files_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The time of change of an entry cannot be set back, so the clock is moved on instead.
    real = time.time_ns
    monkeypatch.setattr(keys_of.time, "time_ns", lambda: real() + 10_000_000_000)
    images = files(tmp_path / "a", {"x.png": b"one", "y.png": b"two"})
    read = counted(monkeypatch)
    first = content_keys(images)
    assert len(read) == 2
    assert content_keys(images).tolist() == first.tolist()
    assert len(read) == 2
    # Another content of the same length, with the old time of the content put back.
    status = (tmp_path / "a" / "x.png").stat()
    (tmp_path / "a" / "x.png").write_bytes(b"eno")
    os.utime(tmp_path / "a" / "x.png", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert content_keys(images)[0].tobytes() == hashlib.sha256(b"eno").digest()[:16]
    assert len(read) == 3


def test_a_file_that_just_changed_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = files(tmp_path / "a", {"x.png": b"one"}, age=0)
    read = counted(monkeypatch)
    content_keys(images)
    content_keys(images)
    assert len(read) == 2


def test_a_damaged_memory_costs_time_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time_ns
    monkeypatch.setattr(keys_of.time, "time_ns", lambda: real() + 10_000_000_000)
    images = files(tmp_path / "a", {"x.png": b"one"})
    expected = content_keys(images)
    path = cache_folder() / "content.sqlite"
    for damage in (b"no database at all" * 100, path.read_bytes()[:1500], b""):
        path.write_bytes(damage)
        assert content_keys(images).tolist() == expected.tolist()
    read = counted(monkeypatch)
    content_keys(images)
    content_keys(images)
    assert len(read) <= 1, "and it is made again"
    monkeypatch.setenv("RECOLLECT_CACHE", "/proc/nowhere")
    assert content_keys(images).tolist() == expected.tolist()


def test_what_cannot_be_read_has_a_key_of_its_own(tmp_path: Path) -> None:
    images = files(tmp_path / "a", {"x.png": b"one", "gone.png": b"two", "pipe.png": b"three"})
    (tmp_path / "a" / "gone.png").unlink()
    (tmp_path / "a" / "pipe.png").unlink()
    os.mkfifo(tmp_path / "a" / "pipe.png")  # would be waited for
    found = content_keys(images)
    assert len({key.tobytes() for key in found}) == 3


def test_arrays_and_boxes() -> None:
    pixels = np.zeros((3, 4, 4), np.uint8)
    pixels[1] = 1
    images = ImageSet("x", list("abc"), [0, 0, 0], ["c"], arrays=pixels)
    found = content_keys(images)
    assert found[0].tolist() == found[2].tolist() != found[1].tolist()
    boxes = np.array([[0, 0, 2, 2], [np.nan] * 4, [0, 0, 3, 3]])
    boxed = content_keys(ImageSet("x", list("abc"), [0, 0, 0], ["c"], arrays=pixels, boxes=boxes))
    assert boxed[1].tolist() == found[1].tolist()
    assert len({key.tobytes() for key in [*boxed, found[0]]}) == 4


def test_images_without_files_are_known_by_their_pixels() -> None:
    """Rows of a Hugging Face data set, or whatever gives images one by one."""
    from recollect.data.hugging_face import from_hugging_face

    class Rows(list):  # type: ignore[type-arg]
        column_names = ("image", "label")

        def __getitem__(self, key):  # type: ignore[no-untyped-def]
            return [row[key] for row in self] if isinstance(key, str) else super().__getitem__(key)

    pictures = [np.full((4, 4, 3), value, np.uint8) for value in (1, 2, 1)]
    rows = Rows({"image": picture, "label": number} for number, picture in enumerate([*pictures, b"broken"]))
    keys = content_keys(from_hugging_face(rows))
    assert keys.shape == (4, 16)
    assert (keys[0] == keys[2]).all()
    assert len({key.tobytes() for key in keys}) == 3


def test_a_file_too_large_to_be_an_image_is_not_hashed(tmp_path: Path) -> None:
    images = files(tmp_path / "a", {"x.png": b"one"})
    os.truncate(tmp_path / "a" / "x.png", 10**11)  # sparse: takes no room, and minutes to read
    begun = time.process_time()
    content_keys(images)
    assert time.process_time() - begun < 5


def test_a_damaged_table_never_gives_another_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut, flipped or filled with zeros: SQLite does not notice each of these, and some rows come back changed."""
    real = time.time_ns
    monkeypatch.setattr(keys_of.time, "time_ns", lambda: real() + 10_000_000_000)
    images = files(tmp_path / "a", {f"{number:03d}.png": b"%d" % number for number in range(120)})
    expected = content_keys(images).tolist()
    table = cache_folder() / "content.sqlite"
    whole = table.read_bytes()
    assert content_keys(images).tolist() == expected
    random = np.random.default_rng(0)
    for trial in range(60):
        place = int(random.integers(len(whole)))
        length = int(random.integers(1, 200))
        table.write_bytes(
            [
                whole[:place],
                whole[:place] + bytes(length) + whole[place + length :],
                whole[:place] + bytes([whole[place] ^ 1 << int(random.integers(8))]) + whole[place + 1 :],
            ][trial % 3]
        )
        assert content_keys(images).tolist() == expected, (trial, place, length)
