"""Uploads are judged by their headers."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from recollect.common import decode
from recollect.common.errors import ImageError
from recollect.search.served_images import check_upload, shrunk


def _bytes(kind: str) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (40, 30), "red").save(buffer, kind)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "JPEG2000"])
def test_images_of_a_pillow_without_avif(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(Image.OPEN, "AVIF", raising=False)
    decode._known_formats.cache_clear()
    try:
        check_upload(_bytes(kind), 40 * 30)
        with pytest.raises(ImageError, match="1,200 pixels"):
            check_upload(_bytes(kind), 40 * 30 - 1)
    finally:
        decode._known_formats.cache_clear()


@pytest.mark.parametrize("content", [b"", b"text", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF89a"])
def test_other_things_are_refused(content: bytes) -> None:
    with pytest.raises(ImageError, match="not a readable image"):
        check_upload(content, 10**6)


def test_thumbnails_keep_the_shape() -> None:
    small = Image.open(io.BytesIO(shrunk(Image.new("RGB", (1000, 500)))))
    assert small.width == 2 * small.height < 1000
