"""``Preprocessing`` and the functions of ``pixels`` behind it: torchvision's pixels, without torchvision."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings, strategies as st
from PIL import Image

from recollect.common import pixels
from recollect.common.errors import ConfigError, ImageError
from recollect.common.images import INTERPOLATIONS, Preprocessing
from recollect.common.machine import fix_torchvision


def gradient(width: int = 24, height: int = 16) -> Image.Image:
    rows, columns = np.mgrid[0:height, 0:width]
    values = np.stack([rows * 10, columns * 8, (rows + columns) * 4], axis=-1)
    return Image.fromarray(values.astype(np.uint8))


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
