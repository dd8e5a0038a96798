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

import recollect
from recollect.cli.app import app

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
    "data verify",
)
DECODES = (*READS_FOLDERS, "search", "serve", "report")
"""With a folder or files that a user names."""
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
    ("data/image_files.py", "--skip-bad"): ("embed",),
    ("inference/test_sets.py", "--root"): ("eval",),
    ("search/thresholds.py", "--false-match-rate"): ("calibrate",),
    ("cli/models.py", "--download"): ("train", "embed", "eval"),  # lists that say what to type next
    ("cli/models.py", "--init"): ("train", "eval"),
    ("cli/recipes.py", "--recipe"): ("eval",),
    ("cli/recipes.py", "--root"): ("train", "eval"),
}
"""Verbs that can show a message of a module below the command line. An option that is not listed here must exist on one
verb at least; one that a file of the command line names, on a verb of that file."""

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


def test_the_table_has_no_row_for_nothing() -> None:
    assert set(WHO_SHOWS) <= set(named())


def test_the_table_knows_every_verb() -> None:
    """A verb that is added says which images it reads, and has the options that their messages name."""
    assert sorted((*DECODES, *BY_RECIPE, *READS_NO_IMAGES)) == sorted(verbs())
