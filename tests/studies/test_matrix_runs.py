"""What goes wrong in a study: trouble that can be repaired, runs that diverge, two at work, tests that are peeked at."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matrix_bench import BENCH, searched

from recollect.common.errors import ConfigError
from recollect.common.locks import try_lock
from recollect.data import load
from recollect.studies import matrix_runs
from recollect.studies.claims import asymmetric, initialisation
from recollect.studies.claims_page import write_page
from recollect.studies.matrix import Matrix, best_of, pending
from recollect.studies.matrix_runs import run_matrix
from recollect.studies.summary import collect
from recollect.training import build


def test_what_was_repaired_is_done_by_the_next_call(
    here: None, data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    images = {path: path.read_bytes() for path in (data / "patterns" / "test").rglob("*.png")}
    for path in images:
        path.write_text("no image")
    claim, study = asymmetric(BENCH), Matrix(tmp_path / "study", "small", data)
    assert not run_matrix(study, [claim], jobs=1)
    assert len(caplog.messages) == 6  # each final run once, and no search
    for path, content in images.items():
        path.write_bytes(content)
    caplog.clear()
    assert run_matrix(study, [claim], jobs=1)
    assert caplog.messages == []
    assert all(len(result.by_seed) == 3 for result in collect(study, claim).values())


def test_a_broken_image_of_an_untrained_cell_is_named_and_repaired(
    here: None, data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    claim = initialisation(BENCH)
    cell = next(cell for cell in claim.cells() if not cell.trains and "random" in cell.name)
    claim = replace(claim, curves=[replace(claim.curves[0], points=[("random", cell)])], contrasts=[])
    study = Matrix(tmp_path / "study", "small", data)
    image = next((data / "patterns" / "test").rglob("*.png"))
    content = image.read_bytes()
    image.write_text("no image")
    assert not run_matrix(study, [claim], jobs=1)
    assert all(image.name in line for line in caplog.messages)
    write_page(study, [claim], tmp_path / "page", "x")
    image.write_bytes(content)
    assert run_matrix(study, [claim], jobs=1)
    page = write_page(study, [claim], tmp_path / "page", "x")
    runs = [json.loads(line) for line in (page.parent / "runs.jsonl").read_text().splitlines()]
    assert len(runs) == 3
    assert all(run["metrics"]["test"]["r@1"] > 0 and run["fingerprints"]["test"] for run in runs)


def test_a_run_that_diverges_is_settled_and_says_why(
    here: None, data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    claim = asymmetric(replace(BENCH, settings={**BENCH.settings, "run.loss_limit": 1e-9}))
    study = Matrix(tmp_path / "study", "small", data)
    assert run_matrix(study, [claim], jobs=1)
    assert all(run.done for run in pending(study, [claim]))
    assert "stopped at step 1" in caplog.messages[0]
    text = write_page(study, [replace(claim, contrasts=[])], tmp_path / "page", "x").read_text()
    assert "Not run" in text


def test_a_result_outweighs_an_earlier_failure(tmp_path: Path) -> None:
    study, cell = Matrix(tmp_path / "study", "small"), asymmetric(BENCH).cells()[0]
    searched(study, cell, {1e-3: 0.5})
    run = study.searches(BENCH, cell)[1e-3]
    (run / "failed.json").write_text(json.dumps({"why": "x"}))
    found = best_of(run, 1e-3)
    assert found is not None
    assert found.value == 0.5


def test_one_process_at_a_time_works_on_a_study(here: None, data: Path, tmp_path: Path) -> None:
    claim, study = asymmetric(BENCH), Matrix(tmp_path / "study", "small", data)
    study.open()
    lock = try_lock(study.out / ".lock")
    assert lock is not None
    with lock:
        assert not run_matrix(study, [claim], minutes=0)  # nothing is run: only the page is wanted
        with pytest.raises(ConfigError, match="another process"):
            run_matrix(study, [claim], jobs=1)
    assert not list(study.out.rglob("failed.json"))


def test_no_search_run_reaches_the_test_set(
    here: None,
    data: Path,
    finished_study: Matrix,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Code that asks for test images is refused, in a run that begins and in one that goes on."""
    claim, study = asymmetric(BENCH), Matrix(tmp_path / "study", "small", data)
    honest = build.load_sets

    def peeking(config: Any, *more: Any) -> Any:
        load(config.data.name, config.data.root, config.data.test_split)
        return honest(config, *more)

    with monkeypatch.context() as patch:
        patch.setattr("recollect.training.build.load_sets", peeking)
        run_matrix(study, [claim], jobs=1)
        assert caplog.messages
        assert all("only train may be read" in line for line in caplog.messages)
    study = finished_study
    run = next(iter(study.searches(BENCH, claim.cells()[0]).values()))
    manifest = json.loads((run / "manifest.json").read_text())
    manifest.pop("outcome")
    (run / "manifest.json").write_text(json.dumps(manifest))
    caplog.clear()
    with monkeypatch.context() as patch:
        patch.setattr("recollect.training.build.load_sets", peeking)
        run_matrix(study, [claim], jobs=1)
    assert any("only train may be read" in line for line in caplog.messages)


def test_the_page_says_what_was_trained_where_the_search_had_a_smaller_batch(
    here: None, data: Path, tmp_path: Path
) -> None:
    claim = asymmetric(replace(BENCH, batch=32, budget=replace(BENCH.budget, small=96)))
    study = Matrix(tmp_path / "study", "small", data)
    assert run_matrix(study, [claim], jobs=1)
    text = write_page(study, [claim], tmp_path / "page", "x").read_text()
    assert "(batch 24)" in text  # six of twelve classes, four images each
    rows = [line for line in text.splitlines() if "(batch 24)" in line and line.startswith("|")]
    assert [row.split(" | ")[-2:] for row in rows] == [["3", "96 |"]] * 2


def test_a_page_of_someone_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# My thesis")
    with pytest.raises(ConfigError, match="left alone"):
        write_page(Matrix(tmp_path / "study", "small"), [], tmp_path, "x")
    assert (tmp_path / "README.md").read_text() == "# My thesis"


def test_validation_at_its_ceiling_does_not_send_the_search_away(tmp_path: Path) -> None:
    study, cell = Matrix(tmp_path / "study", "small"), asymmetric(BENCH).cells()[0]
    searched(study, cell, dict.fromkeys((1e-05, 3e-05, 0.0001, 0.0003, 0.001, 0.003, 0.01), 1.0))
    choice = study.choice(BENCH, cell)
    assert choice is not None
    assert choice.rate in BENCH.rates
    assert len(study.searches(BENCH, cell)) == 3
    assert not choice.at_the_end


@pytest.mark.parametrize(("text", "cores"), [("2,1", 2), ("3", 3), ("", os.cpu_count()), ("many", os.cpu_count())])
def test_the_share_of_cores(text: str, cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert matrix_runs._share(None) == (cores, 1)
    assert matrix_runs._share(1) == (1, cores)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert matrix_runs._share(None) == (1, cores)


SCRIPT = """
import multiprocessing, signal, time
from concurrent.futures import ProcessPoolExecutor
from recollect.cli.last_net import guarded
from recollect.studies.matrix_runs import _stopping, end_with_parent

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background

def study():
    pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), end_with_parent)
    with _stopping(pool):
        pool.submit(print, "working", flush=True).result()
        pool.submit(time.sleep, 600).result()

raise SystemExit(guarded(study))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_run_outlives_the_study(number: signal.Signals) -> None:
    """Whatever still held the pipe would keep it open; it ends when the last process has."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", SCRIPT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as study:
        assert study.stdout is not None
        assert study.stdout.readline() == "working\n"
        study.send_signal(number)
        out, said = study.communicate(timeout=600)
    assert out == ""
    assert "Traceback" not in said
    assert study.returncode == (-number if number == signal.SIGKILL else 128 + number)
