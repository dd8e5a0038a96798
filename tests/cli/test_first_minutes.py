"""Help that does not wait, names the shell completes, output for scripts, silence when asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from recollect.cli.main import app
from recollect.common import console
from recollect.config.recipes import available_recipes
from recollect.losses import available as losses
from recollect.models.zoo import ZOO

HEAVY = ("torch", "torchvision", "timm", "matplotlib", "numpy", "PIL", "yaml")
VERBS = ("demo", "train", "eval", "report", "embed", "search", "export", "recipes", "models", "losses", "data")


def start(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Python code in a process of its own, which has imported nothing yet."""
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path), "COLUMNS": "200", **variables}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


def test_help_imports_nothing_heavy() -> None:
    calls = [[], *([verb] for verb in VERBS), ["data", "verify"]]
    code = f"""
import sys
from typer.testing import CliRunner
from recollect.cli.main import app
for words in {calls!r}:
    done = CliRunner().invoke(app, [*words, "--help"])
    assert done.exit_code == 0, done.output
print(sorted(name for name in {HEAVY!r} if name in sys.modules))
"""
    done = start(code)
    assert done.stdout == "[]\n", done.stdout + done.stderr


@pytest.mark.parametrize("verb", ["losses", "models", "data", "recipes"])
def test_lists_do_not_wait_for_torch(verb: str) -> None:
    code = f"""
import sys
from typer.testing import CliRunner
from recollect.cli.main import app
assert CliRunner().invoke(app, [{verb!r}, "--json"]).exit_code == 0
print("torch" in sys.modules)
"""
    assert start(code).stdout == "False\n"


def test_an_index_opens_without_torchvision(tmp_path: Path) -> None:
    code = f"""
import sys
from recollect.search.stores.base import open_store
from recollect.search.stores.base import NoIndexError
try:
    open_store({str(tmp_path / "no.index")!r})
except NoIndexError:
    print("recollect.search.stores.sqlite" in sys.modules, "torchvision" in sys.modules)
"""
    done = start(code)
    assert done.stdout == "True False\n", done.stdout + done.stderr


def test_the_order_of_the_verbs_is_that_of_the_work() -> None:
    text = CliRunner().invoke(app, ["--help"]).output
    places = [text.index(f"│ {verb} ") for verb in VERBS]
    assert places == sorted(places)


@pytest.mark.parametrize("verb", VERBS)
def test_each_option_of_a_verb_is_explained(verb: str) -> None:
    import typer.main

    command: Any = typer.main.get_command(app).commands[verb]  # type: ignore[attr-defined]
    assert command.help
    options = [parameter for parameter in command.params if parameter.param_type_name == "option"]
    assert [option.name for option in options if not option.help] == []


def complete(line: str) -> list[str]:
    """What bash offers for the last word of ``line``."""
    code = "import sys; sys.argv = ['recollect']; from recollect.cli import main; main()"
    words = line.split(" ")
    done = start(code, _RECOLLECT_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1))
    assert done.stderr == ""
    return done.stdout.split()


def test_the_shell_completes_verbs_and_options() -> None:
    assert complete("recollect re") == ["report", "recipes"]
    assert "--batch-size" in complete("recollect train --b")


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        (
            "recollect train cars196/r50-512/",
            [name for name in available_recipes() if name.startswith("cars196/r50-512/")],
        ),
        ("recollect recipes gldv1/", ["gldv1/r101/sap", "gldv1/r101/rsk", "gldv1/r101/rsk-simix"]),
        ("recollect train --loss s", [name for name in losses() if name.startswith("s")]),
        ("recollect losses arc", ["arcface"]),
        ("recollect models clip2b", [name for name in ZOO if name.startswith("clip2b")]),
        ("recollect eval --init lite", ["lite0-in1k"]),
        ("recollect data verify inat", ["inaturalist"]),
        ("recollect train --set batch.si", ["batch.size="]),
    ],
)
def test_the_shell_completes_names(line: str, offered: list[str]) -> None:
    assert offered
    assert complete(line) == offered


def test_completion_can_be_shown_for_a_shell() -> None:
    code = "import sys; sys.argv = ['recollect', '--show-completion', 'bash']; from recollect.cli import main; main()"
    done = start(code, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert "_RECOLLECT_COMPLETE=complete_bash" in done.stdout
    assert subprocess.run(["bash", "-n"], input=done.stdout, text=True, check=False).returncode == 0


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    generator = np.random.default_rng(0)
    for label in range(4):
        (tmp_path / "photos" / str(label)).mkdir(parents=True)
        for number in range(4):
            pixels = generator.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / str(label) / f"{number}.png")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path / "cache"))
    yield tmp_path / "photos"
    console.silent = False


def run(*arguments: str) -> Any:
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 0, done.output
    return done


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
    found = json.loads(run("search", "v.npz", "photos/0/0.png", "--top", "2", "--json").stdout)
    assert found[0]["results"][0]["name"] == "0/0.png"
    assert json.loads(run("data", "verify", "folder", "photos", "--json").stdout)["ok"] is True


def test_json_of_models() -> None:
    rows = json.loads(run("models", "--json").stdout)
    assert [row["name"] for row in rows] == list(ZOO)
    one = json.loads(run("models", "lite0-in1k", "--json").stdout)
    assert one["feature_dim"] == 1280
    assert Path(one["weights"]).is_file()


def test_quiet_leaves_the_result(photos: Path) -> None:
    done = run(*TRAIN, "--out", "a", "--quiet")
    assert [line.split()[0] for line in done.output.splitlines()] == ["verdict", "test", "model"]
    done = run("-q", *TRAIN, "--out", "b")
    assert [line.split()[0] for line in done.output.splitlines()] == ["verdict", "test", "model"]
    assert "batch " in run(*TRAIN, "--out", "c").output
    assert not console.silent
    assert run("embed", "a", "photos", "--out", "v.npz", "-q").output == ""
    done = run("eval", "v.npz", "--json", "-q")
    assert done.stderr == ""
    assert json.loads(done.stdout)["metrics"]
    assert run("report", "a", "--images", "8", "-q").stdout.strip() == "a/report.html"
