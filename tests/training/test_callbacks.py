"""Callbacks, loggers and the log: what they receive, and that a failing logger costs nothing but itself."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_runs import make_images, small_config

from recollect.common.console import ProgressLine
from recollect.common.errors import ConfigError, MissingExtraError
from recollect.config.schema import RunConfig
from recollect.training import callbacks
from recollect.training.callbacks import Callback, Log, TrainingStoppedError
from recollect.training.run import RunFolder
from recollect.training.trainer import train


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_images(tmp_path_factory.mktemp("images"), classes=8)


def logged_run(root: Path, out: Path, name: str, **options: Any) -> list[dict[str, Any]]:
    """Train for one epoch, validated, with a logger; what ``metrics.jsonl`` says."""
    settings = {"run.loggers": [name], "run.logger_options": {name: options}, "data.validation": "random"}
    train(small_config(root, **settings, **{"run.epochs": 1, "batch.size": 8}), out)
    return RunFolder(out).read_metrics()


def test_tensorboard_events_are_read_back(root: Path, tmp_path: Path) -> None:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    records = logged_run(root, tmp_path / "run", "tensorboard")
    events = reading.EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    losses = [(event.step, event.value) for event in events.Scalars("train/loss")]
    assert losses == [(r["step"], pytest.approx(r["loss"])) for r in records if r["kind"] == "step"]
    recalls = [(event.step, event.value) for event in events.Scalars("val/r@1")]
    assert recalls == [(r["step"], pytest.approx(r["r@1"])) for r in records if r["kind"] == "evaluation"]


def _once_written(file: Path, last: bytes) -> bytes:
    """The file's content, once it holds ``last``: a process of wandb's own writes it."""
    end = time.monotonic() + 600
    while last not in (content := file.read_bytes()) and time.monotonic() < end:
        time.sleep(0.1)
    return content


@pytest.mark.slow
@pytest.mark.release
def test_weights_and_biases_offline(root: Path, tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    records = logged_run(root, tmp_path / "run", "wandb", mode="offline", project="mine")
    (file,) = (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")
    content = _once_written(file, b"val/r@1")
    assert content.count(b"train/gradient_norm") >= sum(record["kind"] == "step" for record in records)
    for word in (b"val/r@1", b"mine", callbacks.run_id(tmp_path / "run").encode()):
        assert word in content


@pytest.mark.slow
@pytest.mark.release
def test_mlflow_in_a_local_database(root: Path, tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    records = logged_run(root, tmp_path / "run", "mlflow", uri=uri)
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("recollect")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["loss.name"] == "recall_at_k"
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(m.step, m.value) for m in history] == [(r["step"], r["loss"]) for r in records if r["kind"] == "step"]
    assert run.data.metrics["val/r_at_1"] == [r["r@1"] for r in records if r["kind"] == "evaluation"][-1]
    # A training that goes on is the same run.
    again = callbacks.MLflow(uri)
    again.on_start(tmp_path / "run", {}, 1)
    again.on_end(None)
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FAILED"


class Failing(Callback):
    def on_step(self, step: int, values: Mapping[str, float]) -> None:
        if step == 2:
            raise ConnectionError("the server is gone")


def test_a_failing_logger_is_reported_once_and_dropped(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(callbacks.LOGGERS, "failing", Failing)
    caplog.set_level(logging.WARNING, "recollect")
    records = logged_run(root, tmp_path / "run", "failing")
    assert sum(record["kind"] == "step" for record in records) == 3
    (message,) = (message for message in caplog.messages if "failing" in message)
    assert "the server is gone" in message
    assert "outcome" in RunFolder(tmp_path / "run").read_manifest()


def test_a_logger_may_end_a_run_by_saying_so(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Enough(Callback):
        def on_evaluation(self, split: str, step: int, metrics: Mapping[str, float]) -> None:
            raise TrainingStoppedError("good enough")

    monkeypatch.setitem(callbacks.LOGGERS, "enough", Enough)
    with pytest.raises(TrainingStoppedError, match="good enough"):
        logged_run(root, tmp_path / "run", "enough")


def test_what_cannot_be_a_logger_is_refused() -> None:
    for name, message in (
        ("wandbb", "Did you mean wandb"),
        ("collections:OrderedDict", "on_start"),
        ("math:pi", "not a callable"),
    ):
        with pytest.raises(ConfigError, match=message):
            callbacks.make_loggers(RunConfig(loggers=(name,)))


def test_a_missing_package_is_named_before_anything_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, module in (("wandb", "wandb"), ("mlflow", "mlflow"), ("tensorboard", "torch.utils.tensorboard")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(MissingExtraError, match=rf"recollect\[{name}\]"):
            callbacks.make_loggers(RunConfig(loggers=(name,)))


def test_callbacks_are_told_of_everything_in_order(root: Path, tmp_path: Path) -> None:
    heard: list[Any] = []

    class Hearing(callbacks.Callback):
        def on_start(self, run: Path, config: Mapping[str, Any], step: int) -> None:
            heard.append(("start", run.name, config["run"]["epochs"], step))

        def on_step(self, step: int, values: Mapping[str, float]) -> None:
            assert {"loss", "lr", "images_per_second"} <= values.keys()
            heard.append(step)

        def on_evaluation(self, split: str, step: int, metrics: Mapping[str, float]) -> None:
            heard.append((split, step))

        def on_end(self, outcome: Any) -> None:
            heard.append(outcome)

    config = small_config(root, **{"data.validation": "random", "run.epochs": 1, "batch.size": 8})
    outcome = train(config, tmp_path / "run", callbacks=[Hearing()])
    assert heard == [("start", "run", 1, 0), ("val", 0), 1, 2, 3, ("val", 3), outcome]

    class Ending(Hearing):
        def on_step(self, step: int, values: Mapping[str, float]) -> None:
            raise RuntimeError("mine")

    heard.clear()
    short = replace(config, run=replace(config.run, evaluate_first=False))
    with pytest.raises(RuntimeError, match="mine"):
        train(short, tmp_path / "ended", callbacks=[Ending()])
    assert heard == [("start", "ended", 1, 0), None]


def test_the_run_keeps_what_a_terminal_would_have_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "recollect")
    seconds = iter([0.0, 10.0, 31.0, 40.0])  # when the line is made, and after each step
    run = RunFolder(tmp_path)
    with ProgressLine("training", 100, "steps", clock=lambda: next(seconds)) as line:
        log = Log(run, line)
        for step in (1, 2, 3):
            log.step(step=step, epoch=0.5, loss=0.25, images_per_second=12.0, memory_mb=1234 if step < 2 else None)
        log.evaluation("val", 3, {"r@1": 0.5, "map@r": 0.25})
    stamps, lines = zip(*(line.split(" ", 1) for line in run.log_file.read_text().splitlines()), strict=True)
    assert all("T" in stamp for stamp in stamps)
    assert lines == (
        "training   2/100 steps, loss 0.2500 12 images/s epoch 0.5, 25 min left",
        "val        after step 3, in %: r@1 50.0  map@r 25.0",
    )
    assert caplog.messages == list(lines)
    assert all(record.progress for record in caplog.records)  # type: ignore[attr-defined]
