"""The folder of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from recollect.common.errors import ConfigError
from recollect.training.run_folder import RunFolder


def test_a_run_that_never_began_leaves_its_place_free(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    assert RunFolder.create(tmp_path, "x").path == tmp_path
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="never written over"):
        RunFolder.create(tmp_path, "x")
