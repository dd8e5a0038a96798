"""Runs of an earlier page, taken over where their settings are those of today."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from matrix_bench import BENCH

from recollect.common.errors import ConfigError, DataError
from recollect.config.overrides import as_mapping, resolve
from recollect.studies import matrix as matrices
from recollect.studies.claims import asymmetric
from recollect.studies.claims_page import write_page
from recollect.studies.earlier_runs import take_over
from recollect.studies.matrix import Matrix
from recollect.studies.summary import collect

RATES = (3e-4, 1e-3, 3e-3)


@pytest.fixture
def study(tmp_path: Path, data: Path) -> Matrix:
    made = Matrix(tmp_path / "out", "small", data)
    made.open()
    return made


def records(study: Matrix, **changes: object) -> list[dict[str, object]]:
    """A whole study of one cell, as a page would tell it; 1e-3 is the best rate."""
    bench = replace(BENCH, settings={**BENCH.settings, **changes})
    cell = asymmetric(bench).cells()[0]
    made = []
    for seed, rate, steps in [*((0, rate, None) for rate in RATES), *((seed, 1e-3, 3) for seed in (1, 2, 3))]:
        settings = as_mapping(resolve(bench.recipe, study.settings(bench, cell, seed=seed, rate=rate, steps=steps)))
        settings["data"]["root"] = None
        place = f"search/lr-{rate:g}" if steps is None else f"lr-{rate:g}-steps-3/seed-{seed}"
        value = {"r@1": 0.5 if rate == 1e-3 else 0.4}
        made.append(
            {
                "run": f"small/{cell.name}/{place}",
                "settings": settings,
                "metrics": {"val" if steps is None else "test": value},
                "chosen_step": 3,
                "seconds": 1.0,
                "machine": "another",
                "versions": {"recollect": "0.0.1"},
            }
        )
    return made


def written(path: Path, lines: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_study_goes_on_from_an_earlier_page(study: Matrix, tmp_path: Path) -> None:
    claim = asymmetric(BENCH)
    assert take_over(study, [claim], written(tmp_path / "runs.jsonl", records(study))) == (6, 0)
    first, second = collect(study, claim).values()
    assert first.by_seed == {1: 50.0, 2: 50.0, 3: 50.0}
    assert first.versions == {"0.0.1"}
    assert not second.by_seed
    assert first.choice is not None
    assert (first.choice.rate, first.choice.steps) == (1e-3, 3)
    page = write_page(study, [claim], tmp_path / "page", "recollect reproduce")
    assert "Runs of recollect 0.0.1" not in page.read_text()  # one of two cells decides nothing
    assert len((tmp_path / "page" / "runs.jsonl").read_text().splitlines()) == 6


def test_a_search_without_the_value_of_its_best_step_is_run_again(study: Matrix, tmp_path: Path) -> None:
    """Pages of version 0.1.0 kept the last evaluation of a search only, so another rate could come out best."""
    lines = records(study)
    lines[1]["chosen_step"] = 2
    assert take_over(study, [asymmetric(BENCH)], written(tmp_path / "runs.jsonl", lines)) == (1, 5)
    lines[1]["best"] = {"step": 2, "r@1": 0.6, "batch": 8, "at_the_limit": False}
    fresh = Matrix(tmp_path / "fresh", "small", study.data)
    fresh.open()
    assert take_over(fresh, [asymmetric(BENCH)], written(tmp_path / "better.jsonl", lines))[0] == 3
    choice = fresh.choice(BENCH, asymmetric(BENCH).cells()[0])
    assert choice is not None
    assert (choice.rate, choice.steps, choice.value) == (1e-3, 2, 0.6)


def test_settings_found_automatically_are_compared_as_found(study: Matrix, tmp_path: Path) -> None:
    """A run's own configuration says what was found; the bench's says "auto"."""
    bench = replace(BENCH, settings={key: value for key, value in BENCH.settings.items() if key != "data.augmentation"})
    file = written(tmp_path / "runs.jsonl", records(study))
    assert take_over(study, [asymmetric(bench)], file) == (6, 0)
    other = written(tmp_path / "others.jsonl", records(study, **{"data.augmentation": "none"}))
    fresh = Matrix(tmp_path / "fresh", "small", study.data)
    fresh.open()
    assert take_over(fresh, [asymmetric(bench)], other) == (0, 6)


def test_runs_of_other_settings_are_left_out(study: Matrix, tmp_path: Path) -> None:
    file = written(tmp_path / "runs.jsonl", records(study, **{"model.image_size": 32}))
    assert take_over(study, [asymmetric(BENCH)], file) == (0, 6)


def test_what_is_not_such_a_file(study: Matrix, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="line 1"):
        take_over(study, [asymmetric(BENCH)], written(tmp_path / "runs.jsonl", [{"run": "x"}]))


def test_runs_of_a_changed_bench_do_not_meet_new_ones(
    study: Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = replace(matrices.BENCHES["cars196-head"], settings={"model.image_size": 96})
    monkeypatch.setitem(matrices.BENCHES, "cars196-head", changed)
    study.open()  # nothing of it was run
    (study.out / "runs" / "cars196-head").mkdir(parents=True)
    study.open()
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="image_size"):
        study.open()
