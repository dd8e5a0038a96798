"""Files to pixels, and pixels to what a network takes: every kind of picture looks as it should, and nothing else gets in."""

from __future__ import annotations

import contextlib
import io
import os
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings, strategies as st
from PIL import Image, ImageFile

from recollect.common import images, pixels
from recollect.common.errors import ConfigError, ImageError, InputError
from recollect.common.images import INTERPOLATIONS, Preprocessing, image_size, read_image, set_max_pixels
from recollect.common.machine import fix_torchvision


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def gradient(width: int = 24, height: int = 16) -> Image.Image:
    rows, columns = np.mgrid[0:height, 0:width]
    pixels = np.stack([rows * 10, columns * 8, (rows + columns) * 4], axis=-1)
    return Image.fromarray(pixels.astype(np.uint8))


# orientation tag → what has been done to the stored pixels
TURNS = {
    1: [],
    2: [Image.Transpose.FLIP_LEFT_RIGHT],
    3: [Image.Transpose.ROTATE_180],
    4: [Image.Transpose.FLIP_TOP_BOTTOM],
    5: [Image.Transpose.TRANSPOSE],
    6: [Image.Transpose.ROTATE_90],
    7: [Image.Transpose.TRANSVERSE],
    8: [Image.Transpose.ROTATE_270],
}


@pytest.mark.parametrize("tag", TURNS)
def test_exif_orientation(tag: int) -> None:
    stored = gradient()
    for turn in TURNS[tag]:
        stored = stored.transpose(turn)
    exif = Image.Exif()
    exif[0x0112] = tag
    upright = read_image(encoded(stored, exif=exif))
    np.testing.assert_array_equal(np.asarray(upright), np.asarray(gradient()))


def test_transparency_is_laid_on_white(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pixels, "_BAND", 100)  # in several pieces
    image = gradient().convert("RGBA")
    image.putalpha(0)
    assert np.asarray(read_image(encoded(image))).min() == 255
    image.putalpha(255)
    np.testing.assert_array_equal(np.asarray(read_image(encoded(image))), np.asarray(gradient()))
    grey = Image.new("LA", (4, 4), (0, 51))
    assert np.unique(np.asarray(read_image(encoded(grey)))).tolist() == [204]
    palette = Image.new("P", (4, 4), 0)
    palette.putpalette([10, 20, 30])
    assert np.asarray(read_image(encoded(palette, transparency=0))).min() == 255


def test_sixteen_bits_keep_the_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pixels, "_BAND", 100)  # in several pieces
    values = (np.arange(256, dtype=np.uint16) * 257).reshape(16, 16)
    image = Image.fromarray(values)
    expected = np.arange(256).reshape(16, 16, 1).repeat(3, -1)
    np.testing.assert_array_equal(np.asarray(read_image(encoded(image))), expected)
    np.testing.assert_array_equal(np.asarray(read_image(encoded(image, "TIFF"))), expected)


def test_cmyk() -> None:
    red = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    pixels = np.asarray(read_image(encoded(red, "JPEG", quality=95))).astype(int)
    assert np.abs(pixels - [255, 0, 0]).max() < 8


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM"])
def test_formats(kind: str) -> None:
    image = read_image(encoded(gradient(), kind))
    assert image.size == (24, 16)
    assert image.mode == "RGB"


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "TIFF", "PPM"])
def test_truncated_files_are_named(kind: str, tmp_path: Path) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    path = tmp_path / f"cut.{kind.lower()}"
    data = encoded(noise, kind)
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(ImageError, match=path.name):
        read_image(path)


@pytest.mark.parametrize("error", [RuntimeError("broken"), NotImplementedError("odd"), struct.error("short")])
def test_whatever_a_decoder_raises_names_the_file(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gradient().save(tmp_path / "odd.png")

    def fail(*rest: Any) -> None:
        raise error

    monkeypatch.setattr(ImageFile.ImageFile, "load", fail)
    with pytest.raises(ImageError, match=rf"odd\.png: damaged or unreadable \({error}"):
        read_image(tmp_path / "odd.png")


def test_things_that_are_not_images(tmp_path: Path) -> None:
    for name, content in (("text.jpg", b"hello"), ("empty.png", b""), ("page.gif", b"<html></html>" * 50)):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ImageError, match=name):
            read_image(tmp_path / name)
    with pytest.raises(ImageError, match="no such file"):
        read_image(tmp_path / "absent.png")
    with pytest.raises(ImageError, match=str(tmp_path)):
        read_image(tmp_path)
    with pytest.raises(ImageError, match="of 5 bytes"):
        read_image(b"hello")


def test_formats_with_fragile_decoders_are_not_tried(tmp_path: Path) -> None:
    gradient().save(tmp_path / "a.eps")
    with pytest.raises(ImageError):
        read_image(tmp_path / "a.eps")


def png_bomb(width: int, height: int) -> bytes:
    """A PNG of a few kilobytes that announces a size and holds a megabyte of nothing."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header, content = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0), zlib.compress(bytes(10**6), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", content) + chunk(b"IEND", b"")


def test_bombs_are_refused_before_they_are_decoded(tmp_path: Path) -> None:
    (tmp_path / "bomb.png").write_bytes(png_bomb(10_001, 10_001))
    with pytest.raises(ImageError, match=r"bomb\.png"):
        read_image(tmp_path / "bomb.png")


def test_the_limit_can_be_set() -> None:
    data = encoded(gradient(24, 16))
    try:
        set_max_pixels(383)
        with pytest.raises(ImageError, match=r"24×16 .*limit of 383"):
            read_image(data)
        set_max_pixels(384)
        assert read_image(data).size == (24, 16)
    finally:
        set_max_pixels(None)


@settings(max_examples=150)
@given(kind=st.sampled_from(["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM"]), data=st.data())
def test_damage_is_an_image_error_or_an_image(kind: str, data: st.DataObject) -> None:
    content = bytearray(encoded(gradient(), kind))
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ImageError):
        assert read_image(bytes(content)).mode == "RGB"


@pytest.mark.parametrize(
    "wrong", [5, None, np.zeros((2, 2), np.float32), np.zeros(3, np.uint8), np.zeros((2, 2, 7), np.uint8)]
)
def test_sources_that_are_none(wrong: Any) -> None:
    with pytest.raises(InputError):
        read_image(wrong)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("read", [read_image, image_size])
def test_what_is_not_a_regular_file_is_refused_without_waiting(tmp_path: Path, read: Any) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "folder.jpg").mkdir()
    (tmp_path / "round.jpg").symlink_to(tmp_path / "round.jpg")
    (tmp_path / "null.jpg").symlink_to(os.devnull)
    expected = {"pipe.jpg": "pipe", "folder.jpg": "folder", "round.jpg": "symbolic links", "null.jpg": "device"}
    for name, word in expected.items():
        with pytest.raises(ImageError, match=rf"{name}: .*{word}"):
            read(tmp_path / name)


@pytest.mark.skipif(os.name == "nt" or sys.platform == "darwin", reason="names are text on this system")
def test_a_name_that_is_not_text_is_read_and_can_be_shown(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9\x1b.png"))
    gradient().save(path)
    assert read_image(path).size == (24, 16)
    path.write_bytes(b"broken")
    with pytest.raises(ImageError) as caught:
        read_image(path)
    str(caught.value).encode()
    assert "\x1b" not in str(caught.value)


def test_a_heic_without_its_reader_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.heic").write_bytes(b"\0\0\0\x18ftypheic" + bytes(200))
    monkeypatch.setattr(images, "can_read_heif", lambda: False)
    for source in (tmp_path / "a.heic", (tmp_path / "a.heic").read_bytes()):
        with pytest.raises(ImageError, match=r"recollect\[heic\]") as caught:
            read_image(source)
        assert caught.value.kind == "HEIC"


def test_heic(tmp_path: Path) -> None:
    heif = pytest.importorskip("pillow_heif")
    exif = Image.Exif()
    exif[0x0112] = 6
    stored = gradient(64, 48).transpose(Image.Transpose.ROTATE_90)
    heif.from_pillow(stored).save(tmp_path / "a.heic", quality=-1, exif=exif.tobytes())
    result = read_image(tmp_path / "a.heic")
    assert result.size == image_size(tmp_path / "a.heic") == (64, 48)
    difference = np.asarray(result).astype(int) - np.asarray(gradient(64, 48))
    assert abs(difference).mean() < 6, "upright, and the picture it was"
    content = (tmp_path / "a.heic").read_bytes()
    with pytest.raises(ImageError):
        read_image(content[: len(content) // 2])


@pytest.mark.parametrize("read", [read_image, images.file_sha256])
def test_a_file_too_large_to_be_an_image_is_refused_unread(tmp_path: Path, read: Any) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "huge.png")
    os.truncate(tmp_path / "huge.png", 10**11)  # sparse: takes no room, and minutes to read
    with pytest.raises(ImageError, match=r"huge\.png: 100\.0 GB, more than .* --max-pixels"):
        read(tmp_path / "huge.png")


def test_the_limit_of_pil_is_raised_with_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """PIL refuses twice its own limit by itself, so that ``--max-pixels`` alone would not help."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    monkeypatch.setattr(images, "_PIL_PIXELS", 100)
    png = encoded(gradient(24, 16))
    with pytest.raises(ImageError, match=r"too many pixels, more than the limit.*--max-pixels") as result:
        read_image(png)
    assert result.value.kind == "too large"
    try:
        set_max_pixels(300_000_000)
        assert read_image(png).size == (24, 16)
        assert Image.MAX_IMAGE_PIXELS == 300_000_000
    finally:
        set_max_pixels(None)


def noise(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(width * 1000 + height).integers(0, 256, (height, width, 3), np.uint8))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 90), st.integers(1, 90), st.integers(1, 40), st.integers(0, 9), st.sampled_from(INTERPOLATIONS))
@example(21, 34, 13, 2, "bicubic")
def test_the_pixels_are_torchvisions(width: int, height: int, size: int, more: int, interpolation: str) -> None:
    fix_torchvision()
    from torchvision.transforms.v2 import functional

    image, resize = noise(width, height), size + more
    mode = functional.InterpolationMode(interpolation)
    expected = functional.center_crop(functional.resize(image, [resize], interpolation=mode), [size, size])
    result = Preprocessing(size, resize, interpolation)(image)
    assert torch.equal(result, functional.pil_to_tensor(expected))
    assert np.array_equal(pixels.channels_first(pixels.fitted(image, size, resize, interpolation)), result)


@pytest.mark.parametrize("size", [(20_000, 1), (1, 60_000)])
def test_an_image_that_is_huge_once_resized_is_refused(size: tuple[int, int]) -> None:
    with pytest.raises(ImageError, match=r"would become .*limit") as caught:
        Preprocessing()(Image.new("RGB", size))
    assert caught.value.kind == "too large"
    assert Preprocessing()(Image.new("RGB", (1500, 1))).shape == (3, 224, 224)
    assert Preprocessing(resize=None)(Image.new("RGB", size)).shape == (3, size[1], size[0])


def test_preprocessing_that_keeps_images_whole() -> None:
    keep = Preprocessing(size=224, resize=None)
    assert keep(gradient(24, 16)).shape == (3, 16, 24)
    np.testing.assert_array_equal(keep(gradient()).permute(1, 2, 0), np.asarray(gradient()))
    shrink = Preprocessing(size=224, resize=None, max_side=12, interpolation="lanczos")
    assert shrink(gradient(24, 16)).shape == (3, 8, 12)
    assert shrink(gradient(16, 24)).shape == (3, 12, 8)
    assert shrink(gradient(12, 10)).shape == (3, 10, 12)


def test_preprocessing_as_dict_and_back() -> None:
    built = Preprocessing(96, 110, "bicubic", (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), 1024)
    assert Preprocessing.from_dict(built.as_dict()) == built
    with pytest.raises(TypeError, match="colour"):
        Preprocessing.from_dict({**built.as_dict(), "colour": 1})


def test_preprocessing_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="smaller than the crop"):
        Preprocessing(size=224, resize=200)
    with pytest.raises(ConfigError, match="unknown"):
        Preprocessing(interpolation="nearest")
