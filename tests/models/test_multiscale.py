from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from recollect.common.errors import InputError
from recollect.models import INSTANCE_SEARCH_SCALES, Embedder
from recollect.models.embedder import fit, multiscale


def test_the_scales() -> None:
    assert list(INSTANCE_SEARCH_SCALES) == [1.0, math.sqrt(2), 1 / math.sqrt(2)]


def test_it_is_the_mean_of_unit_descriptors() -> None:
    images, scales = torch.randn(2, 3, 40, 56), (1.0, 1.5, 0.5)

    def model(x: Tensor) -> Tensor:  # not of length 1: each scale's descriptor has to be normalized
        return x[:, :, 3:9, 2:11].amax((2, 3)) * x.shape[-1]

    each = []
    for size in ((40, 56), (60, 84), (20, 28)):
        resized = F.interpolate(images, size=size, mode="bilinear", align_corners=False)
        each.append(F.normalize(model(resized)))
    expected = F.normalize(torch.stack(each).mean(0))
    torch.testing.assert_close(multiscale(model, images, scales), expected)


def test_an_embedder_over_scales() -> None:
    embedder = Embedder.create("tiny").eval()
    pixels = torch.randint(0, 256, (3, 3, 48, 40), dtype=torch.uint8)
    ours = embedder.embed(pixels, scales=INSTANCE_SEARCH_SCALES, progress=False)
    with torch.no_grad():
        normalized = embedder.normalize(pixels)
        each = [
            embedder(F.interpolate(normalized, scale_factor=s, mode="bilinear", align_corners=False))
            for s in INSTANCE_SEARCH_SCALES
        ]
    torch.testing.assert_close(ours, F.normalize(torch.stack(each).mean(0)), atol=1e-6, rtol=1e-5)
    single = embedder.embed(pixels, scales=(1.0,), progress=False)
    torch.testing.assert_close(single, embedder.embed(pixels, progress=False), atol=1e-6, rtol=1e-5)
    assert (ours - single).abs().max() > 1e-4


def test_patches_are_respected() -> None:
    images = torch.randn(1, 3, 64, 48)
    assert fit(images, 1.0, 16) is images
    assert fit(images, 1.0, 1) is images
    assert fit(images, math.sqrt(2), 16).shape[-2:] == (96, 64)
    assert fit(images, 0.1, 16).shape[-2:] == (16, 16)
    assert fit(torch.randn(1, 3, 50, 70), 1.0, 16).shape[-2:] == (48, 64)


@pytest.mark.parametrize("scales", [(), (0.0,), (-1.0, 1.0), (math.inf,)])
def test_scales_that_cannot_be(scales: tuple[float, ...]) -> None:
    with pytest.raises(InputError, match="positive"):
        Embedder.create("tiny").embed([], scales=scales)


def test_nothing_left_of_an_image() -> None:
    with pytest.raises(InputError, match="no pixels"):
        fit(torch.zeros(1, 3, 4, 4), 0.1)
