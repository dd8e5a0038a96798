"""Commands as a user gives them."""

from __future__ import annotations

from typing import Any

from typer.testing import CliRunner

from recollect.cli.main import app
from recollect.common.errors import RecollectError


def run(*words: object) -> Any:
    """The result of a command that succeeds; the error that a user would read is raised."""
    done = CliRunner().invoke(app, [*map(str, words)])
    if isinstance(done.exception, RecollectError):
        raise done.exception
    assert done.exit_code == 0, (done.output, done.exception)
    return done
