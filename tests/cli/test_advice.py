"""Advice that works: every option that a message names exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import typer

import recollect
from recollect.cli.main import app

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
    result = set()
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
                result |= {(path.relative_to(PACKAGE).as_posix(), option) for option in OPTION.findall(node.value)}
    return sorted(result)


def test_every_option_that_a_message_names_exists() -> None:
    expected = {option for options in verbs().values() for option in options} | OF_OTHERS
    assert not [(file, option) for file, option in named() if option not in expected]
