"""A new user with a messy folder: one command after another, each ends well and says what it did."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from messy_folders import SMALL, classes, good, manifest, photo, refused

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Classes with names of all kinds, broken photos, a text file, a link, a class of one image."""
    place = tmp_path_factory.mktemp("own")
    names = ["Äpfel", "b c", "[d]", "e'f", "2024", "#1", "名前", "-x", *(f"class{n}" for n in range(8))]
    photos = classes(place / "photos", names, 0, 5)
    for name in ("Äpfel", "class3", "class5"):  # on either side of the split
        (photos / name / "broken.jpg").write_bytes(b"\xff\xd8 not a photo")
    (photos / "b c" / "notes.txt").write_text("not an image")
    photo(photos / "single" / "only.jpg", 999, 99)
    (photos / "class1" / "link.jpg").symlink_to("0.jpg")
    return place


@pytest.fixture(scope="module")
def run(place: Path) -> Path:
    good(place, "train", "--data", "photos", "--skip-bad", "--steps", "2", "--out", "run", *SMALL)
    return place / "run"


def test_a_bad_photo_costs_one_photo_and_is_listed(run: Path) -> None:
    skipped = manifest(run)["skipped"]
    assert len(skipped) == 3, "photos of held-out classes too, which the verdict is given on"
    assert all(each["name"].endswith("broken.jpg") and each["reason"] for each in skipped)
    assert "model.freeze = pooling" in (run / "train.log").read_text(), "features, not hours of fine-tuning"


def test_files_are_counted_and_held_out_classes_explained(run: Path) -> None:
    log = (run / "train.log").read_text()
    for words in ("images used", "1 not an image", "classes held out for testing", "--test-share", "--final"):
        assert words in log


@pytest.mark.filterwarnings("ignore::recollect.common.errors.DataWarning")
def test_files_beside_the_split_folders_are_in_the_line_of_the_training(tmp_path: Path) -> None:
    classes(tmp_path / "own" / "train", ["a", "b", "c"], 0, 2)
    classes(tmp_path / "own" / "test", ["d", "e"], 50, 2)
    for number, name in enumerate(("stray.jpg", "train/stray.jpg", "test/stray.jpg")):
        photo(tmp_path / "own" / name, number, number)
    told = good(tmp_path, "train", "--data", "own", "--plan", *SMALL)
    counts = "2 left out: 1 beside the class folders, 1 beside the split folders"
    assert f"6 images used; {counts}; 2 classes held out" in told


@pytest.mark.release
def test_what_could_not_be_read_and_what_the_verdict_leaves_out_is_said_once(tmp_path: Path) -> None:
    """A whole training class that is broken, a broken test photo, a test class of one photo, a copy of a training photo."""
    classes(tmp_path / "photos" / "train", [f"t{number}" for number in range(6)], 0)
    classes(tmp_path / "photos" / "test", [f"h{number}" for number in range(6)], 500)
    for path in (tmp_path / "photos" / "train" / "t0").iterdir():
        path.write_bytes(b"\xff\xd8 not a photo " + path.name.encode())
    (tmp_path / "photos" / "test" / "h1" / "bad.jpg").write_bytes(b"\xff\xd8 not a photo")
    photo(tmp_path / "photos" / "test" / "lone" / "only.jpg", 999, 99)
    shutil.copy(tmp_path / "photos" / "train" / "t1" / "0.jpg", tmp_path / "photos" / "test" / "h0" / "copy.jpg")
    good(tmp_path, "train", "--data", "photos", "--skip-bad", "--steps", "2", "--out", "run", *SMALL)
    log = (tmp_path / "run" / "train.log").read_text()
    for words in (
        "whitening  the last layer starts from 20 training images",
        "files      20 images used; 4 left out: 4 not an image; no image of t0 can be read",
        "skipped    4 images cannot be read",
        "skipped    1 more image cannot be read. ",
        "verdict    not included: 1 class with a single image",
        "verdict    WARNING: 1 image of the held-out classes was trained on, in other classes",
    ):
        assert log.count(words) == 1, words + "\n" + log
    told = good(tmp_path, "eval", "run", "--split", "train", "--skip-bad")
    assert "20 queries" in " ".join(told.split())
    assert "25 queries (1 more without a positive)" in " ".join(good(tmp_path, "eval", "run").split())
    good(tmp_path, "report", "run")
    page = (tmp_path / "run" / "report.html").read_text()
    assert page.count(" queries, classes it was trained on)") == 1


def test_it_says_whether_it_helped(run: Path) -> None:
    verdicts = manifest(run)["verdicts"]
    assert set(verdicts) == {"pretrained", "start"}
    assert verdicts["pretrained"]["sentence"] in (run / "train.log").read_text()


def test_new_class_folders_do_not_move_the_border(place: Path, run: Path, tmp_path: Path) -> None:
    """And the result has a name of its own, is not compared with other images, and needs no --overwrite."""
    good(place, "eval", "run")
    shutil.copytree(place / "photos", tmp_path / "photos", symlinks=True)
    classes(tmp_path / "photos", [f"AAA{number}" for number in range(4)], 5000)
    before = set((run / "eval").glob("*/metrics.json"))
    told = good(tmp_path, "eval", str(run), "--root", "photos", "--skip-bad")
    new = set((run / "eval").glob("*/metrics.json")) - before
    assert len(new) == 1
    source = json.loads(next(iter(new)).read_text())["source"]
    assert source["trained_classes"] == 0
    assert source["classes_by_record"]
    assert "took no part in the training" in told
    other = str(next(iter(before)).with_name("queries.npz"))
    assert "different images" in refused(
        tmp_path, "eval", str(run), "--root", "photos", "--skip-bad", "--compare", other, "--overwrite"
    )


def test_embed_search_and_report_go_on(place: Path, run: Path) -> None:
    good(place, "embed", "run", "photos", "--out", "vectors.npz", "--skip-bad")
    good(place, "search", "vectors.npz", "photos/class1/0.jpg", "photos/Äpfel/broken.jpg", "--skip-bad")
    good(place, "report", "run", "--out", "report.html", "--skip-bad")
    page = (place / "report.html").read_text()
    assert "images used; " in page
    assert manifest(run)["verdicts"]["pretrained"]["judgement"] in page


def test_labels_survive_a_stray_file_and_two_trees(place: Path, run: Path, tmp_path: Path) -> None:
    one, two = classes(tmp_path / "one", ["a", "b"], 100), classes(tmp_path / "two", ["b", "c"], 200)
    photo(one / "stray.jpg", 1, 1)
    good(tmp_path, "embed", str(run), str(one), str(two), "--out", "v.npz")
    with np.load(tmp_path / "v.npz", allow_pickle=False) as rows:
        labels = rows["labels"].tolist()
    assert sorted(labels) == ["", *"aaaabbbbbbbbcccc"]
    good(tmp_path, "eval", "v.npz")
    metrics = json.loads((tmp_path / "v-eval" / "metrics.json").read_text())
    assert "macro" in metrics


def test_resuming_with_other_photos_is_refused(place: Path, run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(place, copy, symlinks=True)
    facts = manifest(copy / "run")
    facts.pop("outcome")
    (copy / "run" / "manifest.json").write_text(json.dumps(facts))
    config = copy / "run" / "config.yaml"
    config.write_text(config.read_text().replace(str(place / "photos"), str(copy / "photos")))
    for path in (copy / "photos").glob("*/1.jpg"):
        photo(path, 77, 7)
    assert "other training images" in refused(copy, "train", "--resume", "run")


def test_the_last_training_takes_all_classes(place: Path, run: Path) -> None:
    good(place, "train", "--final", "run", "--out", "final")
    assert "none are left for testing" in (place / "final" / "train.log").read_text()
    assert manifest(place / "final")["outcome"]["steps"] == 2
