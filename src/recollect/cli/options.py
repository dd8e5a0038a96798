"""The typer app, options that several commands share (``--json``, ``--quiet``, ``--device``), completion, and messages.

Messages of the library are log records; ``show_remarks`` attaches the handler that prints them. Like every file of this
package it imports nothing heavy at the top; completion reads tables that need no torch.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer import Argument, Option
from typer.core import TyperCommand, TyperGroup, TyperOption

from recollect._version import __version__
from recollect.common import console
from recollect.common.errors import InputError
from recollect.common.text import printable

if TYPE_CHECKING:
    from rich.console import Console

_ORDER = [
    "demo", "train", "tune", "compare", "eval", "report", "embed", "index", "search", "serve", "calibrate", "duplicates",
    "export", "publish", "whiten", "recipes", "models", "losses", "data",
]  # fmt: skip
"""The commands in the order in which a newcomer needs them."""
_typed: dict[str, str] = {}
"""The options of this command that the user typed, by parameter: ``{"as_json": "--json"}``."""

Function = TypeVar("Function", bound=Callable[..., Any])


class _Command(TyperCommand):
    """A command that refuses a second value for an option that takes one, instead of silently using the last."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Count how often each option is given, before the values are checked."""
        values, _, order = self.make_parser(ctx).parse_args(list(args))
        _typed.clear()
        for option, times in Counter(order).items():
            if not isinstance(option, TyperOption) and not isinstance(values[option.name or ""], str | tuple):
                continue  # an argument that was left out
            _typed[option.name or ""] = max(option.opts, key=len)
            several = not isinstance(option, TyperOption) or option.multiple or option.is_flag or option.count
            if times > 1 and not several:
                ctx.fail(f"{_typed[option.name or '']} is given {times} times, but takes one value: keep one of them.")
        return super().parse_args(ctx, args)


class Commands(typer.Typer):
    """Commands that are checked as ``_Command`` does."""

    def command(self, *names: Any, **options: Any) -> Callable[[Function], Function]:
        """As in typer."""
        return super().command(*names, **{"cls": _Command, **options})


class _AllCommands(TyperGroup):
    """All commands, with what is common to them."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names, as the help lists them."""
        return sorted(self.commands, key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Accept ``--trust`` after the command too, where users add it to a command that requires it."""
        end = args.index("--") if "--" in args else len(args)
        if "--trust" in args[1:end]:
            args = ["--trust", *(word for place, word in enumerate(args) if word != "--trust" or place > end)]
        return list(super().parse_args(ctx, args))

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Where nobody reads the output any more, typer would end as after an error."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            with contextlib.suppress(
                OSError, ValueError
            ):  # what is left goes nowhere, or Python prints an error on exit
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(141) from error


app = Commands(
    name="recollect",
    cls=_AllCommands,
    help="Train, evaluate and ship image-retrieval embeddings by optimising recall@k itself.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # main.py prints errors
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"recollect {__version__}")
        raise typer.Exit


@app.callback()
def common_options(
    context: typer.Context,
    version: Annotated[
        bool, Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    quiet: Annotated[
        bool,
        Option("--quiet", "-q", help="Print only results: no progress, no messages. Also accepted after a command."),
    ] = False,
    trust: Annotated[
        bool,
        Option("--trust", help="Run outside code that a run or a saved model names. Also accepted after a command."),
    ] = False,
) -> None:
    """Options before any command."""
    console.silent = quiet
    context.with_resource(show_remarks())
    if trust:
        from recollect.common.plugins import trusting

        context.with_resource(trusting())


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
            remark(record.getMessage(), aside=self.aside)


remarks = _Remarks(logging.INFO)
"""Prints the messages. ``aside``: on standard error, for commands whose standard output a script reads, and with ``--json``."""


@contextlib.contextmanager
def show_remarks() -> Iterator[None]:
    """Print the library's messages inside the block."""
    library = logging.getLogger("recollect")
    before, remarks.aside = library.level, False
    library.setLevel(logging.INFO)
    library.addHandler(remarks)
    try:
        yield
    finally:
        library.removeHandler(remarks)
        library.setLevel(before)


def remark(line: str, *, aside: bool = False) -> None:
    """Print messages such as the plan and the paths of written files. Silent with ``--quiet``.

    Args:
        line: the message.
        aside: print it on standard error, for commands whose standard output a script reads.
    """
    if not console.silent:
        typer.echo(f"{'recollect: ' * aside}{printable(line)}", err=aside)


def echo(text: str) -> None:
    """Print, by one of the processes that torchrun started."""
    if os.environ.get("RANK", "0") == "0":
        typer.echo(text)


def print_json(value: Any) -> None:
    """Print plain values as JSON. ASCII only: file names need not be text that a terminal can show."""
    echo(json.dumps(value, indent=2, default=str))


def tables_console(least_width: int = 0) -> Console:
    """Folds text into the width of the terminal. A log file has none: a table cut to 80 columns would lose digits."""
    from rich.console import Console

    console = Console(highlight=False)
    return Console(highlight=False, width=max(console.width if console.is_terminal else 140, least_width))


def show_plan(plan: Any, as_json: bool) -> None:
    """Print a plan, which has ``lines`` and ``as_dict``."""
    print_json(plan.as_dict()) if as_json else echo(printable("\n".join(plan.lines())))


def _at_once(parameter: typer.CallbackParam, value: Any) -> Any:
    """Apply an option that means the same for every command, before the command begins."""
    if parameter.name == "quiet" and value:  # may also be given before the command, so it is never reset here
        console.silent = True
    elif parameter.name == "max_pixels" and value is not None:
        from recollect.common.images import set_max_pixels

        set_max_pixels(value)
    elif parameter.name == "device" and value is not None:
        from recollect.common.machine import usable_device

        return str(usable_device(value, "--device"))
    return value


def _completion(names: str | Iterable[str], kind: str = "", ending: str = "") -> Callable[[str], list[str]]:
    """Completes names, or those that ``module:function`` lists, and those of installed packages for ``kind``."""

    def complete(incomplete: str) -> list[str]:
        from recollect.common.plugins import installed

        module, _, function = names.partition(":") if isinstance(names, str) else ("", "", "")
        every = [*(getattr(import_module(module), function)() if module else names), *(installed(kind) if kind else ())]
        return [f"{name}{ending}" for name in dict.fromkeys(every) if name.startswith(incomplete)]

    return complete


complete_recipe = _completion("recollect.config.recipes:available_recipes")
complete_setting = _completion("recollect.config.resolve:setting_keys", ending="=")
complete_loss = _completion("recollect:available_losses", "loss")
complete_model = _completion("recollect:available_models", "backbone")
complete_data = _completion("recollect:available_data", "data set")
complete_logger = _completion(("tensorboard", "wandb", "mlflow"), "logger")


# Arguments and options with completion, of which each command has its own help.
recipe_argument = partial(Argument, autocompletion=complete_recipe)
recipe_option = partial(Option, autocompletion=complete_recipe)
model_argument = partial(Argument, autocompletion=complete_model)
model_option = partial(Option, autocompletion=complete_model)
data_argument = partial(Argument, autocompletion=complete_data)
data_option = partial(Option, autocompletion=complete_data)
settings_option = partial(Option, "--set", metavar="KEY=VALUE")


def data_settings(skip_bad: bool, max_pixels: int | None) -> dict[str, Any]:
    """Options about a folder of images as settings."""
    return drop_none(**{"data.on_bad_image": "skip" if skip_bad else None, "data.max_pixels": max_pixels})


def parse_pairs(pairs: Iterable[str], option: str) -> dict[str, list[str]]:
    """``["label=shoe", "label=boot"]`` to ``{"label": ["shoe", "boot"]}``.

    Raises:
        InputError: an entry has no equals sign.
    """
    values: dict[str, list[str]] = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign or not name.strip():
            raise InputError(f"{option} {pair!r}: write it as name=value, e.g. {option} label=shoe.")
        values.setdefault(name.strip(), []).append(value)
    return values


def refuse_unused(unused: bool, because: str, *parameters: str) -> None:
    """Refuse options that would have no effect, if ``unused``.

    Raises:
        InputError: the user typed some of them.
    """
    if unused and (options := [_typed[name] for name in parameters if name in _typed]):
        them = "it" if len(options) == 1 else "them"
        raise InputError(f"{' and '.join(options)} would have no effect {because}: remove {them}.")


def arguments(values: Mapping[str, Any], *handled: str, **changed: Any) -> dict[str, Any]:
    """A command's options as arguments of the function of the library that it calls.

    Args:
        values: ``locals()``, as the first statement of the command. handled: those of them that it uses itself.
        changed: arguments that are not options as they were typed.
    """
    applied = {"quiet", "max_pixels", "as_json", "skip_bad", *handled}
    if "skip_bad" in values:
        changed["on_bad_image"] = "skip" if values["skip_bad"] else "error"
    return {name: value for name, value in values.items() if name not in applied} | changed


def drop_none(**options: Any) -> dict[str, Any]:
    """The options that the user gave; the called function has defaults for the others."""
    return {name: value for name, value in options.items() if value is not None}


def finite(value: float | None) -> float | None:
    """Refuse NaN, which is neither below nor above a limit."""
    if value is not None and value != value:
        raise typer.BadParameter("nan is not a valid number.")
    return value


# Every numeric option has a range, which is checked before any work begins.
AsJson = Annotated[bool, Option("--json", help="Print JSON instead of text.")]
Quiet = Annotated[
    bool, Option("--quiet", "-q", callback=_at_once, help="Print only results: no progress, no messages.")
]
Device = Annotated[str | None, Option(callback=_at_once, help="Device: cpu, cuda, cuda:1, …")]
Download = Annotated[bool, Option("--download", help="Download weights that are not on this machine.")]
Weights = Annotated[str | None, Option(help="Weights file or folder of an initialisation.")]
Jobs = Annotated[int | None, Option(min=1, max=1024, help="Concurrent runs. Default: one per core; one with a GPU.")]
Minutes = Annotated[
    float | None,
    Option(min=0, max=10**7, callback=finite, help="Start no new run after this many minutes; 0 only writes the page."),
]
BatchSize = Annotated[
    int | None, Option(min=1, max=2**16, help="Images per batch while embedding. Default: 64, on a GPU more.")
]
Precision = Annotated[
    str | None,
    Option(help="Precision of the network: fp32, bf16, fp16, or auto: bf16 on GPUs that have it. Default: fp32."),
]
Wait = Annotated[
    float, Option(min=0, max=10**7, callback=finite, help="Seconds to wait for another process that is writing.")
]
Overwrite = Annotated[bool, Option("--overwrite", help="Replace existing files.")]
Dim = Annotated[
    int | None, Option(min=1, max=2**16, help="Keep the first DIM values of each vector, normalized. Default: all.")
]
SkipBad = Annotated[bool, Option("--skip-bad", help="Skip images that cannot be read, and list them in the result.")]
MaxPixels = Annotated[
    int | None,
    Option(callback=_at_once, min=1, max=10**10, help="Refuse images with more pixels. Default: 100 million."),
]
Recipe = Annotated[
    str | None, recipe_argument(help="A recipe's name or a YAML file. Default: glyphs; with --data FOLDER: folder.")
]
Data = Annotated[str | None, data_option(help="A folder of images, or the name of a data set.")]
Root = Annotated[str | None, Option(help="The folder of the data set.")]
MovedModel = Annotated[str | None, Option(help="New folder of the model, if it moved.")]
Seed = Annotated[int, Option(min=0, max=2**63 - 1, help="Random seed.")]
Plan = Annotated[bool, Option("--plan", help="Print what would be done, and stop.")]
SkipBadImages = Annotated[bool, Option("--skip-bad", help="Skip images that cannot be read.")]
