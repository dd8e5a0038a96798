"""Colours of classes on the map, for the static picture and for the script alike.

Neighbouring numbers get hues far apart and different luminances. The luminances of a range keep a contrast of at least 3:1
(WCAG 2.2, graphical objects) with the card behind them, ``--raised`` of ``style.css``; a test holds both to it.
"""

from __future__ import annotations

from colorsys import hls_to_rgb

Colour = tuple[int, int, int]
ON_LIGHT, ON_DARK, ON_BOTH = (0.07, 0.285), (0.155, 0.5), (0.155, 0.285)
"""Relative luminances for a light card, for a dark one, and for a picture that may be on either."""
MOST_COLOURS = 42
"""Number of different colours; more than that nobody can tell apart."""
_GOLDEN_ANGLE = 137.508  # degrees: any first few hues are spread evenly around the circle
_AGAIN = 21  # after so many steps of that angle hues nearly repeat, so the order of luminances changes
_SATURATION = 0.8


def class_colours(luminances: tuple[float, float]) -> list[Colour]:
    """``MOST_COLOURS`` colours in a range of relative luminance; class n has colour n modulo their number."""
    low, high = luminances
    middle = ((low ** (1 / 3) + high ** (1 / 3)) / 2) ** 3  # equal steps of the cube root look equal
    steps = (low, high, middle)
    return [
        _of_luminance(n * _GOLDEN_ANGLE % 360 / 360, steps[(n + n // _AGAIN) % len(steps)]) for n in range(MOST_COLOURS)
    ]


def luminance(colour: Colour) -> float:
    """Relative luminance by WCAG's formula: 0 is black, 1 white."""
    red, green, blue = (
        part / 12.92 if (part := value / 255) <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for value in colour
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _of_luminance(hue: float, wanted: float) -> Colour:
    """The colour of that hue: lightness alone does not tell how bright a colour looks, yellow is far brighter than blue."""
    low, high = 0.0, 1.0
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if luminance(_rgb(hue, middle)) < wanted else (low, middle)
    return _rgb(hue, high)


def _rgb(hue: float, lightness: float) -> Colour:
    red, green, blue = (round(255 * part) for part in hls_to_rgb(hue, lightness, _SATURATION))
    return red, green, blue
