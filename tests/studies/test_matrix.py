"""A study of two cells on a small folder: done once, resumed, judged, written; its search without a test set."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path
from statistics import stdev

import pytest
from matrix_bench import BENCH, final_run, searched
from typer.testing import CliRunner

from recollect.cli.app import app
from recollect.common.errors import ConfigError, DataError
from recollect.config.schema import ModelConfig
from recollect.inference import opening
from recollect.inference.opening import make_embedder
from recollect.models import Embedder
from recollect.studies.benches import BENCHES, UntilValidation
from recollect.studies.claims import CLAIMS, Cell, Claim, Curve, asymmetric, initialisation
from recollect.studies.claims_page import write_page
from recollect.studies.matrix import LADDER, MOST_RATES, Matrix, Task, pending, tasks
from recollect.studies.matrix_runs import run_matrix
from recollect.studies.summary import collect, interval, judge, verdict
from training.small_runs import final_weights, same_bits


def finished(matrix: Matrix) -> dict[str, float]:
    return {path.as_posix(): path.stat().st_mtime_ns for path in sorted(matrix.out.rglob("manifest.json"))}


def test_a_study_from_first_run_to_page(here: None, data: Path, tmp_path: Path) -> None:
    claim = asymmetric(BENCH)
    study = Matrix(tmp_path / "study", "small", data)
    assert len(pending(study, [claim])) == 12  # of each cell two rates, one more at an end, three seeds
    assert run_matrix(study, [claim], jobs=1)
    done = finished(study)
    assert len(done) == len(pending(study, [claim])) >= 12
    assert all(run.done for run in pending(study, [claim]))
    for folder in study.out.rglob("search/lr-*"):
        assert json.loads((folder / "manifest.json").read_text())["data"]["fingerprints"].keys() == {
            "train",
            "validation",
        }
    assert run_matrix(study, [claim], jobs=1)
    assert finished(study) == done  # nothing is done twice
    results = collect(study, claim)
    for result in results.values():
        assert result.choice is not None
        assert sorted(result.by_seed) == [1, 2, 3]
    judged = judge(claim.contrasts[0], results)
    assert len(judged.differences) == 3
    page = write_page(study, [claim], tmp_path / "page", "recollect reproduce asymmetric")
    text = page.read_text()
    assert str(tmp_path) not in text
    for result in results.values():
        assert result.shown in text
    assert judged.words in text
    with (page.parent / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["cell"] for row in rows] == list(results)
    runs = [json.loads(line) for line in (page.parent / "runs.jsonl").read_text().splitlines()]
    assert len(runs) == len(done)
    assert str(tmp_path) not in (page.parent / "runs.jsonl").read_text()
    assert (page.parent / "asymmetric-small.svg").read_text().count("<svg") == 1


def test_the_search_reads_no_test_image(
    here: None, data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for image in (data / "patterns" / "test").rglob("*.png"):
        image.write_text("a trap")
    claim = asymmetric(BENCH)
    study = Matrix(tmp_path / "study", "small", data)
    caplog.set_level("WARNING", "recollect")  # a slow machine also tells how far it is
    run_matrix(study, [claim], jobs=1)
    assert all(study.choice(BENCH, cell) is not None for cell in claim.cells())
    assert all("seed-" in line for line in caplog.messages)  # only what measures the test set misses it
    assert len(caplog.messages) == 6


def test_a_killed_run_goes_on(here: None, finished_study: Matrix) -> None:
    claim, study = asymmetric(BENCH), finished_study
    folder = final_run(study, BENCH, claim.cells()[0], 1)
    whole = final_weights(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest.pop("outcome")
    (folder / "manifest.json").write_text(json.dumps(manifest))
    shutil.rmtree(folder / "model")
    assert [task.folder for task in tasks(study, claim)] == [folder]
    assert run_matrix(study, [claim], jobs=1)
    assert same_bits(final_weights(folder), whole)


def test_a_run_that_fails_is_said_and_does_not_stop_the_others(
    here: None, data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad = Cell("bad", "bad", 16, {"loss.name": "recall_at_k", "loss.options": {"k": [0]}})
    good = Cell("good", "good", 16, {"loss.name": "recall_at_k", "loss.options": {}})
    claim = replace(asymmetric(BENCH), curves=[replace(asymmetric(BENCH).curves[0], points=[("b", bad), ("g", good)])])
    claim = replace(claim, contrasts=[])
    study = Matrix(tmp_path / "study", "small", data)
    caplog.set_level("WARNING", "recollect")  # a slow machine also tells how far it is
    assert not run_matrix(study, [claim], jobs=1)
    assert len(caplog.messages) == len(BENCH.rates)
    results = collect(study, claim)
    assert results["bad"].by_seed == {}
    assert results["bad"].shown == "–"
    assert len(results["good"].by_seed) == 3
    assert "Not run" in write_page(study, [claim], tmp_path / "page", "x").read_text()


def test_rows_that_train_nothing(here: None, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []

    def remember(model: ModelConfig, seed: int) -> Embedder:
        drawn.append(seed)
        return make_embedder(model, seed)

    monkeypatch.setattr(opening, "make_embedder", remember)
    claim = initialisation(BENCH)
    only = [cell for cell in claim.cells() if not cell.trains and "random" in cell.name]
    claim = replace(claim, curves=[replace(claim.curves[0], points=[("random", only[0])])], contrasts=[])
    study = Matrix(tmp_path / "study", "small", data)
    assert run_matrix(study, [claim], jobs=1)
    result = collect(study, claim)[only[0].name]
    assert result.mean is not None
    assert 0 < result.mean <= 100
    assert sorted(result.by_seed) == [1, 2, 3] == drawn  # random weights are drawn for each seed


def test_validation_says_how_long(here: None, data: Path, tmp_path: Path) -> None:
    bench = replace(BENCH, budget=UntilValidation(small=6, full=6, most_images=10_000, evaluations=3))
    claim: Claim = asymmetric(bench)
    study = Matrix(tmp_path / "study", "small", data)
    assert run_matrix(study, [claim], jobs=1)
    for cell in claim.cells():
        choice = study.choice(bench, cell)
        assert choice is not None
        assert choice.steps in (2, 4, 6)
        final = json.loads((final_run(study, bench, cell, 2) / "manifest.json").read_text())
        assert final["outcome"]["steps"] == choice.steps


def test_the_search_walks_until_the_best_rate_is_between_two_others(tmp_path: Path) -> None:
    study, cell = Matrix(tmp_path / "study", "small"), asymmetric(BENCH).cells()[0]

    def rates() -> list[float]:
        return list(study.searches(BENCH, cell))

    assert rates() == [1e-3, 3e-3]
    searched(study, cell, {1e-3: 0.5})
    assert rates() == [1e-3, 3e-3]
    assert study.choice(BENCH, cell) is None
    searched(study, cell, {3e-3: 0.4})
    assert rates() == [3e-4, 1e-3, 3e-3]  # the lowest was the best: there may be a better one below
    searched(study, cell, {3e-4: 0.6})
    assert rates() == [1e-4, 3e-4, 1e-3, 3e-3]
    assert study.choice(BENCH, cell) is None
    searched(study, cell, {1e-4: 0.55})
    assert rates() == [1e-4, 3e-4, 1e-3, 3e-3]
    choice = study.choice(BENCH, cell)
    assert choice is not None
    assert choice.rate == 3e-4
    searched(study, cell, {rate: rate for rate in LADDER})
    assert len(rates()) == MOST_RATES  # a search that never turns back ends all the same


def test_another_choice_is_another_run(data: Path, tmp_path: Path) -> None:
    study, claim = Matrix(tmp_path / "study", "small", data), asymmetric(BENCH)
    cell = claim.cells()[0]
    searched(study, cell, {3e-4: 0.1, 1e-3: 0.5, 3e-3: 0.4})
    before = {task.folder for task in tasks(study, claim)}
    assert final_run(study, BENCH, cell, 1) in before
    searched(study, cell, {3e-4: 0.1, 1e-3: 0.5, 3e-3: 0.6, 1e-2: 0.1})
    after = {task.folder for task in tasks(study, claim)}
    assert final_run(study, BENCH, cell, 1) in after - before


def test_a_batch_that_half_the_classes_cannot_fill(data: Path, tmp_path: Path) -> None:
    claim = asymmetric(replace(BENCH, batch=40))
    found: list[Task] = list(tasks(Matrix(tmp_path / "study", "small", data), claim))
    assert {task.settings["batch.size"] for task in found} == {24}  # six classes of four


def test_a_folder_of_another_budget_is_left_alone(tmp_path: Path) -> None:
    Matrix(tmp_path / "study", "small").open()
    with pytest.raises(ConfigError, match="small budget"):
        Matrix(tmp_path / "study", "full").open()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    with pytest.raises(ConfigError, match="contains no study"):
        Matrix(tmp_path / "mine", "small").open()


@pytest.mark.release
def test_processes_of_their_own(data: Path, tmp_path: Path) -> None:
    claim = asymmetric(BENCH)
    study = Matrix(tmp_path / "study", "small", data, seeds=(1, 2))
    assert run_matrix(study, [claim], jobs=2)
    assert all(len(result.by_seed) == 2 for result in collect(study, claim).values())


def test_the_verb(here: None, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BENCHES, "small", BENCH)
    monkeypatch.setitem(CLAIMS, "asymmetric", (asymmetric, ("small",)))
    out = str(tmp_path / "study")
    command = ["reproduce", "asymmetric", "--data", str(data), "--out", out, "--seeds", "2", "--jobs", "1"]
    planned = CliRunner().invoke(app, [*command, "--plan"])
    counted = CliRunner().invoke(app, [*command, "--plan", "--earlier", "runs.jsonl"])
    assert "runs of runs.jsonl are counted as not done" in counted.stdout
    assert "10 in total, 0 already done" in planned.output
    assert not (tmp_path / "study").exists()
    stopped = CliRunner().invoke(app, [*command, "--minutes", "0"])
    assert "some runs are not done" in stopped.output
    with monkeypatch.context() as interrupted:
        interrupted.setattr("recollect.studies.reproducing.run_matrix", _interrupt)
        result = CliRunner().invoke(app, command)
    assert result.exit_code == 130
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert Path(result.output.splitlines()[-1]).is_file()


def _interrupt(*arguments: object, **options: object) -> None:
    raise KeyboardInterrupt


def test_verdicts() -> None:
    assert verdict([1.0, 1.1, 0.9]) == "holds here"
    assert verdict([-1.0, -1.1, -0.9]) == "does not hold here"
    assert verdict([1.0, -0.2, 0.4]) == "undecided"
    assert verdict([5.0]) == verdict([5.0, 5.0]) == "undecided"  # fewer than three seeds decide nothing
    spread = [0.0, 1.0] * 6
    assert interval(spread)[1] == pytest.approx(1.796 * stdev(spread) / 12**0.5)
    middle, half = interval([1.0, 2.0, 3.0])
    assert middle == 2.0
    assert half == pytest.approx(2.920 / 3**0.5)


def test_a_start_that_was_killed_does_not_take_the_place(tmp_path: Path) -> None:
    study = Matrix(tmp_path / "study", "small", None)
    study.out.mkdir()
    (study.out / ".study.json.99999999-0123abcd.part").write_text("{")
    study.open()
    assert [path.name for path in study.out.iterdir()] == ["study.json"]


def test_a_finished_run_without_a_measurement_is_named(tmp_path: Path) -> None:
    cell = Cell("init", "no training", 16, trains=False)
    study = Matrix(tmp_path, "small", None, (1,))
    run = study.untrained(BENCH, cell, 1)
    run.mkdir(parents=True)
    (run / "manifest.json").write_text(json.dumps({"outcome": {"steps": 0, "metrics": {"test": {}}}}))
    with pytest.raises(DataError, match="no r@1"):
        collect(study, Claim("x", "x", "", BENCH, "x", [Curve("x", [("x", cell)])], []))
