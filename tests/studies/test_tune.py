"""Whole studies: ordinary runs, a test set that the search cannot reach, one final training and one test.

The draws of earlier versions are in ``tests/recorded/draws.json``.
"""

from __future__ import annotations

import csv
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from tuning_runs import config_of, make_data, outcomes, study

from recollect.common.errors import ConfigError, DataError, SplitNotAllowedError
from recollect.config.resolve import resolve
from recollect.config.schema import Config
from recollect.data import load
from recollect.evaluation import Evaluation
from recollect.studies import runner, tune as search
from recollect.studies.summary import StudyResults
from recollect.studies.tune import plan_tuning
from recollect.training.callbacks import Callback
from recollect.training.run import RunFolder


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, StudyResults]:
    """Data, study folder and results of one study of three trials."""
    folder = tmp_path_factory.mktemp("study")
    root = make_data(folder / "data")
    return root, folder / "s", study(root, folder / "s")


@pytest.mark.parametrize("drawn", ["random 0", "random 7", pytest.param("tpe 0", marks=pytest.mark.release)])
def test_the_same_seed_draws_the_same_trials_in_every_version(
    drawn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = json.loads((Path(__file__).parents[1] / "recorded" / "draws.json").read_text())[drawn]

    def made_up(path: Path, config: Config, callback: Callback) -> None:
        """A training whose result depends on the settings: TPE draws by the results of earlier trials."""
        value = round(1 - abs(math.log10(config.optimizer.lr) + 2.2) / 4 + config.optimizer.gamma / 10, 6)
        path.mkdir(parents=True)
        RunFolder(path).append_metrics({"kind": "evaluation", "step": 2, "split": "val", "r@1": value, "map@r": value})
        RunFolder(path).append_metrics({"kind": "step", "step": 2, "epoch": 1.0})

    monkeypatch.setattr(search, "finish_run", made_up)
    sampler, seed = drawn.split()
    options = {"trials": len(expected), "sampler": sampler, "seed": int(seed), "final": False}
    results = study(make_data(tmp_path / "data"), tmp_path / "s", space=["loss.name=recall_at_k,smooth_ap"], **options)
    assert [list(trial.drawn.values()) for trial in results.trials] == expected


def test_every_trial_is_an_ordinary_run(finished: tuple[Path, Path, StudyResults]) -> None:
    _, folder, results = finished
    assert [t.state for t in results.trials] == ["done"] * 3
    for record in results.trials:
        run = RunFolder.open(folder / "trials" / f"{record.number:04d}")
        config = run.read_config()
        assert (config.data.validation, config.run.watch_test) == ("paper", False)
        assert config.optimizer.lr == record.settings["optimizer.lr"]
        assert set(run.read_manifest()["data"]["fingerprints"]) == {"train", "validation"}
        evaluations = [r for r in run.read_metrics() if r["kind"] == "evaluation"]
        assert {r["split"] for r in evaluations} == {"val"}
        best = max(evaluations[1:], key=lambda r: (r["r@1"], r["map@r"], r["step"]))
        assert (record.value, record.best_step) == (best["r@1"], best["step"])
        assert record.best_epoch == best["step"] / 2
        assert record.images == record.steps * 16
    assert len({t.settings["optimizer.lr"] for t in results.trials}) == 3


def test_the_best_of_validation_is_trained_on_all_classes_and_tested_once(
    finished: tuple[Path, Path, StudyResults],
) -> None:
    root, folder, results = finished
    best = max(results.trials, key=lambda t: (t.value or 0, -t.number))
    final = results.final
    assert (results.chosen, final is not None) == (best.number, True)
    run = RunFolder.open(folder / "final")
    config = run.read_config()
    assert (config.data.validation, config.run.watch_test) == ("none", False)
    assert config.run.epochs == best.best_epoch
    assert config.optimizer.lr == best.settings["optimizer.lr"]
    assert run.read_manifest()["plan"]["classes"] == 8
    assert not [r for r in run.read_metrics() if r["kind"] == "evaluation"]
    evaluation = Evaluation.load(next((folder / "final" / "eval").glob("*/queries.npz")))
    assert len(evaluation.labels) == len(load("folder", root, "test"))
    assert evaluation.metrics["r@1"] == pytest.approx(final["metrics"]["folder/test"]["r@1"])
    with (folder / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["r@1"]) for row in rows] == [t.value for t in results.trials]
    assert [row["chosen"] == "yes" for row in rows] == [t.number == results.chosen for t in results.trials]
    assert float(rows[0]["optimizer.lr"]) == results.trials[0].settings["optimizer.lr"]
    written = json.loads((folder / "study.json").read_text())
    assert (written["chosen"], written["final"]) == (results.chosen, results.final)
    assert written["images"] == sum(t.images for t in results.trials)
    assert (folder / "report.html").exists()


def test_a_second_call_shows_and_repeats_nothing(
    finished: tuple[Path, Path, StudyResults], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    root, folder, results = finished

    def never(*arguments: Any, **options: Any) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(runner, "train", never)
    caplog.set_level("INFO", "recollect")
    again = study(root, folder)
    assert (outcomes(again), again.final) == (outcomes(results), results.final)
    assert "showing the result, not repeating it" in "\n".join(caplog.messages)
    with pytest.raises(ConfigError, match=r"closed: .*3 trials"):
        study(root, folder, trials=4)
    with pytest.raises(ConfigError, match=r"other settings: space\.lr"):
        study(root, folder, space=["epochs=1:2", "lr=1e-3:2e-2"])
    with pytest.raises(ConfigError, match="seed is 0 there"):
        study(root, folder, seed=1)


def test_the_search_needs_no_test_set_and_only_the_end_asks_for_it(
    finished: tuple[Path, Path, StudyResults], tmp_path: Path
) -> None:
    """No test images, no test list; then test images that cannot be opened; then a sound set. The choice stays."""
    _, _, expected = finished
    root, folder = make_data(tmp_path / "data", test=False), tmp_path / "s"
    searched = study(root, folder, final=False)
    assert outcomes(searched) == outcomes(expected)
    with pytest.raises(DataError, match=r"no split 'test'"):
        study(root, folder)
    assert not (folder / "final").exists()  # it asks before hours of training
    trap = root / "test" / "class"
    trap.mkdir(parents=True)
    for number in range(3):
        (trap / f"{number}.png").write_text("not an image: whoever opens it fails")
    with pytest.raises(DataError, match=r"none of the 3 images can be read"):
        study(root, folder)
    trained = (folder / "final" / "model" / "model.safetensors").read_bytes()
    shutil.rmtree(root / "test")
    make_data(tmp_path / "more")
    shutil.move(tmp_path / "more" / "test", root / "test")
    results = study(root, folder)
    assert (results.chosen, results.final is not None) == (expected.chosen, True)
    assert (folder / "final" / "model" / "model.safetensors").read_bytes() == trained


@pytest.mark.usefixtures("peeking")
def test_code_that_goes_for_the_test_set_during_the_search_is_stopped(tmp_path: Path) -> None:
    root = make_data(tmp_path / "data")
    with pytest.raises(SplitNotAllowedError, match=r"folder/test .*only train"):
        study(root, tmp_path / "s")
    assert (tmp_path / "s" / "study.db").exists()


def test_a_trial_that_diverges_is_told_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = make_data(tmp_path / "data")
    caplog.set_level("INFO", "recollect")
    results = study(root, tmp_path / "s", trials=2, settings={"run.loss_limit": 1e-9})
    assert [t.state for t in results.trials] == ["failed", "failed"]
    assert (results.chosen, results.final) == (None, None)
    assert "stopped at step 1" in results.trials[0].failure
    assert "nothing to choose. 2 trials failed: " in "\n".join(caplog.messages)
    assert "stopped at step 1" in (tmp_path / "s" / "report.html").read_text()


def test_a_draw_that_cannot_be_trained_is_told_and_the_search_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "recollect")
    root, honest = make_data(tmp_path / "data"), search.finish_run

    def refusing(path: Path, config: Any, pruning: Any) -> Any:
        if path.name == "0001":
            raise ConfigError("the network refuses <this>.")
        return honest(path, config, pruning)

    monkeypatch.setattr(search, "finish_run", refusing)
    results = study(root, tmp_path / "s", space=["epochs=1", "lr=1e-3:1e-2"], final=False)
    assert [t.state for t in results.trials] == ["done", "failed", "done"]
    assert results.trials[1].failure == "the network refuses <this>."
    assert "Trial 0001 failed: the network refuses &lt;this&gt;." in (tmp_path / "s" / "report.html").read_text()
    assert "trial 0001 failed: the network refuses <this>." in caplog.messages
    monkeypatch.setattr(search, "finish_run", honest)
    again = study(root, tmp_path / "s", space=["epochs=1", "lr=1e-3:1e-2"], final=False)
    assert outcomes(again) == outcomes(results)  # nor is it drawn again


@pytest.mark.release
def test_pruning_ends_what_is_below_the_median(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_data(tmp_path / "data")
    honest = runner.read_validation

    def made_up(path: Path, select: str) -> Any:  # five good trials, then a bad one; trainings are real
        validation = honest(path, select)
        level = 0.9 if int(path.name) < 5 else 0.1
        # The untrained network is better than any of them: it must not keep the bad one alive.
        curve = [(epoch, level if epoch else 0.95) for epoch, _ in validation.get("curve", ())]
        made = {"value": level, "map_at_r": 0.5, "curve": curve, "steps": 1, "seconds": 1.0, "images": 1}
        return validation and validation | made

    monkeypatch.setattr(search, "read_validation", made_up)
    results = study(root, tmp_path / "s", trials=6, pruner="median", space=["epochs=3", "lr=1e-3:1e-2"], final=False)
    assert [t.state for t in results.trials] == ["done"] * 5 + ["pruned"]
    run = RunFolder(tmp_path / "s" / "trials" / "0005")
    assert run.read_manifest()["pruned"]["epoch"] == 1.0
    assert max(r["step"] for r in run.read_metrics()) == 2  # of six
    assert results.chosen == 0
    again = study(root, tmp_path / "s", trials=6, pruner="median", space=["epochs=3", "lr=1e-3:1e-2"], final=False)
    assert outcomes(again) == outcomes(results)


def test_folders_that_are_no_study_are_left_alone(tmp_path: Path) -> None:
    root, out = make_data(tmp_path / "data"), tmp_path / "s"
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    for place in (out, out / "mine.txt"):
        with pytest.raises(ConfigError, match="not an empty folder"):
            study(root, place)
    assert [p.name for p in out.iterdir()] == ["mine.txt"]
    with pytest.raises(ConfigError, match="--sampler grid is unknown"):
        plan_tuning(config_of(root), out, trials=2, sampler="grid")


def test_a_broken_test_photo_costs_one_photo_and_not_the_search(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = make_data(tmp_path / "data")
    (root / "test" / "test-00" / "0.png").write_bytes(b"x")
    results = study(root, tmp_path / "s", trials=1)
    assert results.final["metrics"]["folder/test"]["r@1"] > 0
    assert any("left out of the test" in line and "0.png" in line for line in caplog.messages)


def test_a_folder_with_few_classes_is_searched_at_the_length_of_a_training(tmp_path: Path) -> None:
    config = resolve("folder", {"data.root": str(make_data(tmp_path / "data")), "model.dim": 16})
    lines = plan_tuning(config, trials=1).lines()
    assert any("epochs 75:225" in line for line in lines)
    assert any("recollect train would take no step here (48 photos of 8 training classes" in line for line in lines)
    assert "1 trial of folder" in lines[0]
    with pytest.raises(ConfigError, match=r"run\.steps 0 trains nothing"):
        plan_tuning(resolve("folder", ["run.steps=0"]), trials=1)
