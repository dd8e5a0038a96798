"""Files to embed: labels where they exist, and every file that is left out is counted."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from recollect.common.errors import DataError, DataWarning
from recollect.data.folders import list_images, summary


def touch(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (2, 2)).save(path, format="PNG")


def test_a_stray_image_costs_no_labels(tmp_path: Path) -> None:
    touch(tmp_path, "cat/1.png", "cat/deep/2.png", "dog/1.png", "stray.png")
    found = list_images([tmp_path])
    assert found.names == ["cat/1.png", "cat/deep/2.png", "dog/1.png", "stray.png"]
    assert found.labels == ["cat", "cat", "dog", ""]
    assert found.root == tmp_path
    assert found.paths == [tmp_path / name for name in found.names]


def test_two_trees_a_list_and_a_file(tmp_path: Path) -> None:
    touch(tmp_path, "one/cat/1.png", "two/cat/1.png", "two/dog/1.png", "alone.png", "listed.png")
    (tmp_path / "list.txt").write_text("listed.png\n", encoding="utf-8")
    inputs = [tmp_path / "one", tmp_path / "two", tmp_path / "alone.png", tmp_path / "list.txt"]
    found = list_images(inputs)
    assert found.labels == ["cat", "cat", "dog", "", ""]
    assert found.root is None
    assert found.names == [path.as_posix() for path in found.paths]


def test_parts_of_a_split_are_no_classes(tmp_path: Path) -> None:
    touch(tmp_path, "Train/cat/1.png", "Test/dog/1.png", "Test/loose.png")
    found = list_images([tmp_path])
    assert dict(zip(found.names, found.labels or [], strict=True)) == {
        "Train/cat/1.png": "cat",
        "Test/dog/1.png": "dog",
        "Test/loose.png": "",
    }


@pytest.mark.parametrize("names", [("test/a/1.png", "cat/1.png"), ("train/a/1.png", "test/a/1.png", "Testing/a/1.png")])
def test_an_ambiguous_folder_can_be_listed_instead(tmp_path: Path, names: tuple[str, ...]) -> None:
    touch(tmp_path, *names)
    with pytest.raises(DataError, match=r"or list its images in a \.txt file") as refused:
        list_images([tmp_path])
    assert "CSV" not in str(refused.value)
    (tmp_path / "list.txt").write_text("\n".join(names), encoding="utf-8")
    assert len(list_images([tmp_path / "list.txt"]).paths) == len(names)


def test_a_flat_folder_has_no_labels(tmp_path: Path) -> None:
    touch(tmp_path, "b.png", "a.png", ".hidden.png")
    (tmp_path / "read.me").write_text("x")
    found = list_images([tmp_path])
    assert (found.names, found.labels, found.skipped) == (["a.png", "b.png"], None, {"not an image": 1})


def test_links_out_of_a_folder_are_followed(tmp_path: Path) -> None:
    touch(tmp_path, "outside.png", "in/a.png")
    (tmp_path / "in" / "b.png").symlink_to(tmp_path / "outside.png")
    assert list_images([tmp_path / "in"]).names == ["a.png", "b.png"]


@pytest.mark.parametrize("name", ["gone", "gone.txt", "empty"])
def test_nothing_there(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "a.txt").write_text("x")
    with pytest.raises(DataError):
        list_images([tmp_path / name])


def test_a_listed_file_that_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("gone.png\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"gone\.png"):
        list_images([tmp_path / "list.txt"])


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


@pytest.mark.parametrize(
    "given",
    [
        ["photos/kiwi"],
        ["photos/kiwi", "photos/./kiwi"],
        ["photos/kiwi", "photos/lime/1.png"],
        ["photos/kiwi", "more"],
        ["split/train", "split/test"],
        ["unclear/test", "unclear/kiwi"],
    ],
)
@pytest.mark.filterwarnings("error")
def test_no_remark_on_folders_that_would_not_become_classes(tmp_path: Path, given: list[str]) -> None:
    touch(
        tmp_path, "photos/kiwi/1.png", "photos/lime/1.png", "more/lime/1.png", "split/train/1.png", "split/test/1.png"
    )
    touch(tmp_path, "unclear/test/1.png", "unclear/kiwi/1.png", "unclear/val/a/1.png")
    list_images([tmp_path / name for name in given])


@pytest.mark.parametrize("order", [1, -1])
def test_an_image_that_is_given_twice_is_listed_once_with_its_class(tmp_path: Path, order: int) -> None:
    touch(tmp_path, "photos/kiwi/1.png", "photos/kiwi/2.png", "photos/lime/1.png", "photos/loose.png", "other.png")
    photos = tmp_path / "photos"
    (photos / "kiwi" / "notes.txt").write_text("x")
    (photos / "kiwi" / "link.png").symlink_to("1.png")
    (tmp_path / "again").symlink_to("photos/lime")
    (tmp_path / "list.txt").write_text(
        "other.png\n./other.png\nphotos/../other.png\nphotos/loose.png\n", encoding="utf-8"
    )
    given = [photos, photos / "kiwi", tmp_path / "again", photos / "kiwi" / "2.png", tmp_path / "list.txt"]
    found = list_images(given[::order])
    labels = {
        path.resolve().relative_to(tmp_path).as_posix(): label
        for path, label in zip(found.paths, found.labels or [], strict=True)
    }
    assert labels == {
        "photos/kiwi/1.png": "kiwi",
        "photos/kiwi/2.png": "kiwi",
        "photos/lime/1.png": "lime",
        "photos/loose.png": "",
        "other.png": "",
    }
    assert len(found.paths) == 6, "the two names of one file in one folder are two images"
    assert found.skipped == {"given twice": 3 + 1 + 1 + 1 + 2, "not an image": 1}


def test_a_null_character_in_a_list_is_left_to_the_reader(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_bytes(b"a\0.png\n")
    assert len(list_images([tmp_path / "list.txt"], on_bad_image="skip").paths) == 1


def test_the_line_about_what_was_used() -> None:
    assert summary(1, {}) == "1 image used"
    assert summary(5, {}, 1) == "5 images used; 1 class held out for testing"


def test_a_table_is_not_taken_for_an_image(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("path\na.png\n")
    with pytest.raises(DataError, match=r"list\.csv: tables are not read here.*\.txt file"):
        list_images([tmp_path / "list.csv"])


def test_a_dead_link_is_left_out(tmp_path: Path) -> None:
    touch(tmp_path, "in/a.png")
    for name, target in (("dead.png", "../gone.png"), ("self.png", "self.png")):
        (tmp_path / "in" / name).symlink_to(target)
    found = list_images([tmp_path / "in"])
    assert found.names == ["a.png"]
    assert found.skipped == {"broken link": 2}
