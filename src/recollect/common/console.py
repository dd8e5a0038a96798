"""What a person at a terminal sees of long work: the switch ``--quiet``, and a progress line with count, speed, time left."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from types import TracebackType
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

T = TypeVar("T")
_quiet = False


def set_quiet(quiet: bool) -> None:
    """Silence progress lines and remarks of this process (``--quiet``)."""
    global _quiet
    _quiet = quiet


def is_quiet() -> bool:
    """Whether they are silenced."""
    return _quiet


class _RateColumn(ProgressColumn):
    """``270 images/s``; nothing until there is something to tell."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        """The speed over the last seconds."""
        speed = task.finished_speed or task.speed
        if not speed:
            return Text("")
        return Text(f"{speed:,.0f} {self.unit}/s" if speed >= 10 else f"{speed:.1f} {self.unit}/s")


class ProgressLine:
    """A live line for work counted in ``unit``.

    Example:
        >>> with ProgressLine("embedding", total=2, quiet=True) as line:
        ...     line.advance(2, note="loss 0.31")
    """

    def __init__(
        self, description: str, total: int | None = None, unit: str = "images", quiet: bool | None = None
    ) -> None:
        console = Console(stderr=True)
        hidden = (is_quiet() or not console.is_terminal) if quiet is None else quiet
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            _RateColumn(unit),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[note]}"),
            console=console,
            transient=True,
            disable=hidden,
        )
        self._task = self._progress.add_task(description, total=total, note="")

    def __enter__(self) -> ProgressLine:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def advance(self, count: int = 1, note: str | None = None) -> None:
        """Count ``count`` more units done; ``note`` replaces the text at the end of the line."""
        if note is None:
            self._progress.advance(self._task, count)
        else:
            self._progress.update(self._task, advance=count, note=note)


def track(
    items: Iterable[T],
    description: str,
    total: int | None = None,
    unit: str = "images",
    quiet: bool | None = None,
) -> Iterator[T]:
    """Yield ``items`` while a progress line counts them."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    with ProgressLine(description, total, unit, quiet) as line:
        for item in items:
            yield item
            line.advance()
