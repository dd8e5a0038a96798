"""One trial of the fault campaign: a command of recollect in a process of its own, and what became of it.

Commands run in forks of this process, which has imported everything already: a trial costs what its work costs. A trial
is a defect if it ends in a traceback, in an error that nobody foresaw, by a crash or not at all, or if what it leaves
behind is damaged or differs from what an undisturbed command makes.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

LIMIT = 300.0
"""Seconds after which a command counts as hanging. Generous: many trials share a machine."""
CODES = (0, 1, 2, 130, 143)


@dataclass(frozen=True)
class Ended:
    """How a command ended. ``code`` is None if it had to be killed, negative for a signal."""

    code: int | None
    out: str
    err: str

    @property
    def defect(self) -> str | None:
        """What is wrong with the way it ended."""
        if self.code is None:
            return "hangs"
        if "Traceback" in self.err or "nobody foresaw" in self.err:
            return f"traceback: {self.err.strip()[-600:]}"
        if self.code not in CODES:
            return f"ended with code {self.code}: {self.err.strip()[-300:]}"
        if self.code not in (0, 2) and not self.err.strip():
            return "failed without a word"
        return None


class Running:
    """A command under way, in a process group of its own."""

    def __init__(self, arguments: Sequence[str], folder: Path, prepare: Callable[[], None] | None = None) -> None:
        self._files = [tempfile.TemporaryFile(), tempfile.TemporaryFile()]  # noqa: SIM115 - closed in wait
        self._begun = time.monotonic()
        ready, begun = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _child(arguments, folder, [file.fileno() for file in self._files], begun, prepare)
        os.close(begun)
        os.read(ready, 1)  # signals sent before the command has begun would hit this machinery
        os.close(ready)

    def send(self, number: int) -> None:
        """Send a signal to the command's own process."""
        os.kill(self.pid, number)

    def over(self) -> bool:
        """Whether it has ended; its code is still to be had from ``wait``."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def wait(self) -> Ended:
        """Its end, which is brought about after ``LIMIT`` seconds."""
        code: int | None = None
        while True:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            if found:
                code = os.waitstatus_to_exitcode(status)
                break
            if time.monotonic() - self._begun > LIMIT:
                os.killpg(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                break
            time.sleep(0.01)
        texts = []
        for file in self._files:
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
            file.close()
        return Ended(code, *texts)


def run(arguments: Sequence[str], folder: Path, prepare: Callable[[], None] | None = None) -> Ended:
    """Run a command to its end."""
    return Running(arguments, folder, prepare).wait()


def _child(
    arguments: Sequence[str], folder: Path, handles: list[int], begun: int, prepare: Callable[[], None] | None
) -> None:
    code = 99
    try:
        os.setsid()
        os.chdir(folder)
        for number, handle in enumerate(handles, 1):
            os.dup2(handle, number)
        sys.stdin = open(os.devnull)  # noqa: SIM115, PTH123
        sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if prepare is not None:
            prepare()
        from recollect.cli.app import app
        from recollect.cli.last_net import guarded

        sys.argv = ["recollect", *arguments]

        def command() -> None:
            os.close(begun)
            app()

        code = guarded(command)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:
                code = code or 1
        os._exit(code)


@dataclass
class Tally:
    """Counts trials of a campaign and keeps its defects."""

    counts: Counter[str] = field(default_factory=Counter)
    defects: list[str] = field(default_factory=list)

    def add(self, family: str, what: str, ended: Ended, wrong: str | None = None) -> None:
        """Count one trial; ``wrong`` is what else is wrong with it."""
        found = ended.defect or wrong
        self.counts[family] += 1
        self.counts[f"{family}: code {ended.code}"] += 1
        if found:
            self.defects.append(f"{family} {what}: {found}")

    def __str__(self) -> str:
        trials = sum(count for name, count in self.counts.items() if ":" not in name)
        lines = [f"{trials} trials, {len(self.defects)} defects"]
        return "\n".join(
            [*lines, *(f"{name:<28} {count}" for name, count in sorted(self.counts.items())), *self.defects]
        )
