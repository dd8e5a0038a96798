"""Advice that works: every option that a message names exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

import recollect
from recollect.cli.main import app

OF_OTHERS = {"--nproc-per-node", "--logdir", "--raised"}  # torchrun's, TensorBoard's, and a colour of a page


def options(command: Any) -> Iterator[str]:
    for parameter in command.params:
        yield from (*parameter.opts, *parameter.secondary_opts)
    for below in getattr(command, "commands", {}).values():  # typer may bring a click of its own
        yield from options(below)


def test_every_option_that_a_message_names_exists() -> None:
    existing = {"--help", *options(typer.main.get_command(app))} | OF_OTHERS
    for path in sorted(Path(recollect.__file__).parent.rglob("*.py")):
        named = re.findall(r"(?<![\w-])--[a-z][a-z-]+\b", path.read_text(encoding="utf-8"))
        assert set(named) <= existing, path.name
