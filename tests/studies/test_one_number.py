"""A run's r@1 and mAP@R are the same wherever they are shown, also where a page shows a sample of the images."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cli.running import run
from training.small_runs import make_images

pytestmark = pytest.mark.release


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    make_images(tmp_path / "photos", classes=8, each=6)
    return make_images(tmp_path / "photos", classes=12, each=4, split="test", seed=1)


def _run(*words: object) -> str:
    return re.sub(r"\s+", " ", run(*words).output)


def _evaluated(run: Path) -> tuple[float, float]:
    """What ``recollect eval`` writes, as a page rounds it."""
    _run("eval", run, "--overwrite")
    (file,) = run.glob("eval/*/metrics.json")
    metrics = json.loads(file.read_text())["metrics"]
    return round(100 * metrics["r@1"], 1), round(100 * metrics["map@r"], 1)


def _headline(run: Path, *options: object) -> tuple[float, float]:
    """The large numbers of the trained network on the report's page; its sample has fewer than a third of the classes."""
    _run("report", run, "--images", 12, *options)
    page = (run / "report.html").read_text()
    assert "12 of the 48 images" in page
    r1, map_at_r = re.findall(r'class="big">([\d.]+).*?mAP@R ([\d.]+)', page)[-1]
    table = re.search(r"<bdi>after training</bdi></th>(.*?)</tr>", page)
    assert f">{r1}<" in table[1], "the table has the number of the headline"
    return float(r1), float(map_at_r)


def test_a_training_has_one_result_in_terminal_manifest_evaluation_and_report(photos: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    printed = _run("train", "--data", photos, "--image-size", 64, "--steps", 2, "--out", run)
    expected = _evaluated(run)
    assert 0 < expected[1] < expected[0] < 100, "numbers that a sample would not have by chance"
    changes = json.loads((run / "manifest.json").read_text())["verdicts"]["pretrained"]["changes"]
    assert tuple(round(100 * change["after"], 1) for change in changes) == expected
    assert _headline(run) == expected
    judged = re.search(r'class="verdict".*?</li>', (run / "report.html").read_text())
    for change in changes:
        words = f"{100 * change['before']:.1f} → {100 * change['after']:.1f}"
        assert words in printed
        assert words in judged[0]


def test_a_comparison_has_the_numbers_of_the_evaluation_and_the_report(
    here: None, photos: Path, tmp_path: Path
) -> None:
    out, small = tmp_path / "c", ("--set", "model.image_size=64", "--seeds", 1, "--steps", 2)
    _run("compare", "--losses", "recall_at_k", "--data", photos, *small, "--out", out)
    losses = json.loads((out / "comparison.json").read_text())["losses"]
    (row,) = (row for row in losses if row["loss"] == "recall_at_k")
    (run,) = (path.parent for path in out.glob("**/recall_at_k/**/seed-1/model"))
    expected = _evaluated(run)
    assert (round(row["by_seed"]["1"], 1), round(row["metrics"]["map@r"], 1)) == expected
    assert _headline(run) == expected
