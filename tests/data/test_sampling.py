from __future__ import annotations

import json
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, strategies as st

from recollect.common.errors import ConfigError, DataError, InputError
from recollect.data.image_set import Indices
from recollect.data.sampling import ClassBalancedSampler, shard


def labels_of(sizes: list[int], seed: int = 0) -> Indices:
    """Labels of classes with the given sizes, in mixed order and with gaps in the numbering."""
    labels = np.repeat(np.arange(len(sizes)) * 3, sizes)
    return np.random.default_rng(seed).permutation(labels).astype(np.int64)


@st.composite
def settings_of_a_sampler(draw: st.DrawFn) -> dict[str, object]:
    m = draw(st.integers(1, 5))
    sizes = draw(st.lists(st.integers(1, 17), min_size=1, max_size=14))
    small = draw(st.sampled_from(["drop", "repeat"]))
    usable = sum(size >= m for size in sizes) if small == "drop" else len(sizes)
    if usable == 0:
        sizes, usable = [*sizes, m], 1
    return {
        "labels": labels_of(sizes),
        "batch_size": m * draw(st.integers(1, usable)),
        "samples_per_class": m,
        "policy": draw(st.sampled_from(["paper", "epoch"])),
        "small_classes": small,
        "seed": draw(st.integers(0, 5)),
        "batches_per_epoch": draw(st.none() | st.integers(1, 6)),
    }


def batches(sampler: ClassBalancedSampler, epoch: int) -> list[list[int]]:
    sampler.set_epoch(epoch)
    return [batch.tolist() for batch in sampler]


@given(settings_of_a_sampler(), st.integers(0, 3))
def test_every_batch_is_balanced(settings: dict, epoch: int) -> None:
    sampler = ClassBalancedSampler(**settings)
    labels, m, size = settings["labels"], settings["samples_per_class"], settings["batch_size"]
    sizes = Counter(labels.tolist())
    sampler.set_epoch(epoch)
    found = list(sampler)
    assert len(found) == len(sampler) >= 1
    for batch in found:
        assert batch.shape == (size,)
        assert batch.dtype == np.int64
        rows = labels[batch].reshape(-1, m)
        assert (rows == rows[:, :1]).all(), "the images of a class lie next to each other"
        assert len(set(rows[:, 0].tolist())) == size // m, "a class comes once a batch"
        for row in batch.reshape(-1, m).tolist():
            available = sizes[labels[row[0]]]
            counts = Counter(row).values()
            if settings["small_classes"] == "drop":
                assert available >= m
            assert max(counts) == math.ceil(m / available)
            assert len(counts) == min(m, available)


@given(settings_of_a_sampler(), st.integers(0, 3))
def test_policy_epoch_shows_no_image_twice(settings: dict, epoch: int) -> None:
    labels = settings["labels"]
    sampler = ClassBalancedSampler(**{**settings, "policy": "epoch"})
    drawn = Counter(index for batch in batches(sampler, epoch) for index in batch)
    sizes = Counter(labels.tolist())
    for index, times in drawn.items():
        small = sizes[labels[index]] < settings["samples_per_class"]
        assert times == 1 or (small and settings["small_classes"] == "repeat")


def walk(sizes: list[int], m: int, per_batch: int) -> int:
    """The released code's rule, written out: batches of an epoch for classes in this order."""
    left, count = list(sizes), 0
    while True:
        chosen = [i for i, size in enumerate(left) if size >= m][:per_batch]
        if len(chosen) < per_batch:
            return count
        for i in chosen:
            left[i] -= m
        count += 1


@given(st.integers(0, 30))
def test_policy_epoch_follows_the_walk(seed: int) -> None:
    """Every batch takes the first classes of one order that have m left, so batch sizes in classes follow the walk."""
    sizes = np.random.default_rng(seed).integers(2, 20, 9).tolist()
    labels = labels_of(sizes)
    sampler = ClassBalancedSampler(labels, 4 * 3, 3, policy="epoch", seed=seed)
    order = np.random.default_rng((seed, 0)).permutation(len(sampler._size))
    usable = [size for size in sizes if size >= 3]
    assert len(sampler) == walk([usable[i] for i in order], 3, 4)


@given(settings_of_a_sampler(), st.integers(0, 3), st.integers(1, 4))
def test_shards_concatenate_to_the_batch(settings: dict, epoch: int, world_size: int) -> None:
    m = settings["samples_per_class"]
    whole = batches(ClassBalancedSampler(**settings), epoch)
    # Each process makes a sampler of its own, as real ones do.
    samplers = [ClassBalancedSampler(**settings) for _ in range(world_size)]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    for number, parts in enumerate(zip(*samplers, strict=True)):
        for group in (1, m):
            if len(parts[0]) // group < world_size:
                with pytest.raises(InputError, match="fewer processes"):
                    shard(parts[0], 0, world_size, group)
                continue
            shards = [shard(part, rank, world_size, group) for rank, part in enumerate(parts)]
            assert np.concatenate(shards).tolist() == whole[number]
            lengths = [len(piece) for piece in shards]
            assert max(lengths) - min(lengths) <= group
            assert all(length % group == 0 and length for length in lengths)


@given(settings_of_a_sampler(), st.integers(0, 3), st.data())
def test_resume_in_mid_epoch(settings: dict, epoch: int, data: st.DataObject) -> None:
    whole = batches(ClassBalancedSampler(**settings), epoch)
    following = batches(ClassBalancedSampler(**settings), epoch + 1)
    stop = data.draw(st.integers(0, len(whole)))
    first = ClassBalancedSampler(**settings)
    first.set_epoch(epoch)
    iterator = iter(first)
    for _ in range(stop):
        next(iterator)
    state = json.loads(json.dumps(first.state_dict()))
    assert state == first.state_dict(consumed=stop)

    second = ClassBalancedSampler(**settings)
    second.load_state_dict(state)
    if stop == len(whole):
        assert second.epoch == epoch + 1
        assert [batch.tolist() for batch in second] == following
        return
    second.set_epoch(epoch)  # a training loop names the epoch it resumes in; that must not rewind it
    assert [batch.tolist() for batch in second] == whole[stop:]
    assert [batch.tolist() for batch in second] == whole, "a second pass over the epoch is whole again"
    assert batches(second, epoch + 1) == following


def test_state_of_another_run_is_refused() -> None:
    sampler = ClassBalancedSampler(labels_of([9] * 8), 8, 4)
    with pytest.raises(ConfigError, match=r"seed 0.* 1"):
        ClassBalancedSampler(labels_of([9] * 8), 8, 4, seed=1).load_state_dict(sampler.state_dict())
    with pytest.raises(ConfigError, match="labels"):
        ClassBalancedSampler(labels_of([9] * 9), 8, 4).load_state_dict(sampler.state_dict())


@pytest.mark.parametrize(
    ("policy", "golden"), [("paper", [[19, 1, 8, 2], [7, 13, 11, 17]]), ("epoch", [[5, 11, 15, 3], [19, 1, 8, 2]])]
)
def test_batches_of_a_seed_never_change(policy: str, golden: list[list[int]]) -> None:
    """Pinned: another order of draws would change the batches of every saved run."""
    sampler = ClassBalancedSampler(np.arange(20) % 6, 4, 2, policy=policy, seed=7)
    assert batches(sampler, 5)[:2] == golden


def test_policy_paper_is_uniform_over_classes_and_images() -> None:
    """Chi-square over many draws: classes equally likely, images equally likely inside their class."""
    sizes = [4, 6, 10, 25]
    labels = np.repeat(np.arange(4), sizes)
    sampler = ClassBalancedSampler(labels, 4, 2, seed=3, batches_per_epoch=6000)
    drawn = np.concatenate(list(sampler))
    classes = np.bincount(labels[drawn], minlength=4) / 2
    assert ((classes - 3000) ** 2 / 3000).sum() < 16  # 3 degrees of freedom: p < 0.002
    for label, size in enumerate(sizes):
        counts = np.bincount(drawn, minlength=len(labels))[labels == label]
        assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < size + 4 * math.sqrt(2 * size)


def test_length_of_a_paper_epoch() -> None:
    labels = labels_of([10] * 10 + [2] * 7)
    assert len(ClassBalancedSampler(labels, 16, 4)) == 100 // 16
    assert len(ClassBalancedSampler(labels, 16, 4, small_classes="repeat")) == 114 // 16
    assert len(ClassBalancedSampler(labels_of([4] * 3), 12, 4)) == 1


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"batch_size": 4000}, ConfigError, "largest possible batch_size is 32"),
        ({"batch_size": 44, "small_classes": "repeat"}, ConfigError, "largest possible batch_size is 40"),
        ({"batch_size": 10}, ConfigError, "use 8 or 12"),
        ({"batch_size": 8, "policy": "random"}, ConfigError, "paper, epoch"),
        ({"batch_size": 8, "seed": -1}, ConfigError, "at least 0"),
        ({"batch_size": 8, "batches_per_epoch": 0}, ConfigError, "at least 1"),
        ({"batch_size": 20, "samples_per_class": 10}, DataError, "none of 10 classes has 10 images"),
    ],
)
def test_impossible_settings_are_refused(kwargs: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ClassBalancedSampler(labels_of([9] * 8 + [2] * 2), **kwargs)


def test_shard_refuses_a_rank_that_is_none() -> None:
    with pytest.raises(InputError, match="from 0 to 1"):
        shard(np.arange(4), 2, 2)
    with pytest.raises(InputError, match="groups of 3"):
        shard(np.arange(4), 0, 1, group=3)
