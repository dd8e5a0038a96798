"""What an installed package adds: each name of its ``entry_points.txt`` leads to something in here."""

import numpy as np
from torch import nn
from torchvision.transforms import v2

from recollect import Callback, ImageSet, SmoothAP


class PetalLoss(SmoothAP):
    """Smooth-AP under another name."""


def petals(split: str) -> ImageSet:
    """Grey squares."""
    pixels = np.arange(12 * 32 * 32, dtype=np.uint8).reshape(12, 32, 32)
    return ImageSet("petals", [f"{split}{n}" for n in range(12)], np.repeat(range(3), 4), list("abc"), arrays=pixels)


def stem() -> nn.Module:
    """One convolution."""
    return nn.Conv2d(3, 8, 4, stride=4)


def turn(size: int) -> v2.Transform:
    """Small turns."""
    return v2.Compose([v2.PILToTensor(), v2.Resize((size, size)), v2.RandomRotation(5)])


def first_is_right(ranks, positives):
    """r@1."""
    return (ranks[:, 0] == 1).double()


class Silent(Callback):
    """A logger that writes nothing."""
