from __future__ import annotations

from pathlib import Path

import pytest
from matrix_bench import InProcess

from recollect.studies import matrix_runs
from training.small_runs import make_images


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(matrix_runs, "ProcessPoolExecutor", InProcess)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    make_images(tmp_path / "data" / "patterns")
    make_images(tmp_path / "data" / "patterns", classes=6, split="test", seed=1)
    return tmp_path / "data"
