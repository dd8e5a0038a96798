"""The table of commands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from recollect._version import __version__
from recollect.cli.last_net import past_typer

# One file each, in the order in which a newcomer needs them.
VERBS = (
    "demo",
    "train",
    "tune",
    "compare",
    "eval",
    "report",
    "embed",
    "index",
    "search",
    "serve",
    "calibrate",
    "duplicates",
    "export",
    "publish",
    "whiten",
    "recipes",
    "models",
    "losses",
    "data",
)


Function = TypeVar("Function", bound=Callable[..., Any])


class _Verb(TyperCommand):
    """A command that refuses a second value for an option that takes one, instead of silently using the last."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Check how often each option is given, then parse."""
        from recollect.cli.options import remember_typed

        given = Counter(self.make_parser(ctx).parse_args(args=list(args))[2])
        remember_typed(given)
        for option, times in given.items():
            if (
                times > 1
                and isinstance(option, TyperOption)
                and not (option.multiple or option.is_flag or option.count)
            ):
                ctx.fail(f"{max(option.opts, key=len)} is given {times} times, but takes one value: keep one of them.")
        return list(super().parse_args(ctx, args))


class Commands(typer.Typer):
    """Commands that are checked as ``_Verb`` does."""

    def command(self, *names: Any, **options: Any) -> Callable[[Function], Function]:
        """As in typer."""
        return super().command(*names, **{"cls": _Verb, **options})


class _Verbs(TyperGroup):
    """All commands, with what is common to them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Accept ``--trust`` after the command too, where users add it to a command that requires it."""
        end = args.index("--") if "--" in args else len(args)
        if "--trust" in args[1:end]:
            args = ["--trust", *(word for place, word in enumerate(args) if word != "--trust" or place > end)]
        return list(super().parse_args(ctx, args))

    def invoke(self, ctx: Any) -> Any:
        """Run the command; errors are passed on unchanged."""
        with past_typer():
            return super().invoke(ctx)


app = Commands(
    name="recollect",
    cls=_Verbs,
    help="Train, evaluate and ship image-retrieval embeddings by optimising recall@k itself.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # last_net.py prints errors
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
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet", "-q", help="Print only results: no progress, no messages. Also accepted after a command."
        ),
    ] = False,
    trust: Annotated[
        bool,
        typer.Option(
            "--trust", help="Run outside code that a run or a saved model names. Also accepted after a command."
        ),
    ] = False,
) -> None:
    """Options before any command."""
    from recollect.cli.options import show_remarks
    from recollect.common.console import set_quiet
    from recollect.common.plugins import trusting

    set_quiet(quiet)
    context.with_resource(trusting(trust))
    context.call_on_close(show_remarks())


for _verb in VERBS:  # each file defines its command on import
    import_module(f"recollect.cli.{_verb}")
