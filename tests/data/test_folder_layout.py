"""Which folders are the classes, and remarks about their names."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from recollect.common.errors import ConfigError, DataError, DataWarning
from recollect.data import list_images, load


def touch(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (2, 2)).save(path, format="PNG")


@pytest.mark.parametrize("tops", [("train_set", "test_set"), ("trainset", "testset"), ("train2017", "val2017")])
@pytest.mark.parametrize("inner", [("a", "b"), ("a", "a")])
def test_folders_that_may_be_splits_are_asked_about(
    tmp_path: Path, tops: tuple[str, str], inner: tuple[str, str]
) -> None:
    touch(tmp_path, *(f"{top}/{name}/1.png" for top, name in zip(tops, inner, strict=True)))
    with pytest.raises(
        DataError, match=r"classes or splits\? .*train, test and val, .*CSV.*data\.options\.nested=true"
    ):
        load("folder", tmp_path)
    assert list(load("folder", tmp_path, "all", nested=True).class_names) == sorted(tops)
    for top, part in zip(tops, ("train", "test"), strict=True):
        (tmp_path / top).rename(tmp_path / part)
    assert list(load("folder", tmp_path).class_names) == ["a"]


def test_groups_of_classes_are_asked_about(tmp_path: Path) -> None:
    touch(tmp_path, "fruit/kiwi/1.png", "fruit/lime/1.png", "veg/pea/1.png", "veg/leek/deep/1.png")
    (tmp_path / "notes").mkdir()
    with pytest.raises(
        DataError, match=r"'fruit' and 'veg' the classes, or the folders inside\?.*give e\.g\. .*/fruit,"
    ):
        load("folder", tmp_path)
    assert list(load("folder", tmp_path / "fruit", "all").class_names) == ["kiwi", "lime"]
    assert list(load("folder", tmp_path, "all", nested=True).class_names) == ["fruit", "veg"]
    with pytest.raises(ConfigError, match="nested is 'yes': it must be true or false"):
        load("folder", tmp_path, nested="yes")
    with pytest.warns(DataWarning, match=r"labelled 'fruit' and 'veg'.*/fruit .*/veg\."):
        assert set(list_images([tmp_path]).labels or []) == {"fruit", "veg"}
    touch(tmp_path, "fruit/1.png")
    assert list(load("folder", tmp_path, "all").class_names) == ["fruit", "veg"], "it has images of its own"


@pytest.mark.parametrize(
    "names",
    [
        [f"{top}/{session}/1.png" for top in "ab" for session in ("front", "back")],
        [f"{top}/images of {top}/1.png" for top in "ab"],
        [f"{top}/{top}{session}/1.png" for top in "abcdefghij" for session in range(2)],
        ["train/x/1.png", "train/1.png", "bus/y/1.png", "bus/z/1.png"],
    ],
)
def test_class_folders_may_contain_only_folders(tmp_path: Path, names: list[str]) -> None:
    touch(tmp_path, *names)
    assert list(load("folder", tmp_path, "all").class_names) == sorted({name.split("/")[0] for name in names})


@pytest.mark.parametrize("inner", ["a b", "train test"])
def test_a_folder_around_the_classes_is_named(tmp_path: Path, inner: str) -> None:
    touch(tmp_path, *(f"download/photos/{name}/x{name}/1.png" for name in inner.split()))
    with pytest.raises(DataError, match=r"its only folder, 'download', contains folders.* and no images") as refused:
        load("folder", tmp_path)
    assert f"Give {tmp_path / 'download' / 'photos'};" in str(refused.value)


def test_class_names_that_look_alike_are_remarked_on(tmp_path: Path) -> None:
    touch(tmp_path, "Lime/1.png", "lime/1.png", "x/1.png", "y/1.png")
    for split in ("train", "test"):
        with pytest.warns(DataWarning, match="'Lime' and 'lime' look alike, but are separate classes"):
            load("folder", tmp_path, split)
