"""Real processes: one that is killed and resumed, and two on the same study."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from tuning_runs import as_recipe, config_of, make_data, outcomes, study

from faults.trials import Running, run
from recollect.studies.summary import StudyResults
from recollect.training.run import RunFolder
from training.killed import signal_at

SPACE = ["epochs=3", "lr=1e-3:1e-2"]
LENGTH = {"batch.batches_per_epoch": 8}


def words(recipe: Path, out: Path, trials: int) -> list[str]:
    space = [word for text in SPACE for word in ("--space", text)]
    return ["tune", str(recipe), "--out", str(out), "--trials", str(trials), *space]


def steps_in(folder: Path) -> int:
    return sum(record["kind"] == "step" for record in RunFolder(folder).read_metrics())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> StudyResults:
    """An uninterrupted study."""
    folder = tmp_path_factory.mktemp("whole")
    return study(make_data(folder / "data"), folder / "s", trials=2, space=SPACE, settings=LENGTH)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.release
def test_a_killed_study_goes_on_exactly(tmp_path: Path, number: signal.Signals, whole: StudyResults) -> None:
    settings, expected = {**LENGTH, "run.checkpoint_steps": 2}, whole
    root = make_data(tmp_path / "data")
    config = config_of(root, **settings)
    # The first trial has 24 steps, the second gets the signal in its sixth.
    command = words(as_recipe(config, tmp_path / "small.yaml"), tmp_path / "s", 2)
    ended = run(command, tmp_path, signal_at("step", 24 + 6, number))
    assert ended.code == (-9 if number == signal.SIGKILL else 143), ended
    assert 5 <= steps_in(tmp_path / "s" / "trials" / "0001") < 24  # in the middle of its three epochs
    assert not (tmp_path / "s" / "final").exists()
    results = study(root, tmp_path / "s", trials=2, space=SPACE, settings=settings)
    assert RunFolder(tmp_path / "s" / "trials" / "0001").read_manifest()["resumed"]
    assert (outcomes(results), results.chosen) == (outcomes(expected), expected.chosen)
    assert results.final["metrics"] == expected.final["metrics"]


@pytest.mark.slow
@pytest.mark.release
def test_two_processes_share_the_trials_and_one_of_them_ends_the_study(tmp_path: Path) -> None:
    root = make_data(tmp_path / "data")
    settings = {"batch.batches_per_epoch": 4}
    recipe = as_recipe(config_of(root, **settings), tmp_path / "small.yaml")
    out = tmp_path / "s"
    processes = [Running(words(recipe, out, 6), tmp_path, signal_at("step", 0)) for _ in range(2)]
    both = [process.wait() for process in processes]
    assert [ended.code for ended in both] == [0, 0], both
    said = [ended.out + ended.err for ended in both]
    known = json.loads((out / "study.json").read_text())
    assert [t["number"] for t in known["trials"]] == list(range(6))
    assert {t["state"] for t in known["trials"]} == {"done"}
    assert sorted(p.name for p in (out / "trials").iterdir()) == [f"{n:04d}" for n in range(6)]
    finished = [sum(f"trial {n:04d} validation" in text for n in range(6)) for text in said]
    assert sum(finished) == 6, said  # each trial by one of them
    assert min(finished) >= 1, said
    assert sum(" on all training classes, in" in text for text in said) == 1, said
    assert known["final"]["trial"] == known["chosen"]
    alone = study(root, tmp_path / "alone", trials=6, space=SPACE, settings=settings, final=False)
    assert [t["value"] for t in known["trials"]] == [t.value for t in alone.trials]
    assert [t["settings"] for t in known["trials"]] == [t.settings for t in alone.trials]
