"""The command line: parses, calls, prints; nothing else.

One file a verb. A verb's file imports only typer at the top; what it calls is imported inside the function, so that
``recollect --help`` does not wait for torch.
"""

from __future__ import annotations

import sys

from recollect.common.errors import RecollectError


def main() -> None:
    """Run the command line; errors a user can put right become one or two sentences and exit code 1."""
    from recollect.cli.app import app

    try:
        app()
    except RecollectError as error:
        print(f"recollect: {error}", file=sys.stderr)
        sys.exit(1)
