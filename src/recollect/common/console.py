"""Progress output: ``--quiet``, a live line in a terminal, and occasional plain lines elsewhere.

Remarks go through ``logging`` (logger ``recollect``); the command line attaches the handler that shows them, and a
program that uses the library attaches its own. Records of progress have ``record.progress``: a terminal shows the live
line instead.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from recollect.common.text import in_words

logger = logging.getLogger(__name__)
PROGRESS = {"progress": True}
"""``extra`` of a record that reports progress."""
RESULT = {"result": True}
"""``extra`` of a record that is a result: ``--quiet`` shows it too."""
silent = False
"""Whether progress lines and remarks of this process are silenced (``--quiet``)."""
_seconds_between_lines = 30.0


@contextmanager
def only_warnings(name: str) -> Iterator[None]:
    """Limit the logger ``name`` and its children to warnings, for work that is part of a larger task."""
    quieter = logging.getLogger(name)
    before = quieter.level
    quieter.setLevel(logging.WARNING)
    try:
        yield
    finally:
        quieter.setLevel(before)


@contextmanager
def lines_every(seconds: float) -> Iterator[None]:
    """Plain progress lines at this interval instead of every 30 seconds."""
    global _seconds_between_lines
    before, _seconds_between_lines = _seconds_between_lines, seconds
    try:
        yield
    finally:
        _seconds_between_lines = before


def _speed(rate: float, unit: str) -> str:
    if 0 < rate < 0.05:  # otherwise it would read 0.0
        return f"{3600 * rate:.1f} {unit}/h"
    return f"{rate:,.0f} {unit}/s" if rate >= 10 else f"{rate:.1f} {unit}/s"


class ProgressLine:
    """A live line for work counted in ``unit``; without a terminal, a plain line every 30 seconds.

    Args:
        description: what is being done.
        total: number of units, if known.
        unit: what is counted.
        quiet: print nothing; by default as set by ``--quiet``.
        done: units that were done before, by an earlier process.
        live: show a live line in a terminal. Inside work that already has one, no second line is shown.
        clock: returns the time in seconds.

    Examples:
        >>> with ProgressLine("embedding", total=2, quiet=True) as line:
        ...     _ = line.advance(2, note="loss 0.31")
    """

    _entered = 0

    def __init__(
        self,
        description: str,
        total: int | None = None,
        unit: str = "images",
        quiet: bool | None = None,
        *,
        done: int = 0,
        live: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        console, whole = Console(stderr=True), Column(no_wrap=True)
        self._silent = silent if quiet is None else quiet
        hidden = self._silent or (quiet is None and not console.is_terminal)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=12 if console.width < 100 else 24),
            MofNCompleteColumn(table_column=whole),
            TimeRemainingColumn(compact=True, table_column=whole.copy()),
            TextColumn("{task.fields[note]}", markup=False),  # shortened in a narrow terminal
            console=console,
            transient=True,
            disable=hidden or not live,
            # Lines written to a file meanwhile must not be redirected to the terminal.
            redirect_stdout=bool(getattr(sys.stdout, "isatty", bool)()),
        )
        self._task = self._progress.add_task(description, total=total, completed=done, note="")
        self._description, self._total, self._unit, self._clock = description, total, unit, clock
        self._before, self._done, self._note = done, done, ""
        self._is_inside = False
        self._began = self._last_line = clock()

    def __enter__(self) -> ProgressLine:
        self._is_inside = ProgressLine._entered > 0
        ProgressLine._entered += 1
        if not self._is_inside:
            self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        if not self._progress.disable:  # rich before 14.3 would end a line that was never begun
            self._progress.stop()
        ProgressLine._entered -= 1

    def advance(self, count: int = 1, note: str | None = None) -> str | None:
        """Count ``count`` more units done; ``note`` replaces the text at the end of the line.

        Returns:
            The plain line, if one was due; it has been logged.
        """
        self._done += count
        self._note = note or self._note
        now = self._clock()
        rate = (self._done - self._before) / (now - self._began) if now > self._began else 0.0
        text = self._note or _speed(rate, self._unit)
        self._progress.update(self._task, advance=count, note=text)
        # Inside other work, the enclosing line reports the end.
        if now - self._last_line < _seconds_between_lines or (self._is_inside and self._done == self._total):
            return None
        self._last_line = now
        of = "" if self._total is None else f"/{self._total:,}"
        remaining = "" if not self._total or not rate else f", {in_words(max(self._total - self._done, 0) / rate)} left"
        line = f"{self._description:<10} {self._done:,}{of} {self._unit}, {text}{remaining}"
        if not self._silent:
            logger.info(line, extra=PROGRESS)
        return line

    def expect(self, total: int) -> None:
        """Set the number of units, where it becomes known on the way."""
        self._total = total
        self._progress.update(self._task, total=total)
