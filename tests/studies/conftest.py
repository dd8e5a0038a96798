from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from matrix_bench import BENCH, InProcess

from recollect.studies import matrix_runs
from recollect.studies.claims import asymmetric
from recollect.studies.matrix import Matrix
from training.small_runs import make_images


def _here(patch: pytest.MonkeyPatch) -> None:
    patch.setenv("OMP_NUM_THREADS", "1")
    patch.setattr(matrix_runs, "ProcessPoolExecutor", InProcess)


def _make_data(folder: Path) -> Path:
    make_images(folder / "patterns")
    make_images(folder / "patterns", classes=6, split="test", seed=1)
    return folder


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    _here(monkeypatch)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return _make_data(tmp_path / "data")


@pytest.fixture(scope="session")
def _finished(tmp_path_factory: pytest.TempPathFactory) -> Matrix:
    folder = tmp_path_factory.mktemp("finished")
    study = Matrix(folder / "study", "small", _make_data(folder / "data"))
    with pytest.MonkeyPatch.context() as patch:
        _here(patch)
        assert matrix_runs.run_matrix(study, [asymmetric(BENCH)], jobs=1)
    return study


@pytest.fixture
def finished_study(_finished: Matrix, tmp_path: Path) -> Matrix:
    """A study of the claim ``asymmetric`` whose runs are all done: a copy that a test may change."""
    return replace(_finished, out=Path(shutil.copytree(_finished.out, tmp_path / "finished")))
