"""Uploads: what is refused before it is decoded, and images that take too long."""

from __future__ import annotations

import asyncio
import io
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image

from recollect.common.errors import ImageError
from recollect.common.images import read_image
from recollect.search import encoder as decoding
from recollect.search.encoder import Decoder


@pytest.fixture
def decoder() -> Iterator[Decoder]:
    decoder = Decoder(40 * 30, lambda: 8)
    decoder.start()
    yield decoder
    decoder.stop()


def _bytes(kind: str, size: tuple[int, int] = (40, 30)) -> bytes:
    buffer = io.BytesIO()
    Image.linear_gradient("L").resize(size).convert("RGB").save(buffer, kind)
    return buffer.getvalue()


def _pixels(decoder: Decoder, *contents: bytes) -> list[np.ndarray | BaseException]:
    async def present() -> None:
        """The client stays."""

    async def one(content: bytes) -> np.ndarray:
        async with decoder.decoded(io.BytesIO(content), present) as (read, pixels):
            assert read == content
            return pixels.copy()

    async def together() -> list[np.ndarray | BaseException]:
        return await asyncio.gather(*map(one, contents), return_exceptions=True)

    return asyncio.run(together())


def test_an_upload_has_the_pixels_that_a_file_has_in_the_index(decoder: Decoder) -> None:
    contents = [_bytes(kind) for kind in ("JPEG", "PNG", "WEBP", "JPEG2000")]
    for content, pixels in zip(contents, _pixels(decoder, *contents), strict=True):
        np.testing.assert_array_equal(pixels, np.asarray(read_image(content, at_least=8)))


def test_other_things_are_refused(decoder: Decoder) -> None:
    contents = [b"", b"text", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF89a", _bytes("PNG")[:-30]]
    assert {str(error) for error in _pixels(decoder, *contents)} == {"this is not a readable image."}


def test_an_image_of_too_many_pixels_is_refused_before_it_is_decoded(decoder: Decoder) -> None:
    large = _bytes("PNG", (400, 300))[:1000]  # decoding it would find that it is cut off
    (error,) = _pixels(decoder, large)
    assert str(error) == "the image has more pixels than the limit of 1,200. Shrink it."


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xd8" + b"\xff\xfe\x00\x02" * 40_000,
        _bytes("PNG")[:33] + (b"\0\0\0\0tEXt" + struct.pack(">I", zlib.crc32(b"tEXt"))) * 40_000,
        b"P6\n#" + b"a" * 40_000,
        b"GIF89a" + struct.pack("<HHBBB", 10, 10, 0, 0, 0) + b"!\xfe" + b"\1a" * 40_000,
    ],
    ids=["segments of a JPEG", "chunks of a PNG", "comment of a PPM", "blocks of a GIF"],
)
def test_an_image_of_too_many_parts_is_refused(content: bytes) -> None:
    with pytest.raises(ImageError) as refused:
        read_image(content)
    assert refused.value.kind == "too many parts"


def test_an_image_that_takes_too_long_is_refused_and_the_next_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "SECONDS", 0.2)
    monkeypatch.setattr(decoding, "_PROCESSES", 1)
    stuck = [sys.executable, "-c", "import time; time.sleep(600)"]
    with monkeypatch.context() as patched:
        patched.setattr(Decoder, "_process", lambda _: subprocess.Popen(stuck, stdin=-1, stdout=-1))
        decoder = Decoder(10**6)
        decoder.start()
    try:
        (late,) = _pixels(decoder, _bytes("PNG"))
        assert str(late) == "the image takes too long to decode, or is damaged."
        monkeypatch.setattr(decoding, "SECONDS", 600.0)
        (pixels,) = _pixels(decoder, _bytes("PNG"))
        assert isinstance(pixels, np.ndarray)
    finally:
        decoder.stop()
