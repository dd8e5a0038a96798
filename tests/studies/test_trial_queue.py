"""Trials of a study: never too many, never lost, none twice, and none counted that did not end."""

from __future__ import annotations

import math
import shutil
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recollect.common.errors import ConfigError, DataError
from recollect.studies.runner import TrialQueue
from recollect.studies.space import read_space


class Worker:
    """A process of a study: remembers what it ran and drew, and what happens to it in the middle of a trial."""

    def __init__(self, folder: Path, storage: Path | None = None, **options: Any) -> None:
        self.queue = TrialQueue(folder, None if storage is None else str(storage), **options)
        self.draws: list[tuple[int, float]] = []

    def run(self, total: int, during: Callable[[], object] = lambda: None, value: float | None = 0.5) -> Worker:
        def objective(trial: Any, slot: int) -> float | None:
            self.draws.append((slot, trial.suggest_float("lr", 0.0, 1.0)))
            during()
            trial.set_user_attr("value", value)
            return value

        self.queue.run(total, objective)
        return self

    @property
    def states(self) -> dict[int, str]:
        return {slot: trial.state.name for slot, trial in self.queue.slots().items()}


def killed() -> None:
    """As ``kill -9``: Optuna records nothing, and the lock is released."""
    raise SystemExit


def sleep(database: Path) -> None:
    """An hour without a heartbeat, after the first, which a thread writes."""
    with sqlite3.connect(database) as connection:
        while connection.execute("UPDATE trial_heartbeats SET heartbeat = datetime('now', '-1 hour')").rowcount == 0:
            time.sleep(0.01)


def test_no_more_trials_than_asked_for_and_none_twice(tmp_path: Path) -> None:
    one, other = Worker(tmp_path), Worker(tmp_path)
    one.run(3, during=lambda: other.run(3))
    assert [slot for slot, _ in one.draws] == [0]
    assert [slot for slot, _ in other.draws] == [1, 2]
    assert one.run(3).states == {0: "COMPLETE", 1: "COMPLETE", 2: "COMPLETE"}
    assert [slot for slot, _ in one.run(4).draws] == [0, 3]


def test_a_trial_whose_process_died_is_done_again_with_the_same_settings(tmp_path: Path) -> None:
    one, other = Worker(tmp_path), Worker(tmp_path)
    with pytest.raises(SystemExit):
        one.run(1, during=killed)
    assert one.states == {0: "RUNNING"}
    assert other.run(1).draws == one.draws
    assert other.states == {0: "COMPLETE"}
    assert other.run(2).draws[-1][0] == 1  # the repetition has left no gap


def test_a_process_on_another_machine_is_known_by_its_heartbeat(tmp_path: Path) -> None:
    here, there = (Worker(tmp_path / name / "s", tmp_path / "x.db") for name in ("here", "there"))
    with pytest.raises(SystemExit):
        there.run(1, during=killed)  # its lock tells nothing here: it lies in another folder
    assert here.run(1).draws == []
    sleep(tmp_path / "x.db")
    assert here.run(1).draws == there.draws


@pytest.mark.parametrize("error", [KeyboardInterrupt, DataError, ValueError])
def test_an_interrupted_trial_is_run_again(tmp_path: Path, error: type[BaseException]) -> None:
    def interrupted() -> None:
        raise error

    worker = Worker(tmp_path)
    with pytest.raises(error):
        worker.run(1, during=interrupted)
    worker.run(1)
    assert worker.draws[0] == worker.draws[1]
    assert worker.states == {0: "COMPLETE"}


def test_a_trial_that_failed_by_itself_counts(tmp_path: Path) -> None:
    queue = TrialQueue(tmp_path)
    slots = []

    def failing(trial: Any, slot: int) -> None:
        slots.append(slot)
        trial.set_user_attr("failure", "the loss is nan")

    queue.run(2, failing)
    queue.run(2, failing)
    assert slots == [0, 1]


@pytest.mark.slow
def test_tpe_learns_within_the_space_and_is_resumed_exactly(tmp_path: Path) -> None:
    """Ten random draws, then TPE's own: they follow the results, stay in bounds, and are the same after a kill."""
    space = read_space(["lr=1e-4:1e-2", "decays=1:3", "loss.name=a,b"], {})
    draws: list[dict[str, Any]] = []

    def study(folder: Path, total: int, end: Callable[[], object] = lambda: None) -> None:
        def objective(trial: Any, slot: int) -> float:
            draws.append({name: parameter.draw(trial) for name, parameter in space.items()})
            if slot + 1 == total:
                end()
            return math.log10(draws[-1]["lr"])

        TrialQueue(folder, sampler="tpe").run(total, objective)

    study(tmp_path / "s", 12)
    shutil.copytree(tmp_path / "s", tmp_path / "killed" / "s")  # a study is named after its folder
    study(tmp_path / "s", 16)
    rates = [math.log10(values["lr"]) for values in draws]
    assert np.mean(rates[10:]) > np.mean(rates[:10]) + 0.3  # of the two decades that there are
    for values in draws:
        assert 1e-4 <= values["lr"] <= 1e-2
        assert values["decays"] in (1, 2, 3)
        assert values["loss.name"] in ("a", "b")
    with pytest.raises(SystemExit):
        study(tmp_path / "killed" / "s", 13, killed)
    study(tmp_path / "killed" / "s", 13)
    assert draws[16:] == [draws[12], draws[12]]


def test_mistakes_are_sentences(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--sampler grid .*random, tpe"):
        TrialQueue(tmp_path, sampler="grid")
    with pytest.raises(ConfigError, match="--pruner hyperband is unknown"):
        TrialQueue(tmp_path, pruner="hyperband")
    (tmp_path / "no.db").write_text("this is no database, but a text of some length. " * 100)
    with pytest.raises(DataError, match=r"no.db.* cannot be opened"):
        TrialQueue(tmp_path, str(tmp_path / "no.db"))
    with pytest.raises(DataError) as refused:
        TrialQueue(tmp_path, "nosuchdriver://user:secret@host/name")
    assert "secret" not in str(refused.value)
