from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from recollect.common.errors import DataError, ImageError, InputError
from recollect.data import ImageSet


def make(root: Path, names: list[str], **options: object) -> ImageSet:
    return ImageSet("demo", names, [0] * len(names), ["only"], root=root, **options)  # type: ignore[arg-type]


def picture(path: Path, colour: tuple[int, int, int] = (200, 10, 10), size: tuple[int, int] = (12, 8)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)
    return path


def test_reads_files_and_arrays(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    assert make(tmp_path, ["a.png"]).read(0).getpixel((0, 0)) == (200, 10, 10)
    grey = np.full((1, 4, 6), 7, np.uint8)
    assert ImageSet("g", ["x"], np.array([0]), ["c"], arrays=grey).read(0).getpixel((5, 3)) == (7, 7, 7)
    with pytest.raises(ImageError, match="no such file"):
        make(tmp_path, ["b.png"]).read(0)


def test_boxes_crop_and_nan_keeps_the_whole_image(tmp_path: Path) -> None:
    pixels = np.arange(48, dtype=np.uint8).reshape(1, 6, 8).repeat(2, axis=0)
    boxes = np.array([[2.0, 1.0, 5.0, 3.0], [np.nan] * 4])
    images = ImageSet("b", ["x", "y"], np.array([0, 0]), ["c"], arrays=pixels, boxes=boxes)
    assert np.asarray(images.read(0))[..., 0].tolist() == pixels[0, 1:3, 2:5].tolist()
    assert images.read(1).size == (8, 6)


def test_subset_renumbers_classes_in_order() -> None:
    pixels = np.arange(5, dtype=np.uint8).reshape(5, 1, 1)
    images = ImageSet("s", list("abcde"), np.array([2, 0, 2, 1, 0]), ["x", "y", "z"], arrays=pixels, split="train")
    part = images.subset([4, 2], split="val")
    assert (list(part.names), part.labels.tolist(), list(part.class_names)) == (["e", "c"], [0, 1], ["x", "z"])
    assert part.split == "val"
    assert part.arrays is not None
    assert part.arrays.ravel().tolist() == [4, 2]
    assert list(images.of_classes([2]).names) == ["a", "c"]
    assert images.class_sizes.tolist() == [2, 1, 2]


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    pixels = np.zeros((2, 1, 1), np.uint8)
    with pytest.raises(InputError, match="either a root folder or arrays"):
        ImageSet("x", ["a"], np.array([0]), ["c"])
    with pytest.raises(InputError, match="2 names but 1 labels"):
        ImageSet("x", ["a", "b"], np.array([0]), ["c"], arrays=pixels)
    with pytest.raises(InputError, match="from 0 to 0"):
        ImageSet("x", ["a", "b"], np.array([0, 1]), ["c"], arrays=pixels)
    with pytest.raises(InputError, match="'a' is there more than once"):
        ImageSet("x", ["a", "a"], np.array([0, 0]), ["c"], arrays=pixels)
    with pytest.raises(InputError, match="have no files"):
        ImageSet("x", ["a", "b"], np.array([0, 0]), ["c"], arrays=pixels).path(0)


def test_fingerprint_tells_sets_apart(tmp_path: Path) -> None:
    images = make(tmp_path, ["a.png", "b.png"])
    assert images.fingerprint == make(tmp_path / "elsewhere", ["a.png", "b.png"]).fingerprint
    assert images.fingerprint != make(tmp_path, ["b.png", "a.png"]).fingerprint
    assert images.fingerprint != ImageSet("demo", ["a.png", "b.png"], [0, 1], ["only", "two"], tmp_path).fingerprint  # type: ignore[arg-type]
    boxes = np.array([[0, 0, 1, 1], [0, 0, 2, 2]], float)
    assert images.fingerprint != make(tmp_path, ["a.png", "b.png"], boxes=boxes).fingerprint
    black, white = (ImageSet("x", ["a"], [0], ["c"], arrays=np.full((1, 2, 2), v, np.uint8)) for v in (0, 255))  # type: ignore[arg-type]
    assert black.fingerprint != white.fingerprint


@pytest.mark.parametrize("name", ["../b.png", "a/../../b.png", "/etc/b.png", "C:/b.png", "..\\b.png", "\\b.png"])
def test_names_leaving_the_root_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="leads outside the folder"):
        make(tmp_path, [name])
    assert make(tmp_path, [name], allow_outside=True).names == [name]


def test_dots_and_colons_that_stay_inside_are_fine(tmp_path: Path) -> None:
    picture(tmp_path / "a..b" / "..x.png")
    picture(tmp_path / "12:30.png")
    images = make(tmp_path, ["a..b/..x.png", "12:30.png"])
    assert images.read(0).size == images.read(1).size == (12, 8)


def test_symlinks_leaving_the_root_are_refused(tmp_path: Path) -> None:
    outside = picture(tmp_path / "outside" / "a.png")
    root = tmp_path / "root"
    inside = picture(root / "inside.png")
    (root / "out.png").symlink_to(outside)
    (root / "in.png").symlink_to(inside)
    (root / "folder").symlink_to(outside.parent)
    images = make(root, ["out.png", "folder/a.png", "in.png"])
    for index in (0, 1):
        with pytest.raises(DataError, match="leads outside the folder"):
            images.read(index)
    assert images.read(2).size == (12, 8)
    assert make(root, ["out.png"], allow_outside=True).read(0).size == (12, 8)


def test_a_root_that_is_itself_a_link_is_followed(tmp_path: Path) -> None:
    picture(tmp_path / "real" / "a.png")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert make(tmp_path / "link", ["a.png"]).read(0).size == (12, 8)


def test_an_image_can_be_read_without_its_crop() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (1, 8, 8, 3), dtype=np.uint8)
    images = ImageSet("demo", ["a"], [0], ["x"], arrays=pixels, boxes=np.array([[1.0, 2.0, 5.0, 8.0]]))
    assert np.array_equal(np.asarray(images.read(0)), pixels[0, 2:8, 1:5])
    assert np.array_equal(np.asarray(images.read(0, crop=False)), pixels[0])
