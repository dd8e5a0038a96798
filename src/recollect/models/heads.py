"""Maps pooled features to the embedding space: optional LayerNorm or L2, then one Linear layer.

``Embedder`` normalizes the result, always in float32. ``whitening.py`` computes values for the Linear layer.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recollect.common.errors import ConfigError


def unit(x: Tensor) -> Tensor:
    """Rows of length 1, computed in float32 or better; a row of zeros stays zero."""
    return F.normalize(x.to(torch.promote_types(x.dtype, torch.float32)), dim=-1)


def retrieval_l2(x: Tensor, eps: float = 1e-6) -> Tensor:
    """``x / (‖x‖ + eps)``, the normalization used in instance search; whitening is learned and applied on this."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    length: Tensor = x.norm(dim=-1, keepdim=True)
    return x / (length + eps)


class Head(nn.Module):
    """LayerNorm, L2 or neither, then Linear to ``dim``; with ``dim=None`` the features themselves.

    Args:
        features: dimension of the pooled features.
        dim: dimension of the embedding; None for no head (the recipes of *init* rows).
        layer_norm: LayerNorm before the Linear (ResNet-50 in the paper).
        l2: L2 before the Linear (ResNet-101 with a whitening layer).
    """

    def __init__(self, features: int, dim: int | None, *, layer_norm: bool = False, l2: bool = False) -> None:
        super().__init__()
        if dim is not None and dim < 1:
            raise ConfigError(f"dim must be at least 1, not {dim}; use dim=None for no head.")
        if dim is None and (layer_norm or l2):
            raise ConfigError(
                "layer_norm and l2_before_head belong to the head, but dim=None leaves it out: set dim, or remove them."
            )
        if layer_norm and l2:
            raise ConfigError("choose layer_norm or l2_before_head, not both: the second undoes the first.")
        self.norm = nn.LayerNorm(features) if layer_norm else None
        self.l2 = l2
        self.linear = nn.Linear(features, dim) if dim is not None else None

    def inputs(self, pooled: Tensor) -> Tensor:
        """The inputs of the Linear layer; whitening is learned from these."""
        if self.norm is not None:
            normed: Tensor = self.norm(pooled)
            return normed
        return retrieval_l2(pooled) if self.l2 else pooled

    def forward(self, pooled: Tensor) -> Tensor:
        """B×features → B×dim, not yet normalized."""
        x = self.inputs(pooled)
        return x if self.linear is None else self.linear(x)

    def extra_repr(self) -> str:
        """What ``print`` shows."""
        return f"l2={self.l2}"


class UnitLength(nn.Module):
    """``unit`` as a module: the last stage of an embedder."""

    def forward(self, x: Tensor) -> Tensor:
        """N × dim → N × dim of length 1."""
        return unit(x)
