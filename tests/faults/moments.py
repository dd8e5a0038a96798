"""When and how a command is disturbed: after a share of its processor time, or at one of its file operations.

Processor time and operations, unlike the clock, do not depend on what else the machine does.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Arm = Callable[[], None]

ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO, errno.EMFILE, errno.ENAMETOOLONG)
_CHANGING = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.truncate", "os.symlink", "os.link")


def signal_after(seconds: float, number: int) -> Arm:
    """The process gets a signal once it has used so much processor time."""

    def arm() -> None:
        signal.signal(signal.SIGPROF, lambda *_: os.kill(os.getpid(), number))
        signal.setitimer(signal.ITIMER_PROF, max(seconds, 1e-3))

    return arm


def stop_after(seconds: float) -> Arm:
    """The process gets SIGTERM after so many seconds by the clock: for commands that wait for something."""

    def arm() -> None:
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
        signal.setitimer(signal.ITIMER_REAL, seconds)

    return arm


def kill_after(seconds: float) -> Arm:
    """The process dies at once, without any cleaning up, when it has used so much processor time."""

    def arm() -> None:
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, max(seconds, 1e-3))

    return arm


def kill_at_operation(number: int, below: Path) -> Arm:
    """The process dies just before it changes a file below a folder for the ``number``-th time."""
    return lambda: _at_operation(number, below, lambda event, path: os.kill(os.getpid(), signal.SIGKILL))


def fail_at_operation(number: int, below: Path, error: int) -> Arm:
    """From the ``number``-th time on, the system refuses to change files below a folder, with ``error``."""

    def refuse(event: str, path: str) -> None:
        if event not in ("os.remove", "os.rmdir"):  # a full disk lets files go
            raise OSError(error, os.strerror(error), path)

    return lambda: _at_operation(number, below, refuse)


def _at_operation(number: int, below: Path, act: Callable[[str, str], None]) -> None:
    count, prefix = 0, str(below)

    def hook(event: str, given: tuple[Any, ...]) -> None:
        nonlocal count
        writes = event == "open" and isinstance(given[2], int) and given[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if not writes and event not in _CHANGING:
            return
        path = os.fsdecode(given[0]) if isinstance(given[0], str | bytes | os.PathLike) else ""
        if not os.path.abspath(path).startswith(prefix):  # noqa: PTH100 - a hook must not resolve links
            return
        count += 1
        if count >= number:
            act(event, path)

    sys.addaudithook(hook)
