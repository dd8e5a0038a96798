"""Files for an index: parts become metadata, and what is left out is said."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_model import make_photos

from recollect.search.sync import scan_images


def test_parts_and_classes_are_metadata(tmp_path: Path) -> None:
    make_photos(tmp_path / "train", classes=1, each=1)
    make_photos(tmp_path / "test", classes=1, each=1)
    listing = scan_images(tmp_path, prefix="shop/")
    assert [(file.id, file.metadata) for file in listing.images] == [
        (f"shop/{part}/class0/0.png", {"name": "0.png", "split": part, "label": "class0"}) for part in ("test", "train")
    ]
    assert not listing.remarks
    make_photos(tmp_path / "other", classes=1, each=1)  # beside parts, and in none
    labels = {file.id: (file.metadata.get("split"), file.metadata["label"]) for file in scan_images(tmp_path).images}
    assert labels == {
        "other/class0/0.png": (None, "other"),
        "test/class0/0.png": ("test", "class0"),
        "train/class0/0.png": ("train", "class0"),
    }


@pytest.mark.parametrize(("train", "test"), [("Training", "Testing"), ("TRAIN", "valid")])
def test_parts_have_the_names_that_training_knows(tmp_path: Path, train: str, test: str) -> None:
    for part in (train, test):
        make_photos(tmp_path / part, classes=1, each=1)
    found = scan_images(tmp_path).images
    assert {file.metadata["label"] for file in found} == {"class0"}
    assert {file.metadata["split"] for file in found} == {"train", "val" if test == "valid" else "test"}


def test_labels_that_may_be_one_level_further_down_are_remarked_on(tmp_path: Path) -> None:
    make_photos(tmp_path / "fruit", classes=2, each=1)
    listing = scan_images(tmp_path)
    assert {file.metadata["label"] for file in listing.images} == {"fruit"}
    assert [remark.endswith(f"(class0, class1), give {tmp_path / 'fruit'}.") for remark in listing.remarks] == [True]
    (tmp_path / "veg").mkdir()
    (tmp_path / "fruit" / "class1").rename(tmp_path / "veg" / "class1")
    make_photos(tmp_path / "veg" / "class2", classes=1, each=1)
    assert f"such as {tmp_path / 'fruit'}, or a CSV file" in scan_images(tmp_path).remarks[0]
    listing = scan_images(tmp_path / "veg")
    assert ({file.metadata["label"] for file in listing.images}, listing.remarks) == ({"class1", "class2"}, [])


def test_what_is_left_out_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = make_photos(tmp_path / "photos", classes=1, each=1)
    (photos / "class0" / "phone.heic").write_bytes(b"\0")
    (photos / "notes.txt").write_text("not an image")
    (photos / "away").symlink_to(make_photos(tmp_path / "elsewhere", classes=1, each=2))
    (photos / "up").symlink_to("..")
    monkeypatch.setattr("recollect.data.folders.can_read_heif", lambda: False)
    listing = scan_images(photos)
    assert [file.id for file in listing.images] == ["away/class0/0.png", "away/class0/1.png", "class0/0.png"]
    assert listing.remarks[0].endswith("up: skipped (link to a parent folder).")
    assert "1 HEIC image is skipped" in listing.remarks[1]
    assert listing.skipped == {"HEIC": 1, "not an image": 1, "link to a parent folder": 1}
