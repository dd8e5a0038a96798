"""Tests of ``data/verify.py``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from recollect.cli.main import app
from recollect.common.errors import DataError
from recollect.data.verify import verify


def photo(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, format="PNG")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two training classes of 5 and 2 images, one test class of 3, all different."""
    seed = 0
    for folder, count in (("train/a", 5), ("train/b", 2), ("test/c", 3)):
        for index in range(count):
            photo(tmp_path / folder / f"{index}.png", seed)
            seed += 1
    return tmp_path


def test_all_well(root: Path) -> None:
    report = verify("folder", root)
    assert report.ok
    assert report.problems == report.notes == report.missing == report.duplicates == []
    train, test = report.splits
    assert (train.split, train.images, train.classes, train.class_sizes) == ("train", 7, 2, [5, 2])
    assert (train.usable_classes, train.usable_images) == (1, 5)
    assert train.histogram == {"2–3": 1, "4–7": 1}
    assert (test.usable_classes, test.histogram) == (0, {"2–3": 1})
    assert verify("folder", root, samples_per_class=2).splits[0].usable_images == 7
    assert "No problems found." in report.as_text()


def test_unreadable_files_are_named_and_not_counted(root: Path) -> None:
    whole = (root / "train/a/0.png").read_bytes()
    (root / "train/a/0.png").write_bytes(whole[: len(whole) // 2])
    (root / "train/a/1.png").write_text("not an image")
    report = verify("folder", root)
    assert not report.ok
    assert set(report.unreadable) == {"train/a/0.png", "train/a/1.png"}
    assert "not a readable image" in report.unreadable["train/a/1.png"]
    assert report.splits[0].class_sizes == [3, 2]
    assert report.splits[0].usable_classes == 0
    assert report.splits[0].unreadable == 2
    assert "2 files cannot be read." in report.as_text()


def test_duplicates_inside_are_a_remark_and_across_a_fault(root: Path) -> None:
    shutil.copy(root / "train/a/0.png", root / "train/b/copy.png")
    report = verify("folder", root)
    assert report.ok
    assert report.duplicates == report.contradictions == [["train/a/0.png", "train/b/copy.png"]]
    assert "Identical files in different classes: 1 group" in report.as_text()
    shutil.copy(root / "train/a/3.png", root / "test/c/leak.png")
    report = verify("folder", root)
    assert not report.ok
    assert report.duplicates_across == [["test/c/leak.png", "train/a/3.png"]]
    assert report.duplicates == [["train/a/0.png", "train/b/copy.png"]]
    assert "1 image is in both train and test." in report.problems


def test_missing_files_of_a_list(root: Path) -> None:
    (root / "list.csv").write_text(
        "path,label,split\ntrain/a/0.png,a,train\ngone.png,a,train\ntest/c/0.png,c,probe\ntrain/a/0.png,a,probe\n"
    )
    with pytest.raises(DataError, match="is already listed"):
        verify("folder", root / "list.csv")
    (root / "list.csv").write_text("path,label,split\ntrain/a/0.png,a,train\ngone.png,a,train\ntest/c/0.png,a,probe\n")
    report = verify("folder", root, csv="list.csv")
    assert report.missing == ["gone.png"]
    assert [(split.split, split.missing, split.images) for split in report.splits] == [("train", 1, 2), ("probe", 0, 1)]
    assert report.splits[0].class_sizes == [1]
    assert report.notes == ["1 class of probe is also in train, e.g. 'a': not unseen."]
    assert "1 file is missing." in report.problems


def test_counts_against_the_published_ones(tmp_path: Path) -> None:
    header = "image_id class_id super_class_id path"
    for split, number in (("train", 1), ("test", 2)):
        photo(tmp_path / f"x/{number}.JPG", number)
        (tmp_path / f"Ebay_{split}.txt").write_text(f"{header}\n{number} {number} 1 x/{number}.JPG\n")
    report = verify("sop", tmp_path)
    assert len(report.count_differences) == 2
    assert "published split has 59,551 images of 11,318 classes" in report.problems[0]
    assert not report.notes
    assert not report.missing
    (tmp_path / "x/1.JPG").unlink()
    assert verify("sop", tmp_path).missing == ["x/1.JPG"]


def test_command_line(root: Path) -> None:
    runner = CliRunner()
    listing = runner.invoke(app, ["data"])
    assert listing.exit_code == 0
    assert "vehicleid" in listing.stdout
    assert "59,551 images of 11,318 classes" in listing.stdout
    names = [row["name"] for row in json.loads(runner.invoke(app, ["data", "--json"]).stdout)]
    assert names == sorted(names)
    fine = runner.invoke(app, ["data", "verify", "folder", str(root), "-m", "2"])
    assert fine.exit_code == 0
    assert "at 2 images per class: 2 of 2 (7 images)" in fine.stdout
    (root / "train/a/1.png").write_text("broken")
    broken = runner.invoke(app, ["data", "verify", "folder", str(root), "--json"])
    assert broken.exit_code == 1
    content = json.loads(broken.stdout)
    assert content["ok"] is False
    assert list(content["unreadable"]) == ["train/a/1.png"]


def test_groups_of_classes_are_confirmed(tmp_path: Path) -> None:
    for number, name in enumerate(("fruit/kiwi", "fruit/lime", "veg/pea")):
        photo(tmp_path / name / "0.png", number)
    refused = CliRunner().invoke(app, ["data", "verify", "folder", str(tmp_path)])
    assert "--nested" in str(refused.exception)
    assert CliRunner().invoke(app, ["data", "verify", "folder", str(tmp_path), "--nested"]).exit_code == 0


def test_strips_that_training_refuses_are_reported(root: Path) -> None:
    Image.new("RGB", (4000, 2)).save(root / "train" / "a" / "strip.png")
    report = verify("folder", root)
    assert report.unreadable.keys() == {"train/a/strip.png"}
    assert report.unreadable["train/a/strip.png"].startswith("4,000×2 pixels would become 512,000×256")
    assert not report.ok
