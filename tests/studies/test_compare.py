"""A comparison of losses on a folder: planned, run, resumed, judged, shown; and what is refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matrix_bench import BENCH, make_patterns

from recollect.common.errors import ConfigError, InputError, RecollectError
from recollect.config.resolve import resolve
from recollect.studies import compare as comparing
from recollect.studies.compare import compare_losses, plan_comparison
from recollect.studies.pages import write_comparison
from recollect.studies.protocol import Cell, RateChoice
from recollect.studies.summary import CellResult, LossComparison, PairOfLosses
from recollect.training.run import RunFolder
from recollect.training.trainer import train
from training.small_runs import make_images

SMALL = {**BENCH.settings, "model.init": "tiny", "batch.size": 16, "optimizer.lr": 1e-3}


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return make_patterns(tmp_path / "photos")


def compare(images: Path, out: Path, losses: Any = "recall_at_k,smooth_ap", **options: Any) -> Any:
    settings = {**SMALL, "data.root": str(images), **options.pop("settings", {})}
    return compare_losses(losses, "folder", settings, out=out, **{"seeds": 3, "steps": 3, "jobs": 1, **options})


@pytest.mark.release
def test_from_a_folder_to_a_page(here: None, images: Path, tmp_path: Path) -> None:
    comparison = compare(images, tmp_path / "out", seeds=2, steps=2)
    assert comparison.complete
    seeds = {result.cell.label: len(result.by_seed) for result in comparison.results}
    assert seeds == {"recall_at_k": 2, "smooth_ap": 2}
    assert {result.steps for result in comparison.results} == {2}, "all see the same number of images"
    assert all(result.processor_seconds > 0 and result.searched_seconds > 0 for result in comparison.results)
    page = comparison.page.read_text()
    assert comparison.pairs[0].sentence in page
    assert "http" not in page.replace("http-equiv", "")
    assert json.loads((tmp_path / "out" / "comparison.json").read_text())["losses"][0]["loss"] == "recall_at_k"
    assert str(tmp_path) not in page
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("manifest.json")}
    assert compare(images, tmp_path / "out", seeds=2, steps=2).complete
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items()), "nothing is trained twice"


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        ("", "at least one loss"),
        ("recall_at_kk", "Did you mean"),
        ("recall_at_k(tau=1)", "tau"),
        ("recall_at_k(tau1", "parentheses"),
        ("recall_at_k(simix)", "name=value"),
        ("smooth_ap,smooth_ap", "twice"),
    ],
)
def test_wrong_losses_are_told_before_anything_is_trained(
    images: Path, tmp_path: Path, losses: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        plan_comparison(losses, "folder", {**SMALL, "data.root": str(images)}, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("setting", ["optimizer.milestones=[1]", "optimizer.schedule=constant", "run.seed=3"])
def test_settings_that_would_have_no_effect_are_refused(images: Path, tmp_path: Path, setting: str) -> None:
    with pytest.raises(ConfigError, match=rf"{setting.partition('=')[0]} would have no effect"):
        plan_comparison("smooth_ap", settings=[setting], data=images, out=tmp_path / "out", timed=False)


@pytest.mark.release
def test_the_closed_form_is_what_every_loss_starts_from(here: None, images: Path, tmp_path: Path) -> None:
    settings = {"data.root": str(images), "run.device": "cpu", "model.image_size": 64}
    comparison = compare_losses("smooth_ap", "folder", settings, out=tmp_path / "out", seeds=1, steps=2, jobs=1)
    trained, start, untrained = comparison.results
    assert [pair.second for pair in comparison.pairs] == ["the closed form", "no training"]
    assert untrained.mean != start.mean
    run = comparison.planned.matrix.reported(trained.cell)[0].folder
    config = replace(RunFolder(run).read_config(), run=replace(RunFolder(run).read_config().run, evaluate_first=True))
    train(config, tmp_path / "again")
    first = next(line for line in RunFolder(tmp_path / "again").read_metrics() if line.get("split") == "test")
    assert (first["step"], 100 * first["r@1"]) == (0, start.mean)


def test_no_run_sees_more_images_than_the_budget_says(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparing, "HEAD_IMAGES", 480)
    planned = plan_comparison("smooth_ap", data=images, out=tmp_path / "out", timed=False)
    cell, search = planned.cells[0], planned.matrix.runs(planned.cells)[0].settings()
    assert (cell.batch, search["batch.size"]) == (48, 24), "half of the classes fill only half of a batch"
    assert search["run.steps"] * cell.batch <= 480, "the search may choose any of its steps for a run"
    plan = "\n".join(planned.lines())
    assert "10 steps or 480 images" in plan
    assert "48 images; 24 in the search" in plan
    recipe = tmp_path / "steps.yaml"
    recipe.write_text("inherits: folder\noptimizer: {schedule: milestones, milestones: [1]}\n")
    planned = plan_comparison("smooth_ap", recipe, data=images, out=tmp_path / "out", steps=3, timed=False)
    config = resolve(recipe, planned.matrix.runs(planned.cells)[0].settings())
    assert (config.run.steps, config.optimizer.schedule, config.optimizer.milestones) == (3, "constant", ())


@pytest.mark.parametrize(
    ("differences", "words"),
    [
        ((), "no finished seeds"),
        ((1.0, 1.1), "too few seeds"),
        ((1.0, 1.1, 0.9), "A finds more than B: 1.0 points"),
        ((-1.0, -1.1, -0.9), "B finds more than A: 1.0 points of r@1, 90 % interval 0.8 to 1.2"),
        ((1.0, -1.1, 0.9), "cannot be distinguished"),
        ((0.5, -0.2, 0.1), "+0.1 points of r@1, 90 % interval −0.5 to +0.7"),
        (tuple([0.0, 1.0] * 6), "0.5 points of r@1, 90 % interval 0.2 to 0.8"),  # 1.796 × 0.522 / √12
        ((-0.04,), "differ by 0.0 points"),
    ],
)
def test_one_plain_sentence_for_each_pair(differences: tuple[float, ...], words: str) -> None:
    pair = PairOfLosses("A", "B", differences)
    assert words in pair.sentence
    assert json.dumps(pair.as_dict())


def test_hostile_names_are_shown_and_do_nothing(images: Path, tmp_path: Path) -> None:
    planned = compare(images, tmp_path / "out", "smooth_ap", minutes=0).planned
    comparison = LossComparison.of(
        replace(planned, cells=[replace(planned.cells[0], label="<script>alert(1)</script>")]), False
    )
    write_comparison(comparison)
    assert "alert(1)" in comparison.page.read_text()
    assert "<script" not in comparison.page.read_text()


def test_without_training_there_is_one_result_and_no_spread(images: Path, tmp_path: Path) -> None:
    planned = compare(images, tmp_path / "out", "smooth_ap", minutes=0).planned
    tested = {seed: {"r@1": 80.0} for seed in (1, 2, 3)}
    choice = RateChoice(1e-3, 7, 0.5, 8)
    spread = {seed: {"r@1": 80.0 + seed} for seed in tested}
    bench = planned.cells[0].bench
    results = [
        CellResult(Cell(bench, "init", "no training", 16, trains=False), tested, None, 0),
        CellResult(Cell(bench, "a", "A", 16), spread, choice, 7, processor_seconds=2.0, searched_seconds=3.0),
    ]
    comparison = LossComparison(planned, True, results, [], tmp_path / "out" / "comparison.html")
    write_comparison(comparison)
    rows = re.findall(r"<tr><th scope=\"row\"><bdi>(.*?)</bdi></th>(.*?)</tr>", comparison.page.read_text())
    cells = [(name, re.findall("<td>(.*?)</td>", row)) for name, row in rows]
    trained = ("A", ["0.001", "7", "112", "2.0", "3.0"])
    assert cells == [("A", ["82.0 ± 1.7", "3"]), ("no training", ["80.0", "1"]), trained]
    assert "found at batch 8 and used at 16." in comparison.page.read_text()
    assert comparison.as_dict()["losses"][0]["half_width_90"] is None


def test_a_page_of_someone_else_is_refused_before_the_runs(images: Path, tmp_path: Path) -> None:
    page = compare(images, tmp_path / "out", minutes=0).page
    page.write_text("mine")
    with pytest.raises(InputError, match="not a page"):
        compare(images, tmp_path / "out")
    assert not (tmp_path / "out" / "runs").exists()


def test_the_advice_to_skip_bad_images_works_in_the_same_folder(images: Path, tmp_path: Path) -> None:
    compare(images, tmp_path / "out", minutes=0)
    other = {"data.on_bad_image": "skip", "data.max_pixels": 10**9}
    assert compare(images, tmp_path / "out", minutes=0, settings=other).page.exists()
    with pytest.raises(ConfigError, match=r"other settings: model\.dim is 16 there and 8 here\. Choose another --out"):
        compare(images, tmp_path / "out", minutes=0, settings={"model.dim": 8})


def test_too_few_classes_for_the_validation_half_are_said_to_be_so(tmp_path: Path) -> None:
    make_images(tmp_path / "photos", classes=2)
    with pytest.raises(RecollectError, match="half of the training classes are held out for validation"):
        compare(tmp_path / "photos", tmp_path / "out")
