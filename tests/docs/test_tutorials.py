"""The tutorials run as written, from an empty folder: every ``sh`` block in order, then the Python blocks.

``recollect`` is answered by a process that has imported everything (``preloaded.py``). That it starts by itself is for
``test_wheel.py`` and ``cli/test_first_minutes.py`` to say.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

TUTORIALS = Path(__file__).resolve().parents[2] / "docs" / "tutorials"
SERVER = Path(__file__).with_name("preloaded.py")
SHIM = '#!/bin/sh\nexec "{python}" -I -S "{server}" "{place}" "$@"\n'


def _blocks(page: Path, language: str) -> list[str]:
    found = re.finditer(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [match.group(1) for match in found]


def _files(folder: Path) -> None:
    """What a reader downloads: the scripts beside the pages."""
    for script in TUTORIALS.glob("*.py"):
        shutil.copy(script, folder)


def _of_this_python() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def server() -> Iterator[Path]:
    """Where the process that runs ``recollect`` is asked."""
    with tempfile.TemporaryDirectory(prefix="tutorials", dir="/tmp") as folder:  # the path of a socket must be short
        place = Path(folder) / "socket"
        command = [sys.executable, str(SERVER), "serve", str(place)]
        with subprocess.Popen(command, env=_of_this_python(), stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield place
            process.kill()


def _environment(folder: Path, server: Path) -> dict[str, str]:
    """A shell in which ``recollect`` and ``python`` are those of this environment."""
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    for name, text in (("recollect", SHIM), ("python", '#!/bin/sh\nexec "{python}" "$@"\n')):
        (bin_folder / name).write_text(text.format(python=sys.executable, server=SERVER, place=server))
        (bin_folder / name).chmod(0o755)
    return {**_of_this_python(), "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}"}


def _run(command: list[str], folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


@pytest.mark.release
@pytest.mark.parametrize("page", sorted(TUTORIALS.glob("*.md")), ids=lambda page: page.stem)
def test_tutorial_runs_from_an_empty_folder(page: Path, server: Path, tmp_path: Path) -> None:
    environment, work = _environment(tmp_path, server), tmp_path / "work"
    work.mkdir()
    _files(work)
    blocks = _blocks(page, "sh")
    assert blocks
    for block in blocks:
        said = _run(["bash", "-euc", block], work, environment)
        assert "not done" not in said, "a comparison ends with every row"
        assert "Warning:" not in said, "remarks are shown once, as sentences"
    for block in _blocks(page, "python"):
        _run([sys.executable, "-c", block], work, environment)


@pytest.mark.release
def test_script_with_cells_runs_and_shows_pictures(tmp_path: Path) -> None:
    _files(tmp_path)
    printed = _run([sys.executable, "shop.py"], tmp_path, _of_this_python())
    assert "corto-jar.jpg" in printed
    assert (tmp_path / "neighbours.png").stat().st_size > 10_000


def test_python_of_the_pages_is_not_left_out() -> None:
    """A block in a language that no test runs would rot."""
    for page in TUTORIALS.glob("*.md"):
        languages = set(re.findall(r"^```(\w+)$", page.read_text(encoding="utf-8"), re.MULTILINE))
        assert languages <= {"sh", "python", "yaml"}, page.name
