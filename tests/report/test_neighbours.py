"""What follows from neighbours, against references that look at every pair in float64."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recollect.report.neighbours import (
    AGREEING,
    FEWEST,
    confused_pairs,
    lonely_images,
    neighbours_of_all,
    suspected_labels,
)


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
        other = labels[order[i][0]]
        asked = min(AGREEING, sizes[other], len(order[i]))
        if other != labels[i] and asked >= FEWEST and all(labels[j] == other for j in order[i][:asked]):
            suspected.add((i, int(other)))
    assert {(s.image, s.suggested) for s in suspected_labels(vectors, labels, found)} == suspected


def test_a_wrong_label_is_found_and_the_clearest_comes_first() -> None:
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 10)
    vectors = _unit(np.eye(4)[labels] + random.normal(size=(40, 4)) * 0.05)
    labels[3] = 2  # an image of class 0
    first, *others = suspected_labels(vectors, labels, neighbours_of_all(vectors))
    assert (first.image, first.suggested, first.neighbours) == (3, 0, AGREEING)
    assert first.similarity > 0.9 > 0.3 > first.own
    assert not others
    assert (2, 0, 1) in [(c.asked, c.answered, c.times) for c in confused_pairs(labels, neighbours_of_all(vectors))]


def test_an_image_far_from_all_others_is_lonely() -> None:
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 10)
    vectors = _unit(np.eye(8)[labels] + random.normal(size=(40, 8)) * 0.05)
    vectors[7] = np.eye(8)[6]
    found = neighbours_of_all(vectors)
    assert [lonely.image for lonely in lonely_images(found)] == [7]
    assert lonely_images(found)[0].similarity == pytest.approx(np.sort(vectors @ vectors[7])[-2])


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_images_have_few_neighbours_and_no_findings(count: int) -> None:
    vectors, labels = _unit(np.ones((count, 3))), np.zeros(count, np.int64)
    found = neighbours_of_all(vectors)
    assert found.indices.shape == (count, max(0, count - 1))
    assert confused_pairs(labels, found) == []
    assert suspected_labels(vectors, labels, found) == []
    assert lonely_images(found) == []
