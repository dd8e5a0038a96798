"""Vectors of a set: those of ``Embedder.embed``, and no photo through the same network twice, whoever asks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from recollect.cli.main import app
from recollect.common.errors import ImageError
from recollect.data import ImageSet, load
from recollect.inference.embedding_sets import embed_files, embed_set
from recollect.inference.features import head_inputs
from recollect.models import Embedder
from recollect.training.trainer import train
from report.report_runs import count_images
from training.small_runs import make_images, small_config


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_images(tmp_path_factory.mktemp("images"), classes=6)
    return make_images(root, classes=4, split="test", seed=1)


@pytest.fixture
def images(root: Path) -> ImageSet:
    return load("folder", root, "test")


def files(images: ImageSet) -> list[Path]:
    return [images.path(index) for index in range(len(images))]


@pytest.mark.parametrize("scales", [None, (1.0, 0.7)])
@pytest.mark.parametrize("options", [{"size": 24, "dim": 16}, {"size": 24, "dim": None}, {"resize": None, "dim": 8}])
def test_vectors_are_the_embedders(images: ImageSet, options: dict[str, Any], scales: tuple[float, ...] | None) -> None:
    embedder = Embedder.create("tiny", **options)
    expected = embedder.embed(files(images), scales=scales, progress=False).numpy()
    for _ in range(2):  # computed, then read
        found = embed_set(embedder, images, scales=scales)
        np.testing.assert_allclose(found.vectors, expected, atol=1e-5)
    one = embed_set(embedder, images.subset([3]), scales=scales).vectors
    np.testing.assert_allclose(one[0], found.vectors[3], atol=1e-6)


def test_arrays_and_boxes(images: ImageSet) -> None:
    embedder = Embedder.create("tiny", size=24, dim=16)
    pixels = np.stack([np.asarray(images.read(index)) for index in range(4)])
    boxes = np.array([[0, 0, 12, 24], [np.nan] * 4, [4, 4, 20, 20], [0, 0, 24, 24]])
    boxed = ImageSet("x", list("abcd"), [0, 0, 0, 0], ["c"], arrays=pixels, boxes=boxes)
    expected = embedder.embed([boxed.read(index) for index in range(4)], progress=False)
    np.testing.assert_allclose(embed_set(embedder, boxed).vectors, expected.numpy(), atol=1e-5)


def test_files_may_be_named_twice(images: ImageSet, tmp_path: Path) -> None:
    embedder, paths = Embedder.create("tiny", size=24, dim=16), files(images)
    found = embed_files(embedder, [paths[1], paths[0], paths[1]])
    assert np.array_equal(found.vectors[0], found.vectors[2])
    np.testing.assert_allclose(found.vectors, embedder.embed([paths[1], paths[0], paths[1]]).numpy(), atol=1e-5)
    (tmp_path / "bad.png").write_bytes(b"no image")
    with pytest.raises(ImageError, match=r"bad\.png"):
        embed_files(embedder, [paths[0], tmp_path / "bad.png"])
    skipped = embed_files(embedder, [tmp_path / "bad.png", paths[0]], on_bad_image="skip")
    assert skipped.read.tolist() == [1]
    assert [bad.name for bad in skipped.skipped] == [str(tmp_path / "bad.png")]


def test_inputs_of_the_last_layer(images: ImageSet) -> None:
    for options in ({"layer_norm": True}, {"layer_norm": False, "l2_before_head": True}):
        embedder = Embedder.create("tiny", size=24, dim=16, **options)  # type: ignore[arg-type]
        expected = embedder.embed(files(images), before_head=True, progress=False)
        assert torch.allclose(head_inputs(embedder, images), expected, atol=1e-5)


def call(*arguments: object) -> str:
    done = CliRunner().invoke(app, list(map(str, arguments)))
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


@pytest.mark.parametrize("freeze", ["pooling", "backbone"])
def test_a_photo_goes_through_the_network_once_whatever_verb_asks(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, freeze: str
) -> None:
    """Counts images that enter the backbone, over train, eval, embed, report and search of a run with a frozen part."""
    through = 0
    first_block = torch.nn.Conv2d.forward

    def counting(self: torch.nn.Conv2d, pixels: torch.Tensor) -> torch.Tensor:
        nonlocal through
        through += len(pixels) if self.in_channels == 3 else 0
        return first_block(self, pixels)

    monkeypatch.setattr(torch.nn.Conv2d, "forward", counting)
    monkeypatch.chdir(tmp_path)
    settings = {"data.augmentation": "none", "model.freeze": freeze, "batch.size": "all", "batch.chunk": "auto"}
    more = {"batch.batches_per_epoch": None, "loss.options": {}, "run.epochs": 2}
    photos = count_images(monkeypatch)
    run = train(small_config(root, **settings, **more), tmp_path / "run").folder
    assert sum(photos) == 36, "every training image once"
    seen = through  # with what the plan tries out
    call("eval", run, "--split", "train")
    call("embed", run, root / "train")
    call("search", "vectors.npz", root / "train" / "train-00" / "0.png")
    call("report", run, "--split", "train")
    assert through == seen, "all of these know the training images"
    call("eval", run)
    assert through == seen + 24, "the test images are new"
    call("report", run, "--out", "page.html")
    call("embed", run, root / "test", "--out", "test.npz")
    answer = json.loads(call("search", "test.npz", root / "test" / "test-01" / "2.png", "--json"))
    assert answer[0]["results"][0]["name"] == "test-01/2.png"
    # With a frozen backbone the pooling was trained: the report puts its images through with the pooling of the start.
    assert through == seen + 24 + (24 if freeze == "backbone" else 0)


def test_a_trained_network_is_embedded_once_too(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = train(small_config(root, **{"run.epochs": 1}), tmp_path / "run").folder
    call("eval", run)

    def refuse(*arguments: object) -> None:
        raise AssertionError("embedded again")

    monkeypatch.setattr("recollect.inference.features._from_pixels", refuse)
    call("embed", run, root / "test", "--out", tmp_path / "v.npz")
    call("eval", run, "--overwrite")
