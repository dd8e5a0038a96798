"""The tutorials run as written, from an empty folder: every ``sh`` block in order, then the Python blocks."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TUTORIALS = Path(__file__).resolve().parents[2] / "docs" / "tutorials"
SHIM = '#!/bin/sh\nexec "{python}" {options} "$@"\n'


def _blocks(page: Path, language: str) -> list[str]:
    result = re.finditer(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [match.group(1) for match in result]


def _files(folder: Path) -> None:
    """What a reader downloads: the scripts beside the pages."""
    for script in TUTORIALS.glob("*.py"):
        shutil.copy(script, folder)


def _of_this_python() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "OMP_NUM_THREADS": "1"}


def _environment(folder: Path) -> dict[str, str]:
    """A shell in which ``recollect`` and ``python`` are those of this environment."""
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    for name, options in (("recollect", "-m recollect"), ("python", "")):
        (bin_folder / name).write_text(SHIM.format(python=sys.executable, options=options))
        (bin_folder / name).chmod(0o755)
    return {**_of_this_python(), "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}"}


def _run(command: list[str], folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


@pytest.mark.release
@pytest.mark.parametrize("page", sorted(TUTORIALS.glob("*.md")), ids=lambda page: page.stem)
def test_tutorial_runs_from_an_empty_folder(page: Path, tmp_path: Path) -> None:
    environment, work = _environment(tmp_path), tmp_path / "work"
    work.mkdir()
    _files(work)
    blocks = _blocks(page, "sh")
    assert blocks
    for block in blocks:
        message = _run(["bash", "-euc", block], work, environment)
        assert "not done" not in message, "a comparison ends with every row"
        assert "Warning:" not in message, "remarks are shown once, as sentences"
    for block in _blocks(page, "python"):
        _run([sys.executable, "-c", block], work, environment)


@pytest.mark.release
def test_script_with_cells_runs_and_shows_pictures(tmp_path: Path) -> None:
    _files(tmp_path)
    printed = _run([sys.executable, "shop.py"], tmp_path, _of_this_python())
    assert "corto-jar.jpg" in printed
    assert (tmp_path / "neighbours.png").stat().st_size > 10_000
