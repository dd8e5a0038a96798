"""A trial is resumed in its folder only if the run there is that trial."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from recollect.config.resolve import resolve
from recollect.config.schema import Config
from recollect.training.run_folder import RunFolder
from recollect.tuning.trial import ForeignRunError, begin_or_resume


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Config:
    """What a study asks for, with settings left to be chosen; trainings are only counted."""
    config = resolve(None, {"data.name": "glyphs", "optimizer.lr": 0.01, "run.steps": 3, "run.epochs": None})
    assert config.data.augmentation == "auto"
    monkeypatch.setattr("recollect.tuning.trial.train", lambda *given, **options: options.get("resume"))
    return config


def begun(config: Config, path: Path) -> None:
    path.mkdir(parents=True)
    RunFolder(path).write_config(config)


def test_a_run_says_what_automatic_settings_came_to(asked: Config, tmp_path: Path) -> None:
    """As in a study that was interrupted: the run's own configuration has no "auto" any more."""
    begun(replace(asked, data=replace(asked.data, augmentation="none")), tmp_path / "run")
    assert begin_or_resume(tmp_path / "run", asked) == tmp_path / "run"


def test_a_run_of_other_settings_is_refused(asked: Config, tmp_path: Path) -> None:
    others = {
        "rate": replace(asked, optimizer=replace(asked.optimizer, lr=0.02)),
        "seed": replace(asked, run=replace(asked.run, seed=7)),
        "code": replace(asked, data=replace(asked.data, augmentation="evil.py:Augmentation")),
    }
    for name, other in others.items():
        begun(other, tmp_path / name)
        with pytest.raises(ForeignRunError, match="other settings") as refused:
            begin_or_resume(tmp_path / name, asked)
        assert "{" not in str(refused.value), "in words"
