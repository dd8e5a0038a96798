"""The outermost error handler: every failure becomes one sentence and an exit code.

    0 done    1 an error    2 wrong usage    130 Ctrl-C    141 the output pipe was closed    143 SIGTERM

Errors that a user can fix have their own message. System errors get one here. Anything else is a bug.
``RECOLLECT_DEBUG=1`` shows the traceback of any error.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from recollect.common.errors import FULL, RecollectError, storage_error, unreadable
from recollect.common.text import printable

_DATABASE = ("database or disk is full", "readonly database", "unable to open database", "disk image is malformed")


_received: list[int] = []
"""The signal that ended this command, if any: libraries written in C may replace the exception by their own."""


class StoppedError(BaseException):
    """A signal to end the process was received."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class _PastTyperError(BaseException):
    """Carries an error past typer, which ends the process with "Aborted." for some."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


@contextlib.contextmanager
def past_typer() -> Iterator[None]:
    """Ensure that no error inside the block is swallowed."""
    try:
        yield
    except (EOFError, BrokenPipeError) as error:
        raise _PastTyperError(error) from error


def guarded(command: Callable[[], Any]) -> int:
    """Run a command; returns its exit code. Only ``SystemExit`` passes."""
    _received.clear()
    _stop_by_exception()
    try:
        command()
        return 0
    except SystemExit:
        raise
    except BaseException as error:
        if _received:
            return _ended(StoppedError(_received[0]))
        return _ended(error.error if isinstance(error, _PastTyperError) else error)


def _stop_by_exception() -> None:
    """Let signals unwind the stack, so that temporary files are removed and locks released.

    Also Ctrl-C: typer would silently swallow a ``KeyboardInterrupt``.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        # Ignored signals stay ignored, such as SIGHUP under nohup.
        if number is not None and signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _raise)


def _raise(number: int, frame: FrameType | None) -> None:
    _received.append(number)
    signal.signal(number, signal.SIG_DFL)  # a second signal ends the process at once
    raise StoppedError(number)


def _ended(error: BaseException) -> int:
    if os.environ.get("RECOLLECT_DEBUG", "") not in ("", "0"):
        traceback.print_exception(error)
    said, code = sentence(error)
    with contextlib.suppress(OSError, ValueError):  # standard error may be closed
        if said:
            print(f"recollect: {printable(said)}", file=sys.stderr, flush=True)
    if code == 141:  # otherwise Python prints an error on exit
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def sentence(error: BaseException) -> tuple[str, int]:
    """The message for an error, and the exit code."""
    if isinstance(error, KeyboardInterrupt):
        error = StoppedError(signal.SIGINT)
    if isinstance(error, StoppedError):
        name = "Ctrl-C" if error.number == signal.SIGINT else signal.Signals(error.number).name
        return (
            f"stopped by {name}. No partial files are left; you can run the same command again.",
            128 + error.number,
        )
    if isinstance(error, RecollectError):
        return str(error), int(getattr(error, "exit_code", 1))
    for cause in _causes(error):
        if said := _foreseen(cause):
            return said, 1
    if isinstance(error, BrokenPipeError):
        return "", 141
    what = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return f"unexpected error ({what}). This is a bug in recollect: RECOLLECT_DEBUG=1 shows where; please report it.", 1


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and its causes: libraries wrap system errors."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


def _foreseen(error: BaseException) -> str:
    """The message for an error of the system or a database, or nothing."""
    if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
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
        return (
            f"the study's database cannot be used ({text.splitlines()[0]}). Free space on its disk or make it writable, "
            "then run the same command again: finished trials are kept."
        )
    return ""
