"""``tiny``: a small convnet for 32–64 px images, trained from scratch on one CPU core.

Four blocks of 3×3 convolution, GroupNorm, ReLU and (in the first three) 2×2 max-pooling. GroupNorm normalizes each image
separately, so an image's embedding and gradient do not depend on its chunk of a large batch. It has the
two methods of a timm model that ``Embedder`` uses.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

WIDTHS = (24, 48, 96, 192)
_GREY = (0.299, 0.587, 0.114)  # ITU-R 601 luma, as PIL's convert("L")


class TinyConvNet(nn.Module):
    """B×3×H×W → B×192×H/8×W/8.

    Args:
        grey: convert RGB to one luma channel first, for glyphs and similar images; a third of the first layer's cost.
    """

    def __init__(self, grey: bool = False) -> None:
        super().__init__()
        self.grey = grey
        self.num_features = WIDTHS[-1]
        blocks: OrderedDict[str, nn.Module] = OrderedDict()
        channels = 1 if grey else 3
        for number, width in enumerate(WIDTHS, start=1):
            layers: list[nn.Module] = [
                nn.Conv2d(channels, width, kernel_size=3, padding=1, bias=False),
                nn.GroupNorm(8, width),
                nn.ReLU(inplace=True),
            ]
            if number < len(WIDTHS):
                layers.append(nn.MaxPool2d(2))
            blocks[f"block{number}"] = nn.Sequential(*([_Luma()] if grey and number == 1 else []), *layers)
            channels = width
        self.blocks = nn.Sequential(blocks)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward_features(self, x: Tensor) -> Tensor:
        """The last feature map."""
        maps: Tensor = self.blocks(x)
        return maps

    def forward_head(self, x: Tensor, pre_logits: bool = True) -> Tensor:
        """Average pooling, the ``"native"`` one."""
        return x.mean(dim=(-2, -1))


class _Luma(nn.Module):
    """Normalized RGB to one channel: mean and standard deviation are equal in all channels, so luma commutes with them."""

    def forward(self, x: Tensor) -> Tensor:
        red, green, blue = x.split(1, dim=1)
        luma: Tensor = red * _GREY[0] + green * _GREY[1] + blue * _GREY[2]
        return luma
