"""Formats a data set may be in, through the one way in."""

from __future__ import annotations

import io

import pytest
from PIL import Image, features

from recollect.common.errors import ImageError
from recollect.common.images import read_image


@pytest.mark.parametrize("name", ["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000", "AVIF", "MPO"])
def test_every_stated_format_is_read(name: str) -> None:
    if name == "AVIF" and not features.check("avif"):
        pytest.skip("this build of PIL has no AVIF")
    file = io.BytesIO()
    Image.new("RGB", (16, 12), (200, 100, 50)).save(file, format=name)
    image = read_image(file.getvalue())
    assert (image.size, image.mode) == ((16, 12), "RGB")
    assert max(abs(a - b) for a, b in zip(image.getpixel((8, 6)), (200, 100, 50), strict=True)) < 12  # type: ignore[arg-type]


def test_no_image_is_called_so() -> None:
    with pytest.raises(ImageError, match="not a readable image"):
        read_image(b"plain text")
