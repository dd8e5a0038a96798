"""Image sets, and splits by class."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from PIL import Image

from recollect.common.errors import ConfigError, InputError
from recollect.data import ImageSet, class_disjoint_split, class_folds
from recollect.data.image_set import held_out_classes


def make(root: Path, names: list[str], **options: object) -> ImageSet:
    return ImageSet("demo", names, [0] * len(names), ["only"], root=root, **options)  # type: ignore[arg-type]


def test_boxes_crop_and_nan_keeps_the_whole_image(tmp_path: Path) -> None:
    pixels = np.arange(48, dtype=np.uint8).reshape(1, 6, 8).repeat(2, axis=0)
    boxes = np.array([[2.0, 1.0, 5.0, 3.0], [np.nan] * 4])
    images = ImageSet("b", ["x", "y"], np.array([0, 0]), ["c"], arrays=pixels, boxes=boxes)
    assert np.asarray(images.read(0))[..., 0].tolist() == pixels[0, 1:3, 2:5].tolist()
    assert images.read(1).size == images.read(0, crop=False).size == (8, 6)


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
    with pytest.raises(InputError, match="cannot be joined"):
        plain.joined(arrays)


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


def numbered(labels: list[int]) -> ImageSet:
    kept, numbers = np.unique(labels, return_inverse=True)
    names = [f"{i}" for i in range(len(labels))]
    return ImageSet(
        "demo", names, numbers, [f"class {k}" for k in kept], arrays=np.zeros((len(labels), 1, 1), np.uint8)
    )


labelled = st.lists(st.integers(0, 12), min_size=2, max_size=60).filter(lambda labels: len(set(labels)) >= 2)


@given(labelled, st.sampled_from(["paper", "random"]), st.integers(0, 9))
def test_parts_share_no_class_and_lose_no_image(labels: list[int], mode: str, seed: int) -> None:
    images = numbered(labels)
    train, val = class_disjoint_split(images, mode, seed)
    assert not set(train.class_names) & set(val.class_names)
    assert sorted([*train.names, *val.names]) == sorted(images.names)
    assert 0 <= train.num_classes - val.num_classes <= 1
    for part in (train, val):
        for name, label in zip(part.names, part.labels, strict=True):
            assert part.class_names[label] == images.class_names[images.labels[int(name)]]


def test_paper_takes_the_first_half_in_order() -> None:
    train, val = class_disjoint_split(numbered([3, 1, 2, 0, 0]))
    assert list(train.class_names) == ["class 0", "class 1"]
    assert list(val.class_names) == ["class 2", "class 3"]
    assert (train.split, val.split) == ("train", "val")


@given(labelled, st.integers(2, 5), st.one_of(st.none(), st.integers(0, 9)))
def test_every_class_validates_once(labels: list[int], folds: int, seed: int | None) -> None:
    images = numbered(labels)
    folds = min(folds, images.num_classes)
    pairs = class_folds(images, folds, seed)
    assert sorted(name for _, val in pairs for name in val.class_names) == sorted(images.class_names)
    for train, val in pairs:
        assert sorted([*train.names, *val.names]) == sorted(images.names)
        assert not set(train.class_names) & set(val.class_names)
    sizes = [val.num_classes for _, val in pairs]
    assert len(sizes) == folds
    assert max(sizes) - min(sizes) <= 1


def test_what_cannot_be_split() -> None:
    with pytest.raises(ConfigError, match="'half' is unknown"):
        class_disjoint_split(numbered([0, 1]), "half")
    with pytest.raises(InputError, match="too few"):
        class_disjoint_split(numbered([0, 0]))
    with pytest.raises(InputError, match=r"at least 2.* 1"):
        class_folds(numbered([0, 1]), 1)


@given(st.lists(st.integers(1, 200), min_size=2, max_size=60), st.floats(0.05, 0.95), st.integers(0, 5))
def test_held_out_classes_have_their_share(sizes: list[int], share: float, seed: int) -> None:
    counts = np.array(sizes)
    held_out = held_out_classes(counts, share, seed)
    assert len(held_out) == min(max(1, int(len(sizes) * share + 1e-9)), len(sizes) - 1)
    assert len(set(held_out.tolist())) == len(held_out)
    assert held_out.tolist() == held_out_classes(counts, share, seed).tolist()
    # Classes of like size are drawn from, so the share of images is off by no more than a few of the largest classes.
    wanted = counts.sum() * len(held_out) / len(sizes)
    assert abs(counts[held_out].sum() - wanted) <= 2 * counts.max()


def test_equal_classes_are_halved_exactly_and_another_seed_is_another_half() -> None:
    sizes = np.full(20, 7)
    halves = {tuple(held_out_classes(sizes, 0.5, seed).tolist()) for seed in range(10)}
    assert {len(half) for half in halves} == {10}
    assert len(halves) == 10
