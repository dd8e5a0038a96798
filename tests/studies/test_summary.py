"""What is read from the database: importances without any other package, ties, an unfinished study."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from tuning_runs import config_of, make_data

from recollect.studies.protocol import Protocol, read_protocol
from recollect.studies.runner import TrialQueue
from recollect.studies.summary import TrialRecord, best_trial, read_results


@pytest.fixture(scope="module")
def protocol(tmp_path_factory: pytest.TempPathFactory) -> Protocol:
    root = make_data(tmp_path_factory.mktemp("data"), test=False)
    return read_protocol(config_of(root), ["epochs=3", "decays=1", "first_decay=0.5"])


def fill(study: Any, count: int, seed: int = 0, noise: float = 0.0) -> None:
    """Finished trials whose value depends on the learning rate alone, and on chance."""
    random = np.random.default_rng(seed)
    ranges = {
        "lr": optuna.distributions.FloatDistribution(1e-4, 1e-2, log=True),
        "gamma": optuna.distributions.FloatDistribution(0.1, 0.5),
    }
    before = len(study.trials)
    for slot in range(before, before + count):
        drawn = {"lr": float(10 ** random.uniform(-4, -2)), "gamma": float(random.uniform(0.1, 0.5))}
        value = float(1 - abs(np.log10(drawn["lr"]) + 3) / 4 + noise * random.normal())
        facts = {"slot": slot, "drawn": drawn, "value": value, "seconds": 2.0, "images": 7}
        study.add_trial(optuna.trial.create_trial(params=drawn, distributions=ranges, value=value, user_attrs=facts))


def test_importance_finds_what_matters_and_needs_no_other_package(
    protocol: Protocol, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = TrialQueue(tmp_path)
    fill(queue.study, 19)
    assert read_results(queue, protocol).importance == {}  # too few to say
    fill(queue.study, 21, seed=1)
    for absent in ("sklearn", "scipy"):
        monkeypatch.setitem(sys.modules, absent, None)
    results = read_results(queue, protocol)
    assert set(results.importance) == {"lr", "gamma"}  # what is fixed has none
    assert results.importance["lr"] > 2 * results.importance["gamma"]
    assert sum(results.importance.values()) == pytest.approx(1, abs=1e-3)
    assert (results.seconds, results.images) == (80.0, 280)
    best = results.best
    assert best.value == max(t.value or 0 for t in results.trials)


def test_the_best_is_a_finished_trial_then_by_map_at_r_then_the_first() -> None:
    trials = [
        TrialRecord(0, "pruned", {}, {}, 0.9),
        TrialRecord(5, "done", {}, {}, 0.5, map_at_r=0.2),
        TrialRecord(1, "done", {}, {}, 0.5, map_at_r=0.4),
        TrialRecord(2, "done", {}, {}, 0.5, map_at_r=0.4),
        TrialRecord(3, "failed", {}, {}),
        TrialRecord(4, "running", {}, {}),
    ]
    best = best_trial(trials)
    assert best.number == 1
    assert best_trial(trials[4:]) is None
