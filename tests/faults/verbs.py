"""Every verb as a task that can be disturbed: its arguments, what it writes, and how to tell whether that is whole."""

from __future__ import annotations

import shutil
import socket
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from safetensors import safe_open

from faults.conftest import World
from recollect.common.reading import read_json, read_npz, read_torch
from recollect.common.yaml_text import read_yaml


@dataclass(frozen=True)
class Task:
    """What is run.

    Attributes:
        arguments: of ``recollect``. again: those that go on after an interruption, where they differ.
        writes: files and folders it makes or changes. endless: it runs until it is stopped.
        same: the folder of a run that must come to the same weights as the undisturbed one.
    """

    arguments: list[str]
    writes: list[Path] = field(default_factory=list)
    endless: bool = False
    same: Path | None = None

    def again(self) -> list[str]:
        """What a person would type after an interruption."""
        if self.same is not None and (self.same / "config.yaml").exists():
            return ["train", "--resume", str(self.same)]
        return self.arguments


def _train(world: World, folder: Path) -> Task:
    return Task(["train", str(world.recipe), "--out", str(folder / "run")], [folder / "run"], same=folder / "run")


def _resume(world: World, folder: Path) -> Task:
    place = world.copied(world.interrupted, folder / "run")
    return Task(["train", "--resume", str(place)], [place], same=place)


def _eval(world: World, folder: Path) -> Task:
    done = world.copied(world.finished, folder / "done")
    return Task(["eval", str(done), "--overwrite", "--vectors-out", str(folder / "e.npz")], [done, folder / "e.npz"])


def _measure(world: World, folder: Path) -> Task:
    metrics, queries = folder / "m.json", folder / "q.npz"
    out = ["--metrics-out", str(metrics), "--queries-out", str(queries), "--overwrite"]
    return Task(["eval", str(world.vectors), *out], [metrics, queries])


def _report(world: World, folder: Path) -> Task:
    done = world.copied(world.finished, folder / "done")
    return Task(["report", str(done), "--overwrite"], [done])


def _embed(world: World, folder: Path) -> Task:
    arguments = ["embed", str(world.finished), str(world.images / "test"), "--out", str(folder / "v.npz")]
    return Task([*arguments, "--overwrite"], [folder / "v.npz"])


def _search(world: World, folder: Path) -> Task:
    page = folder / "s.html"
    return Task(["search", str(world.vectors), str(world.image), "--html", str(page), "--overwrite"], [page])


def _ask(world: World, folder: Path) -> Task:
    index = world.copied(world.index, folder / "i.db")
    return Task(["search", str(index), str(world.image)], [index])


def _index(world: World, folder: Path) -> Task:
    index = folder / "i.db"
    return Task(["index", str(index), str(world.images / "test"), "--model", str(world.finished)], [index])


def _update(world: World, folder: Path) -> Task:
    index = world.copied(world.index, folder / "i.db")
    return Task(["index", str(index), str(world.images / "train"), "--rehash", "--prune", "--prefix", "x/"], [index])


def _rebuild(world: World, folder: Path) -> Task:
    index = world.copied(world.index, folder / "i.db")
    return Task(["index", str(index), "--rebuild", "--model", str(world.finished)], [index])


def _calibrate(world: World, folder: Path) -> Task:
    done = world.copied(world.finished, folder / "done")
    rates = ["--false-match-rate", "0.1", "--similar-rate", "0.2"]
    return Task(["calibrate", str(done), "--data", str(world.images / "test"), *rates], [done])


def _duplicates(world: World, folder: Path) -> Task:
    return Task(["duplicates", str(world.images / "test"), "--model", str(world.finished)])


def _export(world: World, folder: Path) -> Task:
    model = folder / "m.onnx"
    return Task(["export", str(world.finished), "--onnx", str(model), "--overwrite"], [model])


def _paper(world: World, folder: Path) -> Task:
    page = folder / "p.html"
    return Task(["paper", str(world.finished), "--out", str(page), "--overwrite"], [page])


def _tune(world: World, folder: Path) -> Task:
    study = folder / "study"
    short = ["--trials", "1", "--no-final", "--set", "run.epochs=1"]
    return Task(["tune", str(world.recipe), "--out", str(study), *short], [study])


def _serve(world: World, folder: Path) -> Task:
    index = world.copied(world.index, folder / "i.db")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return Task(["serve", str(index), "--port", str(port)], [index], endless=True)


def _plain(*arguments: str) -> Callable[[World, Path], Task]:
    return lambda world, folder: Task(list(arguments))


VERBS: dict[str, Callable[[World, Path], Task]] = {
    "train": _train,
    "resume": _resume,
    "plan": lambda world, folder: Task(["train", str(world.recipe), "--plan"]),
    "eval": _eval,
    "eval vectors": _measure,
    "report": _report,
    "embed": _embed,
    "search": _search,
    "search index": _ask,
    "index": _index,
    "index update": _update,
    "index rebuild": _rebuild,
    "calibrate": _calibrate,
    "duplicates": _duplicates,
    "export": _export,
    "paper": _paper,
    "tune": _tune,
    "serve": _serve,
    "recipes": _plain("recipes", "cars196"),
    "models": _plain("models"),
    "losses": _plain("losses", "recall_at_k"),
    "data": _plain("data"),
}
WRITING = [
    "train", "resume", "eval", "eval vectors", "report", "embed", "search", "index", "index update", "index rebuild",
    "calibrate", "export", "paper", "tune",
]  # fmt: skip


def fresh(world: World, name: str) -> Path:
    """An empty folder for a trial."""
    folder = world.folder / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def weights(folder: Path) -> bytes:
    """Every weight of a finished run."""
    with safe_open(folder / "model" / "model.safetensors", "numpy") as tensors:
        return b"".join(name.encode() + tensors.get_tensor(name).tobytes() for name in sorted(tensors.keys()))


def strays(folder: Path) -> list[str]:
    """Temporary files that were left."""
    return [path.name for path in folder.rglob(".*.part")]


def differs(world: World, run_folder: Path) -> str | None:
    """Whether a run that came to its end is another than the undisturbed one."""
    if weights(run_folder) != weights(world.finished):
        return "ended with other weights and no word"
    left = strays(run_folder)
    return f"left {left} behind" if left else None


def broken(paths: list[Path]) -> str | None:
    """What of these files and folders is there and not whole."""
    for path in (file for place in paths for file in ([place] if place.is_file() else sorted(place.rglob("*")))):
        if path.is_file() and path.name != "metrics.jsonl" and (check := _CHECKS.get(path.suffix)) is not None:
            try:
                check(path)
            except Exception as error:
                return f"{path.name} is not whole: {type(error).__name__} {error}"
    return None


def _page(path: Path) -> None:
    assert path.read_text().rstrip().endswith("</html>"), "cut short"


def _database(path: Path) -> None:
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
        assert database.execute("pragma integrity_check").fetchone() == ("ok",)
    database.close()


def _tensors(path: Path) -> None:
    with safe_open(path, "numpy") as tensors:
        assert all(np.isfinite(tensors.get_tensor(name)).all() for name in tensors.keys())  # noqa: SIM118


_CHECKS: dict[str, Callable[[Path], object]] = {
    ".json": lambda path: read_json(path),
    ".npz": read_npz,
    ".html": _page,
    ".db": _database,
    ".pt": read_torch,
    ".yaml": read_yaml,
    ".safetensors": _tensors,
    ".onnx": lambda path: onnx.load(str(path)),
}
