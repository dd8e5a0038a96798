"""What the log says, also where the system tells less."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from recollect.common import machine as memory_file
from recollect.common.console import ProgressLine
from recollect.training.callbacks import Log
from recollect.training.run import RunFolder

RECORD: dict[str, Any] = {"step": 1, "epoch": 0.5, "loss": 0.25, "images_per_second": 12.0}


def _without_resource(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module as it is imported on Windows."""
    monkeypatch.setitem(sys.modules, "resource", None)
    spec = importlib.util.spec_from_file_location("memory_elsewhere", memory_file.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _note(folder: Path, memory: int | None, monkeypatch: pytest.MonkeyPatch) -> str:
    notes: list[str] = []
    monkeypatch.setattr(ProgressLine, "advance", lambda self, count, note="": notes.append(note))
    with ProgressLine("training", 1, "steps", quiet=True) as line:
        Log(RunFolder(folder), line).step(**RECORD, memory_mb=memory)
    return notes[0]


def test_memory_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = memory_file.peak_memory_mb(torch.device("cpu"))
    assert memory is not None
    assert 50 < memory < 100_000
    assert _note(tmp_path, 1234, monkeypatch) == "loss 0.2500 12 images/s epoch 0.5 1,234 MB"


def test_a_system_that_does_not_tell_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = _without_resource(monkeypatch)
    memory = elsewhere.peak_memory_mb(torch.device("cpu"))
    assert memory is None
    assert _note(tmp_path, memory, monkeypatch) == "loss 0.2500 12 images/s epoch 0.5"
    assert [record["memory_mb"] for record in RunFolder(tmp_path).read_metrics()] == [None]


def test_the_run_keeps_what_a_terminal_would_have_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "recollect")
    seconds = iter([0.0, 10.0, 31.0, 40.0])  # when the line is made, and after each step
    run = RunFolder(tmp_path)
    with ProgressLine("training", 100, "steps", clock=lambda: next(seconds)) as line:
        log = Log(run, line)
        for step in (1, 2, 3):
            log.step(**{**RECORD, "step": step}, memory_mb=None)
        log.evaluation("val", 3, {"r@1": 0.5, "map@r": 0.25})
    stamps, lines = zip(*(line.split(" ", 1) for line in run.log_file.read_text().splitlines()), strict=True)
    assert all("T" in stamp for stamp in stamps)
    assert lines == (
        "training   2/100 steps, loss 0.2500 12 images/s epoch 0.5, 25 min left",
        "val        after step 3, in %: r@1 50.0  map@r 25.0",
    )
    assert caplog.messages == list(lines)
    assert all(record.progress for record in caplog.records)  # type: ignore[attr-defined]
