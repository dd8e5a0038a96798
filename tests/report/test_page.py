from __future__ import annotations

import base64
import csv
import hashlib
import json
import re
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import recollect
from recollect.common.errors import DataError, InputError
from recollect.report import write_report
from recollect.report.checks import KINDS
from recollect.report.results import evaluate_run, read_run
from report.report_runs import EVIL, PageReader, count_images, make_run, read_page
from training.small_runs import make_images


def check(path: Path) -> PageReader:
    found = read_page(path.read_text(encoding="utf-8"))
    assert found.open == []
    ids = [attributes["id"] for _, attributes in found.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes in found.tags:
        assert tag not in ("iframe", "object", "link")
        assert not any(name.startswith("on") for name in attributes)
        if tag == "img":
            assert str(attributes["src"]).startswith("data:image/")
            assert attributes["alt"] or "hidden" in attributes
        if tag == "span" and attributes.get("role") == "img":
            assert attributes["aria-label"]
        if tag == "a":
            assert str(attributes["href"])[1:] in ids
    assert [tag for tag, _ in found.tags].count("script") == 1
    levels = [int(tag[1]) for tag, _ in found.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(later <= earlier + 1 for earlier, later in pairwise(levels))
    return found


def words(found: PageReader) -> str:
    return " ".join(" ".join(found.text).split())


def test_the_report_of_a_run(runs: Path) -> None:
    path = write_report([runs / "first"])
    assert path == runs / "first" / "report.html"
    found = check(path)
    text = words(found)
    headings = [key for tag, attributes in found.tags if tag == "section" and (key := attributes["id"])]
    expected = ["results", "failures", "data", "map", "gallery", "classes", "similarities"]
    assert headings == [*expected, "curves", "speed", "settings"]
    assert "30 queries of 6 classes" in text
    assert "(macro)" in text
    assert "Time spent" in text
    results = evaluate_run(read_run(runs / "first"))
    for model in (results.init, results.trained):
        assert f"{100 * model.evaluation.metrics['r@1']:.1f} %" in text
        assert f"{100 * model.evaluation.metrics['map@r']:.1f}" in text
    assert "81.2" in text  # the published row
    assert "Loss: recall_at_k" in text
    assert "samples_per_class: 4" in text
    assert "✓" in text
    assert "✗" in text
    assert path.stat().st_size < 2_000_000


def test_names_of_files_and_runs_are_shown_and_do_not_act(runs: Path) -> None:
    folder = (runs / "first").rename(runs / "<script>alert(1)<")
    found, raw = check(write_report([folder])), (folder / "report.html").read_text(encoding="utf-8")
    assert "<script>alert(1)<" in words(found)
    assert "<img src=x onerror=alert(1)>\ufffd&\"'" in "".join(found.text)
    assert EVIL not in "".join(found.text)  # its turning character is gone
    shown = {attributes["title"] for _, attributes in found.tags if "title" in attributes}
    assert any("\"'><script>alert(1)<\ufffd.png" in str(name) for name in shown)
    # Not even a part of the page that is not text holds it unescaped.
    assert not any(part in raw for part in ("<script>alert", "<img src=x", "\u202e"))


def test_nothing_is_fetched_and_only_the_page_s_own_script_may_run(runs: Path) -> None:
    raw = write_report([runs / "first"]).read_text(encoding="utf-8")
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', raw)
    assert "unsafe" not in policy[1]
    rules = dict(rule.strip().split(" ", 1) for rule in policy[1].split(";"))
    assert rules.pop("default-src") == "'none'"
    assert rules.pop("img-src") == "data:"
    for tag, rule in (("style", rules.pop("style-src")), ("script", rules.pop("script-src"))):
        content = re.search(f"<{tag}>(.*?)</{tag}>", raw, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content[1].encode()).digest()).decode()
        assert rule == f"'sha256-{digest}'"
    assert rules == {}
    assert not re.search(r"(src|href)=\"(?!data:|#)", raw)
    assert " style=" not in raw
    assert "@import" not in raw
    assert not re.search(r"url\((?!data:image/)", raw)


def test_several_runs_are_compared(runs: Path) -> None:
    path = write_report([runs / "first", runs / "second"], names=["RS@k", "contrastive"])
    assert path == runs / "report.html"
    text = words(check(path))
    assert "contrastive − RS@k" in text.replace("  ", " ")
    assert "Loss: recall_at_k" in text
    assert "Loss: contrastive" in text
    assert "not comparable" in text
    assert "Settings that differ" in text
    assert "loss.name" in text
    assert "None" not in text.split("Settings that differ")[1].split("All settings")[0]
    assert "Improved from RS@k to contrastive" in text.replace("  ", " ") or "No query improved" in text
    assert text.count("random weights") >= 1  # both started from the same, shown once


def test_interrupted_empty_and_damaged_runs(runs: Path) -> None:
    folder = runs / "first"
    shutil.rmtree(folder / "model")
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["outcome"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    broken = [
        *lines[:2],
        '{"kind": "step", "step": 2, "loss": NaN}',
        "[1, 2]",
        '{"kind": "evaluation"}',
        lines[-1][:20],
    ]
    (folder / "metrics.jsonl").write_text("\n".join(broken))
    text = words(check(write_report([folder])))
    assert "not finished" in text
    assert "last checkpoint" in text
    shutil.rmtree(folder / "checkpoints")
    shutil.rmtree(folder / "report")
    (folder / "metrics.jsonl").unlink()
    (folder / "manifest.json").write_text("{")
    text = words(check(write_report([folder])))
    assert "manifest.json cannot be read" in text
    assert "no step taken" in text


def test_without_images_there_is_no_gallery_but_a_sentence(made: Path, moved: tuple[Path, Path]) -> None:
    data, folder = moved
    shutil.rmtree(data)
    text = words(check(write_report([folder])))
    assert "No test images" in text
    assert "during training" in text  # what was evaluated on the way stands in for it
    shutil.copytree(made / "data", data)
    write_report([folder])
    shutil.rmtree(data)
    text = words(check(write_report([folder])))
    assert "No gallery: the images are not available." in text
    assert "Similarities" in text


def test_one_class_and_classes_of_one_image(made: Path, tmp_path: Path) -> None:
    for classes, each in ((1, 4), (3, 1)):
        data = tmp_path / f"data-{classes}"
        make_images(data, classes=8, each=5)
        make_images(data, classes=classes, each=each, split="test", seed=2)
        folder = make_run(data, tmp_path / f"run-{classes}", **{"run.watch_test": False})
        text = words(check(write_report([folder])))
        if classes == 1:
            assert "One of the two kinds does not occur" in text
            assert "Every query has a positive in the first place" in text
        else:
            assert "none of the 3 queries has a positive" in text


def test_an_earlier_report_is_replaced_and_nothing_else(runs: Path) -> None:
    path = write_report([runs / "first"])
    write_report([runs / "first"])
    path.write_text("<p>mine</p>")
    with pytest.raises(InputError, match=r"exists .*page"):
        write_report([runs / "first"])
    assert path.read_text() == "<p>mine</p>"
    write_report([runs / "first"], overwrite=True)
    check(path)


def test_results_of_eval_stand_beside(runs: Path) -> None:
    folder = runs / "first" / "eval" / "folder-test"
    folder.mkdir(parents=True)
    (folder / "metrics.json").write_text(json.dumps({"metrics": {"r@1": 0.123, "map": float("nan")}}))
    found = check(write_report([runs / "first"]))
    assert "by recollect eval r@1 folder-test 12.3" in words(found)  # a table of its own: no other k, no empty cell


def test_training_images_are_not_compared_with_themselves(runs: Path, tmp_path: Path) -> None:
    path = write_report([runs / "first"], tmp_path / "train.html", split="train", csv=tmp_path / "list.csv")
    with (tmp_path / "list.csv").open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    findings = {row["finding"] for row in rows}
    assert {row["part"] for row in rows} <= {"train"}
    assert not findings & {"copy of a training image", f"near-duplicates {KINDS[0]}"}
    text = words(check(path))
    assert "training images are checked" in text
    assert "8 classes were trained on" in text
    assert f"Near-duplicates {KINDS[0]}" not in text, "it was not looked for"
    assert "Test image" not in path.read_text(encoding="utf-8")
    assert "WARNING" not in text  # that is for a terminal


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a run"):
        write_report([tmp_path])
    with pytest.raises(InputError, match="at least one"):
        write_report([])


def test_images_are_embedded_once(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECOLLECT_CACHE", str(runs / "cache"))
    through = count_images(monkeypatch)
    write_report([runs / "first", runs / "second"])
    assert sum(through) == 3 * 30  # one start, two ends
    first = evaluate_run(read_run(runs / "first"))
    write_report([runs / "first", runs / "second"])
    assert sum(through) == 3 * 30
    assert np.array_equal(first.trained.vectors, evaluate_run(read_run(runs / "first")).trained.vectors)
    evaluate_run(read_run(runs / "first"), split="train")
    assert sum(through) == 3 * 30 + 2 * 40


def test_dark_colours_are_for_screens_and_not_for_paper() -> None:
    sheets = list(Path(recollect.__file__).parent.rglob("*.css"))
    assert len(sheets) == 2  # of reports and studies, and of the search service
    for sheet in sheets:
        rules = sheet.read_text("utf-8")
        assert re.findall(r"@media (.*)\(prefers-color-scheme: dark\)", rules) == ["screen and "]
        assert "@media print { :root { color-scheme: light; } }" in rules
