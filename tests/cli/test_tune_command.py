"""``recollect tune``: options reach the search, the plan writes nothing, mistakes are sentences."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from tuning_runs import as_recipe, config_of, make_data
from typer.testing import CliRunner

from recollect.cli import main
from recollect.cli.main import app
from recollect.studies import tune as search
from recollect.training.trainer import TrainingStoppedError


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


def test_defaults(asked: list[Any], tmp_path: Path) -> None:
    run()
    run("--data", str(tmp_path))
    assert [call[0].name for call in asked] == ["glyphs", "folder"]
    assert (asked[0][2]["trials"], asked[0][2]["sampler"], asked[0][2]["pruner"]) == (20, "random", "none")
    assert asked[0][2]["final"]


def test_json_stands_alone_on_stdout(asked: list[Any]) -> None:
    result = run("--json")
    assert json.loads(result.stdout) == {"chosen": 3}
    assert result.stderr == "recollect: a line\n"


def test_a_stopped_search_ends_with_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*arguments: Any, **options: Any) -> None:
        raise TrainingStoppedError("asked to stop: trial 0003 is saved and queued.", 143)

    monkeypatch.setattr(search, "tune", stop)
    monkeypatch.setattr(sys, "argv", ["recollect", "tune"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, "saved and queued" in capsys.readouterr().err) == (143, True)


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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nosuch"], "recollect: there is no recipe 'nosuch'"),
        (["glyphs", "--space", "lr"], "recollect: --space lr: write NAME=LOW:HIGH"),
        (["glyphs", "--set", "run.watch_test=true"], "recollect: run.watch_test: a search does not use the test set"),
    ],
)
def test_mistakes_are_sentences(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["recollect", "tune", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith(message)
    assert not list(tmp_path.iterdir())
