"""Vectors and features of a set: those of the embedder, and no photo through the same network twice, whoever asks."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import numpy as np
import pytest
import torch
from PIL import Image

from cli.running import run as run_command
from recollect.common.errors import ImageError
from recollect.common.images import read_image
from recollect.data import ImageSet, Pipeline, load, train_transform
from recollect.data.transforms import uniforms
from recollect.inference import vectors
from recollect.inference.vectors import embed_files, embed_set, head_inputs, part_rows, run_network
from recollect.models import Embedder
from recollect.search.encoder import ModelEncoder
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
def embedder() -> Embedder:
    return Embedder.create("tiny", dim=16, size=24)


@pytest.mark.parametrize("upto", ["backbone", "pooling"])
def test_rows_are_those_of_the_part(root: Path, embedder: Embedder, upto: str) -> None:
    images = load("folder", root, "train")
    found = part_rows(embedder, images, upto, batch_size=7, workers=0)
    _, rest = embedder.split(upto)
    rest.eval()
    with torch.no_grad():
        ours = rest(torch.from_numpy(found.rows))
    assert torch.allclose(ours, embedder.embed(files(images), progress=False), atol=1e-5)
    assert embedder.training, "the network's mode is left as it was"


def test_a_changed_file_is_noticed(tmp_path: Path, embedder: Embedder) -> None:
    root = make_images(tmp_path / "images", classes=3)
    before = part_rows(embedder, load("folder", root, "train")).rows.copy()
    first, second = (root / "train" / "train-00" / f"{i}.png" for i in (0, 1))
    first.write_bytes(second.read_bytes())
    after = part_rows(embedder, load("folder", root, "train")).rows
    assert np.array_equal(after[0], before[1])


def test_other_weights_sizes_and_cuts_have_rows_of_their_own(
    root: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, through = load("folder", root, "test"), count_images(monkeypatch)
    part_rows(embedder, images)
    part_rows(embedder, images, "backbone")
    head, exponent, first = embedder.head.linear.weight, embedder.pooling.p, next(embedder.backbone.parameters())  # type: ignore[union-attr]
    for changed, count in ((head, 48), (exponent, 72), (first, 96)):  # the last layer is behind the cut
        with torch.no_grad():
            changed.add_(1)  # type: ignore[operator]
        part_rows(embedder, images)
        assert sum(through) == count
    larger = Embedder.create("tiny", dim=16, size=32)
    larger.load_state_dict(embedder.state_dict())
    part_rows(larger, images)
    assert sum(through) == 120


@pytest.mark.parametrize("upto", ["backbone", "pooling"])
def test_bad_images(tmp_path: Path, embedder: Embedder, upto: str, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_images(tmp_path / "images", classes=2)
    (root / "train" / "train-00" / "3.png").write_bytes(b"no image")
    images = load("folder", root, "train")
    with pytest.raises(ImageError, match=r"3\.png"):
        part_rows(embedder, images, upto)
    # A part of one image that cannot be read has no row whose shape could be taken.
    monkeypatch.setattr("recollect.inference.vectors.PART", 1)
    found = part_rows(embedder, images, upto, on_bad_image="skip")
    assert [bad.index for bad in found.skipped] == [3]
    finite = np.isfinite(found.rows).reshape(len(images), -1).all(axis=1)
    assert finite.tolist() == [index != 3 for index in range(len(images))]


def test_an_image_too_narrow_for_the_network_is_named() -> None:
    embedder = Embedder.create("tiny")
    wide, narrow = torch.zeros(3, 48, 64, dtype=torch.uint8), torch.zeros(3, 1, 300, dtype=torch.uint8)
    batches = [([wide, narrow], np.array([0, 2]))]
    with pytest.raises(ImageError, match=r"c\.png.*300×1 pixels.*--image-size"):
        list(run_network(embedder, batches, embedder.device, names=["a.png", "b.png", "c.png"]))
    with pytest.raises(ImageError, match="narrow"):
        embedder.embed(narrow[None])


def large_photo(folder: Path) -> ImageSet:
    """A JPEG of 300×400 pixels that lies on its side, with details that a smaller copy lacks."""
    exif = Image.Exif()
    exif[0x0112] = 6
    noise = np.random.default_rng(0).integers(0, 256, (300, 400, 3), dtype=np.uint8)
    Image.fromarray(noise).save(folder / "photo.jpg", exif=exif, quality=95)
    return ImageSet("photo", ["photo.jpg"], np.zeros(1, np.int64), ["a"], root=folder)


def test_a_large_jpeg_has_the_same_pixels_in_training_features_index_and_service(
    tmp_path: Path, embedder: Embedder
) -> None:
    images, steps = large_photo(tmp_path), embedder.preprocessing
    path = images.path(0)
    small = read_image(path, at_least=2 * (steps.resize or 0))
    assert small.size == (75, 100), "a quarter of its upright size; an eighth would be less than twice the target"
    trained = train_transform(steps)
    with Pipeline(images, trained, workers=0) as pipeline:
        batch = pipeline.load([0]).images
    expected = trained(small, uniforms(0, 0, 0, np.array([0]), np.array([0]), trained.draws)[0])
    assert np.array_equal(batch[0].permute(1, 2, 0), expected)
    vector = embedder.embed([steps(small)], progress=False)
    encoder = ModelEncoder(embedder, {"model": None})
    boxed = ImageSet("boxed", images.names, images.labels, ["a"], root=tmp_path, boxes=np.full((1, 4), np.nan))
    for found in (
        embedder.embed([path], progress=False),
        embedder.embed(boxed, progress=False),  # its box is the whole image
        torch.from_numpy(encoder.embed([path])),
        torch.from_numpy(encoder.embed([path.read_bytes()])),
    ):
        torch.testing.assert_close(found, vector, atol=1e-6, rtol=0)
    assert not torch.allclose(vector, embedder.embed([read_image(path)], progress=False), atol=1e-4)


def test_a_box_refers_to_the_full_size(tmp_path: Path, embedder: Embedder) -> None:
    images, box = large_photo(tmp_path), (100.0, 200.0, 250.0, 390.0)
    boxed = ImageSet("boxed", images.names, images.labels, ["a"], root=tmp_path, boxes=np.array([box]))
    expected = embedder.embed([read_image(images.path(0)).crop(box)], progress=False)
    torch.testing.assert_close(embedder.embed(boxed, progress=False), expected)
    torch.testing.assert_close(torch.from_numpy(embed_set(embedder, boxed).rows), expected, atol=1e-6, rtol=0)


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
        np.testing.assert_allclose(found.rows, expected, atol=1e-5)
    one = embed_set(embedder, images.subset([3]), scales=scales).rows
    np.testing.assert_allclose(one[0], found.rows[3], atol=1e-6)


def test_vectors_of_arrays_and_boxes(images: ImageSet) -> None:
    embedder = Embedder.create("tiny", size=24, dim=16)
    pixels = np.stack([np.asarray(images.read(index)) for index in range(4)])
    boxes = np.array([[0, 0, 12, 24], [np.nan] * 4, [4, 4, 20, 20], [0, 0, 24, 24]])
    boxed = ImageSet("x", list("abcd"), [0, 0, 0, 0], ["c"], arrays=pixels, boxes=boxes)
    expected = embedder.embed([boxed.read(index) for index in range(4)], progress=False)
    np.testing.assert_allclose(embed_set(embedder, boxed).rows, expected.numpy(), atol=1e-5)


def test_files_may_be_named_twice(images: ImageSet, tmp_path: Path) -> None:
    embedder, paths = Embedder.create("tiny", size=24, dim=16), files(images)
    found = embed_files(embedder, [paths[1], paths[0], paths[1]])
    assert np.array_equal(found.rows[0], found.rows[2])
    np.testing.assert_allclose(found.rows, embedder.embed([paths[1], paths[0], paths[1]]).numpy(), atol=1e-5)
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


@pytest.mark.parametrize("freeze", ["pooling", "backbone"])
def test_a_photo_goes_through_the_network_once_whatever_verb_asks(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, freeze: str
) -> None:
    """Counts images that enter the backbone, over train, eval, embed and report of a run with a frozen part."""
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
    run_command("eval", run, "--split", "train")
    run_command("embed", run, root / "train")
    run_command("report", run, "--split", "train")
    assert through == seen, "all of these know the training images"
    run_command("eval", run)
    assert through == seen + 24, "the test images are new"
    run_command("report", run, "--out", "page.html")
    run_command("embed", run, root / "test", "--out", "test.npz")
    # With a frozen backbone the pooling was trained: the report puts its images through with the pooling of the start.
    assert through == seen + 24 + (24 if freeze == "backbone" else 0)
    answer = json.loads(run_command("search", "test.npz", root / "test" / "test-01" / "2.png", "--json").stdout)
    assert answer[0]["results"][0]["name"] == "test-01/2.png"


def test_a_gpu_copies_the_next_batch_before_it_works_on_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Mock()
    calls.copies.record_event.side_effect = [1, 2, 3]
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: calls.copies)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: calls.work)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(vectors, "take_rows", lambda inputs, rows, device: inputs)
    batches = [(torch.full((1,), float(number)), np.array([number])) for number in (1, 2, 3)]
    for inputs, places in vectors._copied_ahead(batches, torch.device("cuda")):
        calls.on(int(inputs), places[0])
    work, copied = calls.work, call.copies.record_event()
    copy = [call.copies.wait_stream(work), copied]  # when its memory is free
    used = [[call.work.wait_event(number), call.on(number, number)] for number in (1, 2, 3)]
    assert calls.mock_calls == [*copy, *copy, *used[0], *copy, *used[1], *used[2]]
