"""Help that does not wait, names the shell completes, output for scripts, silence when asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.running import run
from recollect.common import console
from recollect.config.recipes import available_recipes
from recollect.losses import available as losses
from training.small_runs import make_images

HEAVY = ("torch", "torchvision", "timm", "matplotlib", "numpy", "PIL", "yaml")
VERBS = ("demo", "train", "eval", "report", "embed", "search", "export", "recipes", "models", "losses", "data")


def start(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Python code in a process of its own, which has imported nothing yet."""
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path), "COLUMNS": "200", **variables}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


def test_help_imports_nothing_heavy_and_lists_do_not_wait_for_torch() -> None:
    calls = [*([*verb, "--help"] for verb in ([], *([verb] for verb in VERBS), ["data", "verify"]))]
    lists = [[verb, "--json"] for verb in ("losses", "models", "data", "recipes")]
    code = f"""
import sys
from typer.testing import CliRunner
from recollect.cli.main import app
for calls, heavy in (({calls!r}, {HEAVY!r}), ({lists!r}, ["torch"])):
    for words in calls:
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        assert not sys.modules.keys() & set(heavy), words
"""
    done = start(code)
    assert done.returncode == 0, done.stderr


def complete(line: str) -> list[str]:
    """What bash offers for the last word of ``line``."""
    code = "import sys; sys.argv = ['recollect']; from recollect.cli import main; main()"
    words = line.split(" ")
    done = start(code, _RECOLLECT_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1))
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("recollect train cars196/r50-512/", [n for n in available_recipes() if n.startswith("cars196/r50-512/")]),
        ("recollect train --loss s", [name for name in losses() if name.startswith("s")]),
        ("recollect eval --init lite", ["lite0-in1k"]),
        ("recollect train --set batch.si", ["batch.size="]),
    ],
)
def test_the_shell_completes_names(line: str, offered: list[str]) -> None:
    assert offered
    assert complete(line) == offered


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    make_images(tmp_path / "made", classes=4, each=4)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path / "cache"))
    yield (tmp_path / "made" / "train").rename(tmp_path / "photos")
    console.silent = False


TRAIN = ("train", "--data", "photos", "--init", "tiny", "--image-size", "16", "--steps", "2", "--watch-test")


def test_a_script_reads_json(photos: Path) -> None:
    plan = json.loads(run(*TRAIN, "--plan", "--json").stdout)
    assert (plan["batch"], plan["steps"], plan["init"], plan["image_size"]) == (8, 2, "tiny", 16)
    (size,) = (setting for setting in plan["chosen"] if setting["name"] == "batch.size")
    assert (size["value"], size["reason"][:22]) == (8, "2 classes × 4 images, ")
    done = run(*TRAIN, "--out", "run", "--json")
    outcome = json.loads(done.stdout)
    assert (outcome["steps"], outcome["folder"], outcome["model"]) == (2, "run", "run/model")
    assert set(outcome["metrics"]) == {"test"}
    assert "recollect: batch      8 images" in done.stderr  # the plan is beside the result, not in it
    again = json.loads(run("train", "--resume", "run", "--json").stdout)
    assert again == outcome

    result = json.loads(run("eval", "run", "--ks", "1,2", "--json").stdout)
    assert result == json.loads(next(Path("run/eval").glob("*/metrics.json")).read_text())
    assert result["metrics"]["r@1"] == pytest.approx(outcome["metrics"]["test"]["r@1"])
    run("embed", "run", "photos", "--out", "v.npz")
    actual = json.loads(run("search", "v.npz", "photos/train-00/0.png", "--top", "2", "--json").stdout)
    assert actual[0]["results"][0]["name"] == "train-00/0.png"
    assert json.loads(run("data", "verify", "folder", "photos", "--json").stdout)["ok"] is True
