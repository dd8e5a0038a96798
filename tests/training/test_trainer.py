"""Whole trainings: what they write, how they stop, how they go on."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from killed import signal_at
from small_runs import built, final_weights, losses, resumes_exactly, same_bits, small_config, train_until
from torch import Tensor

from faults.trials import run
from recollect.common.errors import ConfigError, DataError
from recollect.common.files import try_lock
from recollect.models import Embedder
from recollect.step import large_batch
from recollect.training import callbacks, optimizer, run as run_file, trainer
from recollect.training.callbacks import TrainingStoppedError
from recollect.training.run import RunFolder, circumstances
from recollect.training.trainer import train

PLANNED = 2
"""Steps that are taken for the plan, before those of the training."""


def test_what_a_run_leaves(whole: Path, root: Path) -> None:
    run = RunFolder(whole)
    names = {path.relative_to(whole).as_posix() for path in whole.rglob("*") if path.is_file()}
    chosen = run.read_manifest()["outcome"]["chosen_step"]
    assert names == {
        "config.yaml", "manifest.json", "metrics.jsonl", "checkpoints/last.pt", f"checkpoints/best-{chosen}.pt",
        "model/model.safetensors", "model/embedder.json", ".lock", "train.log", "trained_on.npz", "model/trained_on.npz",
    }  # fmt: skip
    log = run.log_file.read_text()
    assert "data       folder: " in log  # the plan
    assert f"run        {whole}" in log
    assert log.count("val        after step") == 3
    manifest = run.read_manifest()
    assert manifest["versions"]["torch"] == torch.__version__
    assert set(manifest["data"]["fingerprints"]) == {"train", "validation"}
    assert manifest["outcome"]["steps"] == 6
    assert manifest["outcome"]["chosen_by"] == "r@1 of the validation classes"
    assert manifest["plan"]["virtual_batch"] == 40
    config = run.read_config()
    assert (config.run.evaluate_every, config.data.root) == (1, str(root))
    records = list(run.read_metrics())
    assert [r["step"] for r in records if r["kind"] == "step"] == [1, 2, 3, 4, 5, 6]
    assert [(r["step"], r["split"]) for r in records if r["kind"] == "evaluation"] == [
        (0, "val"),
        (3, "val"),
        (6, "val"),
    ]
    assert all(0 <= r["r@1"] <= 1 for r in records if r["kind"] == "evaluation")
    assert records[1]["lr"] == pytest.approx(1e-3)
    assert records[-2]["lr"] == pytest.approx(1e-3 * 0.5 * (1 + np.cos(np.pi * 5 / 6)))
    embedder = Embedder.load(run.model)
    assert embedder.embed(torch.zeros(2, 3, 24, 24, dtype=torch.uint8)).shape == (2, 16)


# Steps 1 to 3 are the first epoch: before any checkpoint, in the middle of both epochs, at their ends, after the last.
@pytest.mark.parametrize(("step", "every"), [(1, 1), (3, 2), (4, 3), (5, 5), (7, 5)])
def test_resuming_is_exact(root: Path, whole: Path, tmp_path: Path, every: int, step: int) -> None:
    """Killed after any step, with checkpoints every so many: the same bits as the run that was never interrupted."""
    settings = {"data.validation": "random", "run.checkpoint_steps": every, "run.checkpoint_minutes": 60}
    folder = train_until(step, small_config(root, **settings), tmp_path / "run")
    torch.manual_seed(99)  # the new process begins with other random states
    train(resume=folder)
    assert losses(folder) == losses(whole)
    assert same_bits(final_weights(folder), final_weights(whole))
    outcome = RunFolder(folder).read_manifest()["outcome"]
    assert outcome["metrics"] == RunFolder(whole).read_manifest()["outcome"]["metrics"]


@pytest.mark.slow
@pytest.mark.release
def test_kill_9_and_sigterm_of_real_processes(root: Path, tmp_path: Path) -> None:
    settings = {"run.epochs": 20, "run.checkpoint_steps": 7, "run.checkpoint_minutes": 60}
    config = small_config(root, **settings)
    train(config, tmp_path / "whole")
    (tmp_path / "config.yaml").write_text((tmp_path / "whole" / "config.yaml").read_text())
    folder = tmp_path / "killed"
    ended = run(["train", str(tmp_path / "config.yaml"), "--out", str(folder)], tmp_path, signal_at("step", 11))
    assert ended.code == -signal.SIGKILL, ended
    assert len(losses(folder)) == 10
    assert "outcome" not in RunFolder(folder).read_manifest()

    ended = run(["train", "--resume", str(folder)], tmp_path, signal_at("step", 6, signal.SIGTERM))  # after the seventh
    assert ended.code == 128 + signal.SIGTERM, ended
    assert "saved after step 13" in ended.err
    assert "Traceback" not in ended.err
    assert run_file.read_checkpoint(RunFolder(folder).last)["progress"]["step"] == len(losses(folder)) == 13

    train(resume=folder)
    assert losses(folder) == losses(tmp_path / "whole")
    assert same_bits(final_weights(folder), final_weights(tmp_path / "whole"))


def test_a_signal_saves_first(root: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = callbacks.Log.step

    def signalling(self: callbacks.Log, **values: Any) -> None:
        record(self, **values)
        if values["step"] == 2:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(callbacks.Log, "step", signalling)
    before = signal.getsignal(signal.SIGINT)
    settings = {"data.validation": "random", "run.checkpoint_minutes": 60}
    with pytest.raises(TrainingStoppedError, match=r"saved after step 2.*--resume") as stopped:
        train(small_config(root, **settings), tmp_path / "run")
    assert stopped.value.exit_code == 128 + signal.SIGINT
    monkeypatch.undo()
    assert signal.getsignal(signal.SIGINT) is before
    train(resume=tmp_path / "run")
    assert same_bits(final_weights(tmp_path / "run"), final_weights(whole))


def test_a_run_is_never_written_over(root: Path, whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = (whole / "metrics.jsonl").read_bytes()
    with pytest.raises(ConfigError, match=r"never overwritten.*--resume"):
        train(small_config(root), whole)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="not empty"):
        train(small_config(root), tmp_path)
    assert (whole / "metrics.jsonl").read_bytes() == before
    caplog.set_level("INFO", "recollect")
    caplog.clear()
    outcome = train(resume=whole)
    assert "is finished" in caplog.messages[0]
    assert outcome.steps == 6
    with pytest.raises(DataError, match="not a run"):
        train(resume=tmp_path)


def test_a_run_has_one_writer(root: Path, tmp_path: Path) -> None:
    train_until(1, small_config(root), tmp_path / "run")
    lock = try_lock(tmp_path / "run" / ".lock")
    assert lock is not None  # the run that ended holds it no longer
    files = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with lock, pytest.raises(ConfigError, match="another process"):
        train(resume=tmp_path / "run")
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == files
    assert train(resume=tmp_path / "run").steps == 6
    assert len(RunFolder(tmp_path / "run").read_manifest()["resumed"]) == 1


def _scripted(monkeypatch: pytest.MonkeyPatch, values: dict[str, list[float]]) -> dict[int, dict[str, Tensor]]:
    """Evaluations that return ``values`` in turn; keeps the weights they saw."""
    seen: dict[int, dict[str, Tensor]] = {}
    counts = dict.fromkeys(values, 0)

    def evaluate_watched(network: Any, watched: Any, *rest: Any) -> dict[str, float]:
        number = counts[watched.name]
        counts[watched.name] += 1
        if watched.name == "val" or "val" not in values:
            seen[number] = {name: tensor.clone() for name, tensor in network.state_dict().items()}
        return {"r@1": values[watched.name][number]}

    monkeypatch.setattr(trainer, "evaluate_watched", evaluate_watched)
    return seen


def test_validation_picks_the_best(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = _scripted(monkeypatch, {"val": [0.5, 0.5, 0.4, 0.2], "test": [0.0, 0.0, 0.9, 1.0]})
    settings = {"data.validation": "paper", "run.watch_test": True, "run.epochs": 3}
    outcome = train(small_config(root, **settings), tmp_path / "run")
    assert outcome.chosen_step == 3, "the last of equals, and never by the test set"
    assert same_bits(final_weights(tmp_path / "run"), seen[1])
    assert outcome.metrics["test"]["r@1"] == 1.0


def test_without_validation_the_last_is_kept_whatever_the_test_says(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = _scripted(monkeypatch, {"test": [0.9, 0.5, 0.1]})
    outcome = train(small_config(root, **{"run.watch_test": True}), tmp_path / "run")
    assert outcome.chosen_step == 6
    assert same_bits(final_weights(tmp_path / "run"), seen[2])
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["last.pt"]
    assert RunFolder(tmp_path / "run").read_manifest()["outcome"]["chosen_by"] == "last step"


def test_watching_the_test_changes_no_weight(root: Path, tmp_path: Path) -> None:
    train(small_config(root), tmp_path / "blind")
    train(small_config(root, **{"run.watch_test": True}), tmp_path / "watched")
    assert same_bits(final_weights(tmp_path / "blind"), final_weights(tmp_path / "watched"))


@pytest.mark.parametrize("value", [float("nan"), 1e9])
def test_a_lost_loss_stops_with_its_batch(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    step = large_batch.large_batch_step
    count = iter(range(-PLANNED, 10))
    monkeypatch.setattr(
        optimizer, "large_batch_step", lambda *a, **o: step(*a, **o) * 0 + (value if next(count) == 3 else 1.0)
    )
    with pytest.raises(TrainingStoppedError, match=r"step 4: the loss .*images"):
        train(small_config(root), tmp_path / "run")
    folder = tmp_path / "run" / "stopped" / "step-4" / "process-0"
    kept = torch.load(folder / "batch.pt", weights_only=True)
    assert kept["inputs"].shape == (16, 3, 24, 24)
    about = json.loads((folder / "batch.json").read_text())
    assert len(about["images"]) == 16
    assert (root / "train" / about["images"][0]).exists() or (root / about["images"][0]).exists()
    assert len(losses(tmp_path / "run")) == 3


@pytest.mark.parametrize("overflows", [3, 100])
def test_fp16_that_overflows_for_ever_stops(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overflows: int
) -> None:
    """A scaler as on a GPU: a few steps too large are skipped, as ever; steps that never fit end the run."""
    step, scaler, count = large_batch.large_batch_step, torch.amp.GradScaler, iter(range(-PLANNED, 1000))

    def overflowing(model: torch.nn.Module, *arguments: Any, **options: Any) -> Tensor:
        value = step(model, *arguments, **options)
        if next(count) < overflows:
            next(model.parameters()).grad.fill_(float("inf"))  # type: ignore[union-attr]
        return value

    monkeypatch.setattr(optimizer, "large_batch_step", overflowing)
    monkeypatch.setattr(torch.amp, "GradScaler", lambda device, enabled: scaler(device, enabled=True))
    config = small_config(root, **{"run.epochs": None, "run.steps": 24, "run.checkpoint_minutes": 60})
    if overflows == 3:
        assert train(config, tmp_path / "run").steps == 24
        return
    with pytest.raises(TrainingStoppedError, match=r"step 18: .*inf.*optimizer\.lr.* bf16"):
        train(config, tmp_path / "run")
    assert (tmp_path / "run" / "stopped" / "step-18" / "process-0" / "batch.pt").exists()


def test_a_run_that_ran_out_of_memory_goes_on_with_a_smaller_chunk(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks, step = [], optimizer.large_batch_step

    def limited(*arguments: Any, **options: Any) -> Any:
        chunks.append(arguments[4])
        if chunks[PLANNED + 1 :] == [6]:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")
        return step(*arguments, **options)

    monkeypatch.setattr(optimizer, "large_batch_step", limited)
    config = small_config(root, **{"run.epochs": None, "run.steps": 3, "run.checkpoint_steps": 1})
    with pytest.raises(ConfigError, match=r"batch\.chunk=3"):
        train(config, tmp_path / "run")
    train(resume=tmp_path / "run", settings={"batch.chunk": 3})
    assert chunks == [6] * PLANNED + [6, 6] + [3] * PLANNED + [3, 3]


def test_losses_with_parameters_are_trained_and_resumed(root: Path, tmp_path: Path) -> None:
    pytest.importorskip("pytorch_metric_learning")
    settings = {
        "loss.name": "proxy_anchor",
        "loss.options": {},
        "run.checkpoint_steps": 2,
        "run.checkpoint_minutes": 60,
    }
    assert resumes_exactly(small_config(root, **settings), tmp_path)
    kept = run_file.read_checkpoint(RunFolder(tmp_path / "killed").last)
    assert any(tensor.ndim == 2 and len(tensor) == 12 for tensor in kept["loss"].values() if torch.is_tensor(tensor))


def test_a_deterministic_run_lets_cudnn_try_no_other_algorithms(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    try:
        with built(small_config(root, **{"run.deterministic": True})):
            assert torch.are_deterministic_algorithms_enabled()
            assert not torch.backends.cudnn.benchmark
    finally:
        torch.use_deterministic_algorithms(False)


def test_only_fp16_scales_the_loss_and_it_needs_a_gpu(root: Path) -> None:
    for precision in ("fp32", "bf16"):
        with built(small_config(root, **{"run.precision": precision})) as training:
            assert not training.trained.scaler.is_enabled()
    config = small_config(root, **{"run.precision": "fp16", "run.device": "auto"})
    with pytest.raises(ConfigError, match="fp16 is for GPUs, but this runs on the CPU"), built(config):
        pass


def test_passwords_on_the_command_line_do_not_reach_the_manifest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["recollect", "--storage=postgresql://me:p@ss@host/db", "https://host:80/a"])
    command = circumstances(torch.device("cpu"), 1)["command"]
    assert command == ["recollect", "--storage=postgresql://me:***@host/db", "https://host:80/a"]
