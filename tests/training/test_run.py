"""The folder of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from recollect.common.errors import ConfigError, DataError, StorageError
from recollect.common.files import new_folder, write_json
from recollect.config.schema import Config
from recollect.training.run import RunFolder


def test_only_an_empty_folder_is_free(tmp_path: Path) -> None:
    assert RunFolder.create(tmp_path, "x").path == tmp_path
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="never overwritten"):
        RunFolder.create(tmp_path, "x")


def test_a_run_begins_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunFolder.create(tmp_path / "run", "x")
    assert not run.path.exists()

    def full(*arguments: object) -> None:
        raise StorageError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "write_config", full)
        with pytest.raises(StorageError):
            run.begin(Config(), {"versions": {"recollect": "1"}})
    assert not list(tmp_path.iterdir())
    run.begin(Config(), {"versions": {"recollect": "1"}})
    assert sorted(path.name for path in run.path.iterdir()) == ["config.yaml", "manifest.json"]
    assert run.read_config() == Config()
    with pytest.raises(StorageError, match="not empty"), new_folder(run.path) as folder:
        # As a second process that saw the place free a moment before.
        RunFolder(folder).write_config(Config())


def test_a_truncated_configuration_is_refused(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.begin(Config(), {})
    lines = run.config_file.read_text().splitlines(keepends=True)
    for count in range(1, len(lines)):
        run.config_file.write_text("".join(lines[:count]))
        with pytest.raises(DataError, match="incomplete"):
            run.read_config()
    run.config_file.write_text("".join(lines[1:-1]))  # as former versions wrote it
    assert run.read_config() == Config()


def test_a_line_cut_short_is_dropped_with_a_remark(tmp_path: Path) -> None:
    run, remarks = RunFolder(tmp_path), list[str]()
    for step in (1, 2, 3):
        run.append_metrics({"kind": "step", "step": step, "loss": 0.5})
    with run.metrics_file.open("a") as file:
        file.write('{"kind": "st')
    run.truncate_records(2, remarks.append)
    assert [record["step"] for record in run.read_metrics()] == [1, 2]
    assert "last line" in remarks[0]
    run.append_metrics({"kind": "step", "step": 3, "loss": 0.5})
    assert len(run.read_metrics(pytest.fail)) == 3
