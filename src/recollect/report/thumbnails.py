"""A small copy of an image as a ``data:`` address, for pages with few pictures; many go into an ``Atlas``."""

from __future__ import annotations

import base64
import io

from PIL import Image


def as_address(kind: str, content: bytes) -> str:
    """An image file of that kind (``"png"``, ``"jpeg"``) as an address that holds it."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}"


def data_address(image: Image.Image, side: int) -> str:
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
    return as_address(*min(versions, key=lambda version: len(version[1])))
