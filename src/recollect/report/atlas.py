"""All pictures of a page as one image: every thumbnail is a tile of it, shown by its position. Keeps pages small.

A page requests pictures while it is built (``Atlas.image``) and adds ``Atlas.style()`` to its style sheet at the end. Tiles
are as large as ``BUDGET`` allows, so the size of a page is bounded for any photos. Pages with few pictures use
``data_address``, one address per picture.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence

from PIL import Image, ImageChops

from recollect.common.errors import RecollectError
from recollect.common.images import read_image
from recollect.data import ImageSet
from recollect.report.markup import Markup, element

BUDGET = 4 << 20
"""Bytes of an atlas; a third more as text in the page."""
_SIDES = (192, 144, 112, 88, 64)


class Atlas:
    """Thumbnails of a set's images, each read once.

    Args:
        images: the set; None if it is not available.
        names: names of its images. classes: the class name of each.
        key: prefix of the tiles of this atlas in the style sheet.
        budget: bytes of the encoded atlas.
    """

    def __init__(
        self,
        images: ImageSet | None,
        names: Sequence[str],
        classes: Sequence[str],
        key: str = "a",
        budget: int = BUDGET,
    ) -> None:
        self._images, self._names, self._classes, self.key, self.budget = images, names, classes, key, budget
        self._read: dict[int, Image.Image | None] = {}
        self._tiles: dict[int, int] = {}

    @property
    def at_hand(self) -> bool:
        """Whether there are images to show."""
        return self._images is not None

    def image(self, index: int, alt: str, similarity: float | None = None) -> Markup:
        """A picture; an empty frame if the file can no longer be read.

        Args:
            index: number of the image. alt: text alternative.
            similarity: similarity to the query, shown when the picture is enlarged.
        """
        if index not in self._read:
            self._read[index] = self._small(index)
        if self._read[index] is None:
            return element("span", "no picture", class_="missing", role="img", aria_label=alt)
        tile = self._tiles.setdefault(index, len(self._tiles))
        # The number of columns is known only at the end, so a tile has a number, and the style sheet a rule for each.
        return element(
            "span",
            class_=f"pic {self.key} {self.key}{tile}",
            role="img",
            aria_label=alt,
            title=self._names[index],
            data_class=self._classes[index],
            data_similarity=None if similarity is None else f"{similarity:.3f}",
        )

    def style(self) -> str:
        """The rules that show the tiles, with the atlas inside."""
        pictures = [self._read[index] for index in self._tiles]
        tiles = [picture for picture in pictures if picture is not None]
        if not tiles:
            return ""
        columns = math.ceil(math.sqrt(len(tiles)))
        rows = math.ceil(len(tiles) / columns)
        largest = max(max(tile.size) for tile in tiles)
        sides = sorted({min(side, largest) for side in _SIDES}, reverse=True)
        for side in sides:
            kind, content = _encoded(_laid_out(tiles, side, columns, rows))
            if len(content) <= self.budget:
                break
        across, down = max(1, columns - 1), max(1, rows - 1)
        places = "".join(
            f".{self.key}{tile}{{background-position:{100 * (tile % columns) / across:.4g}% "
            f"{100 * (tile // columns) / down:.4g}%}}\n"
            for tile in range(len(tiles))
        )
        shared = f"background-image:url({as_address(kind, content)});background-size:{100 * columns}% {100 * rows}%"
        return f".pic.{self.key}{{{shared}}}\n{places}"

    def _small(self, index: int) -> Image.Image | None:
        if self._images is None:
            return None
        try:
            whole = self._images.boxes is None
            source = self._images.source(index)
            image = read_image(source, at_least=_SIDES[0]) if whole else self._images.read(index)
        except RecollectError:
            return None
        image = image.convert("RGB")
        image.thumbnail((_SIDES[0], _SIDES[0]), Image.Resampling.LANCZOS)
        return image


def _laid_out(tiles: Sequence[Image.Image], side: int, columns: int, rows: int) -> Image.Image:
    """All tiles in a grid, each in the middle of its square."""
    sheet = Image.new("RGB", (columns * side, rows * side), "white")
    for number, tile in enumerate(tiles):
        small = tile
        if max(tile.size) > side:
            small = tile.copy()
            small.thumbnail((side, side), Image.Resampling.LANCZOS)
        elif max(tile.size) < side:  # small pictures among larger ones fill their square too
            scale = side / max(tile.size)
            small = tile.resize((max(1, round(tile.width * scale)), max(1, round(tile.height * scale))))
        left, top = (side - small.width) // 2, (side - small.height) // 2
        sheet.paste(small, (number % columns * side + left, number // columns * side + top))
    return sheet


def _encoded(sheet: Image.Image) -> tuple[str, bytes]:
    """PNG for grey drawings, JPEG for everything else; whichever is smaller."""
    versions = []
    grey = sheet.convert("L")
    is_grey = all(low == high == 0 for low, high in _differences(sheet))
    if is_grey:
        buffer = io.BytesIO()
        grey.quantize(16).save(buffer, "PNG", optimize=True)
        versions.append(("png", buffer.getvalue()))
    buffer = io.BytesIO()
    (grey if is_grey else sheet).save(buffer, "JPEG", quality=80, optimize=True)
    versions.append(("jpeg", buffer.getvalue()))
    return min(versions, key=lambda version: len(version[1]))


def _differences(sheet: Image.Image) -> list[tuple[int, int]]:
    """The difference between the colour channels; 0 for a grey picture."""
    red, green, blue = sheet.split()
    return [ImageChops.difference(red, other).getextrema() for other in (green, blue)]  # type: ignore[misc]


def as_address(kind: str, content: bytes) -> str:
    """An image file of that kind (``"png"``, ``"jpeg"``) as a ``data:`` address."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}"


def data_address(image: Image.Image, side: int) -> str:
    """A small copy of ``image`` as a ``data:`` address: PNG or JPEG, whichever is smaller."""
    small = image.convert("RGB")
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    colours = small.getcolors(maxcolors=256)
    drawn = small.convert("L") if colours is not None and all(r == g == b for _, (r, g, b) in colours) else small  # type: ignore[misc]
    versions = []
    for kind, options in (("png", {"optimize": True}), ("jpeg", {"quality": 80, "optimize": True})):
        buffer = io.BytesIO()
        drawn.save(buffer, kind.upper(), **options)
        versions.append((kind, buffer.getvalue()))
    return as_address(*min(versions, key=lambda version: len(version[1])))
