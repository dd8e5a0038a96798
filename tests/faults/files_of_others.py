"""Families of trials with files that are damaged, hostile or something else altogether."""

from __future__ import annotations

import functools
import os
import random
import shutil
from pathlib import Path

from faults.conftest import World
from faults.damage import hostile_image, hostile_list, hostile_name, ways
from faults.moments import stop_after
from faults.trials import Tally, run
from faults.verbs import VERBS, free_port, fresh
from faults.wholeness import differs

OUT = ("--metrics-out", "m.json", "--queries-out", "q.npz")
"""Where results of an evaluation go: not into the run that all trials share."""
_KINDS = (".yaml", ".json", ".jsonl", ".pt", ".safetensors", ".npz", ".html", ".log")


def damaged_run(world: World, draw: random.Random, tally: Tally) -> None:
    """One file of a run is damaged, then the run is used."""
    whole = draw.random() < 0.6
    folder = fresh(world, "damaged")
    place = world.copied(world.finished if whole else world.interrupted, folder / "run")
    files = sorted(path for path in place.rglob("*") if path.is_file() and path.suffix in _KINDS)
    path = draw.choice(files)
    name, way = draw.choice(sorted(ways(path).items()))
    way(draw, path)
    data, out = str(world.images / "test"), folder / "out"
    uses = {
        "resume": ["train", "--resume", str(place)],
        "eval": ["eval", str(place), "--overwrite"],
        "report": ["report", str(place), "--overwrite"],
        "embed": ["embed", str(place), data, "--out", f"{out}.npz"],
        "export": ["export", str(place), "--onnx", f"{out}.onnx"],
        "index": ["index", f"{out}.db", data, "--model", str(place)],
        "paper": ["paper", str(place), "--out", f"{out}.html"],
        "calibrate": ["calibrate", str(place), "--data", data, "--false-match-rate", "0.1", "--similar-rate", "0.2"],
        "publish": ["publish", str(place), "--folder", str(out)],
        "whiten": ["whiten", str(place), "--data", data, "--out", str(out)],
        "duplicates": ["duplicates", data, "--model", str(place)],
        "final": ["train", "--final", str(place), "--plan"],
    }
    verb = draw.choice(sorted(uses)) if whole else "resume"
    ended = run(uses[verb], folder)
    lost = None
    # A changed setting is another training; a changed weight of the finished model is refused by its checksum.
    if ended.code == 0 and verb == "resume" and path.name != "config.yaml" and "model" not in path.parts:
        lost = differs(world, place)
    tally.add("damaged run", f"{verb} after {name} of {path.relative_to(place)}", ended, lost)


def damaged_vectors(world: World, draw: random.Random, tally: Tally) -> None:
    """An ``.npz`` from elsewhere is searched, measured or compared with."""
    folder = fresh(world, "vectors")
    path = world.copied(world.vectors, folder / "v.npz")
    name, way = draw.choice(sorted(ways(path).items()))
    way(draw, path)
    arguments = draw.choice(
        (
            ["eval", str(path), "--overwrite"],
            ["search", str(path), str(world.image)],
            ["search", str(path), str(world.image), "--html", str(folder / "s.html")],
            ["eval", str(world.vectors), "--metrics-out", "m.json", "--queries-out", "q.npz", "--compare", str(path)],
        )
    )
    tally.add("damaged vectors", f"{arguments[0]} after {name}", run(arguments, folder))


def damaged_index(world: World, draw: random.Random, tally: Tally) -> None:
    """An index, or a file beside it, is damaged; it is refused or answers as before."""
    folder = fresh(world, "index")
    path = world.copied(world.index, folder / "i.db")
    name, way = draw.choice(sorted(ways(path).items()))
    way(draw, path)
    uses = _uses_of_an_index(world)
    verb = draw.choice(sorted(uses))
    arm = stop_after(3.0) if verb == "serve" else None
    ended, lost = run(["index" if verb in _OF_INDEX else verb, "i.db", *uses[verb]], folder, arm), None
    if ended.code == 0 and verb in _QUESTIONS and ended.out != _answer(world, verb):
        lost = f"another answer: {ended.out[-300:]}"
    tally.add("damaged index", f"{verb} after {name}", ended, lost)


_QUESTIONS = ("info", "search", "duplicates")
_OF_INDEX = ("info", "sync", "remove", "approximate", "rebuild")


def _uses_of_an_index(world: World) -> dict[str, list[str]]:
    return {
        "search": [str(world.image)],
        "info": ["--info"],
        "sync": [str(world.images / "test")],
        "remove": ["--remove", "test-01/3.png"],
        "approximate": ["--approximate"],
        "serve": ["--port", str(free_port())],
        "duplicates": [],
        "rebuild": ["--rebuild", "--model", str(world.finished)],
        "calibrate": ["--false-match-rate", "0.1", "--similar-rate", "0.2"],
    }


@functools.cache
def _answer(world: World, verb: str) -> str:
    """What the undamaged index answers to a question."""
    folder = fresh(world, "answer")
    world.copied(world.index, folder / "i.db")
    return run(["index" if verb in _OF_INDEX else verb, "i.db", *_uses_of_an_index(world)[verb]], folder).out


_STUDIES = ("tune", "compare", "reproduce")


@functools.cache
def _study(world: World, verb: str) -> Path:
    """A finished study of each kind; how it is made is in ``verbs.py``."""
    folder = fresh(world, f"finished {verb}")
    task = VERBS[verb](world, folder)
    ended = run(task.arguments, folder, task.armed())
    assert ended.code == 0, f"{verb}: {ended}"
    return task.writes[0]


def damaged_study(world: World, draw: random.Random, tally: Tally) -> None:
    """One file of a study is damaged, then the same command goes on with it."""
    verb = draw.choice(_STUDIES)
    finished = _study(world, verb)
    folder = fresh(world, "study")
    task = VERBS[verb](world, folder)
    place = world.copied(finished, task.writes[0])
    files = sorted(
        path for path in place.rglob("*") if path.is_file() and path.suffix in (*_KINDS, ".db", ".csv", ".md")
    )
    path = draw.choice(files)
    name, way = draw.choice(sorted(ways(path).items()))
    way(draw, path)
    tally.add(
        "damaged study", f"{verb} after {name} of {path.relative_to(place)}", run(task.arguments, folder, task.armed())
    )


def damaged_cache(world: World, draw: random.Random, tally: Tally) -> None:
    """A file of the cache is damaged: it is made again, with a remark, and the results are the same."""
    folder = fresh(world, "cached")
    arguments = ["embed", str(world.finished), str(world.images / "test"), "--out", "v.npz", "--overwrite"]
    first = run(arguments, folder, cache=folder / "cache")
    before = (folder / "v.npz").read_bytes()
    files = sorted(path for path in (folder / "cache").rglob("*") if path.is_file() and path.suffix != ".lock")
    path = draw.choice(files)
    name, way = draw.choice(sorted(ways(path).items()))
    way(draw, path)
    ended = run(arguments, folder, cache=folder / "cache")
    lost = None
    if first.code != 0 or ended.code != 0:
        lost = f"a damaged cache ends the work: {ended.err[-200:]}"
    elif (folder / "v.npz").read_bytes() != before:
        lost = "other vectors than before"
    elif path.suffix == ".rows" and name in ("flip", "cut", "noise", "empty", "append") and "damaged" not in ended.err:
        lost = "a damaged part was read, or made again without a word"
    tally.add("damaged cache", f"{name} of {path.relative_to(folder)}", ended, lost)


def hostile_images(world: World, draw: random.Random, tally: Tally) -> None:
    """A folder of images has one that is broken, huge, a pipe, a link or strangely called."""
    folder = fresh(world, "photos")
    photos = Path(shutil.copytree(world.images / "test", folder / "photos"))
    place = draw.choice(sorted(photos.iterdir()))
    name, path = hostile_name(draw), place / "3.png"
    image = hostile_image(draw, path)
    if name is not None and os.path.lexists(path):
        os.rename(path, os.path.join(os.fsencode(place), name))  # noqa: PTH104, PTH118 - names that are not text
    skip = draw.choice(([], ["--skip-bad"]))
    uses = {
        "embed": ["embed", str(world.finished), str(photos), "--out", "v.npz", *skip],
        "embed flat": ["embed", str(world.finished), str(place), "--out", "v.npz", *skip],
        "eval": ["eval", str(world.finished), "--data", str(photos), *OUT, *skip],
        "train": ["train", str(world.recipe), "--data", str(photos), "--plan", *skip],
        "index": ["index", "i.db", str(photos), "--model", str(world.finished)],
        "search": ["search", str(world.vectors), str(path)],
        "duplicates": ["duplicates", str(photos), "--model", str(world.finished)],
        "whiten": ["whiten", str(world.headless), "--data", str(photos), "--split", "train", "--out", "w"],
        "calibrate": ["calibrate", "i.db", "--data", str(photos), "--false-match-rate", "0.1"],
        "compare": ["compare", str(world.recipe), "--losses", "recall_at_k", "--data", str(photos), "--plan"],
        "verify": ["data", "verify", "folder", str(photos)],
    }
    verb = draw.choice(sorted(uses))
    if verb == "calibrate":
        world.copied(world.index, folder / "i.db")
    ended = run(uses[verb], folder)
    tally.add("hostile image", f"{verb} with {image} called {name!r}", ended)


def hostile_lists(world: World, draw: random.Random, tally: Tally) -> None:
    """A list of images from elsewhere leads outside, holds bytes that are not text, or is not a list."""
    folder = fresh(world, "lists")
    photos = Path(shutil.copytree(world.images / "test", folder / "photos"))
    suffix = draw.choice((".txt", ".csv"))
    path = photos / f"list{suffix}"
    text = hostile_list(draw, suffix)
    path.write_bytes(text)
    uses = {
        ".txt": [["embed", str(world.finished), str(path), "--out", "v.npz"]],
        ".csv": [
            ["train", str(world.recipe), "--data", str(path), "--plan"],
            ["eval", str(world.finished), "--data", str(path), *OUT],
            ["index", "i.db", str(path), "--model", str(world.finished)],
            ["data", "verify", "folder", str(path)],
        ],
    }
    arguments = draw.choice(uses[suffix])
    tally.add("hostile list", f"{arguments[0]} of {text[:60]!r}", run(arguments, folder))
