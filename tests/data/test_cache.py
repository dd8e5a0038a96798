from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from recollect.data import pipeline as pipeline_module
from recollect.data.image_set import ImageSet
from recollect.data.pipeline import DiskCache, RamCache


def pixels(seed: int, height: int = 7, width: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.fixture
def files(tmp_path: Path) -> ImageSet:
    for number in range(4):
        Image.fromarray(pixels(number)).save(tmp_path / f"{number}.png")
    return ImageSet("files", [f"{n}.png" for n in range(4)], [0, 0, 1, 1], ["x", "y"], root=tmp_path)


def test_ram_cache_keeps_what_fits_in_half_of_the_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_module, "available_bytes", lambda: 2 * (2 * 105 + 50))
    cache = RamCache()
    for number in range(4):
        assert cache.get(number) is None
        cache.put(number, pixels(number))
    assert [cache.get(number) is not None for number in range(4)] == [True, True, False, False]
    assert np.array_equal(cache.get(1), pixels(1))


def test_ram_cache_copies_views() -> None:
    cache = RamCache()
    whole = pixels(0, 40, 40)
    cache.put(0, whole[3:10, 4:9])
    kept = cache.get(0)
    assert kept.base is None
    expected = whole[3:10, 4:9].copy()
    whole[:] = 0
    assert np.array_equal(kept, expected)


def test_disk_cache_gives_back_what_it_was_given(files: ImageSet, tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache", files, "as decoded")
    assert cache.get(0) is None
    cache.put(0, pixels(9, 11, 4))
    again = DiskCache(tmp_path / "cache", files, "as decoded")
    assert np.array_equal(again.get(0), pixels(9, 11, 4))
    again.get(0)[:] = 0  # a caller may write into what it got
    assert np.array_equal(again.get(0), pixels(9, 11, 4))
    assert again.get(1) is None
    assert [path.suffix for path in (tmp_path / "cache").rglob("*.*")] == [".pixels"], "no half-written file is left"


def test_disk_entries_belong_to_file_transform_and_box(files: ImageSet, tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache", files, "as decoded")
    before = cache.path(0)
    assert DiskCache(tmp_path / "cache", files, "shrunk").path(0) != before
    boxed = ImageSet("f", files.names, files.labels, files.class_names, files.root, boxes=np.ones((4, 4)))
    assert DiskCache(tmp_path / "cache", boxed, "as decoded").path(0) != before
    os.utime(files.path(0), ns=(1, 1))
    touched = cache.path(0)
    assert touched != before
    files.path(0).write_bytes(files.path(0).read_bytes() + b"\0")
    os.utime(files.path(0), ns=(1, 1))
    assert cache.path(0) != touched


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "grow", "magic"])
def test_damaged_entries_are_made_again(files: ImageSet, tmp_path: Path, damage: str) -> None:
    cache = DiskCache(tmp_path / "cache", files, "")
    cache.put(0, pixels(0))
    entry = cache.path(0)
    content = bytearray(entry.read_bytes())
    if damage == "flip":
        content[-9] ^= 1
    elif damage == "magic":
        content[0] ^= 1
    entry.write_bytes({"cut": content[:-1], "empty": b"", "grow": content + b"\0"}.get(damage, content))
    assert cache.get(0) is None
    cache.put(0, pixels(0))
    assert np.array_equal(cache.get(0), pixels(0))


def test_a_cache_that_cannot_be_written_does_not_stop_a_run(files: ImageSet, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    cache = DiskCache(tmp_path / "cache", files, "")
    cache.put(0, pixels(0))
    assert cache.get(0) is None
