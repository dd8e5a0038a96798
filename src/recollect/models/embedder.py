"""``Embedder``: maps pixels to unit vectors. Normalization → backbone → pooling → head → L2.

``EmbedderConfig`` describes an embedder completely; ``saving.py`` rebuilds it from there. Backbones, pooling and heads are
in their files; images are decoded by ``data/pipeline.py``. Training uses ``forward``, ``train``, ``parameter_groups`` and
``split``; all others use ``embed``. Descriptors of several scales are normalized, averaged and normalized again: as in
cirtorch, what a network was trained to return is averaged; a whitening that was added afterwards is applied to the average.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recollect.common import plugins
from recollect.common.console import ProgressLine
from recollect.common.errors import ConfigError, InputError
from recollect.common.images import BadImage, ImageSource, Preprocessing, bad_image_summary
from recollect.common.machine import autocast_dtype, tf32
from recollect.common.text import printable
from recollect.data.image_set import ImageSet
from recollect.data.pipeline import Pipeline
from recollect.data.transforms import test_transform
from recollect.models import backbones, zoo
from recollect.models.backbones import (
    BATCH_NORM,
    NativePool,
    Part,
    Stage,
    apply_batch_norm,
    backbone_layers,
    backbone_stages,
    build_outside,
    cut,
    default_pooling,
)
from recollect.models.pooling import GeM, Head, StageOutputs, StagePooling, UnitLength, make_pooling, unit
from recollect.models.saving import EmbedderConfig, hub_folder, is_hub_address, load_embedder, save_embedder
from recollect.models.weight_files import obtain_weights
from recollect.models.weights import Provenance, load_weights
from recollect.models.whitening import Whitening


class InputNormalization(nn.Module):
    """Maps uint8 pixels to ``(x / 255 − mean) / std`` on their device; floating-point tensors are returned unchanged."""

    def __init__(self, preprocessing: Preprocessing) -> None:
        super().__init__()
        mean = torch.tensor(preprocessing.mean, dtype=torch.float32).reshape(-1, 1, 1)
        std = torch.tensor(preprocessing.std, dtype=torch.float32).reshape(-1, 1, 1)
        # Not saved with the tensors: embedder.json is the only place for them.
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("std", std, persistent=False)
        self.mean: Tensor
        self.std: Tensor

    def forward(self, images: Tensor) -> Tensor:
        """B×3×H×W of uint8 or floating point → normalized floating point."""
        if images.ndim != 4 or images.shape[1] != 3:
            raise InputError(f"images must be B×3×H×W, not {tuple(images.shape)}.")
        if images.dtype == torch.uint8:
            return images.to(self.mean.dtype).div_(255).sub_(self.mean).div_(self.std)
        if not images.is_floating_point():
            raise InputError(f"images must be uint8 (0–255) or floating point (normalized), not {images.dtype}.")
        return images


def by_shape(run: Callable[[Tensor], Tensor], images: Sequence[Tensor]) -> Tensor:
    """``run`` on images of any sizes: images of equal size together, the rows of the result in the order of the images.

    Examples:
        >>> by_shape(lambda x: x.mean((2, 3)), [torch.zeros(3, 4, 2), torch.ones(3, 2, 4), torch.ones(3, 4, 2)])[:, 0]
        tensor([0., 1., 1.])
    """
    for row, image in enumerate(images):
        if image.ndim != 3 or image.shape[0] != 3:
            raise InputError(f"image {row} of the list must be 3×H×W, not {tuple(image.shape)}.")
    if not images:
        raise InputError("the list of images is empty: give at least one.")
    groups: dict[torch.Size, list[int]] = {}
    for row, image in enumerate(images):
        groups.setdefault(image.shape, []).append(row)
    results = torch.cat([run(torch.stack([images[row] for row in rows])) for rows in groups.values()])
    order = torch.tensor([row for rows in groups.values() for row in rows], device=results.device)
    return results[order.argsort()]


INSTANCE_SEARCH_SCALES = (1.0, math.sqrt(2.0), 1.0 / math.sqrt(2.0))
"""The three scales of the instance-search protocol."""


def multiscale(
    model: Callable[[Tensor], Tensor], images: Tensor, scales: Sequence[float], multiple: int = 1, power: float = 1.0
) -> Tensor:
    """The normalized mean of ``model(images resized by s)`` over ``scales``.

    Args:
        model: maps normalized images (B×3×H×W) to unit vectors.
        images: normalized, floating point.
        scales: positive factors for both sides.
        multiple: sides are rounded to multiples of this (the patch of a transformer); 1 rounds down as torch does.
        power: exponent of the mean: that of GeM for its own descriptors, which have no negative values.

    Examples:
        >>> import torch
        >>> model = lambda x: torch.nn.functional.normalize(x.mean((2, 3)), dim=1)
        >>> multiscale(model, torch.rand(2, 3, 32, 48), (1.0, 0.5)).shape
        torch.Size([2, 3])
    """
    first, *others = (unit(model(fit(images, scale, multiple))) ** power for scale in scales)
    return unit(sum(others, first) ** (1 / power))


def fit(images: Tensor, scale: float = 1.0, multiple: int = 1) -> Tensor:
    """Resize by ``scale``, with sides rounded to multiples of ``multiple``; returns the same images if nothing changes."""
    if multiple == 1 and scale == 1:
        return images
    height, width = images.shape[-2:]
    if multiple == 1:
        return F.interpolate(images, scale_factor=scale, mode="bilinear", align_corners=False)
    size = [max(multiple, round(side * scale / multiple) * multiple) for side in (height, width)]
    if size == [height, width]:
        return images
    return F.interpolate(images, size=size, mode="bilinear", align_corners=False)


ImageLike = ImageSource | Tensor
"""Any source that the decoder accepts, or a 3×H×W tensor that is already preprocessed."""


class Embedder(nn.Module):
    """Maps images to vectors of length 1. Make one with ``create`` or ``load``.

    Attributes:
        config: its full description.
        dim: dimension of its vectors.
        takes_any_size: whether it can embed and train on images of other sizes than its own.
        backbone, pooling, head: its parts; ``pooling`` is None when the backbone pools by itself.
        precision: of its network in ``embed``, evaluation and search: ``"fp32"``, or ``"bf16"`` or ``"fp16"`` by autocast.

    Examples:
        >>> embedder = Embedder.create("tiny")
        >>> embedder(torch.zeros(2, 3, 48, 48, dtype=torch.uint8)).shape
        torch.Size([2, 128])
    """

    precision = "fp32"

    def __init__(self, config: EmbedderConfig, backbone: nn.Module) -> None:
        super().__init__()
        self.config = config
        self.normalize = InputNormalization(config.preprocessing)
        self.backbone = backbone
        self.pooling = make_pooling(
            config.pooling,
            kind=backbones.feature_kind(backbone),
            prefix_tokens=int(getattr(backbone, "num_prefix_tokens", 0)),  # class and register tokens
            p=config.p,
            learn_p=config.learn_p,
        )
        self._set_head()
        self.multiple = backbones.patch_size(backbone)
        cfg: Any = getattr(backbone, "pretrained_cfg", {})
        self.takes_any_size = getattr(backbone, "dynamic_img_size", False) or not cfg.get("fixed_input_size", False)
        if config.batch_norm not in BATCH_NORM:
            raise ConfigError(f"batch_norm {config.batch_norm!r} is unknown: choose one of {', '.join(BATCH_NORM)}.")
        for module in self.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                for parameter in module.parameters(recurse=False):
                    parameter.requires_grad_(config.batch_norm != "frozen")
        if backbones.feature_kind(backbone) == "maps":
            # Convolutions on CPUs and tensor cores are faster with channels last; values are the same.
            self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.train()

    @classmethod
    def create(
        cls,
        init: str | nn.Module = "lite0-in1k",
        *,
        options: Mapping[str, Any] | None = None,
        weights: str | Path | None = None,
        dim: int | Literal["default"] | None = "default",
        pooling: str | None = None,
        p: float = 3.0,
        learn_p: bool = True,
        layer_norm: bool | None = None,
        l2_before_head: bool | None = None,
        batch_norm: str = "frozen",
        stages: int = 0,
        size: int | None = None,
        resize: int | Literal["default"] | None = "default",
        interpolation: str | None = None,
        normalization: str | tuple[zoo.Triple, zoo.Triple] | None = None,
        download: bool = False,
    ) -> Embedder:
        """Build an embedder from a named initialisation. Defaults are the paper's for that model.

        Args:
            init: a name of ``recollect models``, any timm model as ``timm:<full tag>``, a reference to a backbone
                (``my.py:backbone``), or a backbone itself: a module from images B×3×H×W to maps B×C×H×W or vectors B×C.
            options: options of your own backbone.
            weights: a file, or a folder that is searched for known file names. None searches the usual places (the
                bundled package, the folder named by ``RECOLLECT_WEIGHTS``, the caches). ``"none"`` starts from random
                weights, which otherwise only ``tiny`` does, because it has no pre-trained weights.
            dim: dimension of the embedding; None leaves the head out and returns the pre-trained features, pooled as the
                backbone does (the recipes of *init* rows).
            pooling: ``"gem"``, ``"avg"``, ``"max"`` (convnets), ``"cls"`` (transformers) or ``"native"``.
            p: initial exponent of GeM; ``learn_p``: whether it is trained.
            layer_norm: LayerNorm before the last layer: the paper has it for ResNet-50 only, its code for ViT too.
            l2_before_head: L2 before the last layer, for a whitening layer (ResNet-101).
            batch_norm: ``"frozen"`` (the paper), ``"statistics"`` (only the statistics are frozen, as in the released
                code), ``"trained"``.
            stages: from how many of the last stages before the last layer, at most 3, mean and standard deviation (of a
                transformer's blocks class token and mean) are features too.
            size: side of the crop, or for whole images the maximum of the longer side; position embeddings are resampled
                to it.
            resize: the shorter side before the crop, by default in the row's proportion (256 : 224); None keeps images
                whole.
            interpolation: interpolation of that resize.
            normalization: ``"imagenet"``, ``"half"``, ``"clip"`` or (mean, std) instead of the model's own; the paper's
                code used ``"imagenet"`` for all.
            download: download missing weights.

        Raises:
            ConfigError: an unknown name, or settings that contradict each other.
            WeightsError: the weights are missing, or belong to another model.
        """
        row = zoo.find(init) if isinstance(init, str) else zoo.from_outside(plugins.describe(init, "backbone"))
        if options and row.outside is None:
            raise ConfigError(
                f"model.options are for your own backbone, but {row.name} is one of recollect's: remove them."
            )
        preprocessing = row.adapted_preprocessing(size, resize, interpolation, normalization)
        no_head = dim is None
        if not row.has_weights_file and weights not in (None, "none"):
            raise ConfigError(
                f"{row.name} has no weights file, so {weights} cannot be loaded: remove the weights setting."
            )
        # Before the network is built, which takes seconds if it is large.
        from_file = row.has_weights_file and weights != "none"
        path = obtain_weights(row, weights, download=download) if from_file else None
        architecture, code = row.timm_id or row.name, None
        if row.outside is None:
            backbone = backbones.build_backbone(architecture, preprocessing.size)
        else:
            backbone, code = build_outside(row.outside, preprocessing.size, options or {})
            architecture = code.architecture
        if preprocessing.resize is not None:
            patch, size = backbones.patch_size(backbone), preprocessing.size
            if size % patch:
                nearest = [side for side in (size // patch * patch, size // patch * patch + patch) if side]
                raise ConfigError(
                    f"image size {size} is not a multiple of the patch size of {row.name}, {patch} pixels: use "
                    f"{' or '.join(map(str, nearest))}."
                )
        provenance = Provenance() if path is None else load_weights(backbone, path, row)
        config = EmbedderConfig(
            init=row.name,
            architecture=architecture,
            dim=row.dim if dim == "default" else dim,
            pooling=pooling or ("native" if no_head else row.pooling if code is None else default_pooling(backbone)),
            layer_norm=(row.layer_norm and not no_head) if layer_norm is None else layer_norm,
            l2_before_head=(row.l2_before_head and not no_head and not layer_norm)
            if l2_before_head is None
            else l2_before_head,
            batch_norm=batch_norm,
            stages=stages,
            p=p,
            learn_p=learn_p,
            preprocessing=preprocessing,
            provenance=provenance,
            code=code,
        )
        return cls(config, backbone)

    @property
    def preprocessing(self) -> Preprocessing:
        """The preprocessing that it expects."""
        return self.config.preprocessing

    @property
    def device(self) -> torch.device:
        """The device of its parameters."""
        return next(self.parameters()).device

    def _set_head(self) -> None:
        """The head, for the pooled features of as many stages as the configuration says."""
        config = self.config
        base = backbones.feature_size(self.backbone, config.pooling)
        self._stage_features: tuple[nn.Module, ...] = ()  # no submodules: they share the backbone's parameters
        groups: list[int] = []
        if config.stages:
            outputs = StageOutputs(self.backbone, config.preprocessing.size, backbones.feature_kind(self.backbone))
            self._stage_features = outputs, StagePooling(self._pooling_module())
            groups = [base, *reversed(outputs.sizes)]
        self.pooled_dim = sum(groups) or base
        groups = groups[: config.stages + 1]
        self.feature_dim = sum(groups) or base
        self.head = Head(
            self.feature_dim, config.dim, layer_norm=config.layer_norm, l2=config.l2_before_head, groups=groups
        )
        self.dim = self.feature_dim if config.dim is None else config.dim

    def set_stages(self, stages: int) -> None:
        """Use the features of another number of stages (see ``create``), with a new last layer."""
        device = self.device
        self.config = replace(self.config, stages=stages)
        self._set_head()
        self.head.to(device)
        self.train(self.training)  # BatchNorm as before

    def with_own_head(self, stages: int | None = None) -> Embedder:
        """A copy with a head of its own, which shares the rest; ``stages``: a new one for that many."""
        copied = copy.copy(self)
        copied._modules = {**self._modules, "head": copy.deepcopy(self.head)}
        if stages is not None:
            copied.set_stages(stages)
        return copied

    def pooled(self, images: Tensor) -> Tensor:
        """B×3×H×W → pooled features B×C, before the head."""
        if self._stage_features:
            outputs, pooling = self._stage_features
            joined: Tensor = pooling(outputs(self.normalize(images)))
            return joined
        features: Tensor = self.backbone.forward_features(self.normalize(images))  # type: ignore[operator]
        if self.pooling is None:
            native: Tensor = self.backbone.forward_head(features, pre_logits=True)  # type: ignore[operator]
            return native
        pooled: Tensor = self.pooling(features)
        return pooled

    def forward(self, images: Tensor | list[Tensor]) -> Tensor:
        """B×3×H×W, or a list of B images 3×H×W of any sizes → B×dim float32 vectors of length 1.

        uint8 images are scaled and normalized here, on their device; floating-point images must already be normalized. In
        a list, images of equal size are processed together; sides are rounded to a transformer's patches, as in ``embed``.
        """
        if isinstance(images, list):
            return by_shape(lambda group: self.forward(self.fitted(group)), images)
        return unit(self.head(self.pooled(images)))

    def fitted(self, images: Tensor) -> Tensor:
        """Normalized B×3×H×W pixels, with sides that the backbone accepts."""
        if images.device.type != "meta":
            images = images.contiguous(memory_format=torch.channels_last)
        pixels: Tensor = self.normalize(images)
        return pixels if self.multiple == 1 else fit(pixels, 1.0, self.multiple)

    def train(self, mode: bool = True) -> Embedder:
        """As ``nn.Module.train``, but BatchNorm stays frozen as set by ``batch_norm``."""
        super().train(mode)
        apply_batch_norm(self, self.config.batch_norm)
        return self

    @property
    def images_at_once(self) -> int:
        """Images of the model's own size with as many pixels as 128 images of 224 px, which a GPU that trains can embed.

        On a CPU as many as 16 images of 224 px: more take more memory and are not faster (``benchmarks/laptop.py``).
        """
        most = 16 if self.device.type == "cpu" else 128
        return max(1, min(128, most * 224**2 // self.preprocessing.size**2))

    def stages(self) -> list[Stage]:
        """Its named parts in order; their composition is ``forward``. Parameters are shared, not copied."""
        if self._stage_features:
            features, pooling = [("features", self._stage_features[0])], self._stage_features[1]
        else:
            features, pooling = backbone_stages(self.backbone), self._pooling_module()
        return [("input", self.normalize), *features, ("pooling", pooling), ("head", self.head), ("unit", UnitLength())]

    def _pooling_module(self) -> nn.Module:
        return NativePool(self.backbone) if self.pooling is None else self.pooling

    def split(self, upto: str = "backbone") -> tuple[nn.Module, nn.Module]:
        """Two modules with ``rest(frozen(x)) == forward(x)``, cut after stage ``upto``; parameters are shared.

        Args:
            upto: ``"backbone"`` (all before pooling), ``"pooling"`` (all before the head), or a stage of ``stages()``,
                e.g. ``"layer3"`` of a ResNet or ``"blocks.9"`` of a ViT.

        Nothing is frozen by this alone: see ``freeze``.
        """
        stages = self.stages()
        count, policy = cut(stages, upto), self.config.batch_norm
        return Part(stages[:count], policy).train(self.training), Part(stages[count:], policy).train(self.training)

    def between(self, after: str, upto: str) -> nn.Module:
        """The stages after ``after`` up to and including ``upto``: what ``split(upto)`` has and ``split(after)`` lacks."""
        stages = self.stages()
        part = Part(stages[cut(stages, after) : cut(stages, upto)], self.config.batch_norm)
        return part.train(self.training)

    def freeze(self, upto: str = "backbone") -> None:
        """Stop training everything up to and including ``upto``: no gradients from now on.

        ``upto`` is a stage, as in ``split``, or a layer by timm's name, e.g. ``"blocks.9"`` of any transformer.
        """
        layers, stages = backbone_layers(self.backbone), self.stages()
        if upto in layers and not self.can_split(upto):
            for name, parameters in layers.items():
                for parameter in parameters:
                    parameter.requires_grad_(False)
                if name == upto:
                    return
        for _, module in stages[: cut(stages, upto, layers)]:
            module.requires_grad_(False)

    def can_split(self, upto: str) -> bool:
        """Whether ``split`` can cut after ``upto``, so that features of the part before it can be stored."""
        return upto == "backbone" or upto in dict(self.stages()[:-1])

    def parameter_groups(
        self,
        lr: float,
        weight_decay: float,
        head_multiplier: float = 1.0,
        p_multiplier: float = 1.0,
        decay_norm_and_bias: bool = True,
        decay_p: bool = False,
        layer_decay: float = 1.0,
    ) -> list[dict[str, Any]]:
        """Groups for an optimizer, without frozen parameters and empty groups.

        Args:
            lr, weight_decay: learning rate and weight decay of the backbone.
            head_multiplier: factor on ``lr`` for the head.
            p_multiplier: factor on ``lr`` for GeM's exponent (10 for instance search).
            decay_p: apply weight decay to GeM's exponent too, as the released code does.
            decay_norm_and_bias: apply weight decay to normalization layers and biases too, as the released code does.
            layer_decay: factor on ``lr`` from each layer of the backbone to the one before it, the last having one itself.

        Raises:
            ConfigError: a ``layer_decay`` for a backbone whose layers have no order.

        Examples:
            >>> groups = Embedder.create("tiny").parameter_groups(1e-4, 4e-4, p_multiplier=10)
            >>> [(group["name"], group["lr"], group["weight_decay"]) for group in groups]
            [('backbone', 0.0001, 0.0004), ('head', 0.0001, 0.0004), ('gem_p', 0.001, 0.0)]
        """
        exponents = {id(module.p) for module in self.modules() if isinstance(module, GeM)}
        in_head = {id(parameter) for parameter in self.head.parameters()}
        layers = [] if layer_decay == 1 else [*backbone_layers(self.backbone).values()][::-1]
        if layer_decay != 1 and not layers:
            raise ConfigError("optimizer.layer_decay needs a backbone of timm, which orders its layers: set it to 1.")
        depth = {id(parameter): number for number, layer in enumerate(layers, 1) for parameter in layer}
        multipliers = {"backbone": 1.0, "head": head_multiplier, "gem_p": p_multiplier}
        members: dict[tuple[str, bool, int], list[nn.Parameter]] = {}
        for parameter in self.parameters():
            if not parameter.requires_grad:
                continue
            name = "gem_p" if id(parameter) in exponents else "head" if id(parameter) in in_head else "backbone"
            decayed = decay_p if name == "gem_p" else decay_norm_and_bias or parameter.ndim > 1
            members.setdefault((name, decayed, depth.get(id(parameter), 0)), []).append(parameter)
        order = sorted(members, key=lambda key: ([*multipliers].index(key[0]), key[2], not key[1]))
        return [
            {
                "name": name if decayed or name == "gem_p" else f"{name}_no_decay",
                "params": members[name, decayed, layer],
                "lr": lr * multipliers[name] * layer_decay**layer,
                "weight_decay": weight_decay if decayed else 0.0,
            }
            for name, decayed, layer in order
        ]

    def resize_head(self, dim: int) -> None:
        """Replace the last layer by a random one of another dimension."""
        self.head.linear = nn.Linear(self.feature_dim, dim, device=self.device)
        self.config, self.dim = replace(self.config, dim=dim), dim

    def set_whitening(self, whitening: Whitening) -> None:
        """Initialise the last layer with a whitening learned on this embedder's ``embed(..., before_head=True)``."""
        linear = self.head.linear
        if linear is None:
            raise ConfigError(
                "whitening initialises the last layer, but this embedder has none (dim=None): create it with a dim."
            )
        if whitening.projection.shape[1] != linear.in_features:
            raise InputError(
                f"the whitening has {whitening.projection.shape[1]} dimensions, but the last layer takes "
                f"{linear.in_features}. Learn it from embed(..., before_head=True)."
            )
        weight, bias = whitening.linear(linear.out_features)
        with torch.no_grad():
            linear.weight.copy_(weight)
            linear.bias.copy_(bias)

    def embed(
        self,
        images: ImageSet | Iterable[ImageLike] | Tensor,
        *,
        batch_size: int = 64,
        device: str | torch.device | None = None,
        progress: bool = True,
        scales: Sequence[float] | None = None,
        on_bad_image: str | Callable[[BadImage], None] = "error",
        workers: int | None = None,
        before_head: bool = False,
    ) -> Tensor:
        """Embed images: N images → N×dim float32 on the CPU, row i for image i.

        Files, bytes, PIL images and uint8 arrays are converted to upright RGB and preprocessed as the model expects.
        Tensors (3×H×W, or N×3×H×W at once) must already be preprocessed, as uint8 or normalized. Images are streamed in
        batches of equal size, so any number and mixture of sizes fits in memory.

        Args:
            images: a sequence, an iterator, an ``ImageSet`` or one tensor.
            batch_size: images per batch at the model's own size, on a CPU at most ``images_at_once``; batches of larger
                images are proportionally smaller.
            device: moves the embedder to this device and leaves it there; None uses its current device.
            progress: show a progress line on a terminal.
            scales: average descriptors over these scales (see ``multiscale``), e.g. ``INSTANCE_SEARCH_SCALES``.
            on_bad_image: ``"error"`` raises ``ImageError`` at the first unreadable file; ``"skip"`` sets its row to NaN
                and names it in a warning at the end; a function is called with its ``BadImage``, and the row is NaN.
            workers: threads that decode; None for one per core, at most 16; 0 for none.
            before_head: return the inputs of the last layer instead, N×feature_dim, from which whitening is learned.
        """
        if batch_size < 1:
            raise InputError(f"batch_size must be at least 1, not {batch_size}.")
        if scales is not None and not (len(scales) and all(0 < scale < math.inf for scale in scales)):
            raise InputError(f"scales must be one or more positive numbers, not {list(scales)}.")
        if isinstance(images, Tensor):
            if images.ndim != 4:
                raise InputError(
                    f"a tensor of images must be N×3×H×W, not {tuple(images.shape)}; give a single image as a list."
                )
            images = list(images)
        if device is not None:
            self.to(device)
        if self.device.type == "cpu":
            batch_size = min(batch_size, self.images_at_once)
        # An iterator's images are taken some at a time: they need not be in memory together.
        blocks: Iterable[Any] = [images]
        if not isinstance(images, Sized):
            remaining = iter(images)
            blocks = iter(lambda: list(islice(remaining, 4 * batch_size)), [])
        count = len(images) if isinstance(images, Sized) else None
        parts = [torch.empty(0, self.feature_dim if before_head else self.dim)]
        skipped: list[BadImage] = []
        policy = "skip" if callable(on_bad_image) else on_bad_image
        was_training = self.training
        self.eval()
        try:
            with ProgressLine("embedding", count) if progress else nullcontext() as line:
                for block in blocks:
                    rows = torch.full((len(block), parts[0].shape[1]), torch.nan)
                    batches = self._batches(block, sum(map(len, parts)), batch_size, policy, workers, skipped)
                    results = (
                        (places, self._vectors(batch.to(self.device, non_blocking=True), scales, before_head))
                        for places, batch in batches
                    )
                    # A result is fetched after the next batch was started, so that a GPU never waits.
                    for (places, vectors), _ in pairwise(chain(results, [((), torch.empty(0))])):
                        rows[places] = vectors.to("cpu", torch.float32)
                        if line is not None:
                            line.advance(len(places))
                    parts.append(rows)
        finally:
            self.train(was_training)
        for bad in skipped if callable(on_bad_image) else ():
            on_bad_image(bad)  # type: ignore[operator]
        if skipped and not callable(on_bad_image):
            warnings.warn(bad_image_summary(skipped, "their rows are NaN"), stacklevel=2)
        return parts[1] if len(parts) == 2 else torch.cat(parts)

    def _batches(
        self,
        images: ImageSet | Sequence[ImageLike],
        start: int,
        batch_size: int,
        on_bad_image: str,
        workers: int | None,
        skipped: list[BadImage],
    ) -> Iterator[tuple[Sequence[int], Tensor]]:
        """Preprocessed images in batches of one size, with their places; what cannot be read is added to ``skipped``.

        Numbered from ``start``. A batch has at most as many pixels as ``batch_size`` images of the model's own size.
        """
        most = batch_size * self.preprocessing.size**2
        places: list[int] = []
        if isinstance(images, ImageSet):
            encoded, places = images, list(range(len(images)))
        else:
            ready: dict[tuple[torch.Size, torch.dtype], list[int]] = {}
            for place, image in enumerate(images):
                group = ready.setdefault((image.shape, image.dtype), []) if isinstance(image, Tensor) else places
                group.append(place)
            for (shape, _), group in ready.items():
                if len(shape) != 3 or shape[0] != 3:
                    raise InputError(f"an image tensor must be 3×H×W, not {tuple(shape)}.")
                step = max(1, min(batch_size, most // (shape[1] * shape[2])))
                for first in range(0, len(group), step):
                    rows = group[first : first + step]
                    yield rows, torch.stack([images[row] for row in rows])  # type: ignore[misc]
            files = [f": {printable(str(image))}" if isinstance(image, str | Path) else "" for image in images]
            names = [f"image {start + place}{files[place]}" for place in places]
            items: Any = [images[place] for place in places]
            encoded = ImageSet("images", names, np.zeros(len(names), np.int64), ["images"], items=items)
        transform, pin = test_transform(self.preprocessing), self.device.type == "cuda"
        with Pipeline(encoded, transform, workers, on_bad_image=on_bad_image, pin=pin) as pipeline:
            for batch in pipeline.sequential(batch_size, most):
                yield [places[index] for index in batch.indices], batch.images  # type: ignore[misc]
            skipped += [replace(bad, index=start + places[bad.index]) for bad in pipeline.bad_images]

    def shortened(self, dim: int) -> Embedder:
        """An embedder of the first ``dim`` values of this one's vectors, normalized (see ``losses/matryoshka.py``).

        It has a shorter last layer and shares the backbone with this one. Useful for a model trained with ``loss.dims``.

        Raises:
            ConfigError: ``dim`` is below 1 or above this embedder's own.
        """
        if not 1 <= dim <= self.dim:
            raise ConfigError(f"dim {dim}: the model's vectors have {self.dim} numbers; choose from 1 to {self.dim}.")
        if dim == self.dim:
            return self
        short = Embedder(replace(self.config, dim=dim), self.backbone)
        state = {name: value for name, value in self.state_dict().items() if not name.startswith("head.linear.")}
        linear = self.head.linear
        # Without a last layer the features themselves are shortened, by the first rows of an identity matrix.
        weight = torch.eye(dim, self.feature_dim) if linear is None else linear.weight.detach()[:dim].clone()
        bias = torch.zeros(dim) if linear is None else linear.bias.detach()[:dim].clone()
        short.load_state_dict(state | {"head.linear.weight": weight, "head.linear.bias": bias})
        short.precision = self.precision
        return short.to(self.device).train(self.training)

    @torch.inference_mode()
    def _vectors(self, batch: Tensor, scales: Sequence[float] | None, before_head: bool) -> Tensor:
        """Vectors of one batch of equal size, see ``Embedder.embed``.

        Raises:
            InputError: a size or scales that the network does not take.
        """
        if not self.takes_any_size:
            side = self.preprocessing.size
            if tuple(batch.shape[-2:]) != (side, side) or scales is not None:
                raise InputError(
                    f"{self.config.init} takes images of {side}×{side} pixels only, not "
                    f"{batch.shape[-1]}×{batch.shape[-2]} or several scales: resize the images, or remove scales."
                )
        dtype = autocast_dtype(self.precision)
        autocast = torch.autocast(batch.device.type, dtype=dtype, enabled=dtype is not None)
        with backbones.refusing_narrow(batch), tf32(batch.device), autocast:
            if before_head:
                if scales is not None:
                    raise InputError("before_head returns one descriptor per image: remove scales.")
                return self.head.inputs(self.pooled(self.fitted(batch)))
            if scales is None:
                return self.forward(self.fitted(batch))
            if batch.device.type != "meta":
                batch = batch.contiguous(memory_format=torch.channels_last)
            head, pixels = self.head, self.normalize(batch)
            if head.linear is not None and not self.config.added_head:
                return multiscale(self.forward, pixels, scales, self.multiple)
            power = float(self.pooling.p) if isinstance(self.pooling, GeM) else 1.0
            mean = multiscale(lambda images: head.inputs(self.pooled(images)), pixels, scales, self.multiple, power)
            return mean if head.linear is None else unit(head.linear(mean))

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write ``model.safetensors`` and ``embedder.json`` into ``folder``; see ``recollect.models.saving``."""
        save_embedder(self, Path(folder), overwrite=overwrite)

    @classmethod
    def load(
        cls,
        folder: str | Path,
        device: str | torch.device | None = None,
        *,
        backbone: str | nn.Module | None = None,
        trust: bool = False,
        download: bool | None = None,
    ) -> Embedder:
        """Load an embedder written by ``save``, in evaluation mode; its embeddings are bit-identical.

        Args:
            folder: a folder written by ``save``; or a finished run, whose embedder is in its folder ``model``; or
                ``hf://user/name``, a repository of the Hugging Face Hub, optionally with ``@revision``.
            device: the device; the CPU by default.
            backbone: for an embedder with your own backbone: the reference to it, or the untrained module.
            trust: run the code that the folder names as its backbone. Only for folders whose origin you know.
            download: for the Hub: True looks for a newer commit, False never uses the network; by default missing
                files are downloaded once.
        """
        if is_hub_address(folder):
            folder = hub_folder(str(folder), download=download)[0]
        with plugins.trusting() if trust else nullcontext():
            embedder = load_embedder(cls, Path(folder), backbone)
        return embedder if device is None else embedder.to(device)
