"""A user's own images: class folders, splits and lists; what is asked about and what is left out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from data.image_files import touch, write
from recollect.common.errors import ConfigError, DataError, DataWarning, SplitNotAllowedError
from recollect.data import available, list_images, load, load_distractors, load_revisited, only_splits
from recollect.data.tables import read_csv


def test_class_folders_split_by_sorted_halves(tmp_path: Path) -> None:
    """As earlier versions divided them."""
    touch(tmp_path, "b/1.jpg", "a/2.png", "a/1.JPEG", "c/1.webp", "d/deep/er/1.jpg", "e/1.jpg")
    write(tmp_path / "a" / "notes.txt", "not an image")
    touch(tmp_path, "a/.hidden.jpg", ".thumbs/x/1.jpg", "__MACOSX/a/1.jpg")
    train, test = (load("folder", tmp_path, split, class_split="alphabet") for split in ("train", "test"))
    assert list(train.class_names) == ["a", "b", "c"]
    assert list(train.names) == ["a/1.JPEG", "a/2.png", "b/1.jpg", "c/1.webp"]
    assert train.labels.tolist() == [0, 0, 1, 2]
    assert list(test.names) == ["d/deep/er/1.jpg", "e/1.jpg"]
    assert len(load("folder", tmp_path, "all")) == 6
    assert train.read(0).size == (2, 2)
    with pytest.raises(DataError, match=r"no split 'val'.*'train', 'test'"):
        load("folder", tmp_path, "val")


def test_train_and_test_folders(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/1.png", "train/b/1.png", "test/c/1.png", "val/d/1.png")
    assert list(load("folder", tmp_path).names) == ["train/a/1.png", "train/b/1.png"]
    assert list(load("folder", tmp_path, "test").class_names) == ["c"]
    assert list(load("folder", tmp_path, "val").names) == ["val/d/1.png"]
    whole = load("folder", tmp_path, "all")
    assert (len(whole), list(whole.class_names)) == (4, ["a", "b", "c", "d"])
    touch(tmp_path, "extra/x/1.png")
    with pytest.warns(DataWarning, match=r"extra .*left out"):
        load("folder", tmp_path)


def test_a_class_called_train_is_a_class_when_alone(tmp_path: Path) -> None:
    touch(tmp_path, "train/1.png", "bus/1.png")
    assert list(load("folder", tmp_path, "all").class_names) == ["bus", "train"]


def test_sealed_parts_are_refused(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/1.png", "test/c/1.png")
    with only_splits("train"):
        load("folder", tmp_path)
        for split in ("test", "all", "val"):
            with pytest.raises(SplitNotAllowedError, match=rf"folder/{split} .*only train"):
                load("folder", tmp_path, split)
        with pytest.raises(SplitNotAllowedError):
            load_revisited("roxford5k", tmp_path)
        with pytest.raises(SplitNotAllowedError):
            load_distractors(tmp_path)
    load("folder", tmp_path, "test")


def test_csv_with_and_without_split(tmp_path: Path) -> None:
    touch(tmp_path, "im/1.png", "im/2.png", "im/3.png")
    write(
        tmp_path / "list.csv",
        "\ufefflabel, path ,split,more\nx,im/1.png,train,9\n\ny,im/2.png,train,\nz,im/3.png,gallery,\n",
    )
    train = load("folder", tmp_path, csv="list.csv")
    assert (list(train.names), list(train.class_names)) == (["im/1.png", "im/2.png"], ["x", "y"])
    assert list(load("folder", tmp_path / "list.csv", "gallery").names) == ["im/3.png"]
    with pytest.raises(DataError, match=r"'test'.*'gallery', 'train'"):
        load("folder", tmp_path / "list.csv", "test")
    write(tmp_path / "plain.csv", 'path,label\n"im/1.png",b\nim/2.png,a\nim/3.png,c\n')
    halves = [load("folder", tmp_path / "plain.csv", split, class_split="alphabet") for split in ("train", "test")]
    assert [list(half.class_names) for half in halves] == [["a", "b"], ["c"]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("file,label\na.png,x\n", "no column 'path'.*names 'file', 'label'"),
        ("path,label\na.png,\n", "line 2: 'label' is empty"),
        ("path,label\na.png,x\na.png,y\n", "line 3: 'a.png' is already listed in line 2"),
        ("path,label,split\na.png,x,train\nb.png,x,\n", "line 3: fill 'split' in every row or in none"),
        ("path,label\na.png,x\ngone.png,y\n", r"1 of 2 images .* e.g. gone.png.*on_bad_image='skip'"),
        ("", "first line names nothing. Expected: path,label"),
        ("path,label\n./a.png,x\na.png,y\n", "line 3: 'a.png' is already listed in line 2"),
        (
            "path,label\na.png,x\n\nb.png,x, red\n",
            "line 4: 3 values for 2 columns.*contains ',' between quotation marks",
        ),
        ("path,label,Label\na.png,x,y\n", "column 'label', or more than one"),
        ('path,label\na.png,x\nb.png,"y\nc.png,"z\n', "line 3: the value of 'label' has several lines"),
    ],
)
def test_faults_of_a_csv_are_named(tmp_path: Path, text: str, message: str) -> None:
    touch(tmp_path, "a.png", "b.png")
    with pytest.raises(DataError, match=message):
        load("folder", write(tmp_path / "list.csv", text), "all")


def test_links_out_of_the_root_are_followed(tmp_path: Path) -> None:
    touch(tmp_path, "outside/1.png", "root/a/1.png")
    (tmp_path / "root" / "b").symlink_to(tmp_path / "outside")
    (tmp_path / "root" / "a" / "2.png").symlink_to(tmp_path / "outside" / "1.png")
    images = load("folder", tmp_path / "root", "all")
    assert list(images.names) == ["a/1.png", "a/2.png", "b/1.png"]
    assert images.read(2).size == (2, 2)


@pytest.mark.parametrize("target", ["..", "../.."])
def test_no_class_takes_the_photos_of_others_by_a_link(tmp_path: Path, target: str) -> None:
    root = tmp_path / "root"
    touch(root, "a/1.png", "b/1.png", "b/deep/2.png", ".pool/3.png")
    (root / "a" / "more").symlink_to("../.pool")
    (root / "a" / "others").symlink_to(target)
    with pytest.warns(DataWarning, match="left out 1 link to a parent folder"):
        images = load("folder", root, "all")
    assert list(images.names) == ["a/1.png", "a/more/3.png", "b/1.png", "b/deep/2.png"]
    listed = list_images([root])
    assert listed.labels == ["a", "a", "b", "b"]
    assert sum(listed.skipped.values()) == 1


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no images below"):
        load("folder", tmp_path)
    with pytest.raises(DataError, match=r"no folder .*nowhere"):
        load("folder", tmp_path / "nowhere")
    with pytest.raises(DataError, match="no root was given"):
        load("folder")
    touch(tmp_path, "one/1.png")
    with pytest.raises(DataError, match="a single class"):
        load("folder", tmp_path)


def test_the_default_split_is_seeded_balanced_and_said(tmp_path: Path) -> None:
    """Large classes first in the alphabet: halves of the alphabet would be 60 and 6 images."""
    for name, count in {"a": 20, "b": 20, "c": 20, "x": 2, "y": 2, "z": 2}.items():
        touch(tmp_path, *(f"{name}/{number}.png" for number in range(count)))
    train, test = load("folder", tmp_path), load("folder", tmp_path, "test")
    assert (train.num_classes, test.num_classes) == (3, 3)
    assert not set(train.class_names) & set(test.class_names)
    assert abs(len(train) - len(test)) <= 18
    expected = {"class_split": "balanced", "test_share": 0.5, "split_seed": 0, "held_out_classes": 3}
    assert train.facts["split"] == expected
    assert train.fingerprint == load("folder", tmp_path).fingerprint
    others = {tuple(load("folder", tmp_path, split_seed=seed).class_names) for seed in range(8)}
    assert len(others) > 2
    assert load("folder", tmp_path, "test", test_share=0.2).num_classes == 1
    assert load("folder", tmp_path, "train", test_share=0.2).num_classes == 5
    assert "split" not in load("folder", tmp_path, "all").facts


@pytest.mark.parametrize(
    "options",
    [
        {"class_split": "first"},
        {"test_share": 1.0},
        {"test_share": "2020-01-31"},
        {"split_seed": -1},
        {"test_share": 0.3, "class_split": "alphabet"},
        {"train_classes": [1]},
        {"train_classes": ["a"], "split_seed": 1},
    ],
)
def test_splits_that_cannot_be(tmp_path: Path, options: dict[str, Any]) -> None:
    touch(tmp_path, "a/1.png", "b/1.png")
    with pytest.raises(ConfigError, match=next(iter(options))):
        load("folder", tmp_path, **options)


def test_the_classes_for_training_can_be_given(tmp_path: Path) -> None:
    touch(tmp_path, *(f"{name}/1.png" for name in "abcd"))
    train = load("folder", tmp_path, train_classes=["d", "a"])
    assert list(train.class_names) == ["a", "d"]
    assert train.facts["split"] == {"class_split": "given", "held_out_classes": 2}
    touch(tmp_path, "e/1.png", "a/2.png")
    with pytest.warns(DataWarning, match=r"1 class of train_classes is not here \(z\)"):
        assert list(load("folder", tmp_path, "test", train_classes=["a", "d", "z"]).class_names) == ["b", "c", "e"]
    with pytest.raises(DataError, match=r"none of the 2 classes of train_classes \(--split-of\) is here \(y, z\)"):
        load("folder", tmp_path, train_classes=["y", "z"])
    with pytest.raises(DataError, match="none is left for testing"):
        load("folder", tmp_path, train_classes=list("abcde"))
    with pytest.raises(DataError, match="there is no split 'val'"):
        load("folder", tmp_path, "val", train_classes=["a"])


def test_train_and_test_with_the_same_classes_are_pooled_on_request(tmp_path: Path) -> None:
    """Whole classes are held out, with their images of both parts."""
    touch(tmp_path, *(f"{part}/{name}/1.png" for part in ("train", "test", "val") for name in "abcdef"))
    assert len(load("folder", tmp_path, "test")) == 6
    for options in ({"test_share": 0.5}, {"train_classes": ["a", "b", "c"]}):
        train, test = (load("folder", tmp_path, split, **options) for split in ("train", "test"))
        assert (train.num_classes, test.num_classes, len(train), len(test)) == (3, 3, 9, 9)
        assert not set(train.class_names) & set(test.class_names)
    with pytest.raises(ConfigError, match="remove split_seed, or also give test_share"):
        load("folder", tmp_path, split_seed=3)


@pytest.mark.parametrize(
    ("train", "test", "val"),
    [("training", "testing", "validation"), ("Train", "Test", "Val"), ("TRAIN", "test", "valid")],
)
def test_parts_are_recognised_by_their_usual_names(tmp_path: Path, train: str, test: str, val: str) -> None:
    touch(tmp_path, f"{train}/a/1.png", f"{train}/b/1.png", f"{test}/c/1.png", f"{val}/d/1.png")
    assert list(load("folder", tmp_path).names) == [f"{train}/a/1.png", f"{train}/b/1.png"]
    assert list(load("folder", tmp_path, "test").class_names) == ["c"]
    assert list(load("folder", tmp_path, val).class_names) == ["d"], "also under the name it has"
    assert available()["folder"].find_splits(tmp_path) == ("train", "test", "val")  # type: ignore[misc]


@pytest.mark.parametrize(
    "names",
    [
        ["train/a/1.png", "training/b/1.png", "test/c/1.png"],
        ["validation/a/1.png", "dogs/1.png", "cats/1.png"],
        ["train/a/1.png", "dogs/1.png", "cats/1.png"],
    ],
)
def test_what_cannot_be_told_is_asked(tmp_path: Path, names: list[str]) -> None:
    touch(tmp_path, *names)
    with pytest.raises(DataError, match="CSV file"):
        load("folder", tmp_path, "all")


def test_what_is_left_out_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "a/1.png", "b/1.png", "loose.png", "a/2.heic", "b/3.HEIF")
    write(tmp_path / "a" / "notes.txt", "x")
    (tmp_path / "b" / "gone.jpg").symlink_to(tmp_path / "nowhere.jpg")
    (tmp_path / "b" / "round.jpg").symlink_to(tmp_path / "b" / "round.jpg")
    os.mkfifo(tmp_path / "b" / "pipe.jpg")
    write(tmp_path / "b" / "Thumbs.db", "x")
    monkeypatch.setattr("recollect.data.folders.can_read_heif", lambda: False)
    with pytest.warns(DataWarning, match=r"2 HEIC.*recollect\[heic\]"):
        images = load("folder", tmp_path, "all")
    assert list(images.names) == ["a/1.png", "b/1.png"]
    expected = {"HEIC": 2, "broken link": 2, "not an image": 1, "not a file": 1, "beside the class folders": 1}
    assert images.facts["left_out"] == expected
    monkeypatch.setattr("recollect.data.folders.can_read_heif", lambda: True)
    with pytest.warns(DataWarning):
        assert len(load("folder", tmp_path, "all")) == 4


def test_what_systems_write_into_folders_is_not_an_image(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.png", "b/1.png", "a/@eaDir/1.png/thumb.png", "$RECYCLE.BIN/1.png", "__MACOSX/a/1.png")
    assert sorted(load("folder", tmp_path, "all").names) == ["a/1.png", "b/1.png"]


def test_lists_of_windows_and_empty_rows_of_spreadsheets(tmp_path: Path) -> None:
    """Backslashes are separators if files are found so; rows without any value are no rows."""
    touch(tmp_path, "im/a.png", "im/b.png")
    path = write(tmp_path / "list.csv", "path,label\n\n,\nim\\a.png,x\nim\\b.png,y\n,,\n , \n")
    images = load("folder", path, "all")
    assert list(images.names) == ["im/a.png", "im/b.png"]
    if os.sep == "/":  # a backslash in a file's own name stays
        touch(tmp_path, "im\\c.png")
        assert list(load("folder", write(path, "path,label\nim\\c.png,x\n"), "all").names) == ["im\\c.png"]


def test_val_is_for_testing_where_there_is_no_test_folder(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/1.png", "train/b/1.png", "valid/c/1.png", "valid/d/1.png")
    with pytest.warns(DataWarning, match="there is no test part, so the part 'val' is used for testing"):
        tested = load("folder", tmp_path, "test")
    assert (tested.split, list(tested.class_names)) == ("test", ["c", "d"])
    touch(tmp_path, "test/e/1.png")
    assert list(load("folder", tmp_path, "test").class_names) == ["e"]


def test_one_class_folder_or_one_image_is_not_a_data_set(tmp_path: Path) -> None:
    touch(tmp_path, "cups/1.png", "cups/2.png")
    with pytest.raises(DataError, match=r"cups has 2 images but no class folders.*give the folder that contains it"):
        load("folder", tmp_path / "cups")
    with pytest.raises(DataError, match=r"1.png is an image. Give a folder with one folder per class"):
        load("folder", tmp_path / "cups" / "1.png")


@pytest.mark.parametrize("tops", [("train_set", "test_set"), ("trainset", "testset"), ("train2017", "val2017")])
def test_folders_that_may_be_splits_are_asked_about(tmp_path: Path, tops: tuple[str, str]) -> None:
    touch(tmp_path, *(f"{top}/a/1.png" for top in tops))
    message = r"classes or splits\? .*train, test and val, .*CSV.*data\.options\.nested=true"
    with pytest.raises(DataError, match=message):
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
    with pytest.raises(ConfigError, match="nested must be True or False"):
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


def test_a_flat_folder_has_no_labels(tmp_path: Path) -> None:
    touch(tmp_path, "b.png", "a.png", ".hidden.png")
    (tmp_path / "read.me").write_text("x")
    found = list_images([tmp_path])
    assert (found.names, found.labels, found.skipped) == (["a.png", "b.png"], None, {"not an image": 1})


@pytest.mark.parametrize("name", ["gone", "gone.txt", "empty"])
def test_no_images_to_embed(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "a.txt").write_text("x")
    with pytest.raises(DataError):
        list_images([tmp_path / name])


def test_folders_given_one_by_one_lose_their_classes_with_a_remark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``photos/*`` of a shell."""
    touch(tmp_path, "photos/kiwi/1.png", "photos/lime/1.png", "photos/lime/2.png", "alone.png")
    with pytest.warns(DataWarning, match=rf"no classes.*\(kiwi, lime\), give .*: {tmp_path / 'photos'}\.$"):
        assert list_images([tmp_path / "photos" / "kiwi", tmp_path / "photos" / "lime"]).labels is None
    monkeypatch.chdir(tmp_path / "photos" / "kiwi")
    with pytest.warns(DataWarning, match=rf"{tmp_path / 'photos'}\.$"):
        list_images([".", "../lime", tmp_path / "alone.png"])
    assert set(list_images([tmp_path / "photos"]).labels or []) == {"kiwi", "lime"}, "the advice"


@pytest.mark.parametrize("order", [1, -1])
def test_an_image_that_is_given_twice_is_listed_once_with_its_class(tmp_path: Path, order: int) -> None:
    touch(tmp_path, "photos/kiwi/1.png", "photos/kiwi/2.png", "photos/lime/1.png", "photos/loose.png", "other.png")
    photos = tmp_path / "photos"
    write(photos / "kiwi" / "notes.txt", "x")
    (photos / "kiwi" / "link.png").symlink_to("1.png")
    listed = write(tmp_path / "list.txt", ["other.png", "./other.png", "photos/../other.png", "photos/loose.png"])
    inputs = [photos, photos / "kiwi", photos / "kiwi" / "2.png", listed]
    images = list_images(inputs[::order])
    names = [path.resolve().relative_to(tmp_path).as_posix() for path in images.paths]
    assert dict(zip(names, images.labels, strict=True)) == {
        **{f"photos/kiwi/{n}.png": "kiwi" for n in (1, 2)},
        **{"photos/lime/1.png": "lime", "photos/loose.png": "", "other.png": ""},
    }
    assert len(images.paths) == 6, "the two names of one file in one folder are two images"
    assert images.skipped == {"given twice": 3 + 1 + 1 + 2, "not an image": 1}


def test_a_table_is_not_taken_for_an_image(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("path\na.png\n")
    with pytest.raises(DataError, match=r"list\.csv: tables are not read here.*\.txt file"):
        list_images([tmp_path / "list.csv"])


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be"])
@pytest.mark.parametrize("first", ["", "sep=;\r\n", '"sep=;"\r\n'])
def test_lists_of_spreadsheets(tmp_path: Path, encoding: str, first: str) -> None:
    path = tmp_path / "list.csv"
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    path.write_bytes(f"{mark}{first}path;label\r\n1.png;Äpfel, rot\r\n2.png;\r\n".encode(encoding))
    rows = read_csv(path, ["path", "label"])
    line = 3 if first else 2
    assert next(rows) == (line, {"path": "1.png", "label": "Äpfel, rot"})
    with pytest.raises(DataError, match=f"line {line + 1}: 'label' is empty"):
        next(rows)
