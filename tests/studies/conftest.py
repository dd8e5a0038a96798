from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matrix_bench import BENCH, make_patterns, run_here, two_cells

from recollect.data import load
from recollect.studies.protocol import Bench, Cell, Matrix
from recollect.studies.runner import run_matrix
from recollect.training import build


def _bench_on(data: Path) -> Bench:
    return replace(BENCH, settings={**BENCH.settings, "data.root": str(data)})


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    run_here(monkeypatch)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return make_patterns(tmp_path / "patterns")


@pytest.fixture
def bench(data: Path) -> Bench:
    return _bench_on(data)


@pytest.fixture(scope="session")
def _finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Matrix, list[Cell]]:
    folder = tmp_path_factory.mktemp("finished")
    study, cells = Matrix(folder / "study"), two_cells(_bench_on(make_patterns(folder / "patterns")))
    with pytest.MonkeyPatch.context() as patch:
        run_here(patch)
        assert run_matrix(study, cells, jobs=1)
    return study, cells


@pytest.fixture
def finished_study(_finished: tuple[Matrix, list[Cell]], tmp_path: Path) -> tuple[Matrix, list[Cell]]:
    """A study of two cells whose runs are all done, a copy that a test may change; and its cells."""
    study, cells = _finished
    return replace(study, out=Path(shutil.copytree(study.out, tmp_path / "finished"))), cells


@pytest.fixture
def peeking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every training asks for test images too."""
    honest = build.load_sets

    def load_sets(config: Any, *more: Any) -> Any:
        load(config.data.name, config.data.root, config.data.test_split)
        return honest(config, *more)

    monkeypatch.setattr("recollect.training.build.load_sets", load_sets)
