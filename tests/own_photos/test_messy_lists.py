"""Lists, splits and odd images of a new user: nothing is silently wrong, and every refusal says what to type next."""

from __future__ import annotations

from pathlib import Path

import pytest
from messy_folders import SMALL, classes, good, manifest, refused

pytestmark = pytest.mark.slow
NAMES = [f"c{number}" for number in range(8)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos that a list of a spreadsheet names, with two files missing and one row twice."""
    place = tmp_path_factory.mktemp("lists")
    classes(place / "im", NAMES, 0, 5)
    rows = [(path.relative_to(place), path.parent.name) for path in sorted((place / "im").rglob("*.jpg"))]
    text = "".join(f"{place / path};{label}\n" for path, label in rows)
    text += f"{rows[0][0]};{rows[0][1]}\nim/gone.jpg;c0\nim/gone too.jpg;c1\n"
    (place / "list.csv").write_text("\ufeffPath;Label\n" + text, encoding="utf-8")
    return place


@pytest.fixture(scope="module")
def run(place: Path) -> Path:
    good(place, "train", "--data", "list.csv", "--skip-bad", "--steps", "0", "--out", "run", *SMALL)
    return place / "run"


def test_missing_files_of_a_list_are_skipped_when_asked(place: Path, run: Path) -> None:
    assert "--skip-bad" in refused(place, "train", "--data", "list.csv", "--plan", *SMALL)
    log = (run / "train.log").read_text()
    assert "1 listed twice" in log
    assert "missing" in log
    assert manifest(run)["verdicts"], "missing test photos cost no verdict"
    assert "missing" in good(place, "eval", "run"), "as it was trained"
    assert "missing" in good(place, "eval", "run", "--data", "list.csv", "--overwrite"), "its own list, given again"
    (place / "other.csv").write_text((place / "list.csv").read_text())
    assert "--skip-bad" in refused(place, "eval", "run", "--data", "other.csv")
    assert "missing" in good(place, "eval", "run", "--data", "other.csv", "--skip-bad", "--overwrite")


@pytest.mark.release
def test_few_classes(tmp_path: Path) -> None:
    photos = classes(tmp_path / "photos", ["a"], 0, 2)
    assert "a single class ('a')" in refused(tmp_path, "train", "--data", "photos", "--plan")
    classes(photos, ["b"], 20, 2)
    assert "--set data.train_split=all" in refused(tmp_path, "train", "--data", "photos", "--plan")
    all_of_them = ["--set", "data.train_split=all", "--steps", "1", "--out", "all"]
    good(tmp_path, "train", "--data", "photos", *all_of_them, *SMALL)
    for number, name in enumerate(("c", "d", "e")):
        classes(photos, [name], 40 + 20 * number, 2)
    good(tmp_path, "train", "--data", "photos", "--steps", "1", "--out", "run", *SMALL)
    log = (tmp_path / "run" / "train.log").read_text()
    assert "model.shrinkage = 0.2: 6 photos of 3 training classes are too few to choose it on" in log
    assert "2 test classes are too few to distinguish a difference from chance" in log
    assert set(manifest(tmp_path / "run")["verdicts"]) == {"pretrained", "start"}
    output = good(tmp_path, "train", "--data", "photos", "--out", "unasked", *SMALL)
    assert output.count("run.steps = 0: 6 photos of 3 training classes") == 1
    assert "length     0 steps" in output  # the plan says so before the training does
    assert "run.epochs" not in output
    assert "optimizer.lr" not in output
    assert manifest(tmp_path / "unasked")["outcome"]["steps"] == 0
