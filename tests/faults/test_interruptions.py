"""Commands that are killed, stopped, out of disk space or run twice at once: nothing is lost, and they can be run again."""

from __future__ import annotations

import contextlib
import json
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from faults.conftest import World, weights
from faults.trials import Running, run, signal_at_rename

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="forks and signals of Unix")


@dataclass(frozen=True)
class Task:
    """A command that writes.

    Args:
        arguments: of ``recollect``.
        writes: the file or folder that it makes or changes.
        outcome: reads what must be the same as after an undisturbed command.
    """

    arguments: list[str]
    writes: Path
    outcome: Callable[[Path], object] = lambda place: None

    def again(self) -> list[str]:
        """What a person types after an interruption."""
        if self.arguments[0] == "train" and (self.writes / "config.yaml").exists():
            return ["train", "--resume", str(self.writes)]
        return self.arguments


def _of_run(place: Path) -> bytes:
    return weights(place / "model")


def _arrays(place: Path) -> dict[str, bytes]:
    with np.load(place) as arrays:
        return {name: arrays[name].tobytes() for name in arrays.files}


def _answers(world: World) -> Callable[[Path], str]:
    """What an index finds for one of the images."""
    return lambda place: run(["search", str(place), str(world.image), "--json"], world.folder).out


def _database(place: Path) -> None:
    with contextlib.closing(sqlite3.connect(place)) as database:
        assert database.execute("pragma integrity_check").fetchone() == ("ok",)


def make_task(name: str, world: World, folder: Path) -> Task:
    """The command ``name`` in ``folder``, with a copy of the run that it works on."""
    place, out, index, images = folder / "run", folder / "v.npz", folder / "i.db", world.images / "test"
    if name in ("resume", "eval", "report"):
        world.copied(world.interrupted if name == "resume" else world.finished, place)
    arguments, *rest = {
        "train": (["train", world.recipe, "--out", place], place, _of_run),
        "resume": (["train", "--resume", place], place, _of_run),
        "eval": (["eval", place, "--overwrite"], place),
        "report": (["report", place, "--overwrite"], place),
        "embed": (["embed", world.finished, images, "--out", out, "--overwrite"], out, _arrays),
        "index": (["index", index, images, "--model", world.finished], index, _answers(world)),
    }[name]
    return Task([*map(str, arguments)], *rest)


# An index is a database; tests/search kills its writers.
renaming = pytest.mark.parametrize("name", ["train", "resume", "eval", "report", "embed"])


@pytest.fixture(scope="session")
def undisturbed(world: World, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], object]:
    """The outcome of each command when nothing happens to it."""
    outcomes: dict[str, object] = {}

    def of(name: str) -> object:
        if name in ("train", "resume"):
            return _of_run(world.finished)
        if name not in outcomes:
            folder = tmp_path_factory.mktemp("undisturbed")
            task = make_task(name, world, folder)
            ended = run(task.arguments, folder)
            assert ended.code == 0, ended
            outcomes[name] = task.outcome(task.writes)
        return outcomes[name]

    return of


def _comes_to_its_end(task: Task, folder: Path, expected: object) -> None:
    """After an interruption: run again, whole, and with the results of an undisturbed command."""
    ended = run(task.again(), folder)
    assert ended.defect is None
    assert ended.code == 0, ended
    assert _broken(task.writes) is None
    assert task.outcome(task.writes) == expected


def _broken(place: Path) -> str | None:
    """Which file of a place is there and not whole."""
    checks: dict[str, Callable[[Path], object]] = {
        ".json": lambda path: json.loads(path.read_text()),
        ".yaml": lambda path: yaml.safe_load(path.read_text()),
        ".npz": _arrays,
        ".pt": lambda path: torch.load(path, weights_only=True),
        ".safetensors": lambda path: weights(path.parent),
        ".html": lambda path: path.read_text().rstrip().endswith("</html>") or 1 / 0,
        ".db": _database,
    }
    for path in [place] if place.is_file() else sorted(place.rglob("*")):
        if path.is_file() and path.suffix in checks:
            try:
                checks[path.suffix](path)
            except Exception as error:
                return f"{path.name} is not whole: {type(error).__name__} {error}"
    return None


@renaming
def test_a_command_that_was_killed_comes_to_its_end(
    world: World, tmp_path: Path, undisturbed: Callable[[str], object], name: str
) -> None:
    """Killed again and again in the same place, each time a little later."""
    task = make_task(name, world, tmp_path)
    for number in (1, 4, 5, 6, 9) if name in ("train", "resume") else (1, 2):
        first = run(task.again(), tmp_path, signal_at_rename(number, tmp_path))
        assert first.orphans == 0
        assert first.code == -signal.SIGKILL or (number > 1 and first.code == 0), first
        assert _broken(task.writes) is None
        if first.code == 0:
            break
    _comes_to_its_end(task, tmp_path, undisturbed(name))


@renaming
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_was_stopped_leaves_nothing_half_written(
    world: World, tmp_path: Path, name: str, sent: signal.Signals
) -> None:
    task = make_task(name, world, tmp_path)
    ended = run(task.arguments, tmp_path, signal_at_rename(1, tmp_path, sent))
    assert ended.defect is None
    assert ended.code == 128 + sent, ended
    assert "stopped" in ended.err
    assert _broken(task.writes) is None
    assert not list(tmp_path.rglob(".*.part"))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[str], Path] | None]:
    """A disk of its own, and a way to change its size; None without the right to mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64m", "recollect-faults", str(place)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        yield None
        return

    def resize(size: str) -> Path:
        subprocess.run(["mount", "-o", f"remount,size={size}", str(place)], check=True, capture_output=True)
        return place

    yield resize
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("kilobytes", [20, 300])
@pytest.mark.parametrize("name", ["train", "resume", "eval", "embed", "index"])
def test_a_full_disk(
    world: World,
    tmp_path: Path,
    undisturbed: Callable[[str], object],
    disk: Callable[[str], Path] | None,
    name: str,
    kilobytes: int,
) -> None:
    """The command says what is wrong; after room is made, its results are those of an undisturbed one."""
    expected = undisturbed(name)
    if disk is None:  # no file may grow beyond a size, which the system refuses much alike
        task = make_task(name, world, tmp_path)
        first = run(task.arguments, tmp_path, lambda: _limit(1000 * kilobytes), tmp_path / "cache")
    else:
        place = disk("64m")
        task = make_task(name, world, place)
        there = sum(path.stat().st_size for path in place.rglob("*") if path.is_file()) // 1000
        disk(f"{2 * there + kilobytes}k")
        first = run(task.arguments, tmp_path, cache=place / "cache")
        disk("64m")  # SQLite needs room to read a file, too
        message = ("cannot be written", "full", "room", "free space")
        assert first.code == 0 or any(words in first.err for words in message), first
    assert first.defect is None
    assert _broken(task.writes) is None
    _comes_to_its_end(task, tmp_path, expected)


def _limit(size: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


@pytest.mark.parametrize("name", ["train", "embed", "index"])
def test_two_at_once(world: World, tmp_path: Path, undisturbed: Callable[[str], object], name: str) -> None:
    """The same command twice in one place: the second waits, is refused, or does the same again."""
    task = make_task(name, world, tmp_path)
    ends = [each.wait() for each in [Running(task.arguments, tmp_path) for _ in range(2)]]
    assert [ended.defect for ended in ends] == [None, None]
    assert 0 in [ended.code for ended in ends], ends
    assert _broken(task.writes) is None
    assert task.outcome(task.writes) == undisturbed(name)
