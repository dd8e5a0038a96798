"""The map of the test images: positions, colours that are seen on light and dark cards, and what the page carries."""

from __future__ import annotations

import base64
import html
import io
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from recollect.report.map import (
    ON_BOTH,
    ON_DARK,
    ON_LIGHT,
    Colour,
    class_colours,
    draw_plane,
    lay_out,
    luminance,
    map_section,
    turned_like,
)
from recollect.report.markup import packaged
from report.report_runs import NAMES, made_result


def cards() -> tuple[Colour, Colour]:
    """The light and the dark card of the style sheet."""
    light, dark = re.findall(r"--raised: #(\w{2})(\w{2})(\w{2});", packaged("style.css"))
    return tuple(int(part, 16) for part in light), tuple(int(part, 16) for part in dark)


def contrast(one: Colour, other: Colour) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_the_formula_is_that_of_wcag() -> None:
    assert contrast((255, 255, 255), (0, 0, 0)) == pytest.approx(21)
    assert contrast((255, 255, 255), (118, 118, 118)) == pytest.approx(4.54, abs=0.01)


def test_every_colour_stands_out_from_its_card() -> None:
    light, dark = cards()
    for luminances, behind in ((ON_LIGHT, [light]), (ON_DARK, [dark]), (ON_BOTH, [light, dark])):
        assert min(contrast(colour, card) for colour in class_colours(luminances) for card in behind) >= 3


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
    plane = lay_out([vectors], method)[0]
    assert plane.shape == (len(vectors), 2)
    assert plane.min() >= 0
    assert plane.max() <= 1
    centres = np.stack([plane[labels == label].mean(axis=0) for label in range(4)])
    nearest = np.linalg.norm(plane[:, None] - centres, axis=2).argmin(axis=1)
    assert (nearest == labels).mean() > 0.7
    np.testing.assert_array_equal(plane, lay_out([vectors], method)[0])


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


@pytest.mark.parametrize("images", [True, False])
def test_the_map_carries_places_classes_and_names(images: bool) -> None:
    model, shown = made_result("after training", 0.2)
    if not images:
        shown = replace(shown, images=None)
    markup = map_section([model], shown, None)

    def attribute(name: str) -> str:
        found = re.search(f'data-{name}="([^"]*)"', markup)
        return html.unescape(found[1])

    assert json.loads(attribute("kinds")) == NAMES
    assert json.loads(attribute("files")) == shown.names
    labels = np.frombuffer(base64.b64decode(attribute("labels")), "<u2")
    assert labels.tolist() == shown.labels.tolist()
    assert len(np.frombuffer(base64.b64decode(attribute("points")), "<u2")) == 80
    tiles = np.frombuffer(base64.b64decode(attribute("tiles")), "<u2")
    assert sorted(tiles.tolist()) == (list(range(40)) if images else [65535] * 40)
    assert "<b>" not in markup


def test_the_map_without_a_script_is_a_picture_of_the_same_dots() -> None:
    places = np.array([[0.0, 0.0], [1.0, 0.25], [0.5, 1.0]])
    address = draw_plane(places, np.array([0, 1, 1]))
    picture = Image.open(io.BytesIO(base64.b64decode(address.split(",", 1)[1]))).convert("RGBA")
    pixels = np.asarray(picture)
    inside = (4 + places * (picture.width - 9)).round().astype(int)
    seen = [tuple(pixels[y, x].tolist()) for x, y in inside]
    assert all(alpha > 200 for *_, alpha in seen)
    assert seen[1] == seen[2] != seen[0]
    assert pixels[picture.height // 2, picture.width // 4, 3] == 0


def test_the_picture_of_the_map_has_contrast_on_light_and_dark() -> None:
    places = np.stack(np.meshgrid(*[np.linspace(0, 1, 8)] * 2), axis=-1).reshape(-1, 2)  # no dot over another
    address = draw_plane(places, np.arange(64))
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(address.split(",", 1)[1]))).convert("RGBA"))
    seen = np.unique(pixels[pixels[..., 3] == 255][:, :3], axis=0)
    assert len(seen) >= 30
    assert min(contrast(tuple(colour), card) for colour in seen.tolist() for card in cards()) >= 3
