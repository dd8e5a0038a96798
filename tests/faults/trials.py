"""Commands of recollect in processes of their own that tests disturb: kill, stop, refuse disk space, run beside others.

They are forks of the test's process, which has imported everything already: a command costs what its work costs. It is
disturbed when it renames a file, not by the clock: what else the machine does changes nothing.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pkgutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import recollect

LIMIT = 120.0
"""Seconds after which a command counts as hanging. Generous: tests share a machine."""

Arm = Callable[[], None]
"""Called in a command's process before it begins, e.g. to end it when it renames a file."""


@dataclass(frozen=True)
class Ended:
    """How a command ended. ``code`` is None if it had to be killed, negative for a signal."""

    code: int | None
    out: str
    err: str
    orphans: int = 0

    @property
    def defect(self) -> str | None:
        """What is wrong with the way it ended, whatever was done to it."""
        if self.code not in (0, 1, 2, 129, 130, 143):
            return f"ended with code {self.code}: {self.err}"
        if "Traceback" in self.err or "bug in recollect" in self.err:
            return self.err
        if self.code == 1 and not self.err.strip():
            return "failed without a word"
        if "\x1b" in self.out + self.err:
            return "a raw control character reaches the terminal"
        return f"{self.orphans} processes live on" if self.orphans else None


class Running:
    """A command under way, in a session of its own.

    Args:
        arguments: of ``recollect``.
        folder: the working folder.
        arm: called in the process when the command begins.
        cache: the cache folder; that of this process by default.
    """

    def __init__(
        self, arguments: Sequence[str], folder: Path, arm: Arm | None = None, cache: Path | None = None
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

    def over(self) -> bool:
        """Whether it has ended; its code is still to be had from ``wait``."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def end(self) -> None:
        """Kill it, and what it started, unless its end was waited for."""
        if self._files[0].closed:
            return
        os.killpg(self.pid, signal.SIGKILL)
        self.wait()

    def wait(self) -> Ended:
        """Its end, which is brought about after ``LIMIT`` seconds. Its children have 30 more seconds."""
        code: int | None = None
        while code is None:
            result, status = os.waitpid(self.pid, os.WNOHANG)
            if result:
                code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() - self._begun > LIMIT:
                os.killpg(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                break
            else:
                time.sleep(0.005)
        end = time.monotonic() + 30
        while (orphans := self._orphans()) and time.monotonic() < end:
            time.sleep(0.05)
        for pid in orphans:
            os.kill(pid, signal.SIGKILL)
        texts = []
        for file in self._files:
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
            file.close()
        return Ended(code, *texts, len(orphans))

    def _orphans(self) -> list[int]:
        """Processes that the command started and left, by session or by a mark in their environment."""
        result, mark = [], f"RECOLLECT_TRIAL={self._mark}".encode()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                rest = (process / "stat").read_text().rpartition(")")[2].split()
                same = int(rest[3]) == self.pid or mark in (process / "environ").read_bytes()
            except (OSError, IndexError, ValueError):
                continue
            if same and rest[0] != "Z":
                result.append(int(process.name))
        return result


def prepare() -> None:
    """Import what commands need before anything is forked. Nothing is computed: threads do not survive a fork."""
    from PIL import Image

    modules = [result.name for result in pkgutil.walk_packages(recollect.__path__, "recollect.")]
    # torch._dynamo: torch imports it with the first optimizer, which takes longer than a small training.
    for name in (*modules, "faiss", "matplotlib.pyplot", "onnxruntime", "optuna.storages", "torch._dynamo"):
        if not name.endswith("__main__"):
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    Image.init()
    gc.freeze()  # a collection in a fork would copy every page that it looks at


def run(arguments: Sequence[str], folder: Path, arm: Arm | None = None, cache: Path | None = None) -> Ended:
    """Run a command to its end."""
    return Running(arguments, folder, arm, cache).wait()


def _child(arguments: Sequence[str], folder: Path, handles: list[int], begun: int, arm: Arm | None) -> None:
    code = 99
    try:
        os.setsid()
        os.chdir(folder)
        for number, handle in enumerate(handles, 1):
            os.dup2(handle, number)
        sys.stdin = open(os.devnull)  # noqa: SIM115, PTH123
        sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.argv = ["recollect", *arguments]
        os.close(begun)
        if arm is not None:
            arm()
        from recollect.cli import main

        main()
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


# Disturbances -------------------------------------------------------------------------------------------------------


def signal_at_rename(number: int, below: Path, sent: int = signal.SIGKILL) -> Arm:
    """The process gets a signal just before it renames a file below a folder for the ``number``-th time.

    A file has then been written under a temporary name and is not in its place.
    """
    count = 0

    def hook(event: str, given: tuple[Any, ...]) -> None:
        nonlocal count
        if event == "os.rename" and os.fsdecode(given[0]).startswith(str(below)):
            count += 1
            if count == number:
                os.kill(os.getpid(), sent)

    return lambda: sys.addaudithook(hook)


def start_team(
    arguments: Sequence[str], folder: Path, size: int, minutes: float = 1.0, arms: dict[int, Arm] | None = None
) -> list[Running]:
    """One process for each rank, as torchrun starts them, but without its agent, which would kill the others on its own.

    Args:
        arguments: of ``recollect``, the same for all.
        folder: the working folder.
        size: the number of processes.
        minutes: how long they wait for one that does not answer.
        arms: of ranks that are disturbed.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def joining(rank: int) -> Arm:
        def join() -> None:
            torch.set_num_threads(1)  # threads of the test's process do not survive the fork
            numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
            numbers |= {"MASTER_PORT": port, "RECOLLECT_TEAM_MINUTES": minutes}
            os.environ |= {name: str(value) for name, value in numbers.items()} | {"MASTER_ADDR": "127.0.0.1"}
            if arms is not None and rank in arms:
                arms[rank]()

        return join

    return [Running(arguments, folder, joining(rank)) for rank in range(size)]
