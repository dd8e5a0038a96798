from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from report.browser import Browser, browser
from report.report_runs import make_data, make_run


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """One browser for all tests; each sets the size and the colours it needs."""
    with browser() as opened:
        yield opened


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``data``, and the finished runs ``first`` (RS@k) and ``second`` (contrastive). Read only."""
    folder = tmp_path_factory.mktemp("report")
    root = make_data(folder / "data")
    make_run(root, folder / "first")
    make_run(root, folder / "second", **{"loss.name": "contrastive", "loss.options": {}})
    return folder


@pytest.fixture
def runs(made: Path, tmp_path: Path) -> Path:
    """A copy of both runs that a test may change; their data is that of ``made``."""
    for name in ("first", "second"):
        shutil.copytree(made / name, tmp_path / name)
    return tmp_path


@pytest.fixture
def moved(made: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A copy of the data, which a test may change, and a run on it."""
    data = Path(shutil.copytree(made / "data", tmp_path / "data"))
    return data, make_run(data, tmp_path / "run")
