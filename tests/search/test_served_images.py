"""Thumbnails."""

from __future__ import annotations

import io

from PIL import Image

from recollect.search.served_images import shrunk


def test_thumbnails_keep_the_shape() -> None:
    small = Image.open(io.BytesIO(shrunk(Image.new("RGB", (1000, 500)))))
    assert small.width == 2 * small.height < 1000
