"""``recollect losses``: list the losses and their options."""

from __future__ import annotations

from typing import Annotated

import typer

from recollect.cli.app import app
from recollect.cli.options import AsJson, complete_loss, print_json


@app.command("losses")
def losses(
    name: Annotated[
        str | None, typer.Argument(autocompletion=complete_loss, help="Show this loss with its options.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the losses, or show one with its options and defaults."""
    if name is None:
        _list(as_json)
    else:
        _show(name, as_json)


def _list(as_json: bool) -> None:
    import dataclasses

    from rich.console import Console
    from rich.table import Table

    from recollect import available_losses

    entries = available_losses().values()
    if as_json:
        print_json([dataclasses.asdict(entry) for entry in entries])
        return
    table = Table(box=None, pad_edge=False)
    for column in ("loss", "family", "memory", "extra", "own", "what it is"):
        table.add_column(column, no_wrap=column != "what it is")
    for entry in entries:
        own = "yes" if entry.parameters else ""
        table.add_row(entry.name, entry.family, entry.memory, entry.extra or "", own, entry.description)
    console = Console(highlight=False)
    console.print(table)
    console.print(
        "\nmemory: M batch, N references, d dimensions, C classes, m images per class; own: has its own parameters."
        "\nrecollect losses NAME shows a loss's options."
    )


def _show(name: str, as_json: bool) -> None:
    import dataclasses

    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from recollect import describe_loss

    description = describe_loss(name)
    if as_json:
        print_json(dataclasses.asdict(description))
        return
    entry = description.entry
    console = Console(highlight=False)
    console.print(f"[bold]{entry.name}[/bold] ({entry.family})\n")
    console.print(description.summary, markup=False)
    table = Table("option", "type", "default", box=None, pad_edge=False)
    for option in description.options:
        default = "required" if option.required else repr(option.default)
        table.add_row(option.name, escape(option.type), escape(default))
    console.print()
    console.print(table)
    console.print(f"\nMemory: {entry.memory or 'not known'}.")
    if entry.extra:
        console.print(f'Needs: pip install "recollect\\[{entry.extra}]".')
    if entry.parameters:
        console.print("Has its own parameters: pass loss.parameters() to the optimizer.")
    if not entry.references:
        console.print("Takes no separate reference set.")
