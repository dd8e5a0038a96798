"""The page of a study: everything is there, for everyone, and nothing that a name smuggles in acts."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recollect.common.errors import InputError
from recollect.report.charts import Point, scatter_chart
from recollect.studies.pages import write_study
from recollect.studies.summary import StudyResults, TrialRecord
from report.report_runs import read_page

SETTINGS = {"optimizer.lr": 1e-3, "optimizer.milestones": [1.0, 2.0], "run.epochs": 4}


def trial(number: int, value: float | None, **more: Any) -> TrialRecord:
    drawn = {"lr": 10.0 ** -(2 + number), "gamma": 0.1 * (number + 1), "loss.name": "a"}
    facts: dict[str, Any] = {"seconds": 10.0, "images": 100, "steps": 10, "best_epoch": 2.0, "host": "vm"}
    return TrialRecord(number, "done", drawn, SETTINGS, value, **{**facts, "curve": [(0.0, 0.1), (1.0, 0.5)], **more})


def results(**more: Any) -> StudyResults:
    facts: dict[str, Any] = {
        "name": "s", "folder": "runs/s", "recipe": "glyphs", "data": "glyphs", "select": "r@1", "sampler": "random",
        "seed": 0, "space": {"lr": "1e-4:1e-2:log", "gamma": "0.1:0.5", "loss.name": "a,b"},
        "trials": [trial(0, 0.5), trial(1, 0.75), trial(2, None, failure="the loss is nan")],
        "chosen": 1, "importance": {"lr": 0.8, "gamma": 0.2}, "seconds": 30.0, "images": 300,
        "final": {
            "folder": "runs/s/final", "trial": 1, "validation": 0.75, "settings": SETTINGS, "epochs": 2, "steps": 40,
            "seconds": 12.0, "images": 400, "classes": 8, "metrics": {"glyphs/test": {"r@1": 0.625, "first_rank": 3.0}},
        },
        "protocol": {
            "train": {"classes": 4, "images": 40}, "validation": {"classes": 4, "images": 41}, "batch": 16,
            "fingerprints": {"train": "a" * 64, "validation": "b" * 64}, "remarks": ["a remark"], "final_batch": 32,
            "published": {"glyphs/test": {"r@1": 70.0}},
        },
    }  # fmt: skip
    return StudyResults(**{**facts, **more})


def page(path: Path, **more: Any) -> str:
    return write_study(path / "report.html", results(**more)).read_text(encoding="utf-8")


def test_everything_is_there(tmp_path: Path) -> None:
    text = page(tmp_path).replace("\u00a0", " ")
    for expected in (
        "75.00 %", "62.50", "70.0", "0001<strong> ◆ chosen</strong>", "the loss is nan", "80.0 %", "a remark",
        "42 s", "700", "optimizer.lr", "1, 2", "measured once", "The study is closed",
    ):  # fmt: skip
        assert expected in text, expected
    assert "first_rank" not in text


def test_elements_are_closed_and_every_chart_and_table_has_words(tmp_path: Path) -> None:
    text = page(tmp_path)
    reader = read_page(text)
    assert not reader.open
    count = Counter(tag for tag, _ in reader.tags)
    charts = [attributes for tag, attributes in reader.tags if tag == "svg" and attributes.get("class") == "chart"]
    assert len(charts) >= 4  # the search, the curves, two parameters; a choice among words has no axis
    assert all(chart["role"] == "img" for chart in charts)
    assert (count["table"], count["desc"], count["figure"]) == (count["caption"], len(charts), count["figcaption"])
    assert count["script"] == 0
    assert not re.findall(r'(?:src|href)="(?!#)[^"]', text)


def test_names_cannot_act(tmp_path: Path) -> None:
    bad = "<script>alert(1)</script>"
    text = page(tmp_path, recipe=bad, trials=[trial(1, 0.5, host=bad, failure=bad)], data=bad)
    assert "<script" not in text
    assert "&lt;script&gt;" in text


def test_what_is_not_known_is_said(tmp_path: Path) -> None:
    assert "at least 20 finished trials" in page(tmp_path, importance={})
    open_ = page(tmp_path, final=None, trials=[trial(0, 0.5), replace(trial(1, None), state="running", curve=[])])
    assert "1 trial is not done" in open_
    assert "Not tested yet" in page(tmp_path, final=None)
    nothing = page(tmp_path, final=None, chosen=None, trials=[])
    assert "No trial has finished yet" in nothing


def test_a_file_of_the_users_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("mine")
    with pytest.raises(InputError, match=r"page .*'recollect tune'"):
        page(tmp_path)


def test_scatter_places_points_on_a_logarithmic_axis() -> None:
    points = [Point("a", 1e-4, 0.1), Point("b", 1e-3, 0.2), Point("c", 1e-2, 0.3, marked=True), Point("d", 0.0, 1.0)]
    drawn = scatter_chart(points, title="t", x_label="x", y_label="y", log=True)
    xs = [float(x) for x in re.findall(r'cx="([\d.]+)"', drawn)]
    assert len(xs) == 2  # d has no place there
    centre = float(re.findall(r'd="M([\d.]+) [\d.]+L[^"]*" class="dot dot-2"', drawn)[-1])
    assert centre - xs[1] == pytest.approx(xs[1] - xs[0], abs=0.2)
    assert "The highest, c, is 0.3 at 0.01" in drawn
    assert scatter_chart([], title="t", x_label="x", y_label="y") is None
