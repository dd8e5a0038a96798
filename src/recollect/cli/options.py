"""Options that several commands share (``--json``, ``--quiet``, ``--device``), shell completion, and messages.

Messages of the library are log records; ``show_remarks`` attaches the handler that prints them. Like every file of this
package it imports nothing heavy at the top; completion reads tables that need no torch.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import typer

from recollect.common.errors import ConfigError, InputError
from recollect.common.text import printable


class _Remarks(logging.Handler):
    """Prints log messages of the library: to standard output, or to standard error if a script reads the output.

    Warnings always go to standard error. A terminal has a live line, so records of progress are left out there.
    """

    aside = False

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record."""
        if record.levelno >= logging.WARNING:
            typer.echo(f"recollect: {printable(record.getMessage())}", err=True)
        elif getattr(record, "in_result", False):
            return  # shown with the result
        elif getattr(record, "result", False) and not self.aside:
            typer.echo(printable(record.getMessage()))
        elif not (getattr(record, "progress", False) and (sys.stderr if self.aside else sys.stdout).isatty()):
            (remark_aside if self.aside else remark)(record.getMessage())


_remarks = _Remarks(logging.INFO)


def show_remarks() -> Callable[[], None]:
    """Print the library's messages from now on; call the result to stop."""
    library = logging.getLogger("recollect")
    before, _remarks.aside = library.level, False
    library.setLevel(logging.INFO)
    library.addHandler(_remarks)

    def end() -> None:
        library.removeHandler(_remarks)
        library.setLevel(before)

    return end


def remarks_aside(aside: bool = True) -> None:
    """Print messages on standard error: for commands whose standard output a script reads, and with ``--json``."""
    _remarks.aside = aside


def remark(line: str) -> None:
    """Print messages such as the plan and the paths of written files. Silent with ``--quiet``."""
    from recollect.common.console import is_quiet

    if not is_quiet():
        typer.echo(printable(line))


def remark_aside(line: str) -> None:
    """The same on standard error, for commands whose standard output a script reads."""
    from recollect.common.console import is_quiet

    if not is_quiet():
        typer.echo(f"recollect: {printable(line)}", err=True)


def print_json(value: Any) -> None:
    """Print plain values as JSON, by one process. ASCII only: file names need not be text that a terminal can show."""
    import json
    import os

    if os.environ.get("RANK", "0") == "0":  # one of the processes that torchrun started prints
        typer.echo(json.dumps(value, indent=2, default=str))


def show_plan(plan: Any, as_json: bool) -> None:
    """Print a plan, which has ``lines`` and ``as_dict``."""
    print_json(plan.as_dict()) if as_json else typer.echo(printable("\n".join(plan.lines())))


def _quiet(value: bool) -> bool:
    if value:  # may also be given before the command, so it is never reset here
        from recollect.common.console import set_quiet

        set_quiet(True)
    return value


def _max_pixels(value: int | None) -> int | None:
    if value is not None:
        from recollect.common.images import set_max_pixels

        set_max_pixels(value)
    return value


def _device(value: str | None) -> str | None:
    if value is None:
        return None
    from recollect.common.machine import usable_device

    return str(usable_device(value, "--device"))


def _beginning(names: Iterable[str], start: str) -> list[str]:
    return [name for name in names if name.startswith(start)]


def complete_recipe(incomplete: str) -> list[str]:
    """Recipes whose name starts with the given text."""
    from recollect.config.recipe_files import available_recipes

    return _beginning(available_recipes(), incomplete)


def complete_loss(incomplete: str) -> list[str]:
    """Losses whose name starts with the given text."""
    from recollect.losses import available

    return _beginning(available(), incomplete)


def complete_model(incomplete: str) -> list[str]:
    """Initialisations whose name starts with the given text."""
    from recollect.common.plugins import installed
    from recollect.models.zoo import ZOO

    return _beginning([*ZOO, *installed("backbone")], incomplete)


def complete_logger(incomplete: str) -> list[str]:
    """Loggers whose name starts with the given text."""
    from recollect.common.plugins import installed

    return _beginning(["tensorboard", "wandb", "mlflow", *installed("logger")], incomplete)


def complete_data(incomplete: str) -> list[str]:
    """Data sets whose name starts with the given text."""
    from recollect.common.plugins import installed
    from recollect.data import available

    return _beginning([*available(), *installed("data set")], incomplete)


def complete_setting(incomplete: str) -> list[str]:
    """Settings whose name starts with the given text, up to the equals sign."""
    from recollect.config.overrides import known_keys

    return [f"{key}=" for key in _beginning(known_keys(), incomplete)]


def data_settings(skip_bad: bool, max_pixels: int | None) -> dict[str, Any]:
    """Options about a folder of images as settings."""
    chosen: dict[str, Any] = {"data.on_bad_image": "skip"} if skip_bad else {}
    return chosen | ({} if max_pixels is None else {"data.max_pixels": max_pixels})


def with_set(options: dict[str, Any], pairs: Iterable[str] | None) -> dict[str, Any]:
    """Settings from options, as they were given, and from ``--set``, whose values are YAML.

    Raises:
        ConfigError: a setting is given twice, so that one of the two would have no effect.
    """
    from recollect.config.overrides import parse_setting

    for pair in pairs or ():
        key, value = parse_setting(pair)
        if key in options:
            raise ConfigError(f"--set {pair}: {key} is already given, by another option or --set: keep one of them.")
        options = {**options, key: value}
    return options


def recipe_or_default(recipe: str | None, data: str | None, root: str | None) -> str | None:
    """The recipe of a verb that trains: without one and without images, that of the embedded characters.

    Raises:
        ConfigError: there is only a root, which those characters do not have.
    """
    if recipe is None and data is None and root is not None:
        raise ConfigError(f"--root {root} is the folder of which data set? For your own images: --data {root}.")
    return "glyphs" if recipe is None and data is None else recipe


def parse_pairs(pairs: Iterable[str], option: str) -> dict[str, list[str]]:
    """``["label=shoe", "label=boot"]`` to ``{"label": ["shoe", "boot"]}``.

    Raises:
        InputError: an entry has no equals sign.
    """
    found: dict[str, list[str]] = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign or not name.strip():
            raise InputError(f"{option} {pair!r}: write it as name=value, e.g. {option} label=shoe.")
        found.setdefault(name.strip(), []).append(value)
    return found


_typed: dict[str, str] = {}
"""The options of this command that the user typed, by parameter: ``{"as_json": "--json"}``."""


def remember_typed(parameters: Iterable[Any]) -> None:
    """Tell ``refuse_unused`` which options the user typed."""
    _typed.clear()
    _typed.update({parameter.name: max(parameter.opts, key=len) for parameter in parameters})


def refuse_unused(unused: bool, because: str, *parameters: str) -> None:
    """Refuse options that would have no effect, if ``unused``.

    Raises:
        InputError: the user typed some of them.
    """
    if found := [_typed[name] for name in parameters if unused and name in _typed]:
        them = "it" if len(found) == 1 else "them"
        raise InputError(f"{' and '.join(found)} would have no effect {because}: remove {them}.")


def is_index(target: str) -> bool:
    """Whether a target is an index, not a folder or a model."""
    from recollect.search import addresses

    return addresses.is_index(target)


def given(**options: Any) -> dict[str, Any]:
    """The options that the user gave; the called function has defaults for the others."""
    return {name: value for name, value in options.items() if value is not None}


def finite(value: float | None) -> float | None:
    """Refuse NaN, which is neither below nor above a limit."""
    if value is not None and value != value:
        raise typer.BadParameter("nan is not a valid number.")
    return value


# Every numeric option has a range, which is checked before any work begins.
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", callback=_quiet, help="Print only results: no progress, no messages.")
]
Device = Annotated[str | None, typer.Option(callback=_device, help="Device: cpu, cuda, cuda:1, …")]
Download = Annotated[bool, typer.Option("--download", help="Download weights that are not on this machine.")]
Weights = Annotated[str | None, typer.Option(help="Weights file or folder of an initialisation.")]
Jobs = Annotated[
    int | None, typer.Option(min=1, max=1024, help="Concurrent runs. Default: one per core; one with a GPU.")
]
Minutes = Annotated[
    float | None,
    typer.Option(
        min=0, max=10**7, callback=finite, help="Start no new run after this many minutes; 0 only writes the page."
    ),
]
BatchSize = Annotated[int, typer.Option(min=1, max=2**16, help="Images per batch while embedding.")]
Wait = Annotated[
    float,
    typer.Option(min=0, max=10**7, callback=finite, help="Seconds to wait for another process that is writing."),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace existing files.")]
Dim = Annotated[
    int | None,
    typer.Option(min=1, max=2**16, help="Keep the first DIM values of each vector, normalized. Default: all."),
]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Skip images that cannot be read, and list them in the result.")
]
MaxPixels = Annotated[
    int | None,
    typer.Option(callback=_max_pixels, min=1, max=10**10, help="Refuse images with more pixels. Default: 100 million."),
]
