from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from PIL import Image

from recollect.common.errors import ConfigError, ImageError
from recollect.data.image_set import ImageSet
from recollect.data.transforms import LongerSide

NOTHING = np.empty(0)


def one(image: Image.Image, folder: Path, box: list[float] | None = None, **save: object) -> ImageSet:
    image.save(folder / "a.png", **save)
    boxes = None if box is None else np.array([box], dtype=np.float64)
    return ImageSet("one", ["a.png"], [0], ["x"], root=folder, boxes=boxes)


def noise(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


@given(st.integers(1, 400), st.integers(1, 400), st.integers(1, 200))
def test_whole_image_shrinks_as_a_thumbnail(width: int, height: int, imsize: int) -> None:
    """PIL's thumbnail, which the benchmark's own code uses, is the oracle for sizes and pixels."""
    image = noise(width, height)
    images = ImageSet("one", ["a"], [0], ["x"], arrays=np.asarray(image)[None])
    expected = image.copy()
    expected.thumbnail((imsize, imsize), Image.Resampling.LANCZOS, reducing_gap=None)
    transform = LongerSide(imsize)
    found = transform(transform.read(images, 0), NOTHING)
    assert np.array_equal(found, np.asarray(expected))
    assert transform.output_size(images, 0) == found.shape[:2]


@pytest.mark.parametrize("box", [[10.4, 20.6, 110.0, 60.0], [0, 0, 200, 100], [50, 5, 70, 95], [150, 50, 210, 90]])
@pytest.mark.parametrize("imsize", [40, 64, 1024])
def test_query_is_bounded_by_its_share_of_the_picture(tmp_path: Path, box: list[float], imsize: int) -> None:
    image = noise(200, 100)
    images = one(image, tmp_path, box)
    expected = image.crop(box)
    bound = imsize * max(expected.size) / 200
    expected.thumbnail((bound, bound), Image.Resampling.LANCZOS, reducing_gap=None)
    transform = LongerSide(imsize)
    found = transform(transform.read(images, 0), NOTHING)
    assert np.array_equal(found, np.asarray(expected))
    assert transform.output_size(images, 0) == found.shape[:2]
    assert max(found.shape[:2]) <= max(bound, 1)


def test_a_query_of_half_the_width_is_shown_at_half_the_bound(tmp_path: Path) -> None:
    images = one(noise(2000, 1000), tmp_path, [0, 0, 1000, 500])
    assert LongerSide(1024).output_size(images, 0) == (256, 512)


def test_nan_box_means_the_whole_image(tmp_path: Path) -> None:
    images = one(noise(30, 20), tmp_path, [np.nan] * 4)
    assert LongerSide(1024).read(images, 0).size == (30, 20)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_sizes_are_those_of_the_upright_image(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    images = one(noise(60, 20), tmp_path, exif=exif)
    found = LongerSide(30).read(images, 0)
    assert found.size == ((10, 30) if orientation >= 5 else (30, 10))
    assert LongerSide(30).output_size(images, 0) == (found.height, found.width)


def test_an_empty_box_names_the_image(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"a\.png: its box"):
        LongerSide().read(one(noise(30, 20), tmp_path, [5, 5, 5, 9]), 0)


def test_an_unreadable_header_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"not an image")
    with pytest.raises(ImageError, match=r"a\.png: not a readable image"):
        LongerSide().output_size(ImageSet("one", ["a.png"], [0], ["x"], root=tmp_path), 0)


def test_imsize_must_be_positive() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        LongerSide(0)


def test_reading_does_not_make_the_set_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A set checks all of its names when it is made; for every image read, that would be every name again."""
    images = one(noise(60, 40), tmp_path, [0, 0, 30, 40])
    made: list[ImageSet] = []
    monkeypatch.setattr(ImageSet, "__post_init__", made.append)
    assert LongerSide(30).read(images, 0).size == (15, 20)
    assert not made
