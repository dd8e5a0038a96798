"""Batches: the same pixels whatever the workers, the cache and the processes; bounded memory; errors that name a file."""

from __future__ import annotations

import gc
import subprocess
import sys
import tarfile
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from recollect.common.errors import ConfigError, DataError, InputError
from recollect.common.images import Preprocessing
from recollect.data import pipeline as pipeline_module, transforms
from recollect.data.image_set import ImageSet
from recollect.data.pipeline import Pipeline
from recollect.data.sampling import ClassBalancedSampler, shard
from recollect.data.transforms import LongerSide, uniforms

SMALL = Preprocessing(16, 18)
TRAIN = transforms.train_transform(SMALL)
TEST = transforms.test_transform(SMALL)


def epoch_of(images: ImageSet, epoch: int = 1, **kwargs) -> list[torch.Tensor]:
    sampler = ClassBalancedSampler(images.labels, 16, 4)
    sampler.set_epoch(epoch)
    with Pipeline(images, **{"transform": TRAIN, **kwargs}) as pipeline:
        return [batch.images.clone() for batch in pipeline.stream(sampler, epoch)]


def same(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return len(first) == len(second) and all(map(torch.equal, first, second))


def test_a_batch_is_each_image_transformed_with_its_own_numbers(photos: ImageSet) -> None:
    indices = np.array([5, 0, 39, 0])
    with Pipeline(photos, TRAIN, workers=2, seed=4) as pipeline:
        images, labels, found = pipeline.load(indices, epoch=3)
    assert images.shape == (4, 3, 16, 16)
    assert images.dtype == torch.uint8
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert labels.dtype == torch.int64
    assert labels.tolist() == [5, 0, 7, 0]
    assert found.tolist() == indices.tolist()
    for row, (index, occurrence) in enumerate([(5, 0), (0, 0), (39, 0), (0, 1)]):
        random = uniforms(4, 3, 0, np.array([index]), np.array([occurrence]), TRAIN.draws)[0]
        expected = TRAIN(photos.read(index), random)
        assert np.array_equal(images[row].permute(1, 2, 0).numpy(), expected)
    assert not torch.equal(images[1], images[3]), "a repeated image is augmented anew"


def test_the_same_with_any_number_of_workers(photos: ImageSet) -> None:
    expected = epoch_of(photos, workers=0)
    assert len(expected) == 2
    for workers in (1, 2, 4):
        assert same(expected, epoch_of(photos, workers=workers))
        assert same(expected, epoch_of(photos, workers=workers, prefetch_bytes=0))
    assert not same(expected, epoch_of(photos, workers=0, seed=1))
    assert not same(expected, epoch_of(photos, epoch=2, workers=0))


def test_an_image_in_two_batches_of_an_epoch_is_augmented_anew(photos: ImageSet) -> None:
    batches = [[0, 11, 25], [25, 0, 7], [0]]
    with Pipeline(photos, TRAIN, workers=2) as pipeline:
        first, second, third = (batch.images for batch in pipeline.stream(batches, epoch=3))
        shown = [first[0], second[1], third[0]]
        assert not any(torch.equal(shown[a], shown[b]) for a, b in ((0, 1), (0, 2), (1, 2)))
        assert not torch.equal(first[2], second[0])
        rest = [batch.images for batch in pipeline.stream(batches[1:], epoch=3, first=1)]
        assert same(rest, [second, third]), "going on in the middle of an epoch shows what would have been shown"
        assert torch.equal(pipeline.load(batches[2], 3, 2).images, third)
        assert not torch.equal(pipeline.load(batches[2], 3).images, third)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_the_same_with_any_number_of_processes(photos: ImageSet, world_size: int) -> None:
    sampler = ClassBalancedSampler(photos.labels, 16, 4)
    with Pipeline(photos, TRAIN, workers=2) as pipeline:
        streams = [
            pipeline.stream([shard(batch, rank, world_size, group=4) for batch in sampler])
            for rank in range(world_size)
        ]
        for whole in pipeline.stream(sampler):
            parts = [next(stream) for stream in streams]
            assert torch.equal(torch.cat([part.images for part in parts]), whole.images)
            assert torch.equal(torch.cat([part.labels for part in parts]), whole.labels)


def test_the_same_with_any_cache(photos: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path))
    for transform in (TRAIN, transforms.train_transform(SMALL, kernel="pil"), TEST):
        expected = epoch_of(photos, workers=0, transform=transform)
        for cache, free in (("ram", 2**30), ("disk", 0), ("ram", 18000)):
            monkeypatch.setattr(pipeline_module, "available_bytes", lambda free=free: free)
            with Pipeline(photos, transform, workers=2, cache=cache) as pipeline:
                sampler = ClassBalancedSampler(photos.labels, 16, 4)
                sampler.set_epoch(1)
                for _ in range(2):
                    assert same(expected, [batch.images for batch in pipeline.stream(sampler, 1)])


def test_a_cached_image_is_not_read_again(photos: ImageSet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    reads: list[int] = []
    original = ImageSet.read
    monkeypatch.setattr(
        ImageSet, "read", lambda self, index, *rest, **more: reads.append(index) or original(self, index, *rest, **more)
    )
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path))
    for cache in ("ram", "disk"):
        with Pipeline(photos, TRAIN, workers=0, cache=cache) as pipeline:
            first = pipeline.load(range(10), epoch=0).images
            assert sorted(reads) == list(range(10))
            second = pipeline.load(range(10), epoch=1).images
            assert len(reads) == 10
            assert not torch.equal(first, second), "augmentation comes after the cache"
        reads.clear()
    with Pipeline(photos, TRAIN, workers=0, cache="disk") as pipeline:
        pipeline.load(range(10))
    assert reads == [], "another run finds the entries"


def test_a_changed_file_is_read_again_from_the_disk_cache(damaged: ImageSet, photos: ImageSet, tmp_path: Path) -> None:
    with Pipeline(damaged, TEST, workers=0, cache="disk") as pipeline:
        before = pipeline.load([0]).images
        Image.new("RGB", (30, 30), "red").save(damaged.path(0))
        after = pipeline.load([0]).images
    assert not torch.equal(before, after)
    assert after[0, 0].min() > 200


def test_arrays_need_no_cache() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 20, 20), dtype=np.uint8)
    images = ImageSet("arrays", list("abcdef"), [0, 0, 0, 1, 1, 1], ["x", "y"], arrays=pixels)
    for cache in ("none", "ram", "disk"):
        with Pipeline(images, TRAIN, workers=2, cache=cache) as pipeline:
            batch = pipeline.load(range(6))
            assert torch.equal(batch.images[:, 0], batch.images[:, 2]), "grey"


def test_sequential_shows_every_image_once_in_order(photos: ImageSet) -> None:
    for workers in (0, 2):
        with Pipeline(photos, TEST, workers=workers) as pipeline:
            found = list(pipeline.sequential(12))
        assert [len(batch.labels) for batch in found] == [12, 12, 12, 4]
        assert np.concatenate([batch.indices for batch in found]).tolist() == list(range(40))
        for batch in found:
            for row, index in enumerate(batch.indices.tolist()):
                assert torch.equal(batch.images[row], SMALL(photos.read(index)))


def test_sequential_batches_images_of_equal_size(photos: ImageSet) -> None:
    transform = LongerSide(28)
    with Pipeline(photos, transform, workers=2) as pipeline:
        found = list(pipeline.sequential(4))
    assert sorted(np.concatenate([batch.indices for batch in found]).tolist()) == list(range(40))
    assert len({batch.images.shape[2:] for batch in found}) > 3
    assert max(len(batch.labels) for batch in found) == 4
    for batch in found:
        assert batch.labels.tolist() == photos.labels[batch.indices].tolist()
        for row, index in enumerate(batch.indices.tolist()):
            expected = np.asarray(transform.read(photos, index))
            assert np.array_equal(batch.images[row].permute(1, 2, 0).numpy(), expected)


@pytest.mark.parametrize("cache", ["none", "ram", "disk"])
def test_training_batches_of_whole_images_are_lists(photos: ImageSet, tmp_path: Path, cache: str) -> None:
    """Each image as it is alone, whatever the workers and the cache; half of them mirrored, by (seed, epoch, image)."""
    batches = [np.array([5, 0, 31, 5]), np.arange(20)]
    expected: dict[int, list[torch.Tensor]] = {}
    for workers in (0, 3):
        with Pipeline(photos, LongerSide(28, flip=True), workers=workers, seed=3, cache=cache) as pipeline:
            for epoch in (0, 1, 0):
                found = list(pipeline.stream(batches, epoch))
                assert [batch.indices.tolist() for batch in found] == [batch.tolist() for batch in batches]
                images = [image for batch in found for image in batch.images]
                assert all(map(torch.equal, images, expected.setdefault(epoch, images)))
    mirrors = 0
    for image, index in zip(expected[0], np.concatenate(batches).tolist(), strict=True):
        plain = torch.from_numpy(np.array(LongerSide(28).read(photos, index))).permute(2, 0, 1)
        assert image.dtype == torch.uint8
        mirrors += torch.equal(image, plain.flip(-1)) and not torch.equal(image, plain)
        assert torch.equal(image, plain) or torch.equal(image, plain.flip(-1))
    assert 5 < mirrors < 19
    assert len({image.shape for image in expected[0]}) > 3
    assert not all(map(torch.equal, expected[0], expected[1]))


def test_a_cache_of_shrunk_images_is_not_one_of_whole_ones(photos: ImageSet, tmp_path: Path) -> None:
    for transform in (LongerSide(28, flip=True), LongerSide(20, flip=True), TRAIN, LongerSide(28)):
        with Pipeline(photos, transform, workers=0, cache="disk") as cached:
            found = cached.load([1, 2])
        with Pipeline(photos, transform, workers=0) as pipeline:
            assert all(map(torch.equal, found.images, pipeline.load([1, 2]).images))


@dataclass(frozen=True)
class Gate(transforms.Transform):
    """A transform that waits for leave, counting the images it was asked for."""

    allowed: threading.Semaphore
    asked: list[int]

    size = (8, 8)
    draws = 1
    key = "gate"

    def __call__(self, image, random) -> np.ndarray:
        self.asked.append(1)
        self.allowed.acquire()
        return np.zeros((8, 8, 3), np.uint8)


def settled(asked: list[int], expected: int) -> int:
    """How many images were asked for: waits for those expected, however busy the machine is, and a moment for more."""
    deadline = time.monotonic() + 300
    while len(asked) < expected and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(0.1)
    return len(asked)


def test_prefetch_is_bounded_in_bytes(photos: ImageSet) -> None:
    """A batch of 40 images in tasks of 16; the budget of 64 images lets 4 tasks start beyond the batch in use."""
    gate = Gate(threading.Semaphore(10**6), [])
    taken: list[int] = []

    def batches() -> Iterator[np.ndarray]:
        for number in range(100):
            taken.append(number)
            yield np.arange(40)

    with Pipeline(photos, gate, workers=2, prefetch_bytes=64 * 8 * 8 * 3) as pipeline:
        stream = pipeline.stream(batches())
        next(stream)
        assert settled(gate.asked, 112) == 40 + 40 + 32  # the whole second batch and two tasks of the third
        assert taken == [0, 1, 2]
        next(stream)
        assert settled(gate.asked, 152) == 2 * 40 + 40 + 32
        stream.close()
    with Pipeline(photos, gate, workers=2, prefetch_bytes=0) as pipeline:
        gate.asked.clear()
        stream = pipeline.stream(batches())
        next(stream)
        assert settled(gate.asked, 40) == 40, "no budget, nothing ahead"


@dataclass(frozen=True)
class HoldDark(transforms.Transform):
    """A transform that lets bright images pass and holds dark ones until ``released``."""

    reached: threading.Event
    released: threading.Event

    size = (8, 8)
    draws = 1
    key = "hold"

    def __call__(self, image, random) -> np.ndarray:
        if not image.getpixel((0, 0))[0]:
            self.reached.set()
            assert self.released.wait(300)
        return np.zeros((8, 8, 3), np.uint8)


def test_work_goes_on_while_a_batch_is_in_use() -> None:
    pixels = np.repeat(np.array([255, 0], np.uint8), 20)[:, None, None] * np.ones((1, 8, 8), np.uint8)
    images = ImageSet("bright and dark", [str(n) for n in range(40)], [0] * 40, ["x"], arrays=pixels)
    transform = HoldDark(threading.Event(), threading.Event())
    with Pipeline(images, transform, workers=2) as pipeline:
        stream = pipeline.stream([np.arange(20), np.arange(20, 40)])
        assert next(stream).indices.tolist() == list(range(20))
        assert transform.reached.wait(600), "nobody works at the second batch while the first is in use"
        transform.released.set()
        assert next(stream).indices.tolist() == list(range(20, 40))


def test_a_released_batch_is_freed(photos: ImageSet) -> None:
    with Pipeline(photos, TRAIN, workers=2) as pipeline:
        stream = pipeline.stream([np.arange(16)] * 3)
        images, _, _ = next(stream)
        memory = weakref.ref(images.untyped_storage())
        del images
        gc.collect()
        assert memory() is None, "the pipeline holds on to a batch it handed over"
        next(stream)


@dataclass(frozen=True)
class Broken(transforms.Transform):
    size = (8, 8)
    draws = 1
    key = "broken"

    def __call__(self, image, random) -> np.ndarray:
        raise ZeroDivisionError("oops")


def test_a_failing_worker_names_the_file_and_does_not_hang(photos: ImageSet) -> None:
    for workers in (0, 2):
        with Pipeline(photos, Broken(), workers=workers) as pipeline:
            with pytest.raises(DataError, match=r"0/00\.jpg: .*ZeroDivisionError: oops"):
                pipeline.load([0])
            with pytest.raises(DataError, match="a worker failed"):
                list(pipeline.stream([np.arange(40)] * 5))


def test_an_error_in_the_list_of_batches_reaches_the_caller(photos: ImageSet) -> None:
    def batches() -> Iterator[list[int]]:
        yield [0, 1]
        raise RuntimeError("from the sampler")

    with Pipeline(photos, TRAIN, workers=2) as pipeline, pytest.raises(RuntimeError, match="from the sampler"):
        list(pipeline.stream(batches()))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"cache": "gpu"}, "none, ram, disk"),
        ({"on_bad_image": "ignore"}, "error, skip"),
        ({"workers": -1}, "0 or more"),
        ({"prefetch_bytes": -1}, "0 or more"),
        ({"seed": -1}, "0 or more"),
    ],
)
def test_impossible_settings_are_refused(photos: ImageSet, kwargs: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Pipeline(photos, TRAIN, **kwargs)


@pytest.mark.parametrize("indices", [[], [40], [-1], [[0, 1]]])
def test_numbers_that_are_no_images_are_refused(photos: ImageSet, indices: list) -> None:
    with Pipeline(photos, TRAIN, workers=0) as pipeline, pytest.raises(InputError):
        pipeline.load(indices)


def test_importing_the_room_does_not_import_torch() -> None:
    code = (
        "import sys, recollect.data; from recollect.data import ClassBalancedSampler; sys.exit('torch' in sys.modules)"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}, check=False).returncode
        == 0
    )


@pytest.mark.slow
@pytest.mark.shared_data
def test_a_real_epoch(shared_data: Path, tmp_path: Path) -> None:
    """Photographs of groceries, unequal classes: one epoch, cold and cached, one worker and four."""
    with tarfile.open(shared_data / "grocery_96px.tar") as archive:
        archive.extractall(tmp_path, filter="data")
    root = tmp_path / "grocery_96px" / "train"
    root = root if root.is_dir() else next(tmp_path.rglob("train"))
    classes = sorted(path.name for path in root.iterdir())
    names = sorted(str(path.relative_to(root)) for path in root.rglob("*.jpg"))
    assert len(classes) == 40
    assert len(names) == 2795
    images = ImageSet("grocery", names, [classes.index(name.split("/")[0]) for name in names], classes, root=root)
    sampler = ClassBalancedSampler(images.labels, 160, 4, policy="epoch")
    assert len(np.unique(images.labels[np.concatenate(list(sampler))])) == 40
    transform = transforms.train_transform(Preprocessing(64, 72))
    sums = []
    for workers, cache in ((1, "none"), (4, "ram")):
        with Pipeline(images, transform, workers=workers, cache=cache) as pipeline:
            for _ in range(2 if cache == "ram" else 1):
                found = list(pipeline.stream(sampler, 0))
                assert len(found) == len(sampler)
                for batch in found:
                    assert (torch.bincount(batch.labels)[torch.unique(batch.labels)] == 4).all()
                sums.append([int(batch.images.sum(dtype=torch.int64)) for batch in found])
            assert pipeline.bad_images == []
    assert sums[0] == sums[1] == sums[2]


@pytest.mark.parametrize("transform", [TRAIN, LongerSide(20)], ids=["tensor", "list"])
@pytest.mark.parametrize("pin", [False, True])
def test_batches_are_pinned_when_asked(
    photos: ImageSet, transform: transforms.Transform, pin: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pinning needs a CUDA device, so here it is only asked for."""
    asked: list[tuple[int, ...]] = []
    empty = torch.empty

    def watched(shape: tuple[int, ...], *, pin_memory: bool = False, **rest) -> torch.Tensor:
        if pin_memory:
            asked.append(tuple(shape))
        return empty(shape, **rest)

    def pinned(self: torch.Tensor) -> torch.Tensor:
        asked.append(tuple(self.shape))
        return self.clone()

    with Pipeline(photos, transform, workers=0) as pipeline:
        expected = pipeline.load([0, 1, 2]).images
    monkeypatch.setattr(torch, "empty", watched)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pinned)
    with Pipeline(photos, transform, workers=0, pin=pin) as pipeline:
        found = pipeline.load([0, 1, 2]).images
    assert all(map(torch.equal, found, expected))
    sizes = [(3, 16, 16, 3)] if transform is TRAIN else [tuple(image.permute(1, 2, 0).shape) for image in expected]
    assert asked == (sizes if pin else [])
