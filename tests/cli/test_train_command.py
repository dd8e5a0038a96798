"""``recollect train``: options become settings, errors become sentences."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from recollect.cli.main import app, main
from recollect.common.console import RESULT
from recollect.config.schema import Config
from recollect.training import trainer
from recollect.training.run import Outcome
from recollect.training.trainer import TrainingStoppedError


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


def test_defaults_train_on_the_embedded_characters(asked: list[Any]) -> None:
    result = run()
    config, out, _ = asked[0]
    assert (config.name, config.data.name, config.model.init, out) == ("glyphs", "glyphs", "tiny", None)
    assert "r@1 50.0  r@2 75.0" in result.output
    assert "(step 7)" in result.output


def test_a_folder_takes_the_recipe_for_folders(asked: list[Any], tmp_path: Path) -> None:
    run("--data", str(tmp_path))
    config = asked[0][0]
    assert (config.name, config.data.name, config.data.root, config.model.freeze) == (
        "folder", "folder", str(tmp_path), "auto",
    )  # fmt: skip


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
    assert (config.optimizer.lr, config.run.epochs, config.model.dim, config.model.image_size) == (
        "auto",
        "auto",
        64,
        96,
    )
    shown = {option.name: option.metavar for option in typer.main.get_command(app).commands["train"].params}  # type: ignore[attr-defined]
    assert shown["image_size"] == "<int> [1<=x<=10000]"
    assert shown["lr"] == "<float> [0<x<=1000]"
    assert "must be 1 or more" in str(run("--dims", "0,8").exception)


def test_a_recipe_with_data_somewhere(asked: list[Any], tmp_path: Path) -> None:
    run("sop/r50-512/rsk", "--data", str(tmp_path))
    assert (asked[0][0].data.name, asked[0][0].data.root) == ("sop", str(tmp_path))
    run("--data", "cars196", "--root", str(tmp_path))
    assert (asked[1][0].data.name, asked[1][0].data.root, asked[1][0].name) == ("cars196", str(tmp_path), "folder")


@pytest.mark.parametrize("verb", [["train"], ["tune"], ["compare", "--losses", "recall_at_k"]])
def test_a_root_alone_does_not_train_on_other_images(verb: list[str], tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [*verb, "--plan", "--root", str(tmp_path)])
    assert f"For your own images: --data {tmp_path}" in str(result.exception)


def test_resume_stands_alone(asked: list[Any], tmp_path: Path) -> None:
    run("--resume", str(tmp_path))
    assert asked == [(None, None, tmp_path)]
    result = run("--resume", str(tmp_path), "--data", "photos")
    assert "remove the recipe, --data" in str(result.exception)


def test_a_resumed_run_is_told_where_and_how_to_read_images(asked: list[Any], tmp_path: Path) -> None:
    run("--resume", str(tmp_path), "--root", "moved", "--skip-bad", "--device", "cpu", "--set", "data.cache=ram")
    given = {"data.root": "moved", "run.device": "cpu", "data.on_bad_image": "skip", "data.cache": "ram"}
    assert asked == [(None, None, tmp_path, given)]


def test_a_stopped_training_ends_with_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*arguments: Any, **options: Any) -> None:
        raise TrainingStoppedError("asked to stop: saved after step 4.", 143)

    monkeypatch.setattr(trainer, "train", stop)
    monkeypatch.setattr(sys, "argv", ["recollect", "train"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 143
    assert "saved after step 4" in capsys.readouterr().err


def test_mistakes_are_sentences(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["recollect", "train", "--set", "batch.sise=3"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith("recollect: glyphs: there is no setting 'batch.sise'. Did you mean size?")


def test_quiet_prints_results(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(*arguments: Any, **options: Any) -> Outcome:
        log = logging.getLogger("recollect.training.trainer")
        log.info("run        runs/x")
        log.info("verdict    against lite0", extra=RESULT)
        return Outcome(Path("runs/x"), 10, 1.0, 7, {})

    monkeypatch.setattr(trainer, "train", train)
    assert run("--quiet").output.splitlines() == ["verdict    against lite0", "model      runs/x/model (step 7)"]
