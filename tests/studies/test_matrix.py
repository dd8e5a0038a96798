"""A study of two cells on a small folder: which runs there are, and what the search chooses."""

from __future__ import annotations

from pathlib import Path

import pytest
from matrix_bench import BENCH, searched, two_cells

from recollect.common.errors import ConfigError
from recollect.studies.protocol import (
    LADDER,
    MOST_RATES,
    EqualImages,
    Matrix,
    UntilValidation,
)


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
