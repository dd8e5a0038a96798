"""Faults that were once seen, each with the command that showed it; the campaign draws the like by the thousand."""

from __future__ import annotations

import os
import random
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from faults.conftest import World
from faults.trials import Ended, called, run
from faults.wholeness import arrays, weights
from recollect.losses import create

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(sys.platform == "win32", reason="forks, devices and pipes of Unix"),
]


def _flip(path: Path, share: float) -> None:
    """Flip one bit at a share of a file's length."""
    content = bytearray(path.read_bytes())
    content[int(share * len(content))] ^= 1 << random.Random(share).randrange(8)
    path.write_bytes(content)


def _says(ended: Ended, *words: str, code: int = 1) -> None:
    assert ended.defect is None
    assert ended.code == code, ended
    for each in words:
        assert each in ended.err, ended.err


def _embed(world: World, images: Path, out: Path, *more: str) -> list[str]:
    return ["embed", str(world.finished), str(images), "--out", str(out), "--overwrite", *more]


@pytest.mark.parametrize("place", range(12))
def test_a_flipped_bit_in_a_checkpoint(world: World, tmp_path: Path, place: int) -> None:
    copy = world.copied(world.interrupted, tmp_path / "run")
    _flip(copy / "checkpoints" / "last.pt", (place + 0.5) / 12)
    ended = run(["train", "--resume", str(copy)], tmp_path)
    assert ended.defect is None
    # Between the parts of the archive are bytes that mean nothing.
    assert ended.code == 1 or weights(copy / "model") == weights(world.finished / "model")


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_a_flipped_bit_in_weights_vectors_and_an_index(world: World, tmp_path: Path, share: float) -> None:
    copy = world.copied(world.finished, tmp_path / "run")
    _flip(copy / "model" / "model.safetensors", share)
    _says(run(["embed", str(copy), str(world.images / "test"), "--out", "v.npz"], tmp_path), "SHA-256 differs")
    vectors = world.copied(world.vectors, tmp_path / "vectors.npz")
    _flip(vectors, share)
    arguments = ["eval", str(vectors), "--metrics-out", "m.json", "--queries-out", "q.npz"]
    ended = run(arguments, tmp_path)
    assert ended.defect is None
    assert ended.code == 1 or arrays(vectors) == arrays(world.vectors)
    last = world.copied(world.interrupted, tmp_path / "interrupted")
    for best in (last / "checkpoints").glob("best-*.pt"):
        _flip(best, share)
    ended = run(["train", "--resume", str(last)], tmp_path)
    assert ended.defect is None
    assert ended.code == 1 or weights(last / "model") == weights(world.finished / "model")


def test_a_flipped_bit_in_a_cached_vector(world: World, tmp_path: Path) -> None:
    arguments = _embed(world, world.images / "test", tmp_path / "v.npz")
    assert run(arguments, tmp_path, cache=tmp_path / "cache").code == 0
    before = (tmp_path / "v.npz").read_bytes()
    part = next((tmp_path / "cache").rglob("*.npz"))
    whole = part.read_bytes()
    middle = len(whole) // 2
    for damage in (whole[:middle], b"", bytes([*whole[:middle], whole[middle] ^ 1, *whole[middle + 1 :]])):
        part.write_bytes(damage)
        ended = run(arguments, tmp_path, cache=tmp_path / "cache")
        _says(ended, "computed again", code=0)
        assert (tmp_path / "v.npz").read_bytes() == before


@pytest.mark.parametrize("width", [200_000, 600_000])  # at 224 pixels a tenth of it was enough
def test_an_image_that_is_huge_after_resizing(world: World, tmp_path: Path, width: int) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    shutil.copy(world.image, photos / "good.png")
    Image.new("RGB", (width, 1)).save(photos / "thin.png")

    def with_a_gigabyte() -> None:
        import resource

        held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + 10**9, resource.RLIM_INFINITY))

    _says(run(_embed(world, photos, tmp_path / "v.npz"), tmp_path, with_a_gigabyte), "thin.png")
    ended = run(_embed(world, photos, tmp_path / "v.npz", "--skip-bad"), tmp_path, with_a_gigabyte)
    _says(ended, "thin.png", code=0)
    assert len(np.load(tmp_path / "v.npz")["embeddings"]) == 1


@pytest.mark.parametrize(
    ("name", "options", "scale"),
    [("recall_at_k", {}, 1e18), ("recall_at_k", {"tau2": 1e-40}, 1.0), ("sup_ap", {}, 1e18)],
)
def test_numbers_at_which_a_loss_did_not_return(name: str, options: dict[str, float], scale: float) -> None:
    def work() -> None:
        value = create(name, **options)(torch.randn(40, 8) * scale, torch.arange(40) // 4)
        assert torch.isfinite(value), value

    found, end, _ = called(work)
    assert found is None
    assert end in ("done", "refused")


def test_an_output_that_is_a_device_a_link_or_a_pipe(world: World, tmp_path: Path) -> None:
    images = world.images / "test"
    link, loop, pipe = tmp_path / "link.npz", tmp_path / "loop.npz", tmp_path / "pipe.npz"
    (tmp_path / "real.npz").write_bytes(b"old")
    link.symlink_to("real.npz")
    assert run(_embed(world, images, link), tmp_path).code == 0
    assert link.is_symlink()
    assert len(np.load(tmp_path / "real.npz")["embeddings"])
    loop.symlink_to("loop.npz")
    _says(run(_embed(world, images, loop), tmp_path), "loop.npz")
    os.mkfifo(pipe)
    _says(run(_embed(world, images, pipe), tmp_path), "no process reads from it")
    try:
        os.mknod(tmp_path / "null.npz", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except OSError:
        return  # not the superuser
    assert run(_embed(world, images, tmp_path / "null.npz"), tmp_path).code == 0
    assert stat.S_ISCHR((tmp_path / "null.npz").lstat().st_mode)


@pytest.mark.parametrize(
    "text",
    [
        "a0: &a0 [1]\n" + "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)),
        "a0: &a0 {x: 1}\n" + "\n".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, 30)),
        "data: &x {data: *x}",
    ],
    ids=["chain", "merge", "itself"],
)
def test_a_recipe_of_aliases(world: World, tmp_path: Path, text: str) -> None:
    (tmp_path / "recipe.yaml").write_text(text)
    _says(run(["train", str(tmp_path / "recipe.yaml"), "--plan"], tmp_path), "recipe.yaml")


def test_a_start_that_died_between_manifest_and_configuration(world: World, tmp_path: Path) -> None:
    place = tmp_path / "run"
    place.mkdir()
    shutil.copy(world.finished / "manifest.json", place)
    (place / ".config.yaml.99999999-0123abcd.part").write_text("data:")
    assert run(["train", str(world.recipe), "--out", str(place)], tmp_path).code == 0
    assert weights(place / "model") == weights(world.finished / "model")
    assert not list(place.rglob("*.part"))


def test_a_run_without_its_weights_or_with_half_of_its_settings(world: World, tmp_path: Path) -> None:
    copy = world.copied(world.finished, tmp_path / "run")
    (copy / "model" / "model.safetensors").unlink()
    for arguments in (_embed(world, world.images / "test", tmp_path / "v.npz"), ["eval", "", "--overwrite"]):
        arguments[1] = str(copy)
        _says(run(arguments, tmp_path), "model.safetensors is missing")
    half = world.copied(world.interrupted, tmp_path / "half")
    lines = (half / "config.yaml").read_text().splitlines(keepends=True)
    (half / "config.yaml").write_text("".join(lines[:-3]))
    _says(run(["train", "--resume", str(half)], tmp_path), "config.yaml: incomplete")


def test_a_last_line_that_was_cut_short_is_repaired(world: World, tmp_path: Path) -> None:
    copy = world.copied(world.interrupted, tmp_path / "run")
    with (copy / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "st')
    ended = run(["train", "--resume", str(copy)], tmp_path)
    assert ended.code == 0
    assert "the last line is incomplete" in ended.out + ended.err
    assert weights(copy / "model") == weights(world.finished / "model")


def test_names_that_lead_out_of_a_folder(world: World, tmp_path: Path) -> None:
    inside, secret = tmp_path / "inside", tmp_path / "secret.png"
    inside.mkdir()
    Image.new("RGB", (24, 24), (1, 2, 3)).save(secret)
    found = dict(np.load(world.vectors))
    found["names"] = np.full(len(found["names"]), "../secret.png")
    np.savez(inside / "v.npz", **found | {"source": np.array(str(inside))})
    page = tmp_path / "s.html"
    ended = run(
        ["search", str(inside / "v.npz"), str(world.image), "--html", str(page), "--root", str(inside)], tmp_path
    )
    assert ended.defect is None
    assert ended.code == 1 or page.read_text().count("data:image") == 1, "only the query is shown"
    (inside / "link.png").symlink_to(secret)
    shutil.copy(world.image, inside / "good.png")
    _says(run(_embed(world, inside, tmp_path / "v.npz"), tmp_path), "link.png")


def test_escape_sequences_in_names(world: World, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    shutil.copy(world.image, photos / "\x1b[31mred.png")
    (photos / "\x1b[32mbad.png").write_bytes(b"x")
    _says(run(_embed(world, photos, tmp_path / "v.npz", "--skip-bad"), tmp_path), "bad.png", code=0)
    _says(run(["data", "verify", "folder", str(tmp_path)], tmp_path), code=1)


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "read-only"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "ro", "recollect-read-only", str(place)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no right to mount a file system")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize(
    "arguments",
    [
        ("train", "{world.recipe}", "--out", "{place}/run"),
        ("eval", "{world.finished}", "--vectors-out", "{place}/v.npz", "--overwrite"),
        ("embed", "{world.finished}", "{world.images}/test", "--out", "{place}/v.npz"),
        ("whiten", "{world.headless}", "--data", "{world.many}", "--out", "{place}/model"),
        ("export", "{world.finished}", "--onnx", "{place}/m.onnx"),
        ("publish", "{world.finished}", "--folder", "{place}/model"),
        ("report", "{world.finished}", "--out", "{place}/r.html"),
        ("paper", "{world.finished}", "--out", "{place}/p.html"),
        ("search", "{world.vectors}", "{world.image}", "--html", "{place}/s.html"),
        ("index", "{place}/i.db", "{world.images}/test", "--model", "{world.finished}"),
        ("tune", "{world.recipe}", "--out", "{place}/study", "--trials", "1"),
        ("compare", "{world.recipe}", "--losses", "recall_at_k", "--out", "{place}/study"),
        ("reproduce", "count-query", "--bench", "glyphs", "--out", "{place}/study"),
        ("demo", "--out", "{place}/demo"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_read_only_place_is_noticed_before_the_work(
    world: World, read_only: Path, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    cache = tmp_path / "cache"
    ended = run([word.format(world=world, place=read_only) for word in arguments], tmp_path, cache=cache)
    _says(ended, "read-only")
    assert not list(cache.rglob("*.npz")), "images were embedded first"
