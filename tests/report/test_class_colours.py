"""Colours of classes on the map: seen on their card, in light and dark, and different from each other."""

from __future__ import annotations

import itertools
import re

import pytest

from recollect.report.class_colours import ON_BOTH, ON_DARK, ON_LIGHT, Colour, class_colours, luminance
from recollect.report.page import packaged


def cards() -> tuple[Colour, Colour]:
    """The light and the dark card of the style sheet."""
    light, dark = re.findall(r"--raised: #(\w{2})(\w{2})(\w{2});", packaged("style.css"))
    return tuple(int(part, 16) for part in light), tuple(int(part, 16) for part in dark)  # type: ignore[return-value]


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


@pytest.mark.parametrize("luminances", [ON_LIGHT, ON_DARK, ON_BOTH])
def test_colours_differ(luminances: tuple[float, float]) -> None:
    colours = class_colours(luminances)
    assert len(set(colours)) == len(colours)

    def apart(count: int) -> int:
        pairs = itertools.combinations(colours[:count], 2)
        return min(sum(abs(a - b) for a, b in zip(*pair, strict=True)) for pair in pairs)

    assert apart(10) > 60
    assert apart(20) > 35
    assert apart(len(colours)) > 15
