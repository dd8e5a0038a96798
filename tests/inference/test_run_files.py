"""A run folder as it is read, and where its images are after both moved."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from recollect.common.errors import ConfigError, DataError
from recollect.inference.run_files import RunFiles, absolute_roots, relative_roots
from recollect.training.trainer import train
from training.small_runs import make_images, small_config


@pytest.fixture
def together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``work/images`` and ``work/runs/one``, trained by a relative path."""
    work = tmp_path / "work"
    make_images(work / "images", classes=4)
    monkeypatch.chdir(work)
    train(small_config(Path("images"), **{"run.epochs": 1}), Path("runs/one"))
    return work


def test_roots_are_absolute(together: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    written = yaml.safe_load((together / "runs" / "one" / "config.yaml").read_text())
    assert written["data"]["root"] == str(together / "images")
    monkeypatch.chdir(tmp_path)
    assert RunFiles(together / "runs" / "one").read_config().data.root == str(together / "images")


def test_runs_and_images_moved_together(together: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.move(together, tmp_path / "elsewhere")
    run = RunFiles(tmp_path / "elsewhere" / "runs" / "one")
    assert run.read_config().data.root == str(tmp_path / "elsewhere" / "images")
    shutil.move(tmp_path / "elsewhere" / "images", tmp_path / "photos")
    assert run.read_config().data.root == str(together / "images"), "what is not found is named as it was written"


def test_paths_between(tmp_path: Path) -> None:
    data = small_config(Path("images")).data
    assert absolute_roots(data).root == os.path.abspath("images")  # noqa: PTH100
    assert absolute_roots(replace(data, root=None)).root is None
    assert relative_roots(replace(data, root=str(tmp_path / "a")), tmp_path / "runs" / "x") == {"root": "../../a"}


def test_damaged_files_are_sentences(together: Path) -> None:
    run = RunFiles(together / "runs" / "one")
    assert run.finished
    run.config_file.write_text("data: [")
    with pytest.raises(ConfigError, match="line 1"):
        run.read_config()
    run.config_file.write_text("")
    with pytest.raises(DataError, match="incomplete"):
        run.read_config()
    run.manifest_file.write_text("3")
    with pytest.raises(DataError, match="not a dict"):
        run.read_manifest()


def test_an_empty_group_of_a_manifest_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps({"plan": None, "outcome": None, "started": "today"}))
    assert RunFiles(tmp_path).read_manifest() == {"started": "today"}
