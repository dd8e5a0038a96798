from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest
import torch

from recollect.report import map_layout
from recollect.report.map_layout import _nearest, available_method, lay_out, turned_like


def _clusters(count: int = 120, dim: int = 60) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    labels = np.arange(count) % 4
    rows = np.eye(4, dim)[labels] + random.normal(size=(count, dim)) * 0.02
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32), labels


@pytest.mark.parametrize("method", ["PCA", "t-SNE"])
def test_classes_that_lie_apart_stay_apart(method: str) -> None:
    if method == "t-SNE":
        pytest.importorskip("openTSNE")
    vectors, labels = _clusters()
    plane = lay_out([vectors], method)[0]  # type: ignore[arg-type]
    assert plane.shape == (len(vectors), 2)
    assert plane.min() >= 0
    assert plane.max() <= 1
    centres = np.stack([plane[labels == label].mean(axis=0) for label in range(4)])
    nearest = np.linalg.norm(plane[:, None] - centres, axis=2).argmin(axis=1)
    assert (nearest == labels).mean() > 0.7
    np.testing.assert_array_equal(plane, lay_out([vectors], method)[0])  # type: ignore[arg-type]


def test_principal_components_are_those_of_the_singular_values() -> None:
    random = np.random.default_rng(1)
    vectors = random.normal(size=(40, 5)).astype(np.float32) * [5, 3, 1, 1, 1]
    plane = lay_out([vectors.astype(np.float32)], "PCA")[0]
    rows = vectors - vectors.mean(axis=0)
    expected = rows @ np.linalg.svd(rows.astype(np.float64))[2][:2].T
    for axis in range(2):
        assert abs(np.corrcoef(plane[:, axis], expected[:, axis])[0, 1]) > 0.999


def test_a_turned_and_mirrored_plane_is_turned_back() -> None:
    plane = np.random.default_rng(0).normal(size=(30, 2))
    angle = 1.1
    turned = plane @ np.array([[np.cos(angle), np.sin(angle)], [np.sin(angle), -np.cos(angle)]])
    np.testing.assert_allclose(turned_like(turned, plane), plane - plane.mean(axis=0), atol=1e-9)


def test_few_or_equal_images_have_a_place() -> None:
    assert available_method(10) == "PCA"
    same = lay_out([np.ones((5, 1), np.float32)], "PCA")[0]
    np.testing.assert_allclose(same, 0.5)


def test_maps_made_together_are_those_made_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openTSNE")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    first, _ = _clusters()
    second = np.roll(first, 1, axis=0)
    together = lay_out([first, second, first], "t-SNE")
    np.testing.assert_array_equal(together[0], lay_out([first], "t-SNE")[0])
    np.testing.assert_allclose(together[2], together[0], atol=1e-9)
    np.testing.assert_allclose(_in_proportion(together[1]), _in_proportion(lay_out([second], "t-SNE")[0]), atol=1e-9)


def _in_proportion(plane: np.ndarray) -> np.ndarray:
    apart = np.linalg.norm(plane[:, None] - plane, axis=2)
    return np.asarray(apart / apart.max())


def test_neighbours_for_a_map_are_the_nearest_in_float64() -> None:
    rows = np.random.default_rng(2).normal(size=(70, 5)) + 3
    apart = np.linalg.norm(rows[:, None] - rows, axis=2)
    np.fill_diagonal(apart, np.inf)
    indices, distances = _nearest(rows, 12)
    np.testing.assert_array_equal(indices, apart.argsort(axis=1)[:, :12])
    np.testing.assert_allclose(distances, np.sort(apart, axis=1)[:, :12], rtol=1e-4)


def test_a_map_that_fails_stops_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = []

    def drawing(reduced: np.ndarray, jobs: int, done: Callable[..., bool]) -> np.ndarray:
        if reduced[0, 0] == 0:
            raise RuntimeError("no map")
        end = time.monotonic() + 20
        while time.monotonic() < end and not done():
            time.sleep(0.01)
        stopped.append(time.monotonic() < end)
        return reduced

    monkeypatch.setattr(map_layout, "_neighbourhood", drawing)
    vectors = _clusters()[0]
    with pytest.raises(RuntimeError, match="no map"):
        lay_out([np.zeros_like(vectors), vectors, vectors], "t-SNE")
    assert stopped == [True, True]
