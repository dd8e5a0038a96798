from __future__ import annotations

import numpy as np
import pytest

from recollect.report import plots
from recollect.report.plots import count_similarities


def _pairs(vectors: np.ndarray, labels: np.ndarray) -> tuple[list[float], list[float]]:
    positive, negative = [], []
    for i in range(len(vectors)):
        for j in range(i + 1, len(vectors)):
            (positive if labels[i] == labels[j] else negative).append(float(vectors[i] @ vectors[j]))
    return positive, negative


def test_counts_every_pair_once_across_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recollect.report.plots._ROWS", 7)
    random = np.random.default_rng(0)
    labels = random.integers(0, 4, 40)
    vectors = random.normal(size=(40, 5)) + 1.5 * np.eye(5)[labels]
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    counted = count_similarities(vectors, labels)
    positive, negative = _pairs(vectors, labels)
    assert counted.positive.sum() == len(positive)
    assert counted.negative.sum() == len(negative)
    bins = counted.binned(-1, 1, 20)
    assert np.abs(bins[0] - np.histogram(positive, 20, (-1, 1))[0]).max() <= 1  # an edge may round either way
    assert np.abs(bins[1] - np.histogram(negative, 20, (-1, 1))[0]).max() <= 1
    area = np.mean([(p > n) + (p == n) / 2 for p in positive for n in negative])
    assert counted.ordered == pytest.approx(area, abs=2e-3)
    low, high = counted.span(0.0)
    assert low <= min(positive + negative)
    assert high >= max(positive + negative)


def test_one_class_has_no_negatives() -> None:
    counted = count_similarities(np.eye(3, dtype=np.float32), np.zeros(3, np.int64))
    assert counted.ordered is None
    assert counted.negative.sum() == 0
    assert counted.positive.sum() == 3


def test_identical_vectors_are_at_the_edge() -> None:
    vectors = np.repeat(np.array([[1.0, 0.0]], np.float32), 4, 0)
    counted = count_similarities(vectors, np.array([0, 0, 1, 1]))
    assert counted.ordered == 0.5
    assert counted.span()[1] == 1.0


def test_of_many_images_a_part_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    vectors = random.normal(size=(400, 8)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    labels = np.arange(400) % 20
    whole = count_similarities(vectors, labels)
    monkeypatch.setattr(plots, "MOST", 200)
    part = count_similarities(vectors, labels)
    assert part.positive.sum() + part.negative.sum() == 200 * 199 / 2
    assert whole.ordered is not None
    assert part.ordered == pytest.approx(whole.ordered, abs=0.05)
