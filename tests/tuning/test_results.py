"""What is read from the database: importances without any other package, ties, an unfinished study."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from recollect.tuning.protocol import Protocol, read_protocol
from recollect.tuning.results import TrialRecord, best_trial, read_results
from recollect.tuning.store import Store
from tuning.tuning_runs import config_of, make_data


@pytest.fixture(scope="module")
def protocol(tmp_path_factory: pytest.TempPathFactory) -> Protocol:
    root = make_data(tmp_path_factory.mktemp("data"), test=False)
    return read_protocol(config_of(root), ["epochs=3", "decays=1", "first_decay=0.5"])


def fill(store: Store, count: int) -> None:
    """Finished trials whose value depends on the learning rate alone."""
    optuna, random = store.optuna, np.random.default_rng(0)
    ranges = {
        "lr": optuna.distributions.FloatDistribution(1e-4, 1e-2, log=True),
        "gamma": optuna.distributions.FloatDistribution(0.1, 0.5),
    }
    for _ in range(count):
        drawn = {"lr": float(10 ** random.uniform(-4, -2)), "gamma": float(random.uniform(0.1, 0.5))}
        value = 1 - abs(np.log10(drawn["lr"]) + 3) / 4
        facts = {"drawn": drawn, "value": value, "seconds": 2.0, "images": 7}
        store.study.add_trial(
            optuna.trial.create_trial(params=drawn, distributions=ranges, value=value, user_attrs=facts)
        )


def test_importance_finds_what_matters_and_needs_no_other_package(
    protocol: Protocol, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    fill(store, 9)
    assert read_results(store, protocol).importance == {}  # too few to say
    fill(store, 31)
    for absent in ("sklearn", "scipy"):
        monkeypatch.setitem(sys.modules, absent, None)
    results = read_results(store, protocol)
    assert set(results.importance) == {"lr", "gamma"}  # what is fixed has none
    assert results.importance["lr"] > 2 * results.importance["gamma"]
    assert sum(results.importance.values()) == pytest.approx(1, abs=1e-3)
    assert (results.seconds, results.images) == (80.0, 280)
    best = results.best
    assert best is not None
    assert best.value == max(t.value or 0 for t in results.trials)


def test_of_equals_the_first_is_chosen_and_only_what_ran_to_its_end() -> None:
    trials = [
        TrialRecord(0, "pruned", {}, {}, 0.9),
        TrialRecord(1, "done", {}, {}, 0.5),
        TrialRecord(2, "done", {}, {}, 0.5),
        TrialRecord(3, "failed", {}, {}),
        TrialRecord(4, "running", {}, {}),
    ]
    best = best_trial(trials)
    assert best is not None
    assert best.number == 1
    assert best_trial(trials[3:]) is None


def test_running_and_queued_trials_are_shown_as_such(protocol: Protocol, tmp_path: Path) -> None:
    store = Store(tmp_path)
    first, second = store.claim(2), store.claim(2)
    assert first is not None
    assert second is not None
    with pytest.raises(KeyboardInterrupt), store.at_work(first):
        raise KeyboardInterrupt
    results = read_results(store, protocol)
    assert [(t.number, t.state, t.value) for t in results.trials] == [(0, "queued", None), (1, "running", None)]
    assert results.chosen is None
    second.lock.close()
