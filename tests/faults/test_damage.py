"""Files that are damaged, or come from strangers: refused with a sentence or without consequence, never silently wrong."""

from __future__ import annotations

import os
import pickle
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from common.test_images import encoded, png_bomb
from faults.conftest import World, weights
from faults.trials import Ended, run

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="forks, links and pipes of Unix")

Damage = Callable[[Path], object]


def _flip(share: float) -> Damage:
    """Flip one bit at a share of a file's length."""

    def flip(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[int(share * len(content))] ^= 1 << int(97 * share) % 8
        path.write_bytes(content)

    return flip


def _instead(make: Damage) -> Damage:
    def replace(path: Path) -> None:
        path.unlink()
        make(path)

    return replace


DAMAGES: dict[str, Damage] = {
    "flipped at 0.2": _flip(0.2),
    "flipped at 0.5": _flip(0.5),
    "flipped at 0.8": _flip(0.8),
    "cut": lambda path: os.truncate(path, path.stat().st_size * 2 // 3),
    "empty": lambda path: os.truncate(path, 0),
    "noise": lambda path: path.write_bytes(np.random.default_rng(0).bytes(5000)),
    "gone": lambda path: path.unlink(),
    "folder": _instead(lambda path: path.mkdir()),
    "pipe": _instead(lambda path: os.mkfifo(path)),
    "huge": lambda path: os.truncate(path, 10**11),
}


def _says(ended: Ended, *words: str, code: int = 1) -> None:
    assert ended.defect is None
    assert ended.code == code, ended
    for each in words:
        assert each in ended.err, ended.err


def _embed(world: World, model: Path, out: Path) -> list[str]:
    return ["embed", str(model), str(world.images / "test"), "--out", str(out), "--overwrite"]


LAST = pytest.param("checkpoints/last.pt", marks=pytest.mark.release)


@pytest.mark.parametrize("file", [LAST, "config.yaml", "metrics.jsonl", "manifest.json"])
def test_an_interrupted_run_is_refused_or_resumed_exactly(world: World, tmp_path: Path, file: str) -> None:
    damages = {name: DAMAGES[name] for name in ("flipped at 0.5", "cut", "empty", "folder")}
    if file.endswith(".pt"):
        damages = DAMAGES | {f"flipped at {n / 8}": _flip(n / 8) for n in range(8)}
    for name, damage in damages.items():
        place = world.copied(world.interrupted, tmp_path / name)
        damage(place / file)
        ended = run(["train", "--resume", str(place)], tmp_path)
        assert ended.defect is None, name
        # Between the parts of a checkpoint are bytes that mean nothing; a changed setting is another training.
        same = file == "config.yaml" or ended.code or weights(place / "model") == weights(world.finished / "model")
        assert same, f"{name}: trained on silently, to other weights"


def test_damaged_results_of_others_are_refused_or_read_as_they_were(world: World, tmp_path: Path) -> None:
    """Vectors, and an index, whose single bits only ``--check`` compares."""
    image = str(world.image)
    for name, damage in DAMAGES.items():
        vectors, index = tmp_path / "v.npz", tmp_path / "i.db"
        for source, place in ((world.vectors, vectors), (world.index, index)):
            shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
            damage(world.copied(source, place))
        measured = run(["eval", str(vectors), "--metrics-out", "m.json", "--queries-out", "q.npz"], tmp_path)
        assert measured.defect is None, name
        for ended in (run(["search", str(index), image], tmp_path), run(["index", str(index), "--info"], tmp_path)):
            assert ended.defect is None, name
        noticed = (0, 1) if "flipped" in name or name == "huge" else (1,)  # SQLite reads as many pages as it knows of
        assert measured.code in noticed, name
        assert ended.code in noticed, name


def test_a_damaged_cache_is_computed_again(world: World, tmp_path: Path) -> None:
    arguments, cache = _embed(world, world.finished, tmp_path / "v.npz"), tmp_path / "cache"
    assert run(arguments, tmp_path, cache=cache).code == 0
    before = (tmp_path / "v.npz").read_bytes()
    for name in ("flipped at 0.8", "cut", "empty", "noise"):
        for part in cache.rglob("*.npz"):
            DAMAGES[name](part)
        _says(run(arguments, tmp_path, cache=cache), "computed again", code=0)
        assert (tmp_path / "v.npz").read_bytes() == before, name


class _Payload:
    """A pickle that makes a file where it is loaded."""

    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, ("executed",))


def test_a_run_folder_of_a_stranger_runs_no_code(world: World, tmp_path: Path) -> None:
    """Pickles in checkpoints and vectors, tags in settings, names that lead outside or to a terminal's controls."""
    place = world.copied(world.interrupted, tmp_path / "pickle")
    torch.save({"model": _Payload()}, place / "checkpoints" / "last.pt")
    _says(run(["train", "--resume", str(place)], tmp_path), "last.pt")
    (place / "checkpoints" / "last.pt").write_bytes(pickle.dumps(_Payload()))
    _says(run(["train", "--resume", str(place)], tmp_path), "last.pt")
    np.savez(tmp_path / "v.npz", embeddings=np.array([_Payload()], dtype=object), labels=np.arange(1))
    _says(run(["eval", str(tmp_path / "v.npz"), "--metrics-out", "m.json"], tmp_path), "v.npz")
    place = world.copied(world.finished, tmp_path / "tag")
    (place / "config.yaml").write_text("data: !!python/object/apply:os.mkdir [executed]\n")
    _says(run(["eval", str(place), "--overwrite"], tmp_path), "config.yaml")
    assert not list(tmp_path.rglob("executed"))
    place = world.copied(world.finished, tmp_path / "names")
    text = (place / "manifest.json").read_text()
    for inside, outside in (("tiny", "\\u001b[31mtiny"), ("folder", "../../../etc/passwd"), ("1", "1e999")):
        (place / "manifest.json").write_text(text.replace(inside, outside))
        for arguments in (_embed(world, place, tmp_path / "o.npz"), ["eval", str(place), "--overwrite"]):
            assert run(arguments, tmp_path).defect is None


def test_hostile_images_are_named_and_can_be_skipped(world: World, tmp_path: Path) -> None:
    """Bombs, half files and names for a terminal, with a gigabyte of memory."""
    whole = world.image.read_bytes()
    hostile = {
        "bomb.png": png_bomb(60_000, 60_000), "long.png": png_bomb(2**31 - 1, 1), "nothing.png": png_bomb(0, 0),
        "thin.png": encoded(Image.new("RGB", (600_000, 1))), "half.png": whole[: len(whole) // 2], "empty.png": b"",
        "text.png": b"x" * 99,
        "page.png": b"<svg xmlns='http://www.w3.org/2000/svg'/>", "\x1b[31mred\n.png": b"x", "-rf.png": b"x",
        "<script>.png": b"x",
    }  # fmt: skip
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "good.png").write_bytes(whole)

    def with_a_gigabyte() -> None:
        import resource

        held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + 10**9, resource.RLIM_INFINITY))

    out = tmp_path / "v.npz"
    arguments = ["embed", str(world.finished), str(photos), "--out", str(out), "--overwrite"]
    for name, content in hostile.items():
        (photos / name).write_bytes(content)
        _says(run(arguments, tmp_path, with_a_gigabyte), ".png")
        (photos / name).rename(tmp_path / name)
    for name in hostile:
        (tmp_path / name).rename(photos / name)
    _says(run([*arguments, "--skip-bad"], tmp_path, with_a_gigabyte), code=0)
    assert list(np.load(out)["names"]) == ["good.png"]
