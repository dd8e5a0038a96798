from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from recollect.common.errors import ConfigError, InputError
from recollect.data import ImageSet, class_disjoint_split, class_folds
from recollect.data.image_set import held_out_classes


def make(labels: list[int]) -> ImageSet:
    kept, numbers = np.unique(labels, return_inverse=True)
    names = [f"{i}" for i in range(len(labels))]
    return ImageSet(
        "demo", names, numbers, [f"class {k}" for k in kept], arrays=np.zeros((len(labels), 1, 1), np.uint8)
    )


labelled = st.lists(st.integers(0, 12), min_size=2, max_size=60).filter(lambda labels: len(set(labels)) >= 2)


@given(labelled, st.sampled_from(["paper", "random"]), st.integers(0, 9))
def test_parts_share_no_class_and_lose_no_image(labels: list[int], mode: str, seed: int) -> None:
    images = make(labels)
    train, val = class_disjoint_split(images, mode, seed)
    assert not set(train.class_names) & set(val.class_names)
    assert sorted([*train.names, *val.names]) == sorted(images.names)
    assert 0 <= train.num_classes - val.num_classes <= 1
    for part in (train, val):
        for name, label in zip(part.names, part.labels, strict=True):
            assert part.class_names[label] == images.class_names[images.labels[int(name)]]


def test_paper_takes_the_first_half_in_order() -> None:
    train, val = class_disjoint_split(make([3, 1, 2, 0, 0]))
    assert list(train.class_names) == ["class 0", "class 1"]
    assert list(val.class_names) == ["class 2", "class 3"]
    assert (train.split, val.split) == ("train", "val")


def test_random_depends_on_the_seed_alone() -> None:
    images = make(list(range(40)))
    halves = [class_disjoint_split(images, "random", seed)[0].class_names for seed in (0, 0, 1)]
    assert halves[0] == halves[1] != halves[2]
    assert halves[0] != class_disjoint_split(images)[0].class_names


@given(labelled, st.integers(2, 5), st.one_of(st.none(), st.integers(0, 9)))
def test_every_class_validates_once(labels: list[int], folds: int, seed: int | None) -> None:
    images = make(labels)
    if images.num_classes < folds:
        with pytest.raises(InputError, match="too few"):
            class_folds(images, folds, seed)
        return
    pairs = class_folds(images, folds, seed)
    assert len(pairs) == folds
    assert sorted(name for _, val in pairs for name in val.class_names) == sorted(images.class_names)
    for train, val in pairs:
        assert sorted([*train.names, *val.names]) == sorted(images.names)
        assert not set(train.class_names) & set(val.class_names)
    sizes = [val.num_classes for _, val in pairs]
    assert max(sizes) - min(sizes) <= 1


def test_what_cannot_be_split() -> None:
    with pytest.raises(ConfigError, match="'half' is unknown"):
        class_disjoint_split(make([0, 1]), "half")
    with pytest.raises(InputError, match="too few"):
        class_disjoint_split(make([0, 0]))
    with pytest.raises(InputError, match=r"at least 2.* 1"):
        class_folds(make([0, 1]), 1)


@given(st.lists(st.integers(1, 200), min_size=2, max_size=60), st.floats(0.05, 0.95), st.integers(0, 5))
def test_held_out_classes_have_their_share(sizes: list[int], share: float, seed: int) -> None:
    counts = np.array(sizes)
    held_out = held_out_classes(counts, share, seed)
    assert len(held_out) == min(max(1, int(len(sizes) * share + 1e-9)), len(sizes) - 1)
    assert len(set(held_out.tolist())) == len(held_out)
    assert held_out.tolist() == held_out_classes(counts, share, seed).tolist()
    # Classes of like size are drawn from, so the share of images is off by no more than a few of the largest classes.
    wanted = counts.sum() * len(held_out) / len(sizes)
    assert abs(counts[held_out].sum() - wanted) <= 2 * counts.max()


def test_equal_classes_are_halved_exactly_and_another_seed_is_another_half() -> None:
    sizes = np.full(20, 7)
    halves = {tuple(held_out_classes(sizes, 0.5, seed).tolist()) for seed in range(10)}
    assert {len(half) for half in halves} == {10}
    assert len(halves) == 10
