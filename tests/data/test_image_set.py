from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from recollect.common.errors import ImageError, InputError
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
    with pytest.raises(InputError, match="exactly one"):
        ImageSet("x", ["a"], np.array([0]), ["c"])
    with pytest.raises(InputError, match=r"2 names .*1 labels"):
        ImageSet("x", ["a", "b"], np.array([0]), ["c"], arrays=pixels)
    with pytest.raises(InputError, match="from 0 to 0"):
        ImageSet("x", ["a", "b"], np.array([0, 1]), ["c"], arrays=pixels)
    with pytest.raises(InputError, match=r"'a' .*more than once"):
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


def test_dots_and_colons_that_stay_inside_are_fine(tmp_path: Path) -> None:
    picture(tmp_path / "a..b" / "..x.png")
    picture(tmp_path / "12:30.png")
    images = make(tmp_path, ["a..b/..x.png", "12:30.png"])
    assert images.read(0).size == images.read(1).size == (12, 8)


def test_a_root_that_is_itself_a_link_is_followed(tmp_path: Path) -> None:
    picture(tmp_path / "real" / "a.png")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert make(tmp_path / "link", ["a.png"]).read(0).size == (12, 8)


def test_an_image_can_be_read_without_its_crop() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (1, 8, 8, 3), dtype=np.uint8)
    images = ImageSet("demo", ["a"], [0], ["x"], arrays=pixels, boxes=np.array([[1.0, 2.0, 5.0, 8.0]]))
    assert np.array_equal(np.asarray(images.read(0)), pixels[0, 2:8, 1:5])
    assert np.array_equal(np.asarray(images.read(0, crop=False)), pixels[0])


def with_kinds(root: Path, **options: object) -> ImageSet:
    return ImageSet(
        "kinds",
        ["a", "b", "c", "d"],
        np.array([0, 1, 2, 1]),
        ["mug", "chair", "stool"],
        root=root,
        coarse_labels=np.array([0, 1, 1, 1]),
        coarse_names=["kitchen", "seat"],
        **options,  # type: ignore[arg-type]
    )


def test_coarse_labels_are_sliced_and_renumbered(tmp_path: Path) -> None:
    images = with_kinds(tmp_path)
    part = images.subset([3, 2])
    assert part.coarse_labels is not None
    assert (part.labels.tolist(), list(part.class_names)) == ([0, 1], ["chair", "stool"])
    assert (part.coarse_labels.tolist(), list(part.coarse_names)) == ([0, 0], ["seat"])
    assert list(images.of_classes([0]).coarse_names) == ["kitchen"]
    assert (
        images.fingerprint == ImageSet("x", images.names, images.labels, images.class_names, root=tmp_path).fingerprint
    )


def test_coarse_labels_that_cannot_be(tmp_path: Path) -> None:
    for labels, names, word in (
        ([0], ["x"], "names but"),
        ([0, 0, 0, 5], ["x"], "from 0"),
        ([0, 0, 0, 1], "xy", "one"),
    ):
        with pytest.raises(InputError, match=word):
            ImageSet(
                "k",
                list("abcd"),
                [0, 1, 2, 1],
                list("xyz"),
                root=tmp_path,
                coarse_labels=labels,
                coarse_names=list(names),  # type: ignore[arg-type]
            )


def test_joined_sets_share_classes_by_name(tmp_path: Path) -> None:
    images = with_kinds(tmp_path)
    first, second = images.subset([0, 1]), images.subset([2, 3])
    whole = first.joined(second)
    assert list(whole.names) == ["a", "b", "c", "d"]
    assert [whole.class_names[label] for label in whole.labels] == ["mug", "chair", "stool", "chair"]
    assert whole.coarse_labels is not None
    assert [whole.coarse_names[label] for label in whole.coarse_labels] == ["kitchen", "seat", "seat", "seat"]
    assert len(whole.class_names) == 3
    assert whole.boxes is None
    boxed = ImageSet("b", ["e"], [0], ["mug"], root=tmp_path, boxes=np.array([[0, 0, 1, 1.0]]))
    plain = ImageSet("p", ["f"], [0], ["lamp"], root=tmp_path)
    assert np.isnan(plain.joined(boxed).boxes).all(axis=1).tolist() == [True, False]  # type: ignore[arg-type]
    arrays = ImageSet("n", ["g"], [0], ["mug"], arrays=np.zeros((1, 2, 2), np.uint8))
    assert len(arrays.joined(ImageSet("n", ["h"], [0], ["mug"], arrays=np.ones((1, 2, 2), np.uint8)))) == 2
    for other in (images, arrays, ImageSet("r", ["f"], [0], ["lamp"], root=tmp_path / "else")):
        with pytest.raises(InputError, match="cannot be joined"):
            plain.joined(other)


def test_a_link_to_itself_is_an_image_error(tmp_path: Path) -> None:
    (tmp_path / "a.png").symlink_to(tmp_path / "a.png")
    with pytest.raises(ImageError, match="symbolic link"):
        make(tmp_path, ["a.png"]).read(0)


def test_files_that_do_not_exist(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.png").touch()
    (tmp_path / "2.png").touch()
    names = ["a/1.png", "a/2.png", "2.png", "b/1.png"]
    assert ImageSet("listed", names, [0] * 4, ["x"], root=tmp_path).missing.tolist() == [1, 3]
    assert not len(ImageSet("arrays", ["x"], [0], ["x"], arrays=np.zeros((1, 2, 2), np.uint8)).missing)


def test_images_are_opened_alike_whatever_they_are(tmp_path: Path) -> None:
    """Pixels, size and digest of a file, its content, a PIL image and an array."""
    pixels = np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    image.save(tmp_path / "a.png")
    content = (tmp_path / "a.png").read_bytes()
    items = [content, image, lambda: image, tmp_path / "a.png"]
    sets = [
        ImageSet("file", ["a.png"], [0], ["x"], root=tmp_path),
        ImageSet("array", ["a"], [0], ["x"], arrays=pixels[None]),
        *(ImageSet("item", ["a"], [0], ["x"], items=[item]) for item in items),
    ]
    for images in sets:
        assert np.array_equal(images.read(0), pixels)
        assert images.size(0) == (9, 6)
    digests = [images.digest(0) for images in sets]
    assert digests[0] == digests[2] == digests[5] == hashlib.sha256(content).digest(), "of the file's content"
    assert digests[3] == digests[4], "of the pixels"
    other = ImageSet("other", ["a"], [0], ["x"], arrays=pixels[None] + 1)
    assert other.identity(0) not in [images.identity(0) for images in sets]
