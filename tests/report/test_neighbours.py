"""What follows from neighbours, against references that look at every pair in float64."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st

from recollect.report.neighbours import (
    AGREEING,
    AMONG,
    CLEAR,
    FEW,
    confused_pairs,
    lonely_images,
    neighbours_of_all,
    suspected_labels,
)
from recollect.search.exact import Neighbours


def _unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def _order(vectors: np.ndarray) -> list[list[int]]:
    """For each image all others, most similar first: a plain sort of all pairs."""
    exact = vectors.astype(np.float64)
    similar = exact @ exact.T
    return [sorted((j for j in range(len(exact)) if j != i), key=lambda j: -similar[i, j]) for i in range(len(exact))]


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10_000), st.integers(2, 6), st.integers(8, 40))
def test_confusions_and_suspects_are_those_of_all_pairs(seed: int, classes: int, count: int) -> None:
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, count)
    vectors = _unit(random.normal(size=(classes, 4))[labels] + random.normal(size=(count, 4)))
    assume(np.diff(np.sort(vectors.astype(np.float64) @ vectors.T, axis=1)).min() > 1e-6)  # no order by rounding
    found = neighbours_of_all(vectors)
    order = _order(vectors)
    assert found.indices.tolist() == [row[:10] for row in order]
    sizes = Counter(labels.tolist())
    wrong = [i for i in range(count) if sizes[labels[i]] > 1 and labels[order[i][0]] != labels[i]]
    times = Counter((int(labels[i]), int(labels[order[i][0]])) for i in wrong)
    pairs = confused_pairs(labels, found)
    assert {(c.asked, c.answered): c.times for c in pairs} == times
    assert [c.times for c in pairs] == sorted(times.values(), reverse=True)
    for pair in pairs:
        assert pair.queries == sizes[pair.asked]
        assert pair.example in wrong
        assert (labels[pair.example], labels[order[pair.example][0]]) == (pair.asked, pair.answered)
    suspected = set()
    for i in range(count):
        other, agreeing = Counter(int(labels[j]) for j in order[i][:AMONG]).most_common(1)[0]
        asked = AGREEING if sizes[labels[i]] > FEW else max(AGREEING, min(AMONG, sizes[other], count - 1))
        clear = order[i][: min(CLEAR, sizes[other])]
        if other != labels[i] and agreeing >= asked and not any(labels[j] == labels[i] for j in clear):
            suspected.add((i, other))
    assert {(s.image, s.suggested) for s in suspected_labels(vectors, labels, found)} == suspected


def test_a_wrong_label_is_found_and_the_clearest_comes_first() -> None:
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 10)
    vectors = _unit(np.eye(4)[labels] + random.normal(size=(40, 4)) * 0.05)
    labels[3] = 2  # an image of class 0
    first, *others = suspected_labels(vectors, labels, neighbours_of_all(vectors))
    assert (first.image, first.suggested, first.agreeing, first.neighbours) == (3, 0, AMONG, AMONG)
    assert first.similarity > 0.9 > 0.3 > first.own
    assert not others
    assert (2, 0, 1) in [(c.asked, c.answered, c.times) for c in confused_pairs(labels, neighbours_of_all(vectors))]


def _nearest_first(classes: list[int], own: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """An image of class ``own``, and others of these classes, ever further away from it."""
    angles = np.concatenate([[0.0], 0.02 * np.arange(1, len(classes) + 1)])
    return _unit(np.stack([np.cos(angles), np.sin(angles)], axis=1)), np.array([own, *classes])


@pytest.mark.parametrize(
    ("classes", "suspected"),
    [
        ([1, 2, 1, 1, 3, 2, 3, 1, 2, 3, *[0] * 6, *[1] * 6], True),  # 3 of 5, and none of its own among 10
        ([1, 2, 1, 2, 3, 2, 3, 1, 2, 3, *[0] * 6, *[1] * 6], False),  # only 2 of 5 agree
        ([1, 2, 1, 1, 3, 2, 3, 1, 2, 0, *[0] * 6, *[1] * 6], False),  # the tenth is of its own class
        ([1, 2, 1, 1, 3, 2, 3, 1, 2, 3, *[0] * 4, *[1] * 6], False),  # of its own small class none would be near anyway
        ([1, 1, 1, 1, 1, 2, 3, 1, 2, 3, *[0] * 4, *[1] * 6], True),  # … so all of 5 have to agree
        ([1, 1, 1, 2, 2, 1, 0, 0, 0, 0, 0, 0, 0], True),  # behind all four of the other class, its own says nothing
        ([1, 1, 1, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0], False),
        ([1, 1, 2, 2, 3, 3, 4, 4, 5, 5, *[0] * 6], False),
    ],
)
def test_most_of_the_nearest_are_of_another_class_and_none_of_its_own(classes: list[int], suspected: bool) -> None:
    vectors, labels = _nearest_first(classes)
    found = suspected_labels(vectors, labels, neighbours_of_all(vectors))
    assert ([s.suggested for s in found if s.image == 0] == [1]) is suspected


def test_the_list_is_ordered_by_the_gap_between_the_two_classes() -> None:
    random = np.random.default_rng(1)
    labels = np.repeat(np.arange(4), 12)
    vectors = _unit(np.eye(4)[labels] + random.normal(size=(48, 4)) * 0.05)
    vectors[[1, 2]] = _unit(np.array([[0.5, 0.85, 0, 0], [0, 0, 1, 0]]))  # the first is also similar to its own class
    found = suspected_labels(vectors, labels, neighbours_of_all(vectors))
    assert [(s.image, s.suggested) for s in found] == [(2, 2), (1, 1)]
    assert found[0].margin > 0.8 > 0.4 > found[1].margin > 0


def test_an_image_far_from_all_others_is_lonely() -> None:
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 10)
    vectors = _unit(np.eye(8)[labels] + random.normal(size=(40, 8)) * 0.05)
    vectors[7] = np.eye(8)[6]
    found = neighbours_of_all(vectors)
    (lonely,) = lonely_images(found) or []
    assert lonely.image == 7
    assert lonely.similarity == pytest.approx(np.sort(vectors @ vectors[7])[-2])


def test_an_image_is_lonely_if_it_is_in_any_embedding() -> None:
    """Whitened vectors scatter so much that not even noise is far from the others; those of the network do not."""
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 10)
    known = _unit(np.eye(8)[labels] + random.normal(size=(40, 8)) * 0.05)
    known[7] = np.eye(8)[6]
    scattered = Neighbours(np.ones((40, 1), np.int64), np.linspace(0.1, 0.9, 40, dtype=np.float32)[:, None])
    assert lonely_images(scattered) is None, "it cannot be judged"
    (lonely,) = lonely_images(scattered, neighbours_of_all(known)) or []
    assert lonely.image == 7
    assert lonely.depth > 3


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_images_have_few_neighbours_and_no_findings(count: int) -> None:
    vectors, labels = _unit(np.ones((count, 3))), np.zeros(count, np.int64)
    found = neighbours_of_all(vectors)
    assert found.indices.shape == (count, max(0, count - 1))
    assert confused_pairs(labels, found) == []
    assert suspected_labels(vectors, labels, found) == []
    assert lonely_images(found) == []
