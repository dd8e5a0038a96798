"""The wheel: built from the sources, installed into an empty environment elsewhere, and used there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from recollect import __version__

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "recollect"

pytestmark = pytest.mark.slow


def _run(*command: str | Path, where: Path) -> str:
    """A command outside the project, without anything that could lead back into it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "RECOLLECT"))}
    environment |= {"RECOLLECT_CACHE": str(where / "cache"), "OMP_NUM_THREADS": "1", "PIP_NO_INDEX": "1"}
    done = subprocess.run(
        [str(part) for part in command], cwd=where, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sources, out = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    shutil.copytree(ROOT / "src", sources / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    (sources / "tests").mkdir()  # beside the package, as in the project
    (sources / "tests" / "__init__.py").touch()
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", out, sources]
    _run(*build, where=out)
    (made,) = out.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def home(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an environment in ``env`` that has the wheel, and the packages it needs from where they are."""
    here = tmp_path_factory.mktemp("home")
    _run(sys.executable, "-m", "venv", "--without-pip", here / "env", where=here)
    (libraries,) = (here / "env").glob("lib/python*/site-packages")
    # Packages are found behind those installed here. Their own .pth files are not read, an editable recollect's neither.
    (libraries / "needed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    install = [sys.executable, "-m", "pip", "--python", here / "env" / "bin" / "python", "install", "--quiet"]
    _run(*install, "--no-deps", wheel, where=here)
    generator = np.random.default_rng(0)
    for label in range(4):
        (here / "photos" / str(label)).mkdir(parents=True)
        for number in range(4):
            pixels = generator.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(here / "photos" / str(label) / f"{number}.png")
    return here


def test_it_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    kept = {name for name in names if not name.startswith(f"recollect-{__version__}.dist-info/")}
    suffixes = {".py", ".yaml", ".css", ".md", ".csv", ".js", ".html", ".svg", ".typed", ".xz"}
    expected = {
        path.relative_to(PACKAGE.parent).as_posix() for path in PACKAGE.rglob("*") if path.suffix in suffixes
    } | {"recollect/py.typed"}
    assert kept == expected
    assert {"recollect/recipes/sop.yaml", "recollect/recipes/_as_released.yaml", "recollect/report/style.css"} <= kept


@pytest.mark.release
def test_it_is_used_outside_the_project(home: Path) -> None:
    command = home / "env" / "bin" / "recollect"
    assert _run(command, "--version", where=home) == f"recollect {__version__}\n"
    assert (
        _run(home / "env" / "bin" / "python", "-m", "recollect", "--version", where=home)
        == f"recollect {__version__}\n"
    )
    place = _run(home / "env" / "bin" / "python", "-c", "import recollect; print(recollect.__file__)", where=home)
    assert Path(place.strip()).is_relative_to(home / "env")
    assert "sop/r50-512/rsk" in _run(command, "recipes", where=home)
    assert "recall_at_k" in _run(command, "losses", where=home)

    small = ("--init", "tiny", "--image-size", "16", "--steps", "2", "--out", "run", "--json", "--quiet")
    outcome = json.loads(_run(command, "train", "--data", "photos", *small, where=home))
    assert outcome["steps"] == 2
    assert (home / "run" / "model" / "model.safetensors").is_file()
    assert _run(command, "report", "run", "--quiet", where=home) == "run/report.html\n"
    page = (home / "run" / "report.html").read_text(encoding="utf-8")
    assert (PACKAGE / "report" / "style.css").read_text(encoding="utf-8").splitlines()[-1] in page
