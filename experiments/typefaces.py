"""Typefaces on this machine, and the rendering of a character in a typeface.

Finds font files (inside matplotlib and in installed ``fontpkg-*`` packages), finds which characters each one really draws,
and renders a character centred on a small square.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from recollect.common.reading import sha256

SIZE = 48
EM = 36  # pixels per em: capitals are then about half the picture's side, and few characters need shrinking
MARGIN = 2
MIN_EXTENT = 10  # pixels: anything smaller in both directions is a dot or a mark that cannot be recognized alone

WEIGHT = 400.0
"""The weight that variable fonts are set to. Only one, because other weights would be near-copies."""

# Matplotlib's other files have no characters in the sense of Unicode: private codes, sizes of brackets, and Knuth's
# fonts with their own encoding; LastResort draws a labelled box for everything.
_MATPLOTLIB = ("DejaVuSans", "DejaVuSerif", "STIXGeneral")
_MATPLOTLIB_NOT = ("DejaVuSansDisplay", "DejaVuSerifDisplay")

FONT_SUFFIXES = frozenset({".ttf", ".otf"})


@dataclass(frozen=True)
class Face:
    """One typeface: a font file, and for a variable font the values its axes are set to.

    Args:
        name: e.g. ``"DejaVuSans-Bold"`` or ``"Lora[wght]"``; unique among the faces of a set.
        path: the font file.
        axes: a value for each axis of a variable font, in its order; None for an ordinary font.
    """

    name: str
    path: Path
    axes: tuple[float, ...] | None = None

    @cached_property
    def _fonts(self) -> dict[int, ImageFont.FreeTypeFont]:
        return {}

    def font(self, size: int) -> ImageFont.FreeTypeFont:
        """The face at ``size`` pixels per em."""
        if size not in self._fonts:
            # The basic layout is in every build of PIL; the other depends on libraries of the machine.
            font = ImageFont.truetype(self.path, size, layout_engine=ImageFont.Layout.BASIC)
            if self.axes is not None:
                font.set_variation_by_axes(list(self.axes))
            self._fonts[size] = font
        return self._fonts[size]

    def render(self, character: str) -> NDArray[np.uint8] | None:
        """``character`` in black on white, SIZE × SIZE, its ink centred; None if there is almost nothing to see.

        A character too large for the picture is set smaller, so that nothing is cut off.
        """
        room, size = SIZE - 2 * MARGIN, EM
        ink = self._ink(character, size)
        if max(ink.shape) < MIN_EXTENT or ink.max() < 128:
            return None
        while max(ink.shape) > room:
            size = min(size - 1, size * room // max(ink.shape))
            ink = self._ink(character, size)
        height, width = ink.shape
        top, left = (SIZE - height) // 2, (SIZE - width) // 2
        picture = np.full((SIZE, SIZE), 255, np.uint8)
        picture[top : top + height, left : left + width] -= ink
        return picture

    def _ink(self, character: str, size: int) -> NDArray[np.uint8]:
        """How dark each pixel of the character is, cut to where there is any ink."""
        font = self.font(size)
        left, top, right, bottom = (int(value) for value in font.getbbox(character))  # the advance included
        canvas = Image.new("L", (right - left + 2, bottom - top + 2), 0)
        ImageDraw.Draw(canvas).text((1 - left, 1 - top), character, font=font, fill=255)
        box = canvas.getbbox()
        return np.zeros((1, 1), np.uint8) if box is None else np.asarray(canvas.crop(box))


def find_faces() -> list[Face]:
    """The faces on this machine, in a fixed order: matplotlib's, then those of ``fontpkg-*``.

    A font file with the same content as an earlier one is left out.
    """
    files = [*_matplotlib_fonts(), *_package_fonts()]
    faces: list[Face] = []
    contents: set[str] = set()
    names: set[str] = set()
    for path in files:
        content = sha256(path)
        if content in contents:
            continue
        contents.add(content)
        face = _face(path)
        if face.name not in names:
            names.add(face.name)
            faces.append(face)
    return faces


def characters_of(path: Path) -> frozenset[str]:
    """The characters a font file truly draws: letters, numbers, punctuation and symbols, one code point each."""
    from fontTools.ttLib import TTFont

    with TTFont(path, lazy=True) as font:
        table = font.getBestCmap() or {}
        notdef = font.getGlyphOrder()[
            0
        ]  # by definition of the format, the first glyph is the box for missing characters
    return frozenset(chr(code) for code, glyph in table.items() if glyph != notdef and _is_visible(code))


def _is_visible(code: int) -> bool:
    # No control characters, blanks, private codes, or marks that only occur on top of a letter.
    return unicodedata.category(chr(code))[0] in "LNPS"


def _matplotlib_fonts() -> list[Path]:
    import matplotlib

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    return sorted(
        path for path in folder.glob("*.ttf") if path.stem.startswith(_MATPLOTLIB) and path.stem not in _MATPLOTLIB_NOT
    )


def _package_fonts() -> list[Path]:
    paths: list[Path] = []
    for distribution in metadata.distributions():
        if not (distribution.name or "").lower().replace("_", "-").startswith("fontpkg-"):
            continue
        for file in distribution.files or ():
            path = Path(str(distribution.locate_file(file)))
            if path.suffix.lower() in FONT_SUFFIXES and path.is_file():
                paths.append(path)
    return sorted(set(paths), key=lambda path: (path.name, path))


def _face(path: Path) -> Face:
    from fontTools.ttLib import TTFont

    with TTFont(path, lazy=True) as font:
        axes = font["fvar"].axes if "fvar" in font else []
        ranges = [(axis.axisTag, axis.minValue, axis.defaultValue, axis.maxValue) for axis in axes]
    values = [min(max(WEIGHT, low), high) if tag == "wght" else default for tag, low, default, high in ranges]
    return Face(path.stem, path, tuple(values) or None)
