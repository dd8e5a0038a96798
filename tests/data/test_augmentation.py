"""Augmentations by name, and from outside in both forms."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from recollect.common.errors import ConfigError
from recollect.common.images import Preprocessing
from recollect.config.resolve import resolve
from recollect.data.registry import AUGMENTATIONS
from recollect.data.transforms import FromTorchvision, make_augmentation

CODE = """
import torch
from recollect.data.transforms import Transform

class Fixed(Transform):
    size, draws, key = (16, 16), 0, "fixed"
    def __init__(self, preprocessing, value=7):
        self.value = value
    def __call__(self, image, random):
        import numpy
        return numpy.full((16, 16, 3), self.value, numpy.uint8)

def plain(size):
    return lambda image: torch.zeros(3, size, size, dtype=torch.uint8)

def wrong():
    return 3
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "a.py").write_text(CODE)
    return str(tmp_path / "a.py")


def test_every_name_makes_a_transform() -> None:
    for name in AUGMENTATIONS:
        model = Preprocessing(16, None if name == "whole" else 20)
        assert callable(make_augmentation(name, model))


def test_a_transform_or_a_torchvision_transform_from_outside(file: str) -> None:
    made = make_augmentation(f"{file}:Fixed", Preprocessing(16, 20), options={"value": 9})
    assert made(np.zeros((4, 4, 3), np.uint8), np.zeros(0)).max() == 9
    wrapped = make_augmentation(f"{file}:plain", Preprocessing(16, 20))
    assert isinstance(wrapped, FromTorchvision)
    assert wrapped(np.zeros((4, 4, 3), np.uint8), np.zeros(1)).shape == (16, 16, 3)


def test_what_is_wrong_is_said(file: str) -> None:
    with pytest.raises(ConfigError, match="Did you mean value"):
        make_augmentation(f"{file}:Fixed", Preprocessing(16, 20), options={"vlue": 9})
    with pytest.raises(ConfigError, match="must return a transform"):
        make_augmentation(f"{file}:wrong", Preprocessing(16, 20))
    with pytest.raises(ConfigError, match="Did you mean glyph"):
        resolve(None, {"data.augmentation": "glyp"})
    with pytest.raises(ConfigError, match="crop_scale"):
        resolve(None, {"data.augmentation": "crop", "data.augmentation_options": {"scale": 1}})
