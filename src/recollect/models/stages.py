"""A backbone as a chain of named stages, so that a frozen part can be run once and the rest trained.

``Embedder.split`` uses this. To make a new architecture splittable, add a function that lists its stages in order; the
parts share the backbone's parameters, nothing is copied. ``apply_batch_norm`` is here because every part of a split
has to keep frozen BatchNorm frozen, not only the whole network.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from recollect.common.errors import ConfigError
from recollect.models.tiny import TinyConvNet

BATCH_NORM = ("frozen", "statistics", "trained")
Stage = tuple[str, nn.Module]


def set_batch_norm_gradients(module: nn.Module, policy: str) -> None:
    """Freeze or unfreeze the affine part of every BatchNorm: trained under ``"statistics"`` and ``"trained"``."""
    if policy not in BATCH_NORM:
        raise ConfigError(f"batch_norm {policy!r} is unknown: choose one of {', '.join(BATCH_NORM)}.")
    for norm in _batch_norms(module):
        for parameter in norm.parameters(recurse=False):
            parameter.requires_grad_(policy != "frozen")


def apply_batch_norm(module: nn.Module, policy: str) -> None:
    """Put every BatchNorm that may not learn statistics into evaluation mode."""
    if policy != "trained":
        for norm in _batch_norms(module):
            norm.eval()


def _batch_norms(module: nn.Module) -> Iterable[nn.Module]:
    # timm's fused norm-and-activation classes inherit from this one too.
    return (child for child in module.modules() if isinstance(child, nn.modules.batchnorm._BatchNorm))


class Part(nn.Module):
    """Consecutive stages. In training mode, BatchNorm follows the embedder's policy."""

    def __init__(self, stages: Iterable[Stage], batch_norm: str) -> None:
        super().__init__()
        self.names = []
        for name, module in stages:
            self.names.append(name)
            self.add_module(name.replace(".", "_"), module)
        self.batch_norm = batch_norm

    def train(self, mode: bool = True) -> Part:
        """As ``nn.Module.train``, but frozen BatchNorm stays frozen."""
        super().train(mode)
        apply_batch_norm(self, self.batch_norm)
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Apply all its stages."""
        for stage in self.children():
            x = stage(x)
        return x


def backbone_stages(backbone: nn.Module) -> list[Stage]:
    """The stages whose composition is ``backbone.forward_features``; a single one for unknown architectures."""
    if isinstance(backbone, TinyConvNet):
        return list(backbone.blocks.named_children())
    net: Any = backbone
    kind = f"{type(backbone).__module__}.{type(backbone).__name__}"
    if kind == "timm.models.resnet.ResNet":
        stem = nn.Sequential(net.conv1, net.bn1, net.act1, net.maxpool)
        return [("stem", stem), *((name, getattr(net, name)) for name in ("layer1", "layer2", "layer3", "layer4"))]
    if kind == "timm.models.efficientnet.EfficientNet":
        blocks = [(f"blocks.{number}", block) for number, block in enumerate(net.blocks)]
        return [
            ("stem", nn.Sequential(net.conv_stem, net.bn1)),
            *blocks,
            ("conv_head", nn.Sequential(net.conv_head, net.bn2)),
        ]
    if kind == "timm.models.vision_transformer.VisionTransformer":
        blocks = [(f"blocks.{number}", block) for number, block in enumerate(net.blocks)]
        return [("embed", _TokenEmbedding(net)), *blocks, ("norm", net.norm)]
    return [("features", _Features(net))]


class _TokenEmbedding(nn.Module):
    """Maps an image to tokens with positions. The transformer is not a submodule: only these parameters belong here."""

    def __init__(self, transformer: Any) -> None:
        super().__init__()
        self._transformer = (transformer,)
        for name in ("patch_embed", "pos_drop", "patch_drop", "norm_pre", "cls_token", "reg_token", "pos_embed"):
            setattr(self, name, getattr(transformer, name, None))

    def forward(self, x: Tensor) -> Tensor:
        transformer = self._transformer[0]
        x = transformer._pos_embed(transformer.patch_embed(x))
        tokens: Tensor = transformer.norm_pre(transformer.patch_drop(x))
        return tokens


class _Features(nn.Module):
    """``forward_features`` of any backbone as a module."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.backbone.forward_features(x)  # type: ignore[operator]
        return features


class NativePool(nn.Module):
    """The backbone's own pooling as a module; owns only those of its layers that no stage has."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self._backbone = (backbone,)
        taken = {id(module) for _, stage in backbone_stages(backbone) for module in stage.modules()}
        for name, child in backbone.named_children():
            if not any(id(module) in taken for module in child.modules()):
                self.add_module(name, child)

    def forward(self, features: Tensor) -> Tensor:
        """Features → B×C."""
        pooled: Tensor = self._backbone[0].forward_head(features, pre_logits=True)  # type: ignore[operator]
        return pooled


def cut(stages: list[Stage], upto: str) -> int:
    """How many stages there are up to and including ``upto``; ``"backbone"``: all before the pooling.

    Raises:
        ConfigError: there is no such stage, or nothing would be left.
    """
    names = [name for name, _ in stages]
    if upto == "backbone":
        return names.index("pooling")
    if upto not in names[:-1]:
        raise ConfigError(f"there is no stage {upto!r}: choose backbone or one of {', '.join(names[:-1])}.")
    return names.index(upto) + 1
