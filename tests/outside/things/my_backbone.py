"""A backbone of one's own: normalized images B×3×H×W in, feature maps B×C×H×W out."""

from torch import nn


def backbone(width: int = 16) -> nn.Module:
    """Two convolutions."""
    return nn.Sequential(
        nn.Conv2d(3, width, 5, stride=4), nn.ReLU(), nn.Conv2d(width, 2 * width, 3, stride=2), nn.ReLU()
    )
