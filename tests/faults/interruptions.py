"""Families of trials in which a command is interrupted: kills, signals, refusals of the system, full disks, rivals."""

from __future__ import annotations

import functools
import random
import resource
import shutil
import signal
import subprocess
from pathlib import Path

from faults.conftest import World
from faults.moments import ERRORS, Arm, fail_at_operation, kill_after, kill_at_operation, signal_after
from faults.trials import Ended, Running, Tally, run
from faults.verbs import VERBS, WRITING, Task, fresh
from faults.wholeness import broken, differs, strays

MOMENTS = 10
"""Every verb is stopped at so many moments, spread over its work, by each signal."""


PATIENCE = 30.0
"""Seconds in which processes of a killed command must end: the run of a study has ten to save its state."""


@functools.cache
def _undisturbed(world: World, verb: str) -> tuple[float, object]:
    """Processor time of a command with an empty cache (of one without end, that of its start), and what came of it."""
    folder = fresh(world, "timed")
    task = VERBS[verb](world, folder)
    if task.endless:
        return 0.5, None
    ended = run(task.arguments, folder, task.armed(), cache=folder / "cache")
    assert ended.code == 0, f"{verb}: {ended}"
    return ended.seconds, None if task.outcome is None else task.outcome()


def killed(world: World, draw: random.Random, tally: Tally) -> None:
    """A command dies at any moment or file operation, once or twice, and is run again in the same place."""
    verb = draw.choice([*WRITING, "train", "resume"])
    seconds = _undisturbed(world, verb)[0]
    folder = fresh(world, "killed")
    task = VERBS[verb](world, folder)
    moments, orphans, first = [], 0, None
    for _ in range(draw.choice((1, 1, 2))):
        share, number = draw.random(), draw.randrange(1, 40)
        by_time = draw.random() < 0.4
        arm = kill_after(share * seconds) if by_time else kill_at_operation(number, folder)
        moments.append(f"at {share:.2f} of its time" if by_time else f"at operation {number}")
        first = _go_on(task, folder, folder / "cache", first, arm)
        orphans += first.orphans
    ended = _go_on(task, folder, folder / "cache", first)
    other = f"{orphans} processes lived on" if orphans else None
    tally.add("killed", f"{verb} {', '.join(moments)}", ended, _lost(world, verb, task, ended, folder), other)


def _go_on(task: Task, folder: Path, cache: Path, first: Ended | None, arm: Arm | None = None) -> Ended:
    """What a person does after an interruption; nothing if ``first`` came to its end and cannot be done twice."""
    if task.once and first is not None and first.code == 0:
        return first
    return Running(task.again(), folder, task.armed(arm), cache).wait(PATIENCE)


def _lost(world: World, verb: str, task: Task, ended: Ended, folder: Path) -> str | None:
    """What is wrong with the results of a command that was disturbed and run again."""
    if ended.code != 0:
        return f"cannot go on: {ended.err[-300:]}"
    if task.same is not None and (wrong := differs(world, task.same)):
        return wrong
    left = [name for name in strays(folder) if "cache" not in name]
    if wrong := broken(task.writes) or (f"left {left} behind" if left else None):
        return wrong
    if task.outcome is not None and task.outcome() != _undisturbed(world, verb)[1]:
        return "ended with other results and no word"
    return None


def signalled(world: World, draw: random.Random, tally: Tally, number: int) -> None:
    """Ctrl-C or SIGTERM at ten moments of every verb: its code, a sentence, nothing half-written, no orphan."""
    verbs = list(VERBS)
    verb, place = verbs[number % len(verbs)], number // len(verbs)
    tenth = place // 2 * 7 % MOMENTS  # not in order, so that half of the trials covers the whole time too
    sent, moment = (signal.SIGINT, signal.SIGTERM)[place % 2], (tenth + draw.random()) / MOMENTS
    seconds = _undisturbed(world, verb)[0]
    folder = fresh(world, "signalled")
    task = VERBS[verb](world, folder)
    running = Running(task.arguments, folder, task.armed(signal_after(moment * seconds, sent)), folder / "cache")
    if task.endless and moment > 0.7:  # while it waits for requests, which takes no processor time
        _send_when_idle(running, sent)
    ended = running.wait(PATIENCE)
    allowed = (128 + sent,) if task.endless else (0, 128 + sent)
    wrong = None if ended.code in allowed else f"code {ended.code} for {sent.name}: {ended.err[-200:]}"
    left = strays(folder)
    lost = broken(task.writes) or (f"left {left} behind" if left else None)
    tally.add("signalled", f"{verb} by {sent.name} at {moment:.2f}", ended, lost, wrong)


def _send_when_idle(running: Running, number: int) -> None:
    import time

    time.sleep(3)
    if not running.over():
        running.send(number)


def refused(world: World, draw: random.Random, tally: Tally) -> None:
    """From some file operation on, the system refuses with an error; afterwards the same command comes to its end."""
    verb = draw.choice(WRITING)
    folder = fresh(world, "refused")
    task = VERBS[verb](world, folder)
    number, error = draw.randrange(1, 40), draw.choice(ERRORS)
    first = run(task.arguments, folder, task.armed(fail_at_operation(number, folder, error)), folder / "cache")
    what = f"{verb} with error {error} from operation {number} on"
    tally.add("refused by the system", what, first, None if first.code == 0 else broken(task.writes))
    ended = _go_on(task, folder, folder / "cache", first)
    tally.add("refused by the system", f"{what}, again", ended, _lost(world, verb, task, ended, folder))


def full_disk(world: World, draw: random.Random, tally: Tally) -> None:
    """The disk is full in the middle; after room is made, the result is that of an undisturbed run."""
    verb = draw.choice(["train", "train", "resume", *WRITING])
    kilobytes = draw.choice((4, 8, 20, 50, 100, 300, 500, 700, 1000))
    if world.disk is None:
        _limited(world, draw, tally, verb, 1000 * kilobytes)
        return
    _resize(world.disk, "64m")
    for path in world.disk.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    task = VERBS[verb](world, world.disk)
    there = sum(path.stat().st_size for path in world.disk.rglob("*") if path.is_file()) // 1000
    _resize(world.disk, f"{2 * there + kilobytes}k")
    first = run(task.arguments, world.folder, task.armed(), cache=world.disk / "cache")
    what = f"{verb} in {kilobytes} kB"
    said = first.code == 0 or any(words in first.err for words in ("cannot be written", "full", "room", "free space"))
    _resize(world.disk, "64m")  # SQLite needs room to read a file, too
    tally.add("full disk", what, first, broken(task.writes), None if said else f"names no disk: {first.err[-300:]}")
    ended = _go_on(task, world.folder, world.disk / "cache", first)
    tally.add("full disk", f"{what}, again", ended, _lost(world, verb, task, ended, world.disk))


def _limited(world: World, draw: random.Random, tally: Tally, verb: str, size: int) -> None:
    """Without the right to mount a disk: no file may grow beyond a size, which the system refuses much alike."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    folder = fresh(world, "limited")
    task = VERBS[verb](world, folder)
    first = run(task.arguments, folder, task.armed(limit), folder / "cache")
    tally.add("full disk", f"{verb}, files of {size} bytes", first)
    ended = _go_on(task, folder, folder / "cache", first)
    lost = _lost(world, verb, task, ended, folder)
    tally.add("full disk", f"{verb}, files of {size} bytes, again", ended, lost)


def _resize(disk: Path, size: str) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True, capture_output=True)


def two_at_once(world: World, draw: random.Random, tally: Tally) -> None:
    """Two processes with the same task and the same place: each result whole, or the second waits or is refused."""
    import time

    verb = draw.choice(WRITING)
    seconds = _undisturbed(world, verb)[0]
    folder = fresh(world, "twice")
    task = VERBS[verb](world, folder)
    both = [Running(task.arguments, folder, task.armed(), folder / "cache")]
    time.sleep(draw.choice((0, draw.uniform(0, seconds))))
    both.append(Running(task.arguments, folder, task.armed(), folder / "cache"))
    ends = [running.wait() for running in both]
    lost = None if any(ended.code == 0 for ended in ends) else f"neither came to an end: {[e.err for e in ends]}"
    if lost is None and task.same is not None:
        lost = differs(world, task.same)
    if lost is None and task.outcome is not None and task.outcome() != _undisturbed(world, verb)[1]:
        lost = "other results than those of one process"
    for ended in ends:
        tally.add("two at once", verb, ended, lost or broken(task.writes))
