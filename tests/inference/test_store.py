"""Rows by content on disk: part by part, checked, resumed after a kill, shared; and the keys of images."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from recollect.common.errors import DataWarning
from recollect.common.files import cache_folder
from recollect.data import ImageSet
from recollect.inference import store
from recollect.inference.store import Places, Rows, VectorStore, content_keys, set_digest


def keys_of(numbers: list[int]) -> store.Keys:
    return np.array([list(number.to_bytes(16, "little")) for number in numbers], np.uint8).reshape(-1, 16)


class Counting:
    """Row i is (number, number + 1), and every call is noted."""

    def __init__(self, numbers: list[int]) -> None:
        self.numbers, self.calls = np.array(numbers, np.float32), []  # type: ignore[var-annotated]

    def __call__(self, places: Places) -> Rows:
        self.calls.append(places.tolist())
        return np.stack([self.numbers[places], self.numbers[places] + 1], axis=1)

    @property
    def computed(self) -> int:
        return sum(map(len, self.calls))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=12), min_size=1, max_size=5), st.integers(1, 5))
def test_every_row_is_computed_once_and_comes_in_order(asked: list[list[int]], part: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        seen: set[int] = set()
        for numbers in asked:
            compute = Counting(numbers)
            rows = VectorStore({"of": "x"}, Path(folder)).rows(keys_of(numbers), compute, part=part)
            assert rows.tolist() == [[float(n), float(n + 1)] for n in numbers]
            assert compute.computed == len(set(numbers) - seen)
            assert all(len(call) <= part for call in compute.calls)
            seen |= set(numbers)


def test_rows_of_any_shape(tmp_path: Path) -> None:
    maps = np.random.default_rng(0).normal(size=(3, 2, 5, 4)).astype(np.float32)
    vectors = VectorStore({"of": "maps"}, tmp_path)
    assert np.array_equal(vectors.rows(keys_of([0, 1, 2]), lambda places: maps[places]), maps)
    again = VectorStore({"of": "maps"}, tmp_path)
    assert np.array_equal(again.rows(keys_of([2, 0]), lambda places: maps[:0]), maps[[2, 0]])


def test_rows_that_are_not_numbers_are_handed_on_and_not_kept(tmp_path: Path) -> None:
    def compute(places: Places) -> Rows:
        rows = np.ones((len(places), 2), np.float32)
        rows[places == 1] = np.nan
        return rows

    vectors = VectorStore({}, tmp_path)
    rows = vectors.rows(keys_of([5, 6, 7, 6]), compute)
    assert np.isnan(rows).any(axis=1).tolist() == [False, True, False, True]
    assert VectorStore({}, tmp_path).contains(keys_of([5, 6, 7])).tolist() == [True, False, True]


def damages(content: bytes) -> dict[str, bytes]:
    flipped = bytearray(content)
    flipped[content.index(b"rows.npy") + 165] ^= 0x10
    key = bytearray(content)
    key[content.index(b"keys.npy") + 200] ^= 1
    return {"empty": b"", "cut": content[:-25], "a bit of a row": bytes(flipped), "a bit of a key": bytes(key)}


@pytest.mark.parametrize("damage", damages(b"keys.npyrows.npy" + bytes(1000)))
def test_damaged_parts_are_made_again_with_a_remark(tmp_path: Path, damage: str) -> None:
    numbers = list(range(10))
    VectorStore({}, tmp_path).rows(keys_of(numbers), Counting(numbers), part=5)
    path = sorted(tmp_path.rglob("*.npz"))[0]
    path.write_bytes(damages(path.read_bytes())[damage])
    compute = Counting(numbers)
    with pytest.warns(DataWarning, match="damaged"):
        rows = VectorStore({}, tmp_path).rows(keys_of(numbers), compute, part=5)
    assert rows.tolist() == [[n, n + 1] for n in numbers]
    assert compute.computed == 5
    compute = Counting(numbers)
    VectorStore({}, tmp_path).rows(keys_of(numbers), compute)
    assert compute.computed == 0


def test_a_place_that_cannot_be_written_costs_time_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    vectors = VectorStore({}, tmp_path / "file")
    with pytest.warns(DataWarning, match="not stored"):
        rows = vectors.rows(keys_of([1, 2, 3]), Counting([1, 2, 3]), part=2)
    assert rows.tolist() == [[1, 2], [2, 3], [3, 4]]


def test_an_interruption_loses_one_part(tmp_path: Path) -> None:
    numbers = list(range(100))
    compute = Counting(numbers)

    def interrupted(places: Places) -> Rows:
        if places[0] >= 60:
            raise KeyboardInterrupt
        return compute(places)

    with pytest.raises(KeyboardInterrupt):
        VectorStore({}, tmp_path).rows(keys_of(numbers), interrupted, part=10)
    rows = VectorStore({}, tmp_path).rows(keys_of(numbers), compute, part=10)
    assert compute.calls == [list(range(start, start + 10)) for start in range(0, 100, 10)]
    assert rows.tolist() == [[n, n + 1] for n in numbers]


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


def counted(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    read: list[bytes] = []
    digest = store._file_digest

    def counting(path: bytes) -> bytes | None:
        read.append(path)
        return digest(path)

    monkeypatch.setattr(store, "_file_digest", counting)
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
    monkeypatch.setattr(store.time, "time_ns", lambda: real() + 10_000_000_000)
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
    monkeypatch.setattr(store.time, "time_ns", lambda: real() + 10_000_000_000)
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
    assert len({key.tobytes() for key in content_keys(images)}) == 3


def test_arrays_and_boxes() -> None:
    pixels = np.zeros((3, 4, 4), np.uint8)
    pixels[1] = 1
    images = ImageSet("x", list("abc"), [0, 0, 0], ["c"], arrays=pixels)
    plain = content_keys(images)
    assert plain[0].tolist() == plain[2].tolist() != plain[1].tolist()
    boxes = np.array([[0, 0, 2, 2], [np.nan] * 4, [0, 0, 3, 3]])
    boxed = content_keys(ImageSet("x", list("abc"), [0, 0, 0], ["c"], arrays=pixels, boxes=boxes))
    assert boxed[1].tolist() == plain[1].tolist()
    assert len({key.tobytes() for key in [*boxed, plain[0]]}) == 4


def test_a_file_too_large_to_be_an_image_is_not_hashed(tmp_path: Path) -> None:
    images = files(tmp_path / "a", {"x.png": b"one"})
    os.truncate(tmp_path / "a" / "x.png", 10**11)  # sparse: takes no room, and minutes to read
    begun = time.process_time()
    content_keys(images)
    assert time.process_time() - begun < 5
