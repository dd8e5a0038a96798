"""Every verb as a task that can be disturbed: its arguments, what it writes, and how to tell whether that is whole."""

from __future__ import annotations

import multiprocessing
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from faults.conftest import World
from faults.moments import Arm
from faults.wholeness import arrays, compared, reproduced, weights
from recollect.common.reading import read_json


@dataclass(frozen=True)
class Task:
    """What is run.

    Attributes:
        arguments: of ``recollect``. again: those that go on after an interruption, where they differ.
        writes: files and folders it makes or changes. endless: it runs until it is stopped.
        once: having come to its end, it refuses to do the same again.
        same: the folder of a run that must come to the same weights as the undisturbed one.
        outcome: what came of it, to be the same as that of an undisturbed command.
        prepare: called in the command's process before it begins, e.g. to make its work small.
    """

    arguments: list[str]
    writes: list[Path] = field(default_factory=list)
    endless: bool = False
    once: bool = False
    same: Path | None = None
    outcome: Callable[[], object] | None = None
    prepare: Arm | None = None

    def armed(self, arm: Arm | None = None) -> Arm:
        """``prepare``, then ``arm``."""

        def both() -> None:
            for each in (self.prepare, arm):
                if each is not None:
                    each()

        return both

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
    return Task(["eval", str(world.vectors), *out], [metrics, queries], outcome=lambda: read_json(metrics, dict))


def _report(world: World, folder: Path) -> Task:
    done = world.copied(world.finished, folder / "done")
    return Task(["report", str(done), "--overwrite"], [done])


def _embed(world: World, folder: Path) -> Task:
    out = folder / "v.npz"
    arguments = ["embed", str(world.finished), str(world.images / "test"), "--out", str(out), "--overwrite"]
    return Task(arguments, [out], outcome=lambda: arrays(out))


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


def _add(world: World, folder: Path) -> Task:
    index = world.copied(world.index, folder / "i.db")
    more = [str(path) for path in sorted((world.images / "train" / "train-00").iterdir())[:3]]
    return Task(["index", str(index), *more, "--add", "--meta", "shop=x"], [index])


def _remove(world: World, folder: Path) -> Task:
    index = world.copied(world.index, folder / "i.db")
    return Task(["index", str(index), "test-01/3.png", "test-02/1.png", "--remove", "--info"], [index])


def _approximate(world: World, folder: Path) -> Task:
    index = folder / "i.db"
    model = ["--model", str(world.finished), "--dim", "8", "--half", "--approximate"]
    return Task(["index", str(index), str(world.images / "test"), *model], [index])


def _calibrate(world: World, folder: Path) -> Task:
    done = world.copied(world.finished, folder / "done")
    rates = ["--false-match-rate", "0.1", "--similar-rate", "0.2"]
    return Task(["calibrate", str(done), "--data", str(world.images / "test"), *rates], [done])


def _duplicates(world: World, folder: Path) -> Task:
    return Task(["duplicates", str(world.images / "test"), "--model", str(world.finished)])


def _export(world: World, folder: Path) -> Task:
    model = folder / "m.onnx"
    return Task(["export", str(world.finished), "--onnx", str(model), "--overwrite"], [model])


def _publish(world: World, folder: Path) -> Task:
    out = folder / "repository"
    arguments = ["publish", str(world.finished), "--folder", str(out), "--dim", "8", "--licence", "MIT"]
    return Task(arguments, [out], once=True, outcome=lambda: weights(out))


def _whiten(world: World, folder: Path) -> Task:
    out = folder / "whitened"
    arguments = ["whiten", str(world.headless), "--data", str(world.many), "--dim", "8", "--out", str(out)]
    return Task(arguments, [out], once=True, outcome=lambda: weights(out))


def _paper(world: World, folder: Path) -> Task:
    page = folder / "p.html"
    return Task(["paper", str(world.finished), "--out", str(page), "--overwrite"], [page])


def _tune(world: World, folder: Path) -> Task:
    study = folder / "study"
    short = ["--trials", "1", "--no-final", "--set", "run.epochs=1"]
    return Task(["tune", str(world.recipe), "--out", str(study), *short], [study])


def _compare(world: World, folder: Path) -> Task:
    out = folder / "comparison"
    short = ["--seeds", "1", "--steps", "2", "--jobs", "1", "--losses", "recall_at_k,contrastive"]
    arguments = ["compare", str(world.recipe), *short, "--out", str(out)]
    return Task(arguments, [out], outcome=lambda: compared(out), prepare=_fork)


def _reproduce(world: World, folder: Path) -> Task:
    out = folder / "claims"
    short = ["--bench", "glyphs", "--seeds", "1", "--jobs", "1"]

    def prepare() -> None:
        from recollect.studies.benches import BENCHES, EqualImages

        bench = replace(BENCHES["glyphs"], recipe=str(world.recipe), batch=16, batches=(16,), settings={})
        BENCHES["glyphs"] = replace(bench, budget=EqualImages(32, 32))
        _fork()

    return Task(
        ["reproduce", "count-query", *short, "--out", str(out)],
        [out],
        outcome=lambda: reproduced(out),
        prepare=prepare,
    )


def _fork() -> None:
    """Runs of a study in forks: a new interpreter takes longer to import torch than its whole work here."""
    of = multiprocessing.get_context
    multiprocessing.get_context = lambda method=None: of("fork")  # type: ignore[assignment,misc]


def _demo(world: World, folder: Path) -> Task:
    out = folder / "demo"

    def prepare() -> None:
        from recollect.studies import demonstration

        whole = demonstration.demo_settings

        def small(loss: str, steps: int, seed: int) -> dict[str, Any]:
            images = {"data.name": "folder", "data.root": str(world.images), "data.augmentation": "crop"}
            network = {"model.init": "tiny", "model.image_size": 24, "model.resize": 24, "batch.size": 16}
            return whole(loss, steps, seed) | {"data.options": {}} | images | network

        demonstration.demo_settings = small

    return Task(["demo", "--out", str(out), "--steps", "2"], [out], prepare=prepare)


def _serve(world: World, folder: Path) -> Task:
    index = world.copied(world.index, folder / "i.db")
    return Task(["serve", str(index), "--port", str(free_port())], [index], endless=True)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


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
    "index add": _add,
    "index remove": _remove,
    "index approximate": _approximate,
    "calibrate": _calibrate,
    "duplicates": _duplicates,
    "export": _export,
    "publish": _publish,
    "whiten": _whiten,
    "paper": _paper,
    "tune": _tune,
    "compare": _compare,
    "reproduce": _reproduce,
    "demo": _demo,
    "serve": _serve,
    "recipes": _plain("recipes", "cars196"),
    "models": _plain("models"),
    "losses": _plain("losses", "recall_at_k"),
    "data": _plain("data"),
    "data verify": lambda world, folder: Task(["data", "verify", "folder", str(world.images)]),
}
WRITING = [
    "train", "resume", "eval", "eval vectors", "report", "embed", "search", "index", "index update", "index rebuild",
    "index add", "index remove", "index approximate", "calibrate", "export", "publish", "whiten", "paper", "tune",
    "compare", "reproduce", "demo",
]  # fmt: skip
"""Verbs that can be run again in the same place."""


def fresh(world: World, name: str) -> Path:
    """An empty folder for a trial."""
    folder = world.folder / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder
