"""What several verbs share: ``--json``, ``--quiet``, ``--device``, names the shell can complete, remarks.

Like every file of this room it imports nothing heavy at the top; completion reads the tables that need no torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import typer

from recollect.common.words import printable


def remark(line: str) -> None:
    """Print what is not the result: the plan, what was written where. Silent with ``--quiet``."""
    from recollect.common.console import is_quiet

    if not is_quiet():
        typer.echo(printable(line))


def remark_aside(line: str) -> None:
    """The same on standard error, for verbs whose standard output a script reads."""
    from recollect.common.console import is_quiet

    if not is_quiet():
        typer.echo(f"recollect: {printable(line)}", err=True)


def print_json(value: Any) -> None:
    """Print plain values as JSON, by one process. ASCII only: file names need not be text that a terminal can show."""
    import json
    import os

    if os.environ.get("RANK", "0") == "0":  # of several processes that torchrun started, one speaks
        typer.echo(json.dumps(value, indent=2, default=str))


def _quiet(value: bool) -> bool:
    if value:  # also said before the verb, so never taken back here
        from recollect.common.console import set_quiet

        set_quiet(True)
    return value


def _max_pixels(value: int | None) -> int | None:
    if value is not None:
        from recollect.common.decode import set_max_pixels

        set_max_pixels(value)
    return value


def _device(value: str | None) -> str | None:
    if value is None:
        return None
    from recollect.common.devices import usable_device

    return str(usable_device(value, "--device"))


def _beginning(names: Iterable[str], start: str) -> list[str]:
    return [name for name in names if name.startswith(start)]


def complete_recipe(incomplete: str) -> list[str]:
    """Recipes whose name begins so."""
    from recollect.config.recipe_files import available_recipes

    return _beginning(available_recipes(), incomplete)


def complete_loss(incomplete: str) -> list[str]:
    """Losses whose name begins so."""
    from recollect.losses import available

    return _beginning(available(), incomplete)


def complete_model(incomplete: str) -> list[str]:
    """Initialisations whose name begins so."""
    from recollect.models.zoo import ZOO

    return _beginning(ZOO, incomplete)


def complete_data(incomplete: str) -> list[str]:
    """Data sets whose name begins so."""
    from recollect.data import available

    return _beginning(available(), incomplete)


def complete_setting(incomplete: str) -> list[str]:
    """Settings whose name begins so, up to the equals sign."""
    from recollect.config.overrides import known_keys

    return [f"{key}=" for key in _beginning(known_keys(), incomplete)]


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", callback=_quiet, help="Only the result: no progress, no remarks.")
]
Device = Annotated[str | None, typer.Option(callback=_device, help="Where to compute: cpu, cuda, cuda:1, …")]
Download = Annotated[bool, typer.Option("--download", help="Fetch weights that are not on this machine.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what exists.")]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Leave out images that cannot be read, and list them in the result.")
]
AllowOutside = Annotated[bool, typer.Option("--allow-outside", help="Let listed paths and links leave the root.")]
MaxPixels = Annotated[
    int | None,
    typer.Option(callback=_max_pixels, min=1, help="Refuse images with more pixels. Default: 100 million."),
]
