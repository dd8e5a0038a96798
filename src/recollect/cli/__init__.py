"""The command line: parses, calls, prints; nothing else.

One file a verb. A verb's file imports only typer at the top; what it calls is imported inside the function, so that
``recollect --help`` does not wait for torch.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

from recollect.common.errors import DataWarning, RecollectError


def main() -> None:
    """Run the command line; errors a user can put right become one or two sentences and exit code 1.

    A file that cannot be read or written is one of them, whoever tried. Anything else is ours and keeps its traceback.
    """
    from recollect.cli.app import app

    warnings.showwarning = _show_warning(warnings.showwarning)
    try:
        app()
    except RecollectError as error:
        print(f"recollect: {error}", file=sys.stderr)
        sys.exit(1)
    except OSError as error:
        if error.filename is None:
            raise
        print(f"recollect: {error.filename}: {error.strerror}.", file=sys.stderr)
        sys.exit(1)


def _show_warning(otherwise: Any) -> Any:
    """Warnings about data are sentences for the user, said once; where in the code they arose is of no use to them."""
    said: set[str] = set()

    def show(message: Warning | str, category: type[Warning], *place: Any, **rest: Any) -> None:
        from recollect.common.console import is_quiet

        if issubclass(category, DataWarning):
            if is_quiet() or str(message) in said:
                return
            said.add(str(message))
            print(f"recollect: {message}", file=sys.stderr)
        else:
            otherwise(message, category, *place, **rest)

    return show
