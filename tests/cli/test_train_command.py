"""``recollect train``: options become settings, errors become sentences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from recollect.cli.main import app
from recollect.config.schema import Config
from recollect.training import trainer
from recollect.training.run import Outcome


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What the command asks of the trainer, which does nothing here."""
    calls: list[tuple[Any, ...]] = []

    def train(config: Config | None = None, out: Path | None = None, **options: Any) -> Outcome:
        calls.append((config, out, options.get("resume")))
        if settings := options.get("settings"):
            calls[-1] += (settings,)
        return Outcome(Path("runs/x"), 10, 1.0, 7, {"val": {"r@1": 0.5, "r@2": 0.75}})

    monkeypatch.setattr(trainer, "train", train)
    return calls


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["train", *arguments])


def test_a_folder_takes_the_recipe_for_folders(asked: list[Any], tmp_path: Path) -> None:
    run("--data", str(tmp_path))
    (config, *_) = asked[0]
    used = (config.name, config.data.name, config.data.root, config.model.freeze)
    assert used == ("folder", "folder", str(tmp_path), "auto")


def test_options_and_set_beat_the_recipe(asked: list[Any]) -> None:
    run("glyphs", "--batch-size", "80", "--steps", "9", "--lr", "3e-4", "--watch-test", "--workers", "0",
        "--freeze", "none", "--set", "loss.options.simix=true", "--out", "r")  # fmt: skip
    config, out, _ = asked[0]
    assert (config.batch.size, config.run.steps, config.run.epochs, config.optimizer.lr) == (80, 9, None, 3e-4)
    assert (config.run.watch_test, config.data.workers) == (True, 0)
    assert config.loss.options == {"simix": True}
    assert out == Path("r")


def test_a_setting_that_is_given_twice_is_refused(asked: list[Any]) -> None:
    for words in (["--batch-size", "80", "--set", "batch.size=120"], ["--set", "run.seed=1", "--set", "run.seed=2"]):
        result = run(*words)
        assert "is already given, by another option or --set" in str(result.exception)
    assert not asked


def test_a_text_is_used_as_it_was_typed(asked: list[Any]) -> None:
    for text in ("my weights #2.pth", "a: b.pt", "[1].pt", "on", "2024", "null"):
        run("--weights", text, "--loss", text, "--logger", text)
        config = asked[-1][0]
        assert (config.model.weights, config.loss.name, config.run.loggers) == (text, text, (text,))
    run("--batch-size", "all", "--freeze", "backbone", "--chunk", "auto", "--dims", "8,16")
    assert (asked[-1][0].batch.size, asked[-1][0].batch.chunk, asked[-1][0].loss.dims) == ("all", "auto", (8, 16))


def test_options_take_what_the_settings_take_and_say_their_range(asked: list[Any]) -> None:
    run("--lr", "auto", "--epochs", "auto", "--dim", "64", "--image-size", "96")
    config = asked[-1][0]
    used = (config.optimizer.lr, config.run.epochs, config.model.dim, config.model.image_size)
    assert used == ("auto", "auto", 64, 96)
    output = {option.name: option.metavar for option in typer.main.get_command(app).commands["train"].params}  # type: ignore[attr-defined]
    assert output["image_size"] == "<int> [1<=x<=10000]"
    assert output["lr"] == "<float> [0<x<=1000]"
    assert "must be 1 or more" in str(run("--dims", "0,8").exception)


@pytest.mark.parametrize("verb", [["train"], ["tune"], ["compare", "--losses", "recall_at_k"]])
def test_a_root_alone_does_not_train_on_other_images(verb: list[str], tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [*verb, "--plan", "--root", str(tmp_path)])
    assert f"For your own images: --data {tmp_path}" in str(result.exception)


def test_resume_stands_alone(asked: list[Any], tmp_path: Path) -> None:
    run("--resume", str(tmp_path))
    assert asked == [(None, None, tmp_path)]
    result = run("--resume", str(tmp_path), "--data", "photos")
    assert "--data would have no effect with --resume" in str(result.exception)


def test_a_resumed_run_is_told_where_and_how_to_read_images(asked: list[Any], tmp_path: Path) -> None:
    run("--resume", str(tmp_path), "--root", "moved", "--skip-bad", "--device", "cpu", "--set", "data.cache=ram")
    given = {"data.root": "moved", "run.device": "cpu", "data.on_bad_image": "skip", "data.cache": "ram"}
    assert asked == [(None, None, tmp_path, given)]
