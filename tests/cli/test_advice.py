"""Advice that works: every option that a message names exists, on every verb that can show the message."""

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
from recollect.config.free_settings import WITH_WEIGHTS
from recollect.config.overrides import resolve
from recollect.config.schema import Config
from recollect.training import trainer
from recollect.training.outcome import Outcome
from recollect.training.run_folder import RunFolder

PACKAGE = Path(recollect.__file__).parent
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+\b")

READS_FOLDERS = (
    "train",
    "tune",
    "compare",
    "eval",
    "embed",
    "whiten",
    "index",
    "calibrate",
    "duplicates",
    "search",
    "data verify",
)
DECODES = (*READS_FOLDERS, "serve", "report")
"""With a folder or files that a user names."""
TRAINS = ("train", "tune", "compare")
BY_RECIPE = ("reproduce",)
"""Reads published data sets, which are to be repaired, as its study says."""
READS_NO_IMAGES = ("", "data", "demo", "export", "losses", "models", "paper", "publish", "recipes")
WHO_SHOWS: dict[tuple[str, str], tuple[str, ...]] = {
    ("common/decode.py", "--max-pixels"): DECODES,
    ("data/image_set.py", "--allow-outside"): READS_FOLDERS,
    ("common/files.py", "--allow-outside"): READS_FOLDERS,
    ("common/bad_images.py", "--skip-bad"): (
        *("train", "tune", "compare", "eval", "embed", "whiten", "search", "report"),
    ),
    ("data/listing.py", "--skip-bad"): ("train", "tune", "compare", "eval", "whiten", "report"),
    ("data/image_files.py", "--allow-outside"): ("index", "calibrate", "duplicates", "search"),
    ("data/image_files.py", "--skip-bad"): ("embed",),
    ("inference/run_files.py", "--root"): ("eval", "train"),
    ("report/catalogue.py", "--model"): ("search",),
    ("search/calibrating.py", "--model"): ("calibrate",),
    ("search/encoder.py", "--model"): ("index", "search", "serve", "calibrate"),
    ("search/opened_index.py", "--model"): ("index", "search", "serve", "calibrate"),
    ("search/thresholds.py", "--false-match-rate"): ("calibrate",),
    ("config/automatic.py", "--freeze"): ("train",),  # reasons in its plan
    ("config/automatic.py", "--set"): TRAINS,
    ("config/automatic.py", "--steps"): ("train",),
    ("config/overrides.py", "--data"): TRAINS,
    ("config/overrides.py", "--set"): TRAINS,
    ("config/recipe_files.py", "--data"): TRAINS,
    ("step/chunking.py", "--set"): TRAINS,
    ("step/team.py", "--device"): ("train",),
    ("training/build.py", "--recipe"): ("eval",),
    ("training/build.py", "--steps"): ("train",),
    ("training/estimate.py", "--final"): ("train",),
    ("training/estimate.py", "--image-size"): ("train",),
    ("training/estimate.py", "--test-share"): ("train",),
    ("training/last_layer.py", "--steps"): ("train",),
    ("training/memory_limit.py", "--batch-size"): ("train",),  # with the settings, which --set takes on other verbs
    ("training/memory_limit.py", "--chunk"): ("train",),
    ("training/memory_limit.py", "--image-size"): ("train",),
    ("training/outcome.py", "--final"): ("train",),
    ("training/outcome.py", "--resume"): ("train",),
    ("training/resuming.py", "--max-pixels"): ("train",),
    ("training/resuming.py", "--resume"): ("train",),
    ("training/resuming.py", "--trust"): ("",),
    ("training/resuming.py", "--weights"): ("train",),
    ("training/run_folder.py", "--out"): ("train",),
    ("training/run_folder.py", "--resume"): ("train",),
    **{("config/free_settings.py", option): ("train",) for option in WITH_WEIGHTS.values() if option},
    ("cli/models.py", "--download"): ("train", "embed", "eval"),  # lists that say what to type next
    ("cli/models.py", "--init"): ("train", "eval"),
    ("cli/recipes.py", "--recipe"): ("eval",),
    ("cli/recipes.py", "--root"): ("train", "eval"),
}
"""Verbs that can show a message of a module below the command line. Modules of the ``COMPLETE`` rooms, which several verbs
use, are all listed. An option that is not listed must exist on at least one verb, and an option that a file in ``cli`` names
must exist on a verb of that file."""
COMPLETE = ("config/", "step/", "training/")

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


@pytest.mark.parametrize(("file", "option"), named(), ids=lambda value: str(value))
def test_an_option_that_is_named_exists(file: str, option: str) -> None:
    known = verbs()
    if option in OF_OTHERS:
        return
    if (file, option) in WHO_SHOWS:
        lacking = [verb for verb in WHO_SHOWS[file, option] if option not in known[verb]]
        assert not lacking, f"{file} names {option}, which {', '.join(lacking)} has not"
    elif file.startswith("cli/") and Path(file).stem in known:
        stem = Path(file).stem
        assert any(
            option in options for verb, options in known.items() if verb in ("", stem) or verb.startswith(f"{stem} ")
        )
    else:
        assert any(option in options for options in known.values()), f"{file} names {option}, which no verb has"


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


def test_messages_that_several_verbs_show_are_in_the_table() -> None:
    """One verb with the option is not enough there: ``compare`` once advised an option that only ``train`` has."""
    listed = {row for row in named() if row[0].startswith(COMPLETE) and row[1] not in OF_OTHERS}
    assert listed <= set(WHO_SHOWS)


def test_the_table_has_no_row_for_nothing() -> None:
    assert set(WHO_SHOWS) <= set(named())


def test_the_table_knows_every_verb() -> None:
    """A verb that is added says which images it reads, and has the options that their messages name."""
    assert sorted((*DECODES, *BY_RECIPE, *READS_NO_IMAGES)) == sorted(verbs())
