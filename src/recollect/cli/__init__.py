"""The command line: parses arguments, calls the library, prints results; nothing else.

One file per command. It imports only typer at the top; the library is imported inside the function, so that
``recollect --help`` does not wait for torch.
"""

from __future__ import annotations

import sys
import warnings
from io import TextIOWrapper
from typing import Any

from recollect.common.errors import DataWarning
from recollect.common.text import printable


def main() -> None:
    """Run the command line. Every failure becomes one sentence and an exit code, see ``last_net``."""
    from recollect.cli.last_net import guarded
    from recollect.common.machine import keep_freed_memory, spin_briefly

    # Before any command imports torch, which is when they are read.
    spin_briefly()
    keep_freed_memory()
    if isinstance(sys.stdout, TextIOWrapper):  # a terminal or a pipe that is not UTF-8 gets ? for what it cannot show
        sys.stdout.reconfigure(errors="replace")
    warnings.showwarning = _show_warning(warnings.showwarning)
    sys.exit(guarded(_command))


def _command() -> None:
    from recollect.cli.app import app  # takes a while, during which Ctrl-C may be pressed

    app()


def _show_warning(otherwise: Any) -> Any:
    """Print each warning about data once, without its place in the code."""
    said: set[str] = set()

    def show(message: Warning | str, category: type[Warning], *place: Any, **rest: Any) -> None:
        from recollect.common.console import is_quiet

        if issubclass(category, DataWarning):
            if is_quiet() or str(message) in said:
                return
            said.add(str(message))
            print(f"recollect: {printable(str(message))}", file=sys.stderr)
        else:
            otherwise(message, category, *place, **rest)

    return show
