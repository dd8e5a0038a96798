"""The border between training and test classes is remembered."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli.running import run as run_command
from recollect.common.errors import ConfigError, DataError, InputError
from recollect.data import ImageSet, load
from recollect.inference.store import content_keys
from recollect.inference.training_record import (
    FILE,
    ScreenedTestSet,
    TrainedOn,
    exclude_trained_classes,
    is_unseen,
    load_by_record,
    read_trained_on,
    split_of,
    trained_on,
)
from recollect.report import write_report
from recollect.report.results import evaluate_run, read_run
from recollect.training.trainer import train
from training.small_runs import make_images, small_config


def flat(root: Path, classes: int = 8, seed: int = 0) -> Path:
    """``root/class/image``: half of the classes, by the alphabet, train."""
    folder = make_images(root.with_name(root.name + "-made"), classes=classes, each=4, seed=seed)
    shutil.move(folder / "train", root)
    return root


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return flat(tmp_path / "photos")


def fitted(root: Path, out: Path, **settings: object) -> Path:
    return train(small_config(root, **{"run.epochs": 1, **settings}), out).folder


def record_of(run: Path) -> TrainedOn:
    record = read_trained_on(run)
    assert record is not None
    return record


def screened(root: Path, split: str, run: Path, how: str = "auto") -> ScreenedTestSet:
    images = load("folder", root, split)
    return exclude_trained_classes(images, content_keys(images), read_trained_on(run), how)


def evaluated(*arguments: object) -> tuple[dict[str, object], str]:
    done = run_command("eval", *arguments, "--json", "--overwrite")
    return json.loads(done.stdout), done.stderr


def test_a_run_knows_its_classes_and_images(photos: Path, tmp_path: Path) -> None:
    run = fitted(photos, tmp_path / "run", **{"data.validation": "paper", "batch.size": 8})
    record = record_of(run)
    held_out = set(load("folder", photos, "test").class_names)
    assert len(record.classes) == len(record.validation_classes) == 2
    assert not record.classes & record.validation_classes
    assert not (record.classes | record.validation_classes) & held_out
    assert len(record.keys) == 8
    assert read_trained_on(tmp_path) is None
    (run / FILE).write_bytes(b"PK no archive")
    with pytest.raises(DataError):
        read_trained_on(run)


def test_classes_added_later_do_not_move_the_border(photos: Path, tmp_path: Path) -> None:
    run = fitted(photos, tmp_path / "run")
    fresh, messages = evaluated(run)
    assert fresh["source"]["trained_classes"] == 0
    assert "WARNING" not in messages
    record = record_of(run)
    # More classes, until the folder's test half holds some that were trained on.
    for number in range(20):
        shutil.copytree(flat(tmp_path / "more", 1, seed=10 + number) / "train-00", photos / f"a{number}")
        shutil.rmtree(tmp_path / "more")
        test = load("folder", photos, "test")
        mixed = record.classes & set(test.class_names)
        if mixed and number >= 2:
            break
    unseen = set(load("folder", photos, "all").class_names) - record.classes
    assert unseen > set(test.class_names) - record.classes, "classes drawn for training now are new to the run too"
    later, messages = evaluated(run)
    assert later["source"]["trained_classes"] == 0
    assert later["source"]["classes_by_record"] is True
    assert later["queries"] == 4 * len(unseen)
    assert f"uses the {len(unseen)} classes that took no part in the training" in messages
    everything, messages = evaluated(run, "--trained-classes", "keep")
    assert everything["source"]["trained_classes_excluded"] is False
    assert everything["queries"] == len(test)
    assert "does not show" in messages
    table = run_command("eval", run, "--overwrite", "--quiet")
    assert f"uses the {len(unseen)} classes" in " ".join(table.stdout.split()), "part of the result, so quiet or not"
    assert table.stderr == ""
    result = evaluate_run(read_run(run))
    assert set(result.images.class_names) == unseen
    assert any(f"uses the {len(unseen)} classes" in remark for remark in result.remarks)


def other_draw(photos: Path, before: ImageSet, **drawn: Any) -> None:
    """Add photos of a class that was trained on until other classes are drawn for testing."""
    trained = photos / load("folder", photos, "train", **drawn).class_names[0]
    for number in range(20):
        shutil.copy(trained / "0.png", trained / f"more{number}.png")
        if set(load("folder", photos, "test", **drawn).class_names) != set(before.class_names):
            return
    raise AssertionError("more photos never change the draw")


def test_runs_before_and_after_a_change_are_tested_on_classes_that_neither_knows(photos: Path, tmp_path: Path) -> None:
    drawn = {"class_split": "balanced"}
    for number, folder in enumerate(sorted(flat(tmp_path / "more", 8, seed=5).iterdir())):
        folder.rename(photos / f"more{number}")
    first = fitted(photos, tmp_path / "first", **{"data.options": drawn})
    other_draw(photos, load("folder", photos, "test", **drawn), **drawn)
    second = fitted(photos, tmp_path / "second", **{"data.options": drawn})
    runs = [read_run(run) for run in (first, second)]
    records = [record_of(run) for run in (first, second)]
    took_part = {name for one in records for name in one.classes | one.validation_classes}
    unseen = set(load("folder", photos, "all").class_names) - took_part
    assert 1 < len(unseen) < 8
    results = [evaluate_run(run, other_runs=[other for other in runs if other is not run]) for run in runs]
    assert [set(one.images.class_names) for one in results] == [unseen, unseen]
    assert results[0].images.same_as(results[1].images)
    page = write_report([first, second], tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count(f"uses the {len(unseen)} classes that took no part in any training") == 1, "said once"
    assert "Comparison of first and second" in page, "not two seeds of one setting"
    assert "training images</code>" in page
    assert set(evaluate_run(runs[1]).images.class_names) > unseen

    third = fitted(photos, tmp_path / "third", **{"data.options": drawn, **split_of(first)})
    assert record_of(third).classes == records[0].classes
    shared = evaluate_run(runs[0], other_runs=[read_run(third)])
    assert set(shared.images.class_names) == set(evaluate_run(runs[0]).images.class_names)


def test_the_record_travels_with_the_model(photos: Path, tmp_path: Path) -> None:
    """``RUN/model`` is what ``train`` prints last, and what people copy."""
    run = fitted(photos, tmp_path / "run")
    record = record_of(run)
    shutil.copytree(run / "model", tmp_path / "copied")
    for place in (run / "model", tmp_path / "copied"):
        again = record_of(place)
        assert (again.classes, again.digest) == (record.classes, record.digest)
        summary, messages = evaluated(place, "--data", photos, "--split", "all")
        assert summary["source"]["trained_classes"] == len(record.classes)
        assert "WARNING" in messages
    (run / "model" / FILE).unlink()  # as earlier versions left it
    assert read_trained_on(run / "model") is not None
    assert read_trained_on(tmp_path) is None


def test_another_folder_is_tested_whole(photos: Path, tmp_path: Path) -> None:
    run = fitted(photos, tmp_path / "run")
    other = flat(tmp_path / "other", 6, seed=9)
    (other / "train-00").rename(other / "new")
    record = record_of(run)
    unseen = [folder.name for folder in other.iterdir() if folder.name not in record.classes]
    summary, _ = evaluated(run, "--data", other)
    assert summary["queries"] == 4 * len(unseen), "of a half, some would be missing"
    assert evaluated(run, "--data", photos)[0]["queries"] == evaluated(run)[0]["queries"], "its own folder"
    out = ["--metrics-out", tmp_path / "m.json", "--queries-out", tmp_path / "q.npz"]
    half = run_command("eval", "lite0-in1k", "--data", other, *out)
    assert "3 classes are tested" in " ".join(half.output.split())
    assert "--split all" in half.output


def test_vectors_in_a_file_are_compared_with_the_record_of_their_model(photos: Path, tmp_path: Path) -> None:
    run = fitted(photos, tmp_path / "run")
    run_command("embed", run, photos, "--out", tmp_path / "v.npz")
    summary, messages = evaluated(tmp_path / "v.npz")
    record = record_of(run)
    assert summary["source"]["trained_classes"] == len(record.classes)
    assert f"{len(record.classes)} classes have the names" in messages


def test_the_split_of_a_run_is_that_of_a_folder(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a run"):
        split_of(tmp_path)
    run = fitted(photos, tmp_path / "run")
    record = record_of(run)
    assert split_of(run) == {"data.options.train_classes": sorted(record.classes | record.validation_classes)}
    replace(record, data="cub").write(run)
    with pytest.raises(ConfigError, match="was trained on cub, which says itself"):
        split_of(run)
    (run / FILE).unlink()
    with pytest.raises(DataError, match="no record of its training classes"):
        split_of(run)
    with pytest.raises(InputError, match="no effect without --data FOLDER"):
        run_command("train", "--split-of", run)


def test_empty_and_equally_broken_files_are_not_photos_that_were_trained_on(photos: Path) -> None:
    """An interrupted copy leaves empty files, and a failed download the same page under many names."""
    trained, tested = (photos / sorted(load("folder", photos, part).class_names)[0] for part in ("train", "test"))
    for folder, count in ((trained, 1), (tested, 9)):
        for number in range(count):
            (folder / f"empty{number}.png").touch()
            (folder / f"page{number}.png").write_text("<html>not found</html>")
    everything = load("folder", photos, "all")
    one, other = (everything.of_classes([everything.class_names.index(folder.name)]) for folder in (trained, tested))
    screened_set = exclude_trained_classes(other, content_keys(other), trained_on(one))
    assert screened_set.trained_classes == ()
    assert screened_set.trained_images == 9, "copies of the page, by content; empty files are of no content"


def test_a_set_of_trained_classes_only_is_measured_and_announced(photos: Path, tmp_path: Path) -> None:
    run = fitted(photos, tmp_path / "run")
    summary, messages = evaluated(run, "--split", "train")
    assert summary["source"]["trained_classes"] == 4
    assert summary["source"]["trained_classes_excluded"] is False
    assert summary["source"]["trained_images"] == 16
    assert "WARNING: 4 classes" in messages
    for options in (["--split", "train", "--trained-classes", "exclude"], ["--trained-classes", "perhaps"]):
        with pytest.raises(ConfigError):
            run_command("eval", run, *options)


def test_train_and_test_folders_that_share_classes(tmp_path: Path) -> None:
    root = make_images(make_images(tmp_path / "x", classes=4), classes=3, split="test", seed=5)
    (root / "test" / "test-00").rename(root / "test" / "train-00")
    run = fitted(root, tmp_path / "run")
    screened_set = screened(root, "test", run)
    assert screened_set.trained_classes == ("train-00",)
    assert screened_set.excluded
    assert screened_set.trained_images == 0, "other photos of a trained class"
    assert set(screened_set.images.class_names) == {"test-01", "test-02"}


def coloured(*classes: tuple[str, list[int]]) -> ImageSet:
    """Classes by name; images with the same number are the same."""
    labels = np.repeat(np.arange(len(classes)), [len(colours) for _, colours in classes])
    colours = [colour for _, colours in classes for colour in colours]
    pixels = np.array(colours, np.uint8)[:, None, None] + np.zeros((1, 8, 8), np.uint8)
    return ImageSet("photos", list(map(str, range(len(labels)))), labels, [name for name, _ in classes], arrays=pixels)


@pytest.mark.parametrize(("photos_of_it", "counts"), [([1, 2, 9, 8], True), ([1, 2, 9, 8, 7], False), ([1, 9], True)])
def test_a_class_counts_as_trained_if_at_least_half_of_its_photos_were(photos_of_it: list[int], counts: bool) -> None:
    record = trained_on(coloured(("a", [1, 2, 3]), ("b", [4, 5])))
    tested = coloured(("renamed", photos_of_it), ("new", [11, 12]))
    screened_set = exclude_trained_classes(tested, content_keys(tested), record, "keep")
    assert screened_set.trained_classes == (("renamed",) if counts else ())
    unseen = is_unseen([tested.class_names[label] for label in tested.labels], content_keys(tested), "photos", record)
    assert unseen.tolist() == [not counts] * len(photos_of_it) + [True, True]


def test_classes_that_chose_the_weights_are_not_unseen(photos: Path) -> None:
    everything = load("folder", photos, "all")
    names = everything.class_names
    fitted_on, chose = everything.of_classes([0, 1, 2]), everything.of_classes([3, 4])
    record = trained_on(fitted_on, chose)
    assert record.validation_classes == {names[3], names[4]}
    labels = [names[label] for label in everything.labels]
    no_copies = np.zeros_like(content_keys(everything))
    assert set(np.array(labels)[is_unseen(labels, no_copies, "folder", record)]) == set(names[5:])
    assert is_unseen(labels, no_copies, "other", record).all(), "another data set has classes of its own"
    test = load_by_record("folder", photos, "test", record, {"class_split": "balanced"})
    assert {test.class_names[label] for label in test.labels} == set(names[5:])
    screened_set = exclude_trained_classes(everything, content_keys(everything), record)
    assert screened_set.validation_classes == (names[3], names[4])
    chose_them = "2 classes of the test set were used to choose the weights"
    assert chose_them in " ".join(map(str, screened_set.remarks()))
    assert "choose" not in " ".join(map(str, exclude_trained_classes(test, content_keys(test), record).remarks()))
