"""Numeric options of every verb: each has a range, and what lies outside is wrong usage, before any work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.testing import CliRunner

from recollect.cli.app import app
from recollect.cli.train import _SHORT as TRAIN_SETTINGS, train
from recollect.config.schema import Config


def _numeric_options() -> list[tuple[str, str, Any]]:
    """Every option of every verb that takes a number, with its range."""

    def commands(table: typer.Typer, prefix: str = "") -> Iterator[tuple[str, Any]]:
        for command in table.registered_commands:
            callback = command.callback
            assert callback is not None
            yield f"{prefix}{command.name or callback.__name__}", callback
        for group in table.registered_groups:
            assert group.typer_instance is not None
            yield from commands(group.typer_instance, f"{group.name} ")

    found = []
    for verb, callback in commands(app):
        for name, hint in get_type_hints(callback, include_extras=True).items():
            if get_origin(hint) is Annotated:
                kind, about = get_args(hint)[:2]
                if {int, float} & set(get_args(kind) or (kind,)):
                    found.append((verb, name, about))
    return found


def test_every_number_has_a_range_that_is_checked_before_work() -> None:
    options = _numeric_options()
    assert len(options) > 30
    # Those of training are settings, whose ranges are the schema's.
    of_the_schema = {short for short in TRAIN_SETTINGS if short != "max_pixels"}
    for verb, name, about in options:
        if verb != "train" or name not in of_the_schema:
            assert about.min is not None, f"{verb} --{name} has no lower limit"
            assert about.max is not None, f"{verb} --{name} has no upper limit"


def test_the_help_of_training_states_the_ranges_of_the_schema() -> None:
    hints = get_type_hints(train, include_extras=True)
    stated = 0
    for option, setting in TRAIN_SETTINGS.items():
        group, name = setting.split(".")[:2]
        about = getattr(Config(), group).__dataclass_fields__[name].metadata.get("range")
        shown = get_args(hints[option])[1]
        if about is not None and shown.min is None:
            low, high = "<" if about.above else "<=", "<" if about.below else "<="
            assert f"[{about.low}{low}x{high}{about.high}]" in (shown.metavar or ""), option
            stated += 1
    assert stated == 10


def test_numbers_out_of_range_are_wrong_usage() -> None:
    for value in ("nan", "inf", "-inf", "-1", "1e30", "x"):
        result = CliRunner().invoke(app, ["calibrate", "run", "--false-match-rate", value])
        assert result.exit_code == 2, result.output
