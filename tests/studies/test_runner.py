"""Which runs a study has, and what goes wrong in it: failures, divergence, two processes, code that looks at the test set."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from matrix_bench import BENCH, searched, two_cells

from recollect.common.errors import ConfigError
from recollect.common.files import try_lock
from recollect.config.resolve import resolve
from recollect.config.schema import Config
from recollect.studies.protocol import LADDER, MOST_RATES, Bench, Cell, EqualImages, Matrix, UntilValidation
from recollect.studies.runner import ForeignRunError, begin_or_resume, run_matrix
from recollect.studies.summary import collect
from recollect.training.run import RunFolder
from training.small_runs import final_weights, same_bits

UNTRAINED = {"model.weights": "none", "model.dim": None, "model.freeze": "none"}


def finished(study: Matrix) -> dict[str, float]:
    return {path.as_posix(): path.stat().st_mtime_ns for path in sorted(study.out.rglob("manifest.json"))}


def test_a_study_from_first_run_to_results(here: None, bench: Bench, tmp_path: Path) -> None:
    study, cells = Matrix(tmp_path / "study"), two_cells(bench)
    assert len(study.runs(cells)) == 12  # of each cell two rates, one more at an end, three seeds
    assert run_matrix(study, cells, jobs=1)
    done = finished(study)
    assert len(done) == len(study.runs(cells)) >= 12
    for folder in study.out.rglob("search/lr-*"):
        manifest = json.loads((folder / "manifest.json").read_text())
        assert manifest["data"]["fingerprints"].keys() == {"train", "validation"}
    assert run_matrix(study, cells, jobs=1)
    assert finished(study) == done  # nothing is done twice
    for result in collect(study, cells).values():
        assert result.choice is not None
        assert sorted(result.by_seed) == [1, 2, 3]


@pytest.mark.release
def test_a_killed_run_goes_on(here: None, finished_study: tuple[Matrix, list[Cell]]) -> None:
    study, cells = finished_study
    folder = study.reported(cells[0])[0].folder
    whole = final_weights(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest.pop("outcome")
    (folder / "manifest.json").write_text(json.dumps(manifest))
    shutil.rmtree(folder / "model")
    assert [run.folder for run in study.runs(cells) if not run.done] == [folder]
    assert run_matrix(study, cells, jobs=1)
    assert same_bits(final_weights(folder), whole)


def test_a_failed_run_stops_no_other_and_is_repeated_by_the_next_call(
    here: None, bench: Bench, data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    init = Cell(bench, "init", "untrained", 16, UNTRAINED, trains=False)
    cells, study = [init, two_cells(bench)[0]], Matrix(tmp_path / "study")
    image = next((data / "test").rglob("*.png"))
    content = image.read_bytes()
    image.write_text("no image")
    caplog.set_level("WARNING", "recollect")
    assert not run_matrix(study, cells, jobs=1)
    assert len(caplog.messages) == 6  # each reported run once, and no search
    assert all(image.name in line for line in caplog.messages)
    image.write_bytes(content)
    caplog.clear()
    assert run_matrix(study, cells, jobs=1)
    assert caplog.messages == []
    assert all(sorted(result.by_seed) == [1, 2, 3] for result in collect(study, cells).values())
    one, other = (final_weights(run.folder) for run in study.reported(init)[:2])
    assert not same_bits(one, other)  # random weights are drawn for each seed


def test_one_process_at_a_time_works_on_a_study(here: None, bench: Bench, tmp_path: Path) -> None:
    cells, study = two_cells(bench), Matrix(tmp_path / "study")
    study.open()
    lock = try_lock(study.out / ".lock")
    assert lock is not None
    with lock:
        assert not run_matrix(study, cells, minutes=0)  # nothing is run: only the page is wanted
        with pytest.raises(ConfigError, match="another process"):
            run_matrix(study, cells, jobs=1)
    assert not list(study.out.rglob("failed.json"))


@pytest.mark.usefixtures("here", "peeking")
def test_no_search_run_reaches_the_test_set(bench: Bench, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Code that asks for test images is refused."""
    run_matrix(Matrix(tmp_path / "study"), two_cells(bench), jobs=1)
    assert caplog.messages
    assert all("only train may be read" in line for line in caplog.messages)


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> Config:
    """What a study asks for, with settings left to be chosen; trainings are only counted."""
    config = resolve(None, {"data.name": "glyphs", "optimizer.lr": 0.01, "run.steps": 3, "run.epochs": None})
    assert config.data.augmentation == "auto"
    monkeypatch.setattr("recollect.studies.runner.train", lambda *arguments, **options: options.get("resume"))
    return config


def begun(config: Config, path: Path) -> None:
    path.mkdir(parents=True)
    RunFolder(path).write_config(config)


def test_a_run_says_what_automatic_settings_came_to(config: Config, tmp_path: Path) -> None:
    """As in a study that was interrupted: the run's own configuration has no "auto" any more."""
    begun(replace(config, data=replace(config.data, augmentation="none")), tmp_path / "run")
    assert begin_or_resume(tmp_path / "run", config) == tmp_path / "run"


def test_a_run_of_other_settings_is_refused(config: Config, tmp_path: Path) -> None:
    others = {
        "rate": replace(config, optimizer=replace(config.optimizer, lr=0.02)),
        "seed": replace(config, run=replace(config.run, seed=7)),
        "code": replace(config, data=replace(config.data, augmentation="evil.py:Augmentation")),
    }
    for name, other in others.items():
        begun(other, tmp_path / name)
        with pytest.raises(ForeignRunError, match="other settings") as refused:
            begin_or_resume(tmp_path / name, config)
        assert "{" not in str(refused.value), "in words"


SCRIPT = """
import multiprocessing, signal, time
from concurrent.futures import ProcessPoolExecutor
from recollect.cli.main import run_command
from recollect.studies.runner import _stopping, end_with_parent

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background

def study():
    pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), end_with_parent)
    with _stopping(pool):
        pool.submit(print, "working", flush=True).result()
        pool.submit(time.sleep, 600).result()

raise SystemExit(run_command(study))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.release
def test_no_run_outlives_the_study(number: signal.Signals) -> None:
    """Whatever still held the pipe would keep it open; it ends when the last process has."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", SCRIPT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as study:
        assert study.stdout.readline() == "working\n"
        study.send_signal(number)
        out, errors = study.communicate(timeout=600)
    assert out == ""
    assert "Traceback" not in errors
    assert study.returncode == (-number if number == signal.SIGKILL else 128 + number)


def test_the_search_walks_until_the_best_rate_is_between_two_others(tmp_path: Path) -> None:
    study, cell = Matrix(tmp_path / "study"), two_cells(BENCH)[0]

    def rates() -> list[float]:
        return list(study.searches(cell))

    assert rates() == [1e-3, 3e-3]
    searched(study, cell, {1e-3: 0.5})
    assert rates() == [1e-3, 3e-3]
    assert study.choice(cell) is None
    searched(study, cell, {3e-3: 0.4})
    assert rates() == [3e-4, 1e-3, 3e-3]  # the lowest was the best: there may be a better one below
    searched(study, cell, {3e-4: 0.6})
    assert rates() == [1e-4, 3e-4, 1e-3, 3e-3]
    assert study.choice(cell) is None
    searched(study, cell, {1e-4: 0.55})
    assert rates() == [1e-4, 3e-4, 1e-3, 3e-3]
    assert study.choice(cell).rate == 3e-4
    searched(study, cell, {rate: rate for rate in LADDER})
    assert len(rates()) == MOST_RATES  # a search that never turns back ends all the same


def test_validation_at_its_ceiling_does_not_send_the_search_away(tmp_path: Path) -> None:
    study, cell = Matrix(tmp_path / "study"), two_cells(BENCH)[0]
    searched(study, cell, dict.fromkeys((1e-05, 3e-05, 0.0001, 0.0003, 0.001, 0.003, 0.01), 1.0))
    choice = study.choice(cell)
    assert (choice.rate in BENCH.rates, choice.at_the_end, len(study.searches(cell))) == (True, False, 3)


def test_another_choice_is_another_run(tmp_path: Path) -> None:
    study, cells = Matrix(tmp_path / "study"), two_cells(BENCH)
    searched(study, cells[0], {3e-4: 0.1, 1e-3: 0.5, 3e-3: 0.4})
    before = {run.folder for run in study.runs(cells) if run.ready and not run.done}
    assert before.issuperset(run.folder for run in study.reported(cells[0]))
    searched(study, cells[0], {3e-4: 0.1, 1e-3: 0.5, 3e-3: 0.6, 1e-2: 0.1})
    after = {run.folder for run in study.runs(cells) if run.ready and not run.done}
    assert (after - before) == {run.folder for run in study.reported(cells[0])}


def test_a_budget_says_how_many_steps_a_run_takes() -> None:
    for batch in (16, 200, 800):
        assert abs(EqualImages(12_000).settings(batch, None)["run.steps"] * batch - 12_000) <= batch / 2
    rule = UntilValidation(steps=1500, images=160_000)
    search = rule.settings(392, None)
    assert (search["run.steps"], search["batch.batches_per_epoch"]) == (400, 40)
    final = rule.settings(392, 120)
    assert final["run.steps"] == final["batch.batches_per_epoch"] == 120


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    Matrix(tmp_path / "study", provenance={"budget": "small"}).open()
    with pytest.raises(ConfigError, match="budget is small there and full here"):
        Matrix(tmp_path / "study", provenance={"budget": "full"}).open()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    with pytest.raises(ConfigError, match="contains no study"):
        Matrix(tmp_path / "mine").open()
