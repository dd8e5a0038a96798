"""From feature maps to the embedding: pooling, and the head (optional LayerNorm or L2, then one Linear layer).

``Embedder`` normalizes the result, always in float32. ``whitening.py`` computes values for the Linear layer."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recollect.common.errors import ConfigError

POOLINGS = ("gem", "avg", "max", "cls", "native")


def generalized_mean(x: Tensor, p: Tensor | float, eps: float = 1e-6) -> Tensor:
    """``(mean over positions of max(x, eps)^p)^(1/p)``, B×C×H×W → B×C, in float32 or better.

    p = 1 is the mean, p → ∞ the maximum. Values are divided by their channel's maximum first: a learned p may grow,
    and ``1e-6 ** 8`` or ``50 ** 30`` leave float32, which would turn gradients into NaN. The mean is homogeneous, so
    the result and the gradient are unchanged, and the maximum may be taken as a constant.
    """
    # Half precision cannot represent eps ** 3, so autocast is turned off here.
    x = x.to(torch.promote_types(x.dtype, torch.float32)).clamp(min=eps)
    peak = x.detach().amax(dim=(-2, -1), keepdim=True)
    mean = (x / peak).pow(p).mean(dim=(-2, -1))
    return mean.pow(1.0 / p) * peak.flatten(-3)


class GeM(nn.Module):
    """Generalized-mean pooling with one exponent for all channels.

    Args:
        p: the initial exponent.
        eps: smaller activations are raised to this.
        learned: whether p is trained.

    Examples:
        >>> GeM()(torch.rand(2, 8, 7, 7)).shape
        torch.Size([2, 8])
    """

    def __init__(self, p: float = 3.0, eps: float = 1e-6, learned: bool = True) -> None:
        super().__init__()
        if p <= 0:
            raise ConfigError(
                f"the exponent of GeM must be above 0, not {p}: 1 is the mean, 3 the usual initial value."
            )
        self.p = nn.Parameter(torch.tensor([float(p)]), requires_grad=learned)
        self.eps = eps

    def forward(self, features: Tensor) -> Tensor:
        """B×C×H×W → B×C."""
        return generalized_mean(_maps(features, "gem"), self.p, self.eps)

    def extra_repr(self) -> str:
        """What ``print`` shows."""
        return f"eps={self.eps}, learned={self.p.requires_grad}"


class AveragePool(nn.Module):
    """The mean over positions; for tokens, over the patches without class and register tokens."""

    def __init__(self, prefix_tokens: int = 0) -> None:
        super().__init__()
        self.prefix_tokens = prefix_tokens

    def forward(self, features: Tensor) -> Tensor:
        """B×C×H×W or B×N×C → B×C."""
        if features.ndim == 3:
            return features.narrow(1, self.prefix_tokens, features.shape[1] - self.prefix_tokens).mean(dim=1)
        return _maps(features, "avg").mean(dim=(-2, -1))


class MaxPool(nn.Module):
    """The maximum over positions."""

    def forward(self, features: Tensor) -> Tensor:
        """B×C×H×W → B×C."""
        return _maps(features, "max").amax(dim=(-2, -1))


class ClassToken(nn.Module):
    """The [CLS] token of a transformer, after its final norm."""

    def forward(self, features: Tensor) -> Tensor:
        """B×N×C → B×C."""
        return features.select(1, 0)


class ChannelsFirst(nn.Module):
    """Converts B×H×W×C, the maps of some transformers, to B×C×H×W and applies another pooling."""

    def __init__(self, pooling: nn.Module) -> None:
        super().__init__()
        self.pooling = pooling

    def forward(self, features: Tensor) -> Tensor:
        """B×H×W×C → B×C."""
        pooled: Tensor = self.pooling(features.permute(0, 3, 1, 2))
        return pooled


def make_pooling(
    name: str, *, kind: str, prefix_tokens: int = 0, p: float = 3.0, learn_p: bool = True
) -> nn.Module | None:
    """The pooling called ``name`` for features of ``kind`` (``"maps"``, ``"maps-last"`` or ``"tokens"``).

    None for ``"native"``: the backbone pools by itself.
    """
    if name not in POOLINGS:
        raise ConfigError(f"pooling {name!r} is unknown: choose one of {', '.join(POOLINGS)}.")
    if name == "native":
        return None
    if kind == "tokens" and name in ("gem", "max"):
        raise ConfigError(
            f'pooling "{name}" needs feature maps, but this transformer returns tokens: choose "cls" or "avg".'
        )
    if name == "cls" and (kind != "tokens" or not prefix_tokens):
        raise ConfigError(
            'pooling "cls" needs a class token, which this model does not have: choose "native" or "avg".'
        )
    if name == "cls":
        return ClassToken()
    pooling = GeM(p, learned=learn_p) if name == "gem" else AveragePool(prefix_tokens) if name == "avg" else MaxPool()
    return ChannelsFirst(pooling) if kind == "maps-last" else pooling


def _maps(features: Tensor, name: str) -> Tensor:
    if features.ndim != 4:
        raise ConfigError(
            f'pooling "{name}" needs feature maps (B×C×H×W), but this backbone returns a tensor of shape '
            f'{tuple(features.shape)}: choose "native".'
        )
    return features


STAGES = 3
"""The last stages, or blocks of a transformer, whose outputs may become features beside those of the last layer."""


class StageOutputs(nn.Module):
    """Pixels to the backbone's features and the outputs of its last ``STAGES`` stages, in one forward pass.

    The last output of a convnet is left out if it is the features themselves.

    Raises:
        ConfigError: the backbone does not give the outputs of its stages.
    """

    def __init__(self, backbone: nn.Module, size: int, kind: str) -> None:
        super().__init__()
        if not hasattr(backbone, "forward_intermediates"):
            raise ConfigError(
                "model.stages needs the outputs of a backbone's stages (timm's forward_intermediates), which this one "
                "does not give: set model.stages=0."
            )
        self.backbone = backbone
        arguments = inspect.signature(backbone.forward_intermediates).parameters  # type: ignore[arg-type]
        self.options: dict[str, Any] = {
            name: True for name in ("return_prefix_tokens", "extra_blocks") if name in arguments
        }
        was_training = backbone.training
        backbone.eval()
        with torch.no_grad():
            pixels = torch.zeros(1, 3, size, size, device=next(backbone.parameters()).device)
            _, outputs = self(pixels)
        backbone.train(was_training)
        last = len(outputs) - (kind != "tokens" and outputs[-1].shape[1] == backbone.num_features)
        self.options["indices"] = list(range(max(last - STAGES, 0), last))
        self.sizes = [stage_vector(output).shape[1] for output in outputs[max(last - STAGES, 0) : last]]

    def forward(self, x: Tensor) -> tuple[Tensor, list[Any]]:
        """B×3×H×W → the features, and an output per stage: maps B×C×H×W, or maps and prefix tokens."""
        features, outputs = self.backbone.forward_intermediates(x, **self.options)  # type: ignore[operator]
        return features, outputs


def stage_vector(output: Any) -> Tensor:
    """The output of a stage as B×2C: mean and standard deviation over positions, or class token and mean of the patches."""
    maps, tokens = output if isinstance(output, tuple | list) else (output, None)
    maps = maps.to(torch.promote_types(maps.dtype, torch.float32))
    mean = maps.mean(dim=(-2, -1))
    if tokens is not None:
        return torch.cat([tokens[:, 0].to(mean.dtype), mean], dim=1)
    variance = (maps - mean[..., None, None]).square().mean(dim=(-2, -1))
    return torch.cat([mean, (variance + 1e-12).sqrt()], dim=1)  # the root has no gradient at 0


class StagePooling(nn.Module):
    """The pooled features, then the vectors of the stages from the last to the first, side by side."""

    def __init__(self, pooling: nn.Module) -> None:
        super().__init__()
        self.pooling = pooling

    def forward(self, outputs: tuple[Tensor, list[Any]]) -> Tensor:
        """The result of ``StageOutputs`` → B×C."""
        features, stages = outputs
        return torch.cat([self.pooling(features), *map(stage_vector, reversed(stages))], dim=1)


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
        features: dimension of the pooled features; if they have several groups, of the groups that are used.
        dim: dimension of the embedding; None for no head (the recipes of *init* rows).
        layer_norm: LayerNorm before the Linear (ResNet-50 in the paper).
        l2: L2 before the Linear (ResNet-101 with a whitening layer).
        groups: dimensions of the groups of features that are used, each normalized by itself; further columns are not used.
    """

    def __init__(
        self, features: int, dim: int | None, *, layer_norm: bool = False, l2: bool = False, groups: Sequence[int] = ()
    ) -> None:
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
        self.features, self.groups = features, list(groups)

    def inputs(self, pooled: Tensor) -> Tensor:
        """The inputs of the Linear layer; whitening is learned from these."""
        if pooled.shape[-1] > self.features:
            pooled = pooled[..., : self.features]
        if self.groups:
            pooled = torch.cat([unit(group) for group in pooled.split(self.groups, dim=-1)], dim=-1)
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
