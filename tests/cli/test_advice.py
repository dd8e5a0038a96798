"""Advice that works: every option that a message names exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import recollect
from recollect.cli.app import app
from recollect.config.overrides import resolve
from recollect.config.schema import Config
from recollect.training import trainer
from recollect.training.outcome import Outcome
from recollect.training.run_folder import RunFolder

PACKAGE = Path(recollect.__file__).parent
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+\b")

OF_OTHERS = {"--nproc-per-node"}  # torchrun's


@cache
def verbs() -> dict[str, set[str]]:
    """Options by verb, ``data verify`` for one below another."""

    def of(command: Any, name: str) -> Iterator[tuple[str, set[str]]]:
        yield name, {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        for inner, below in getattr(command, "commands", {}).items():  # typer may bring a click of its own
            yield from of(below, f"{name} {inner}".strip())

    return {name: {*options, "--help"} for name, options in of(typer.main.get_command(app), "")}


@cache
def named() -> list[tuple[str, str]]:
    """Every option in a text of the package that is not a docstring, with the file it stands in."""
    found = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if not OPTION.search(text):
            continue
        tree = ast.parse(text)
        documentation = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
                found |= {(path.relative_to(PACKAGE).as_posix(), option) for option in OPTION.findall(node.value)}
    return sorted(found)


def test_every_option_that_a_message_names_exists() -> None:
    known = {option for options in verbs().values() for option in options} | OF_OTHERS
    assert not [(file, option) for file, option in named() if option not in known]


IN_EVERY_MODE = {"common/decode.py", "common/bad_images.py", "common/files.py", "data/image_set.py", "data/listing.py",
                 "inference/run_files.py", "models/weight_files.py", "training/memory_limit.py"}  # fmt: skip
"""Files whose messages ``train`` shows with ``--resume`` and ``--final`` too."""
ONLY_NEW = {"--batch-size", "--image-size"}
"""Named last, after an option that works in every mode: they make another training."""
VALUES = {"--max-pixels": "5000000000", "--root": "moved", "--chunk": "4", "--weights": "none"}


@pytest.mark.parametrize("option", sorted({o for file, o in named() if file in IN_EVERY_MODE} - ONLY_NEW))
@pytest.mark.parametrize("mode", ["--resume", "--final"])
def test_train_takes_the_advice_in_every_mode(
    option: str, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "moved").mkdir()
    run = RunFolder(tmp_path / "run")
    run.begin(resolve("folder", {"data.root": "." if option != "--root" else "gone"}), {"outcome": {"chosen_step": 3}})
    if mode == "--resume":
        run.update_manifest(outcome=None)
    reached: list[Config] = []
    monkeypatch.setattr(
        trainer, "_train", lambda config, *rest: reached.append(config) or Outcome(run.path, 0, 0, 0, {})
    )
    words = [option, VALUES[option]] if option in VALUES else [option]
    done = CliRunner().invoke(app, ["train", mode, "run", *words])
    assert len(reached) == 1, f"train {mode} run {' '.join(words)}: {done.output} {done.exception}"
