"""Batches: the same pixels whatever the workers, the cache and the processes; bounded memory; errors that name a file."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
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

from recollect.common.errors import ConfigError, DataError, ImageError, InputError
from recollect.common.images import Preprocessing, set_max_pixels
from recollect.common.machine import fix_torchvision
from recollect.data import pipeline as pipeline_module, transforms
from recollect.data.image_set import ImageSet
from recollect.data.pipeline import Batch, DiskCache, Pipeline
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
    read = ImageSet.read
    monkeypatch.setattr(ImageSet, "read", lambda self, i, **options: reads.append(i) or read(self, i, **options))
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path))
    for cache in ("ram", "disk"):
        with Pipeline(photos, TRAIN, workers=0, cache=cache) as pipeline:
            first = pipeline.load(range(10), epoch=0).images
            assert sorted(reads) == list(range(10))
            second = pipeline.load(range(10), epoch=1).images
            assert len(reads) == 10
            assert not torch.equal(first, second), "augmentation comes after the cache"
        reads.clear()


def test_a_changed_file_is_read_again_from_the_disk_cache(damaged: ImageSet, photos: ImageSet, tmp_path: Path) -> None:
    with Pipeline(damaged, TEST, workers=0, cache="disk") as pipeline:
        before = pipeline.load([0]).images
        Image.new("RGB", (30, 30), "red").save(damaged.path(0))
        after = pipeline.load([0]).images
    assert not torch.equal(before, after)
    assert after[0, 0].min() > 200


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
    transform, indices = LongerSide(28, flip=True), np.array([5, 0, 31, *range(6, 23)])
    for workers in (0, 3):
        with Pipeline(photos, transform, workers=workers, seed=3, cache=cache) as pipeline:
            for epoch in (0, 1, 0):
                (batch,) = pipeline.stream([indices], epoch)
                numbers = uniforms(3, epoch, 0, indices, np.zeros_like(indices), 1)
                assert 3 < (numbers < 0.5).sum() < 17
                for image, index, random in zip(batch.images, indices.tolist(), numbers, strict=True):
                    expected = transform(transform.read(photos, index), random)
                    assert np.array_equal(image.permute(1, 2, 0).numpy(), expected)


def test_a_cache_of_shrunk_images_is_not_one_of_whole_ones(photos: ImageSet, tmp_path: Path) -> None:
    for transform in (LongerSide(28, flip=True), LongerSide(20, flip=True), TRAIN, LongerSide(28)):
        with Pipeline(photos, transform, workers=0, cache="disk") as cached:
            found = cached.load([1, 2])
        with Pipeline(photos, transform, workers=0) as pipeline:
            assert all(map(torch.equal, found.images, pipeline.load([1, 2]).images))


def test_prefetch_is_bounded_in_bytes(photos: ImageSet) -> None:
    """Batches of 40 images; the budget of 64 images lets the second begin and a part of the third."""
    for budget, ahead in ((64 * SMALL.size**2 * 3, 3), (0, 1)):
        taken: list[int] = []

        def batches(taken: list[int] = taken) -> Iterator[np.ndarray]:
            for number in range(100):
                taken.append(number)
                yield np.arange(40)

        with Pipeline(photos, TEST, workers=2, prefetch_bytes=budget) as pipeline:
            stream = pipeline.stream(batches())
            next(stream)
            assert len(taken) == ahead
            next(stream)
            assert len(taken) == ahead + 1
            stream.close()


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


@pytest.mark.parametrize("options", [{"cache": "gpu"}, {"on_bad_image": "ignore"}, {"worker_type": "fibres"}])
def test_impossible_settings_are_refused(photos: ImageSet, options: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        Pipeline(photos, TRAIN, **options)


@pytest.mark.parametrize("indices", [[], [40], [-1], [[0, 1]]])
def test_numbers_that_are_no_images_are_refused(photos: ImageSet, indices: list) -> None:
    with Pipeline(photos, TRAIN, workers=0) as pipeline, pytest.raises(InputError):
        pipeline.load(indices)


@pytest.mark.parametrize("transform", [TRAIN, LongerSide(20)], ids=["tensor", "list"])
def test_batches_are_pinned_when_asked(
    photos: ImageSet, transform: transforms.Transform, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pinning needs a CUDA device, so here it is only requested."""
    requests: list[object] = []
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, pin_memory=False, **o: requests.append(pin_memory) or empty(*a, **o))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: requests.append(True) or self)
    for pin in (False, True):
        with Pipeline(photos, transform, workers=0, pin=pin) as pipeline:
            pipeline.load([0, 1, 2])
        assert (True in requests) == pin


def test_a_bad_image_stops_by_default_and_is_named(damaged: ImageSet) -> None:
    for workers in (0, 2):
        with Pipeline(damaged, TRAIN, workers=workers) as pipeline, pytest.raises(ImageError) as caught:
            pipeline.load([0, 1, 2, 3])
        assert "03.jpg" in str(caught.value)
        assert "--skip-bad" in str(caught.value)


def test_skipping_keeps_the_balance_and_reports_every_file(damaged: ImageSet) -> None:
    expected = None
    for workers in (0, 2, 4):
        with Pipeline(damaged, TRAIN, workers=workers, on_bad_image="skip") as pipeline:
            images, labels, indices = pipeline.load([3, 11, 19, 0, 8], epoch=2)
            assert labels.tolist() == [3, 3, 3, 0, 0]
            assert set(indices[:2].tolist()) == {27, 35}, "images of the class that are not in the batch"
            assert indices[2:].tolist() == [19, 0, 8]
            assert [(bad.index, bad.name) for bad in pipeline.bad_images] == [(3, "3/03.jpg"), (11, "3/11.jpg")]
            assert str(pipeline.bad_images[1]) == "3/11.jpg: an empty file."
            random = uniforms(0, 2, 0, indices[:1], np.array([0]), TRAIN.draws)[0]
            assert np.array_equal(images[0].permute(1, 2, 0).numpy(), TRAIN(damaged.read(int(indices[0])), random))
            assert expected is None or (torch.equal(images, expected[0]) and indices.tolist() == expected[1])
            expected = images, indices.tolist()


def test_when_the_class_has_no_other_image_a_copy_is_drawn_anew(damaged: ImageSet) -> None:
    with Pipeline(damaged, TRAIN, workers=2, on_bad_image="skip") as pipeline:
        images, labels, indices = pipeline.load([3, 11, 19, 27, 35])
    assert labels.tolist() == [3] * 5
    assert set(indices.tolist()) == {19, 27, 35}
    rows = {images[row].numpy().tobytes() for row in range(5)}
    assert len(rows) == 5, "no two rows have the same pixels"


def test_a_class_without_a_readable_image_is_an_error(damaged: ImageSet) -> None:
    only = damaged.subset([3, 11, 0, 8])
    with Pipeline(only, TRAIN, on_bad_image="skip") as pipeline, pytest.raises(DataError, match="class 'd'"):
        pipeline.load([0, 1])


def test_sequential_leaves_bad_images_out(damaged: ImageSet) -> None:
    for transform in (TEST, LongerSide(20)):
        with Pipeline(damaged, transform, workers=2, on_bad_image="skip") as pipeline:
            found = list(pipeline.sequential(4))
            shown = np.concatenate([batch.indices for batch in found])
            assert sorted(shown.tolist()) == sorted(set(range(40)) - {3, 11})
            assert all(len(batch.images) == len(batch.labels) == len(batch.indices) > 0 for batch in found)
            for batch in found:
                assert batch.labels.tolist() == damaged.labels[batch.indices].tolist()
            assert [bad.index for bad in pipeline.bad_images] == [3, 11]


def torchvision_transform() -> transforms.FromTorchvision:
    fix_torchvision()
    from torchvision.transforms import v2

    return transforms.FromTorchvision(v2.Compose([v2.RandomResizedCrop(16), v2.PILToTensor()]), 16)


def test_a_torchvision_transform_leaves_the_models_random_numbers_alone(photos: ImageSet) -> None:
    """It draws from torch's global generator, as dropout does: so in threads never while the model may be drawing."""
    augment, threads = torchvision_transform(), set()

    def watched(image: Image.Image) -> torch.Tensor:
        threads.add(threading.current_thread())
        return augment.transform(image)

    torch.manual_seed(0)
    drawn = []
    with Pipeline(photos, transforms.FromTorchvision(watched, 16), workers=2) as pipeline:
        for _ in pipeline.stream([np.arange(20), np.arange(40), np.arange(30, 35)], epoch=1):
            drawn.append(torch.rand(50))
            time.sleep(0.01)
    assert threads == {threading.current_thread()}
    torch.manual_seed(0)
    assert torch.equal(torch.cat(drawn), torch.rand(150)), "as if nothing had been loaded"


@pytest.mark.parametrize("kind", ["crop", "whole", "torchvision"])
def test_processes_give_the_pixels_of_threads(damaged: ImageSet, kind: str) -> None:
    """Bad images replaced, any number of processes, an augmentation of torchvision, and from the middle of an epoch."""
    transform = {"crop": TRAIN, "whole": LongerSide(28, flip=True)}.get(kind) or torchvision_transform()
    batches = [np.array([3, 11, 19, 0, 8, 0]), np.arange(12, 40), np.array([3, 5])]
    expected: list[Batch] = []
    # Importing torchvision takes every process seconds.
    numbers = (1,) if kind == "torchvision" else (1, 2, 3)
    for workers, worker_type in ((0, "threads"), (3, "threads"), *((number, "processes") for number in numbers)):
        options = {"workers": workers, "worker_type": worker_type, "on_bad_image": "skip", "seed": 4}
        with Pipeline(damaged, transform, **options) as pipeline:
            found = [*pipeline.stream(batches, 2), *pipeline.stream(batches[1:], 2, first=1)]
            assert {bad.index: str(bad) for bad in pipeline.bad_images}[11] == "3/11.jpg: an empty file."
            assert len(pipeline._processes) <= workers * (worker_type == "processes")
        expected = expected or [*found[:3], *found[1:3]]
        for batch, other in zip(found, expected, strict=True):
            assert batch.indices.tolist() == other.indices.tolist()
            assert all(map(torch.equal, batch.images, other.images))


def test_errors_in_processes_are_those_of_threads(damaged: ImageSet) -> None:
    options = {"workers": 1, "worker_type": "processes"}
    with Pipeline(damaged, TRAIN, **options) as pipeline, pytest.raises(ImageError, match=r"03\.jpg.*--skip-bad"):
        pipeline.load([0, 1, 2, 3])
    with Pipeline(damaged, Broken(), **options) as pipeline, pytest.raises(DataError, match="ZeroDivisionError: oops"):
        pipeline.load([0])
    set_max_pixels(100)
    try:
        with Pipeline(damaged, TRAIN, **options) as pipeline, pytest.raises(ImageError, match="limit of 100"):
            pipeline.load([0])
    finally:
        set_max_pixels(None)
    own = transforms.FromTorchvision(lambda image: image, 16)
    with pytest.raises(ConfigError, match="worker_type=threads"):
        Pipeline(damaged, own, **options)


def test_a_killed_process_ends_in_a_sentence(photos: ImageSet) -> None:
    with Pipeline(photos, TRAIN, workers=1, worker_type="processes") as pipeline:
        pipeline.load([0])
        os.kill(pipeline._processes[0]._process.pid, signal.SIGKILL)
        with pytest.raises(DataError, match=r"process .* ended \(SIGKILL\) at 1/01\.jpg.*data\.workers"):
            pipeline.load([1, 2])


SCRIPT = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job in the background ignores it
from recollect.data import Pipeline, load, test_transform
from recollect.common.images import Preprocessing
pipeline = Pipeline(load("folder", sys.argv[1], "all"), test_transform(Preprocessing(16, 18)), 2, worker_type="processes",
                    cache="ram")
for batch in pipeline.stream([range(40)] * 2):
    print(*(process._process.pid for process in pipeline._processes), flush=True)
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc and /dev/shm")
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.release)])
def test_no_process_and_no_memory_remain(photos: ImageSet, number: signal.Signals, tmp_path: Path) -> None:
    """After Ctrl-C and after a kill; of a script without ``if __name__ == "__main__"``."""
    (tmp_path / "script.py").write_text(SCRIPT)
    before = set(Path("/dev/shm").iterdir())
    command, env = [sys.executable, str(tmp_path / "script.py"), str(photos.root)], {"PYTHONPATH": ":".join(sys.path)}
    options = {"stdout": subprocess.PIPE, "text": True, "env": {**os.environ, **env}, "start_new_session": True}
    with subprocess.Popen(command, **options) as script:
        pids = script.stdout.readline().split()
        assert pids
        os.killpg(script.pid, number) if number == signal.SIGINT else script.send_signal(number)
        script.wait(60)
    deadline = time.monotonic() + 60
    while (alive := [pid for pid in pids if Path("/proc", pid).exists()]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not alive
    assert set(Path("/dev/shm").iterdir()) <= before


@pytest.mark.parametrize("worker_type", ["threads", "processes"])
def test_a_ram_cache_is_shared_by_the_processes_of_a_run(
    damaged: ImageSet, worker_type: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of the workers, and of what ``torchrun`` starts: a second pipeline reads no file that the first has read."""
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    options = {"workers": 2, "worker_type": worker_type, "cache": "ram", "cache_size": 17}
    with Pipeline(damaged, TRAIN, **options) as first, Pipeline(damaged, TRAIN, **options) as second:
        expected = first.load(range(4, 10)).images
        for index in range(4, 10):
            damaged.path(index).unlink()
        assert torch.equal(second.load(range(4, 10)).images, expected)
        with pytest.raises(ImageError):
            second.load([4, 3])


def test_cached_images_can_be_shrunk(photos: ImageSet) -> None:
    with Pipeline(photos, TRAIN, workers=0, cache="ram", cache_size=17) as pipeline:
        batches = [pipeline.load([0, 1]).images for _ in range(2)]
    assert torch.equal(*batches)
    image = photos.read(1)
    shrunk = image.resize((max(17, round(image.width * 17 / min(image.size))), 17), Image.Resampling.BICUBIC)
    random = uniforms(0, 0, 0, np.array([1]), np.array([0]), TRAIN.draws)[0]
    assert image.height < image.width
    assert np.array_equal(batches[0][1].permute(1, 2, 0).numpy(), TRAIN(shrunk, random))


def test_processes_are_chosen_where_threads_would_wait(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    many = ImageSet("many", [str(n) for n in range(1000)], [0] * 1000, ["x"], root=tmp_path)
    few, own = many.subset(range(999)), torchvision_transform()
    monkeypatch.setattr(pipeline_module, "processors", lambda: 48)

    def chosen(images: ImageSet, transform: transforms.Transform, workers: int | None) -> tuple[bool, int]:
        with Pipeline(images, transform, workers) as pipeline:
            return pipeline._payload is not None, pipeline.workers

    assert chosen(many, TRAIN, None) == (True, 48)
    assert chosen(few, TRAIN, None) == (False, 16)
    numbers = np.zeros(1000, np.int64)
    paths, pictures = ["a.png"] * 1000, [Image.new("RGB", (1, 1))] * 1000
    assert chosen(ImageSet("paths", many.names, numbers, ["x"], items=paths), TRAIN, None) == (True, 48)
    assert chosen(ImageSet("in memory", many.names, numbers, ["x"], items=pictures), TRAIN, None) == (False, 16)
    assert chosen(many, TRAIN, 4) == (False, 4)
    assert chosen(many, own, 2) == (True, 2)
    assert chosen(many, transforms.FromTorchvision(lambda image: image, 16), 20) == (False, 20)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "12")
    assert chosen(many, TRAIN, None) == (False, 4)


def pixels(seed: int, height: int = 7, width: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_damaged_entries_are_made_again(photos: ImageSet, tmp_path: Path, damage: str) -> None:
    cache = DiskCache(tmp_path / "cache", photos, "")
    cache.put(0, pixels(0))
    entry = cache.path(0)
    content = bytearray(entry.read_bytes())
    if damage == "flip":
        content[-9] ^= 1
    entry.write_bytes({"cut": content[:-1], "empty": b""}.get(damage, content))
    assert cache.get(0) is None
    cache.put(0, pixels(0))
    assert np.array_equal(cache.get(0), pixels(0))


def test_a_cache_that_cannot_be_written_does_not_stop_a_run(photos: ImageSet, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    cache = DiskCache(tmp_path / "cache", photos, "")
    cache.put(0, pixels(0))
    assert cache.get(0) is None
