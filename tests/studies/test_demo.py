from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from small_runs import make_images

from cli.running import run
from recollect.common.errors import ConfigError
from recollect.config.resolve import resolve
from recollect.config.schema import Config
from recollect.studies import demo
from recollect.training.callbacks import Callback, TrainingStoppedError
from recollect.training.run import Outcome, RunFolder


def test_the_two_trainings_differ_in_the_loss_alone() -> None:
    one, other = (resolve("glyphs", demo.demo_settings(loss, 30, 4)) for loss in demo.LOSSES.values())
    assert one.loss.name == "recall_at_k"
    assert other.loss.name == "contrastive"
    for part in ("data", "model", "batch", "optimizer", "run"):
        assert getattr(one, part) == getattr(other, part)
    assert one.data.name == "glyphs"
    assert (one.data.train_split, one.data.test_split) == ("train", "test")


def _report_of(*command: str) -> Path:
    return Path(run(*command).output.splitlines()[-1])


def _make_small(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same course with few and small photos."""
    whole, images = demo.demo_settings, make_images(make_images(folder / "photos"), split="test", seed=1)

    def small(loss: str, steps: int, seed: int) -> dict[str, Any]:
        data = {"data.name": "folder", "data.root": str(images), "data.augmentation": "crop"}
        network = {"model.init": "tiny", "model.image_size": 24, "model.resize": 24, "batch.size": 16}
        return whole(loss, steps, seed) | {"data.options": {}} | data | network

    monkeypatch.setattr(demo, "demo_settings", small)


@pytest.mark.release
def test_the_demonstration_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # The characters that nearly all typefaces have: half of the pictures. The second time photos take their place.
    whole = demo.demo_settings
    monkeypatch.setattr(
        demo, "demo_settings", lambda *arguments: whole(*arguments) | {"data.options": {"min_faces": 48}}
    )
    report = _report_of("demo", "--steps", "1")
    _make_small(tmp_path, monkeypatch)
    assert report != _report_of("demo", "--steps", "1")
    assert "Improved from" in report.read_text(encoding="utf-8")
    evaluations = [
        [record for record in RunFolder.open(report.parent / loss).read_metrics() if record["kind"] == "evaluation"]
        for loss in demo.LOSSES.values()
    ]
    assert [[record["step"] for record in records] for records in evaluations] == [[0, 1]] * 2
    assert evaluations[0][0]["r@1"] == evaluations[1][0]["r@1"]  # both began with the same network


@pytest.mark.slow
def test_an_interrupted_demonstration_is_resumed_by_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "demo"
    _make_small(tmp_path, monkeypatch)
    command = ["demo", "--out", str(out), "--steps", "3", "--seed", "5"]
    real, folders = demo.begin_or_resume, []

    def stopped(path: Path, config: Config) -> Outcome:
        folders.append(path.name)
        return real(path, config, Stop() if len(folders) == 2 else None)

    monkeypatch.setattr(demo, "begin_or_resume", stopped)
    with pytest.raises(TrainingStoppedError, match=re.escape(f"Resume with: recollect {shlex.join(command)}") + "$"):
        run(*command)
    assert not (out / "report.html").exists()
    with pytest.raises(ConfigError, match="other settings"):
        demo.run_demo(out, steps=4, seed=5)
    for _ in range(2):  # a finished one is only shown again
        assert _report_of(*command) == out / "report.html"
    assert RunFolder(out / "contrastive").read_manifest()["outcome"]["steps"] == 3
    (out / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="not empty"):
        demo.run_demo(out, steps=3, seed=5)


class Stop(Callback):
    """Ctrl-C after the first step."""

    def on_step(self, step: int, values: object) -> None:
        raise TrainingStoppedError("stopped on request", 130)
