"""One trial of the fault campaign: a command of recollect in a process of its own, and what became of it.

Commands run in forks of this process, which has imported everything already: a trial costs what its work costs. A trial
is a defect if it ends in a traceback, in an unexpected error, by a crash or not at all, if raw control
characters reach the terminal, if a process lives on, or if what it leaves behind is damaged or differs from what an
undisturbed command makes.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LIMIT = 300.0
"""Seconds after which a command counts as hanging. Generous: many trials share a machine."""
CODES = (0, 1, 2, 130, 143)
KINDS = ("traceback", "hang", "lost", "other")
"""Kinds of defects: ``lost`` is anything a user made that is damaged, gone or silently different."""


@dataclass(frozen=True)
class Ended:
    """How a command ended. ``code`` is None if it had to be killed, negative for a signal."""

    code: int | None
    out: str
    err: str
    seconds: float = 0.0
    """Processor time, its children's included."""
    orphans: int = 0

    @property
    def defect(self) -> tuple[str, str] | None:
        """What is wrong with the way it ended: the kind and a sentence."""
        if self.code is None:
            return "hang", f"hangs: {self.err.strip()[-200:]}"
        if "Traceback" in self.err or "bug in recollect" in self.err:
            return "traceback", self.err.strip()[-600:]
        if self.code not in CODES:
            return "traceback", f"ended with code {self.code}: {self.err.strip()[-300:]}"
        if self.code not in (0, 2) and not (self.err + self.out).strip():
            return "other", "failed without a word"
        if "\x1b" in self.out + self.err:
            return "other", "a raw control character reaches the terminal"
        return ("other", f"{self.orphans} processes live on") if self.orphans else None


class Running:
    """A command under way, in a session of its own.

    Args:
        arguments: of ``recollect``.
        folder: the working folder.
        arm: called in the child when the command begins, e.g. to set a timer.
        cache: the cache folder; that of this process by default.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        folder: Path,
        arm: Callable[[], None] | None = None,
        cache: Path | None = None,
    ) -> None:
        self._files = [tempfile.TemporaryFile(), tempfile.TemporaryFile()]  # noqa: SIM115 - closed in wait
        self._begun = time.monotonic()
        self._mark = f"{os.getpid()}-{time.monotonic_ns()}"
        ready, begun = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.environ["RECOLLECT_TRIAL"] = self._mark
            if cache is not None:
                os.environ["RECOLLECT_CACHE"] = str(cache)
            _child(arguments, folder, [file.fileno() for file in self._files], begun, arm)
        os.close(begun)
        os.read(ready, 1)  # signals sent before the command has begun would hit this machinery
        os.close(ready)

    def send(self, number: int) -> None:
        """Send a signal to the command's own process."""
        os.kill(self.pid, number)

    def over(self) -> bool:
        """Whether it has ended; its code is still to be had from ``wait``."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def end(self) -> None:
        """Kill it, and what it started, unless its end was waited for."""
        if self._files[0].closed:
            return
        os.killpg(self.pid, signal.SIGKILL)
        self.wait()

    def wait(self, patience: float = 5.0) -> Ended:
        """Its end, which is brought about after ``LIMIT`` seconds. Its children have ``patience`` more seconds."""
        code: int | None = None
        before = _used()
        while True:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            if found:
                code = os.waitstatus_to_exitcode(status)
                break
            if time.monotonic() - self._begun > LIMIT:
                os.killpg(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                break
            time.sleep(0.005)
        seconds = _used() - before
        orphans = self._orphans()
        end = time.monotonic() + patience
        while orphans and time.monotonic() < end:
            time.sleep(0.05)
            orphans = self._orphans()
        for pid in orphans:
            os.kill(pid, signal.SIGKILL)
        texts = []
        for file in self._files:
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
            file.close()
        return Ended(code, *texts, seconds, len(orphans))

    def _orphans(self) -> list[int]:
        """Processes that the command started and left, by session or by a mark in their environment."""
        found, mark = [], f"RECOLLECT_TRIAL={self._mark}".encode()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                rest = (process / "stat").read_text().rpartition(")")[2].split()
                same = int(rest[3]) == self.pid or mark in (process / "environ").read_bytes()
            except (OSError, IndexError, ValueError):
                continue
            if same and rest[0] != "Z":
                found.append(int(process.name))
        return found


@functools.cache
def command() -> Any:
    """The command line, made once: typer makes it at every call, which takes longer than many a trial."""
    import typer

    from recollect.cli.app import app

    return typer.main.get_command(app)


def prepare() -> None:
    """Import what trials need before anything is forked. Nothing is computed: threads do not survive a fork."""
    from PIL import Image

    import recollect.cli.app
    import recollect.inference.features
    import recollect.inference.whitening_sets
    import recollect.report.page
    import recollect.report.publishing
    import recollect.search
    import recollect.search.service
    import recollect.studies.compared_losses_page
    import recollect.studies.demonstration
    import recollect.studies.paper_page
    import recollect.studies.reproducing
    import recollect.training.trainer
    import recollect.tuning.study  # noqa: F401
    from recollect.common import torchvision_fix
    from recollect.config.recipe_files import available_recipes

    torchvision_fix.apply()
    # torch._dynamo: torch imports it with the first optimizer, which takes longer than a small training.
    for name in ("faiss", "matplotlib.pyplot", "onnxruntime", "optuna.storages", "torch._dynamo"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    Image.init()
    available_recipes()
    command()
    gc.freeze()  # a collection in a fork would copy every page that it looks at


def run(
    arguments: Sequence[str], folder: Path, arm: Callable[[], None] | None = None, cache: Path | None = None
) -> Ended:
    """Run a command to its end."""
    return Running(arguments, folder, arm, cache).wait()


def called(function: Callable[[], object], limit: float = 60.0) -> tuple[tuple[str, str] | None, str, float]:
    """Call something of the library in a fork with 4 GB to allocate: its defect, how it ended, processor time."""
    from recollect.common.errors import RecollectError

    before, end = _used(), time.monotonic() + limit
    answer, said = os.pipe()
    pid = os.fork()
    if pid == 0:
        code, words = 0, ""
        try:
            held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (held + 4 * 10**9, resource.RLIM_INFINITY))
            function()
        except RecollectError as error:
            code, words = 3, str(error)
        except BaseException as error:
            code, words = 4, f"{type(error).__name__}: {error}"
        os.write(said, words[:400].encode(errors="replace"))
        os._exit(code)
    os.close(said)
    found = 0
    while not found and time.monotonic() < end:
        found, status = os.waitpid(pid, os.WNOHANG)
        time.sleep(0.002)
    if not found:
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    words = os.read(answer, 1000).decode(errors="replace")
    os.close(answer)
    code = os.waitstatus_to_exitcode(status)
    defect = ("hang", "did not return") if not found else None if code in (0, 3) else ("traceback", words or str(code))
    return defect, {0: "done", 3: "refused"}.get(code, "killed"), _used() - before


def _used() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _child(
    arguments: Sequence[str], folder: Path, handles: list[int], begun: int, arm: Callable[[], None] | None
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
        from recollect.cli import _show_warning
        from recollect.cli.last_net import guarded

        warnings.showwarning = _show_warning(warnings.showwarning)  # as ``recollect`` does, and not as pytest
        sys.argv = ["recollect", *arguments]

        def begin() -> None:
            os.close(begun)
            if arm is not None:
                arm()
            command()()

        code = guarded(begin)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:
                code = code or 1
        os._exit(code)


@dataclass
class Tally:
    """Counts trials of a campaign and keeps its defects."""

    trials: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    defects: list[str] = field(default_factory=list)
    trial: str = ""
    """The trial that is being done, as ``RECOLLECT_ONLY`` names it."""

    def add(self, family: str, what: str, ended: Ended, lost: str | None = None, other: str | None = None) -> None:
        """Count one trial.

        Args:
            family: of the trial.
            what: the trial in words, to find it again.
            ended: how the command ended.
            lost: what a user made and does not have any more.
            other: what else is wrong.
        """
        found = ended.defect or (("lost", lost) if lost else None) or (("other", other) if other else None)
        self.note(family, what, found, {0: "done", None: "killed"}.get(ended.code, "refused"), ended.seconds)

    def note(self, family: str, what: str, found: tuple[str, str] | None, end: str, seconds: float) -> None:
        """Count one trial whose end is known."""
        self.trials[family] += 1
        self.codes[f"{family}/{end}"] += 1
        self.seconds[family] += seconds  # type: ignore[assignment]
        if found:
            self.kinds[f"{family}/{found[0]}"] += 1
            self.defects.append(f"[{self.trial}] {family}: {what}: {found[0]}: {found[1]}")

    def as_dict(self) -> dict[str, object]:
        """Plain values, to send from a test process."""
        counters = {name: dict(getattr(self, name)) for name in ("trials", "codes", "kinds", "seconds")}
        return {**counters, "defects": self.defects}

    def update(self, *others: Mapping[str, object]) -> None:
        """Add the counts of ``as_dict``."""
        for other in others:
            for name in ("trials", "codes", "kinds", "seconds"):
                getattr(self, name).update(other[name])
            self.defects += other["defects"]  # type: ignore[operator]

    def __str__(self) -> str:
        head = ("family", "trials", "done", "refused", *(f"{kind}s" for kind in KINDS[:2]), *KINDS[2:], "processor s")
        rows = [head]
        for family in [*sorted(self.trials), ""]:
            names = [family] if family else sorted(self.trials)
            ends = [sum(self.codes[f"{name}/{end}"] for name in names) for end in ("done", "refused")]
            kinds = [sum(self.kinds[f"{name}/{kind}"] for name in names) for kind in KINDS]
            trials = sum(self.trials[name] for name in names)
            seconds = sum(self.seconds[name] for name in names)
            rows.append((family or "all", *map(str, (trials, *ends, *kinds)), f"{seconds:.0f}"))
        widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        return "\n".join([*lines, *self.defects])
