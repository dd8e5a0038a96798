"""Pictures inside the page: small copies of images as ``data:`` addresses."""

from __future__ import annotations

import base64
import io

from PIL import Image

from recollect.common.errors import RecollectError
from recollect.data import ImageSet
from recollect.report.markup import Markup, element

SIDE = 88
"""Longer side of a thumbnail in pixels."""


class Pictures:
    """Thumbnails of a set's images, each made once.

    Args:
        images: the set; None when it is not at hand.
        names: what to call its images.
    """

    def __init__(self, images: ImageSet | None, names: list[str]) -> None:
        self._images, self._names = images, names
        self._made: dict[int, str | None] = {}

    @property
    def at_hand(self) -> bool:
        """Whether there are images to show."""
        return self._images is not None

    def image(self, index: int, alt: str) -> Markup:
        """An ``<img>``; an empty frame with the name when the file cannot be read any more."""
        if index not in self._made:
            self._made[index] = self._address(index)
        address = self._made[index]
        if address is None:
            return element("span", "no picture", class_="missing", role="img", aria_label=alt)
        return element("img", src=address, alt=alt, title=self._names[index], decoding="async")

    def _address(self, index: int) -> str | None:
        if self._images is None:
            return None
        try:
            return data_address(self._images.read(index))
        except RecollectError:
            return None


def data_address(image: Image.Image, side: int = SIDE) -> str:
    """A small copy of ``image`` as a ``data:`` address: PNG or JPEG, whichever takes less room."""
    small = image.convert("RGB")
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    colours = small.getcolors(maxcolors=256)
    drawn = small.convert("L") if colours is not None and all(r == g == b for _, (r, g, b) in colours) else small  # type: ignore[misc]
    versions = []
    for kind, options in (("png", {"optimize": True}), ("jpeg", {"quality": 80, "optimize": True})):
        buffer = io.BytesIO()
        drawn.save(buffer, kind.upper(), **options)
        versions.append((kind, buffer.getvalue()))
    kind, content = min(versions, key=lambda version: len(version[1]))
    return f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}"
