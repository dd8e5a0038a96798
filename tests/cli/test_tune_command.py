"""``recollect tune``: options reach the search, the plan writes nothing, mistakes are sentences."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from tuning_runs import as_recipe, config_of, make_data
from typer.testing import CliRunner

from recollect.cli.main import app
from recollect.studies import tune as search


class _Results:
    def as_dict(self) -> dict[str, Any]:
        return {"chosen": 3}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []

    def tune(config: Any, out: Any, **options: Any) -> _Results:
        calls.append((config, out, options))
        logging.getLogger("recollect.studies.tune").info("a line")
        return _Results()

    monkeypatch.setattr(search, "tune", tune)
    return calls


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["tune", *arguments])


def test_options_reach_the_search(asked: list[Any], tmp_path: Path) -> None:
    result = run("cars196/r50-512/rsk", "--root", str(tmp_path), "--trials", "7", "--space", "lr=1e-5:1e-3", "--set",
                 "batch.size=80", "--sampler", "tpe", "--pruner", "median", "--seed", "3", "--storage", "x.db",
                 "--no-final", "--out", "s")  # fmt: skip
    assert result.exit_code == 0, result.output
    config, out, options = asked[0]
    assert (config.name, config.data.root, config.batch.size, out) == (
        "cars196/r50-512/rsk", str(tmp_path), 80, Path("s"),
    )  # fmt: skip
    assert options == {
        "trials": 7, "space": ["lr=1e-5:1e-3"], "sampler": "tpe", "pruner": "median", "seed": 3, "storage": "x.db",
        "final": False,
    }  # fmt: skip
    assert result.output == "a line\n"


def test_the_plan_writes_nothing_and_needs_no_test_set(tmp_path: Path) -> None:
    recipe = as_recipe(config_of(make_data(tmp_path / "data", test=False)), tmp_path / "small.yaml")
    result = run(str(recipe), "--plan", "--trials", "5", "--out", str(tmp_path / "s"), "--space", "epochs=4")
    assert result.exit_code == 0, result.output
    for expected in (
        "5 trials",
        "first 4 training classes (24 images)",
        "other 4",
        "of 4 epochs is 8 steps",
        "for 5 trials;",
    ):
        assert expected in result.output, result.output
    planned = json.loads(run(str(recipe), "--plan", "--trials", "5", "--space", "epochs=4", "--json").stdout)
    assert (planned["trials"], planned["space"]["epochs"], planned["train"]) == (5, "4", {"classes": 4, "images": 24})
    assert planned["typical_trial"]["steps"] == 8
    assert planned["seconds"] == pytest.approx(5 * planned["typical_trial"]["seconds"])
    assert not (tmp_path / "s").exists()
