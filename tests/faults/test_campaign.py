"""The fault campaign: kills, full disks, damaged files, hostile inputs and values, drawn from a seed and counted.

Every run of the tests does a sample. The whole, some two thousand trials:

    pytest -m faults tests/faults           RECOLLECT_TRIALS and RECOLLECT_SEED choose how many and which
"""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors import safe_open

from faults.conftest import World
from faults.damage import VALUES, hostile_yaml, ways
from faults.trials import Running, Tally, run
from recollect.common.reading import read_json, read_npz
from recollect.config.overrides import known_keys

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="forks, signals and pipes of Unix")

Family = Callable[[World, random.Random, Tally], None]


def _weights(folder: Path) -> bytes:
    path = folder / "model" / "model.safetensors"
    with safe_open(path, "numpy") as tensors:
        return b"".join(name.encode() + tensors.get_tensor(name).tobytes() for name in sorted(tensors.keys()))


def _strays(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob(".*.part")]


def _differs(world: World, run_folder: Path) -> str | None:
    """Whether a run that came to its end is another than the undisturbed one."""
    if _weights(run_folder) != _weights(world.finished):
        return "ended with other weights and no word"
    left = _strays(run_folder)
    return f"left {left} behind" if left else None


# Damaged files ------------------------------------------------------------------------------------------------------


def damaged_run(world: World, draw: random.Random, tally: Tally) -> None:
    """One file of a run is damaged, then the run is used."""
    whole = draw.random() < 0.5
    folder = world.copy("damaged", world.finished if whole else world.interrupted)
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix in _KINDS)
    path = draw.choice(files)
    name, way = draw.choice(sorted(ways(path).items()))
    verbs = ["resume"] if not whole else ["eval", "report", "embed", "resume"]
    verb = draw.choice(verbs)
    way(draw, path)
    arguments = {
        "resume": ["train", "--resume", str(folder)],
        "eval": ["eval", str(folder), "--overwrite"],
        "report": ["report", str(folder), "--overwrite"],
        "embed": ["embed", str(folder), str(world.images / "test"), "--out", str(folder / "v.npz")],
    }[verb]
    ended = run(arguments, world.folder)
    wrong = None
    # A changed setting is another training; a changed weight of the finished model is refused by its checksum.
    if ended.code == 0 and verb == "resume" and path.name != "config.yaml" and "model" not in path.parts:
        wrong = _differs(world, folder)
    tally.add("damaged run", f"{verb} after {name} of {path.relative_to(folder)}", ended, wrong)


_KINDS = (".yaml", ".json", ".jsonl", ".pt", ".safetensors", ".npz")


def damaged_vectors(world: World, draw: random.Random, tally: Tally) -> None:
    """An ``.npz`` from elsewhere is searched or measured."""
    path = world.copy("vectors", world.vectors)
    name, way = draw.choice(sorted(ways(path).items()))
    way(draw, path)
    image = next((world.images / "test").rglob("*.png"))
    arguments = draw.choice(
        (
            ["eval", str(path), "--overwrite"],
            ["search", str(path), str(image)],
            ["search", str(path), str(image), "--html", str(path.with_suffix(".html"))],
        )
    )
    tally.add("damaged vectors", f"{arguments[0]} after {name}", run(arguments, world.folder))


# Hostile inputs and values ------------------------------------------------------------------------------------------


def hostile_recipe(world: World, draw: random.Random, tally: Tally) -> None:
    """A recipe that means harm."""
    path, text = world.folder / "hostile.yaml", hostile_yaml(draw)
    path.write_text(text)
    arguments = draw.choice((["recipes", str(path)], ["train", str(path), "--plan", "--data", str(world.images)]))
    tally.add("hostile recipe", repr(text[:80]), run(arguments, world.folder))


def odd_setting(world: World, draw: random.Random, tally: Tally) -> None:
    """A setting has a value that nobody should write."""
    key = draw.choice(
        [*known_keys(), "loss.options.tau1", "loss.options.k", "loss.options.x", "data.options.x", "name"]
    )
    value = draw.choice(VALUES)
    arguments = ["train", str(world.recipe), "--plan", "--set", f"{key}={value}"]
    tally.add("odd setting", f"{key}={value[:60]}", run(arguments, world.folder))


_OPTIONS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "train": (("{recipe}", "--plan"), ("--seed", "--steps", "--epochs", "--lr", "--batch-size", "--chunk", "--device",
                                        "--workers", "--cache", "--precision", "--loss", "--freeze", "--init")),
    "eval": (("{run}", "--overwrite"), ("--ks", "--split", "--data", "--root", "--batch-size", "--device", "--protocol",
                                        "--similarity", "--ties", "--memory", "--index", "--compare", "--distractors")),
    "embed": (("{run}", "{images}", "--out", "odd.npz", "--overwrite"), ("--batch-size", "--device", "--weights", "--out")),
    "search": (("{vectors}", "{image}"), ("--top", "--device", "--model", "--html", "--weights")),
    "report": (("{run}", "--overwrite"), ("--images", "--split", "--device", "--out")),
    "recipes": ((), ("x", "--json")),
    "tune": (("{recipe}", "--plan", "--out", "odd-study"), ("--trials", "--space", "--sampler", "--pruner", "--seed",
                                                             "--storage", "--set")),
}  # fmt: skip


def odd_option(world: World, draw: random.Random, tally: Tally) -> None:
    """An option of a verb has a value that nobody should write."""
    verb = draw.choice(sorted(_OPTIONS))
    given, options = _OPTIONS[verb]
    places = {"recipe": world.recipe, "run": world.finished, "images": world.images / "test", "vectors": world.vectors,
              "image": next((world.images / "test").rglob("*.png"))}  # fmt: skip
    option, value = (
        draw.choice(options),
        draw.choice((*VALUES, "lr=1:0", "lr=x", "x=1", "a=b=c", "cuda:9", "meta", "\x1b[31m")),
    )
    arguments = [verb, *(word.format(**places) for word in given), option, value.replace("\0", "")]
    folder = world.folder / "odd"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    ended = run(arguments, folder)
    raw = "ESC reaches the terminal" if "\x1b" in ended.out + ended.err else None
    tally.add("odd option", f"{verb} {option} {value[:60]!r}", ended, raw)


# Kills and signals --------------------------------------------------------------------------------------------------


def killed(world: World, draw: random.Random, tally: Tally) -> None:
    """A training is killed at any moment, once or twice, and resumed or begun again in the same place."""
    place = world.folder / "killed"
    shutil.rmtree(place, ignore_errors=True)
    moments = []
    for _ in range(draw.choice((1, 1, 2))):
        running = Running(_begin_or_resume(world, place), world.folder)
        moments.append(draw.choice((draw.uniform(0, 0.3), draw.uniform(0, 3))))
        time.sleep(moments[-1])
        running.send(signal.SIGKILL)
        running.wait()
    ended = run(_begin_or_resume(world, place), world.folder)
    wrong = _differs(world, place) if ended.code == 0 else f"cannot go on: {ended.err}"
    tally.add("killed", f"after {moments} s", ended, wrong)


def _begin_or_resume(world: World, place: Path) -> list[str]:
    if (place / "config.yaml").exists():
        return ["train", "--resume", str(place)]
    return ["train", str(world.recipe), "--out", str(place)]


def signalled(world: World, draw: random.Random, tally: Tally) -> None:
    """Ctrl-C or SIGTERM at any moment of any verb: its code, a sentence, nothing half-written."""
    folder = world.folder / "signalled"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    done = Path(shutil.copytree(world.finished, folder / "done"))
    verb, arguments = draw.choice(
        (
            ("train", ["train", str(world.recipe), "--out", str(folder / "run")]),
            ("eval", ["eval", str(done), "--overwrite", "--vectors-out", str(folder / "v.npz")]),
            ("report", ["report", str(done), "--overwrite"]),
            ("embed", ["embed", str(done), str(world.images), "--out", str(folder / "v.npz")]),
            ("recipes", ["recipes"]),
        )
    )
    number = draw.choice((signal.SIGINT, signal.SIGTERM))
    running = Running(arguments, folder)
    moment = draw.uniform(0.02, 1.0)
    time.sleep(moment)
    if not running.over():
        running.send(number)
    ended = running.wait()
    wrong = None if ended.code in (0, 128 + number) else f"code {ended.code} for {number.name}: {ended.err[-200:]}"
    left = _strays(folder)
    tally.add("signalled", f"{verb} after {moment:.2f} s", ended, wrong or (f"left {left} behind" if left else None))


# Full disks ---------------------------------------------------------------------------------------------------------


def full_disk(world: World, draw: random.Random, tally: Tally) -> None:
    """The disk is full in the middle; after room is made, the result is that of an undisturbed run."""
    kilobytes = draw.choice((0, 4, 20, 100, 300, 700, 1200, 2000, 3000))
    if world.disk is None:
        _limited(world, draw, tally, 1000 * kilobytes)
        return
    _resize(world.disk, "64m")
    for path in world.disk.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if draw.random() < 0.4:
        _full_output(world, draw, tally, world.disk, kilobytes)
        return
    place = world.disk / "run"
    _resize(world.disk, f"{max(kilobytes, 4)}k")
    first = run(["train", str(world.recipe), "--out", str(place)], world.folder)
    said = first.code == 0 or "cannot be written" in first.err
    tally.add("full disk", f"train in {kilobytes} kB", first, None if said else f"does not name the file: {first.err}")
    _resize(world.disk, "64m")
    ended = run(_begin_or_resume(world, place), world.folder)
    wrong = _differs(world, place) if ended.code == 0 else f"cannot go on: {ended.err}"
    tally.add("full disk", f"resumed after {kilobytes} kB", ended, wrong)


def _full_output(world: World, draw: random.Random, tally: Tally, disk: Path, kilobytes: int) -> None:
    run_folder = str(world.finished)
    verb, arguments, result = draw.choice(
        (
            ("embed", ["embed", run_folder, str(world.images), "--out", str(disk / "v.npz")], disk / "v.npz"),
            ("eval", ["eval", run_folder, "--vectors-out", str(disk / "e.npz"), "--overwrite"], disk / "e.npz"),
            ("report", ["report", run_folder, "--out", str(disk / "r.html")], disk / "r.html"),
        )
    )
    _resize(disk, f"{max(kilobytes // 40, 4)}k")
    ended = run(arguments, world.folder)
    there = result.exists() == (ended.code == 0)
    said = ended.code == 0 or "cannot be written" in ended.err
    wrong = None if there and said else f"half a result, or no word: {ended.err}"
    tally.add("full disk", f"{verb} in {kilobytes // 40} kB", ended, wrong)


def _limited(world: World, draw: random.Random, tally: Tally, size: int) -> None:
    """Without the right to mount a disk: no file may grow beyond a size, which the system refuses much alike."""
    place = world.folder / "limited"
    shutil.rmtree(place, ignore_errors=True)

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    first = run(["train", str(world.recipe), "--out", str(place)], world.folder, limit)
    tally.add("full disk", f"files of {size} bytes", first)
    ended = run(_begin_or_resume(world, place), world.folder)
    wrong = _differs(world, place) if ended.code == 0 else f"cannot go on: {ended.err}"
    tally.add("full disk", f"resumed after files of {size} bytes", ended, wrong)


def _resize(disk: Path, size: str) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True, capture_output=True)


# Two at once --------------------------------------------------------------------------------------------------------


def two_at_once(world: World, draw: random.Random, tally: Tally) -> None:
    """Two processes with the same task and the same place: each result whole, or the second waits or is refused."""
    folder = world.copy("twice", world.finished)
    out = folder / "out.npz"
    verb = draw.choice(("eval", "report", "embed", "train", "resume"))
    run_folder, result = folder, folder / "eval"
    if verb == "resume":
        run_folder = world.copy("twice", world.interrupted)
    if verb == "train":
        run_folder = folder / "new"
    arguments = {
        "eval": ["eval", str(folder), "--overwrite"],
        "report": ["report", str(folder), "--overwrite"],
        "embed": ["embed", str(folder), str(world.images), "--out", str(out), "--overwrite"],
        "train": ["train", str(world.recipe), "--out", str(run_folder)],
        "resume": ["train", "--resume", str(run_folder)],
    }[verb]
    both = [Running(arguments, world.folder)]
    time.sleep(draw.choice((0, draw.uniform(0, 1))))
    both.append(Running(arguments, world.folder))
    ends = [running.wait() for running in both]
    wrong = None if any(ended.code == 0 for ended in ends) else f"neither came to an end: {[e.err for e in ends]}"
    if wrong is None and verb in ("train", "resume"):
        wrong = _differs(world, run_folder)
    elif wrong is None:
        wrong = _broken(verb, folder, out, result)
    for ended in ends:
        tally.add("two at once", verb, ended, wrong)


def _broken(verb: str, folder: Path, out: Path, result: Path) -> str | None:
    try:
        if verb == "eval":
            for path in result.rglob("metrics.json"):
                read_json(path, dict)
            for path in result.rglob("*.npz"):
                read_npz(path)
        elif verb == "report":
            assert (folder / "report.html").read_text().rstrip().endswith("</html>")
        else:
            read_npz(out)
    except Exception as error:
        return f"a result is not whole: {error}"
    return None


FAMILIES: dict[Family, tuple[int, int]] = {
    damaged_run: (4, 700),
    damaged_vectors: (3, 200),
    hostile_recipe: (10, 350),
    odd_setting: (8, 500),
    odd_option: (3, 250),
    killed: (1, 60),
    signalled: (2, 120),
    full_disk: (1, 50),
    two_at_once: (1, 40),
}
"""Trials of each family: in the sample of every run, and in the whole."""


def _trials(counts: dict[Family, int], seed: int) -> list[tuple[Family, int]]:
    """All trials in an order that mixes families, so that a part of a campaign says something of each."""
    trials = [(family, number) for family, count in counts.items() for number in range(count)]
    random.Random(seed).shuffle(trials)
    return trials


def _campaign(world: World, counts: dict[Family, int], seed: int) -> Tally:
    tally = Tally()
    trials = _trials(counts, seed)
    for done, (family, number) in enumerate(trials, 1):
        family(world, random.Random(f"{seed} {family.__name__} {number}"), tally)
        if done % 100 == 0:
            print(f"\nafter {done} of {len(trials)}: {tally}", flush=True)
    return tally


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_a_sample(world: World, family: Family) -> None:
    tally = _campaign(world, {family: FAMILIES[family][0]}, seed=0)
    assert not tally.defects, str(tally)


@pytest.mark.faults
def test_the_whole_campaign(world: World) -> None:
    seed = int(os.environ.get("RECOLLECT_SEED", "1"))
    share = int(os.environ.get("RECOLLECT_TRIALS", "2270")) / sum(whole for _, whole in FAMILIES.values())
    tally = _campaign(world, {family: max(1, round(share * whole)) for family, (_, whole) in FAMILIES.items()}, seed)
    print(f"\n{tally}")
    assert not tally.defects, str(tally)
