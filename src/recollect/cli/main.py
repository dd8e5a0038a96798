"""The command line: the table of commands, and what becomes of their errors.

The files beside this one define the commands: they parse arguments, call the library and print results, nothing else. They
import the library inside the functions, so that ``recollect --help`` does not wait for torch.

Every failure becomes one sentence and an exit code. Errors that a user can fix have their own message, system errors get
one here, and anything else is a bug. ``RECOLLECT_DEBUG=1`` shows the traceback of any error.

    0 done    1 an error    2 wrong usage    130 Ctrl-C    141 the output pipe was closed    143 SIGTERM
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import Any

from recollect.cli.options import app, remark
from recollect.common.errors import FULL, DataWarning, RecollectError, causes, storage_error, unreadable
from recollect.common.machine import keep_freed_memory, spin_briefly
from recollect.common.text import printable

for _file in ("train", "studies", "evaluate", "search", "about"):
    import_module(f"recollect.cli.{_file}")  # defines its commands on import

_DATABASE = ("database or disk is full", "readonly database", "unable to open database", "disk image is malformed")
_received: list[int] = []
"""The signal that ended this command, if any: libraries written in C may replace the exception by their own."""


class StoppedError(BaseException):
    """A signal to end the process was received; its argument is the signal's number."""


def main() -> None:
    """Run the command line."""
    # Before any command imports torch, which is when they are read.
    spin_briefly()
    keep_freed_memory()
    if isinstance(sys.stdout, TextIOWrapper):  # a terminal or a pipe that is not UTF-8 gets ? for what it cannot show
        sys.stdout.reconfigure(errors="replace")
    show_data_warnings()
    sys.exit(run_command(app))


def show_data_warnings() -> None:
    """Print warnings about data as sentences, each once, without their place in the code; not with ``--quiet``."""
    otherwise: Callable[..., None] = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *place: Any, **rest: Any) -> None:
        if not issubclass(category, DataWarning):
            otherwise(message, category, *place, **rest)
        else:
            remark(str(message), aside=True)

    warnings.simplefilter("once", DataWarning)
    warnings.showwarning = show


def run_command(command: Callable[[], Any]) -> int:
    """Run a command; returns its exit code. Only ``SystemExit`` passes."""
    _received.clear()
    if threading.current_thread() is threading.main_thread():
        # Signals unwind the stack, so that temporary files are removed and locks released. Also Ctrl-C: typer would
        # swallow a KeyboardInterrupt. Ignored signals stay ignored, such as SIGHUP under nohup.
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                signal.signal(number, _raise)
    try:
        command()
        return 0
    except SystemExit:
        raise
    except BaseException as error:
        return report_error(StoppedError(_received[0]) if _received else error)


def _raise(number: int, frame: FrameType | None) -> None:
    _received.append(number)
    signal.signal(number, signal.SIG_DFL)  # a second signal ends the process at once
    raise StoppedError(number)


def report_error(error: BaseException) -> int:
    """Print the message of an error; returns the exit code."""
    if os.environ.get("RECOLLECT_DEBUG", "") not in ("", "0"):
        traceback.print_exception(error)
    message, code = _message(error)
    with contextlib.suppress(OSError, ValueError):  # standard error may be closed
        print(f"recollect: {printable(message)}", file=sys.stderr, flush=True)
    return code


def _message(error: BaseException) -> tuple[str, int]:
    if isinstance(error, StoppedError | KeyboardInterrupt):
        number = error.args[0] if isinstance(error, StoppedError) else signal.SIGINT
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        return f"stopped by {name}. No partial files are left; you can run the same command again.", 128 + number
    if isinstance(error, RecollectError):
        return str(error), int(getattr(error, "exit_code", 1))
    for cause in causes(error):
        if message := _system_message(cause):
            return message, 1
    what = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return f"unexpected error ({what}). This is a bug in recollect: RECOLLECT_DEBUG=1 shows where; please report it.", 1


def _system_message(error: BaseException) -> str:
    """The message for an error of the system or a database, or nothing."""
    if isinstance(error, OSError):
        if error.errno in (*FULL, errno.EROFS):
            return str(storage_error(error, Path(error.filename or "a file of this command"), existed=None))
        return unreadable(error, error.filename) if error.filename is not None else ""
    text = str(error).lower()
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "memory" in text and "alloc" in text):
        return (
            f"not enough memory ({next(iter(str(error).splitlines()), '') or 'MemoryError'}). Use fewer or "
            "smaller images at a time (--batch-size, batch.chunk, model.image_size), or a machine with more memory."
        )
    if any(words in text for words in _DATABASE):
        what = f"the study's database cannot be used ({text.splitlines()[0]})"
        return f"{what}. Free space on its disk or make it writable, then run the same command again."
    return ""
