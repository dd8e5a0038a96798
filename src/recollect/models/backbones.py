"""Backbones by name: built with timm (or ``tiny``, or your own code), always without weights; their features and stages.

``weights.py`` loads the weights. Nothing here reads files or uses the network: timm's own loading is never used, because
it leaves a model random, without an error, if a file has an unknown layout.

A backbone is a chain of named stages, so that a frozen part can be run once and the rest trained. To make a new
architecture splittable, add a function that lists its stages in order; the parts share the backbone's parameters. A backbone
of your own is a function or class that returns an ``nn.Module``, or the module: from normalized images B×3×H×W to maps
B×C×H×W or vectors B×C. ``embedder.json`` records its reference, options and the SHA-256 of its file (``CodeOrigin``); the
code itself is not saved, and a saved embedder runs it only if the user trusts it or gives it again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import posixpath
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from recollect.common import plugins
from recollect.common.errors import ConfigError, ImageError, in_one_line, require

logger = logging.getLogger(__name__)

# Architectures of timm whose position embeddings follow the image size at run time.
_ANY_SIZE_MODULES = ("timm.models.vision_transformer", "timm.models.eva")
_TOO_NARROW = ("Output size is too small", "Kernel size can't be greater", "sizes should be greater than 0")  # torch's


def timm_library() -> Any:
    """The timm module, imported late, after the torchvision workaround."""
    from recollect.common.machine import fix_torchvision

    fix_torchvision()
    import timm

    return timm


def build_backbone(architecture: str, size: int) -> nn.Module:
    """The network ``architecture`` (a timm id, ``"tiny"`` or ``"tiny-grey"``) with random weights and no classifier.

    Args:
        architecture: a name timm knows, with or without tag; a tag only selects weights.
        size: side of its input images; fixes the position embeddings of transformers.

    Raises:
        ConfigError: timm has no such network, or not for this size.
    """
    if architecture in ("tiny", "tiny-grey"):
        return TinyConvNet(grey=architecture == "tiny-grey")
    timm = timm_library()
    options: dict[str, Any]
    if architecture.startswith("unicom:"):
        return Unicom(architecture.removeprefix("unicom:"), size)
    if not timm.is_model(architecture.split(".")[0]):
        raise ConfigError(f"timm {timm.__version__} has no architecture {architecture!r}.")
    entry = timm.models.model_entrypoint(architecture.split(".")[0])
    if entry.__module__ in _ANY_SIZE_MODULES:
        options = {"img_size": size, "dynamic_img_size": True}
    else:
        own = timm.get_pretrained_cfg(architecture)
        options = {"img_size": size} if own.fixed_input_size and size != own.input_size[-1] else {}
    try:
        backbone: nn.Module = timm.create_model(architecture, pretrained=False, num_classes=0, **options)
    except (TypeError, AssertionError, ValueError) as error:
        raise ConfigError(f"{architecture} cannot be built for {size} px images: {error}") from error
    return backbone


@contextmanager
def refusing_narrow(images: object, name_of: Callable[[int], str] | None = None) -> Iterator[None]:
    """Raise a clear error for images that are too small for a network's strides.

    Args:
        images: the input, B×3×H×W or a list of B images of any sizes; errors about other inputs are not changed.
        name_of: the name of image i, for a batch whose images have names.

    Raises:
        ImageError: the narrowest image is too small.
    """
    try:
        yield
    except RuntimeError as error:
        if not isinstance(images, Tensor | list) or not any(words in str(error) for words in _TOO_NARROW):
            raise
        number = min(range(len(images)), key=lambda index: min(images[index].shape[-2:]))
        height, width = images[number].shape[-2:]
        name = "an image" if name_of is None else name_of(number)
        raise ImageError(
            f"{name}: {width}×{height} pixels are too narrow for this network, whose pooling would leave nothing of them. "
            "Enlarge or remove the image, or choose a larger model.image_size (--image-size of recollect train).",
            "too narrow",
        ) from error


def feature_kind(backbone: nn.Module) -> str:
    """The output of ``forward_features``: ``"maps"`` B×C×H×W, ``"maps-last"`` B×H×W×C or ``"tokens"`` B×N×C."""
    if hasattr(backbone, "num_prefix_tokens"):
        return "tokens"
    return "maps-last" if getattr(backbone, "output_fmt", "NCHW") == "NHWC" else "maps"


def feature_size(backbone: nn.Module, pooling: str) -> int:
    """Dimension of the pooled features; a few networks widen them in their own head."""
    own: Any = getattr(backbone, "head_hidden_size", None) if pooling == "native" else None
    return int(own or backbone.num_features)  # type: ignore[arg-type]


def patch_size(backbone: nn.Module) -> int:
    """Sides of an image must be multiples of this: the patch of a transformer, 1 for a convnet."""
    if feature_kind(backbone) != "tokens":
        return 1
    size = getattr(getattr(backbone, "patch_embed", None), "patch_size", 1)
    return int(size[0] if isinstance(size, tuple | list) else size)


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


class Unicom(nn.Module):
    """UNICOM's transformer (An et al. 2023, arXiv:2304.05884): no class token, and a head that sees every patch.

    Args:
        architecture: timm's name of the plain transformer.
        size: side of its images, which the head fixes.
    """

    def __init__(self, architecture: str, size: int) -> None:
        super().__init__()
        if size != 224:
            raise ConfigError(f"UNICOM takes images of 224 px only, not {size}: its head sees every patch.")
        self.transformer: Any = timm_library().create_model(
            architecture, num_classes=0, class_token=False, global_pool="", qkv_bias=False, act_layer=nn.ReLU6,
            norm_layer=nn.LayerNorm,
        )  # fmt: skip
        width, patches = self.transformer.embed_dim, self.transformer.patch_embed.num_patches
        self.num_features, self.num_prefix_tokens = width, 0
        self.head_hidden_size = 512 if "patch32" in architecture else 768
        self.pretrained_cfg = {"fixed_input_size": True}
        self.feature = nn.Sequential(
            nn.Linear(width * patches, width, bias=False),
            nn.BatchNorm1d(width, eps=2e-5),
            nn.Linear(width, self.head_hidden_size, bias=False),
            nn.BatchNorm1d(self.head_hidden_size, eps=2e-5),
        )

    def forward_features(self, x: Tensor) -> Tensor:
        """B×3×224×224 → tokens B×N×C."""
        tokens: Tensor = self.transformer.forward_features(x)
        return tokens

    def forward_head(self, x: Tensor, pre_logits: bool = True) -> Tensor:
        """Tokens → B×512 or B×768."""
        pooled: Tensor = self.feature(x.flatten(1))
        return pooled


BATCH_NORM = ("frozen", "statistics", "trained")
Stage = tuple[str, nn.Module]


def apply_batch_norm(module: nn.Module, policy: str) -> None:
    """Put every BatchNorm that may not learn statistics into evaluation mode."""
    for child in module.modules():
        # timm's fused norm-and-activation classes inherit from this one too.
        if policy != "trained" and isinstance(child, nn.modules.batchnorm._BatchNorm):
            child.eval()


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


# Networks of timm whose ``forward_features`` applies their children in order.
_CHAINS = ("ResNet", "EfficientNet", "ConvNeXt", "TinyVit", "SwinTransformer")
_AFTER_FEATURES = ("global_pool", "attn_pool", "fc_norm", "head", "head_drop", "fc", "classifier")


def backbone_stages(backbone: nn.Module) -> list[Stage]:
    """The stages whose composition is ``backbone.forward_features``; a single one for unknown architectures."""
    if isinstance(backbone, TinyConvNet):
        return list(backbone.blocks.named_children())
    net: Any = backbone
    kind = type(backbone).__name__ if type(backbone).__module__.startswith("timm.models.") else ""
    if kind == "VisionTransformer":
        blocks = [(f"blocks.{number}", block) for number, block in enumerate(net.blocks)]
        return [("embed", _TokenEmbedding(net)), *blocks, ("norm", net.norm)]
    if kind not in _CHAINS:
        return [("features", _Features(net))]
    stages: list[Stage] = []
    before: list[Stage] = []
    after: list[Stage] = []
    for name, child in backbone.named_children():
        if name in ("blocks", "stages", "layers"):
            stages += [(f"{name}.{number}", stage) for number, stage in child.named_children()]
        elif name.startswith("layer"):
            stages.append((name, child))
        elif name not in _AFTER_FEATURES:
            (after if stages else before).append((name, child))
    tail = [(after[0][0], nn.Sequential(*dict(after).values()))] if after else []
    return [("stem", nn.Sequential(*dict(before).values())), *stages, *tail]


def timm_network(backbone: nn.Module) -> Any:
    """The network of timm in ``backbone``: itself, or what it wraps."""
    return backbone.transformer if isinstance(backbone, Unicom) else backbone


def backbone_layers(backbone: nn.Module) -> dict[str, list[nn.Parameter]]:
    """Parameters before the pooling by layer, from the input on, as timm's ``group_matcher`` of the network orders them.

    Finer than stages, and for every transformer; empty for a network without a ``group_matcher``.
    """
    network = timm_network(backbone)
    if not hasattr(network, "group_matcher"):
        return {}
    from timm.models import group_parameters

    parameters, is_tokens = dict(network.named_parameters()), feature_kind(backbone) == "tokens"
    # timm takes the norm before a transformer's blocks for the one after them.
    early = [name for name in parameters if is_tokens and name.startswith("norm_pre.")]
    layers: dict[str, list[nn.Parameter]] = {}
    for group in group_parameters(network, network.group_matcher()).values():
        names = [name for name in group if name.split(".")[0] not in _AFTER_FEATURES and name not in early]
        if not names:
            continue
        # Named after its block, not after a downsampling before it or the norm after the last one.
        own = [name for name in names if name.split(".")[0] == names[0].split(".")[0] and ".downsample." not in name]
        modules = [name.replace(".", "/") for name in own or names]
        layer = posixpath.commonpath(modules).replace("/", ".")
        if not layers:
            layer, names = "embed" if is_tokens else "stem", [*names, *early]
        layers[layer] = [parameters[name] for name in names]
    return layers


_ATTENTION = re.compile(r".*attn.*\.(qkv|q|kv|[qkv]_proj|proj)")


def add_lora(backbone: nn.Module, rank: int) -> None:
    """Freeze a transformer, and add products of two thin matrices to those of its attention, to be trained instead (LoRA).

    Raises:
        ConfigError: it has no attention. MissingExtraError: peft is not installed.
    """
    timm_library()  # before transformers, which peft imports
    peft = require("peft", "lora", "model.lora")
    modules = dict(backbone.named_modules())
    names = [name for name, module in modules.items() if isinstance(module, nn.Linear) and _ATTENTION.fullmatch(name)]
    if not names:
        raise ConfigError("model.lora is for transformers, but this network has no attention: remove it.")
    for module in modules.values():
        if hasattr(module, "qkv_bias_separate"):  # otherwise EVA and BEiT multiply by the frozen matrix alone
            module.qkv_bias_separate = True
    backbone.requires_grad_(False)
    peft.inject_adapter_in_model(peft.LoraConfig(r=rank, lora_alpha=rank, target_modules=names), backbone)


def merge_lora(backbone: nn.Module) -> None:
    """Add the products that ``add_lora`` has added to the matrices themselves: an ordinary network again."""
    for name, layer in list(backbone.named_modules()):
        if hasattr(layer, "get_base_layer"):
            layer.merge()
            setattr(backbone.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2], layer.get_base_layer())


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
        in_stages = {id(module) for _, stage in backbone_stages(backbone) for module in stage.modules()}
        for name, child in backbone.named_children():
            if not any(id(module) in in_stages for module in child.modules()):
                self.add_module(name, child)

    def forward(self, features: Tensor) -> Tensor:
        """Features → B×C."""
        pooled: Tensor = self._backbone[0].forward_head(features, pre_logits=True)  # type: ignore[operator]
        return pooled


def cut(stages: list[Stage], upto: str, layers: Iterable[str] = ()) -> int:
    """How many stages there are up to and including ``upto``; ``"backbone"``: all before the pooling.

    Raises:
        ConfigError: there is no such stage, or nothing would be left; ``layers`` are listed as well.
    """
    names = list(dict(stages))
    if upto == "backbone":
        return names.index("pooling")
    if upto not in names[:-1]:
        choices = ", ".join(dict.fromkeys([*names[:-1], *layers]))
        raise ConfigError(f"there is no stage {upto!r}: choose backbone or one of {choices}.")
    return names.index(upto) + 1


_MEMBERS = ("forward_features", "forward_head", "num_features")


@dataclass(frozen=True)
class CodeOrigin:
    """The origin of a backbone's code.

    Args:
        reference: its reference, without the folder of the file.
        sha256: hash of the file, or of the code if there is no file.
        options: the options it was created with.
    """

    reference: str
    sha256: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        texts = isinstance(self.reference, str) and isinstance(self.sha256, str)
        if not texts or not isinstance(self.options, Mapping):  # the file may contain anything
            raise TypeError("the code of its backbone is not described by a reference, a digest and options")

    @property
    def architecture(self) -> str:
        """A name that changes with the code and its options, so that cached vectors of other code are never used."""
        content = json.dumps([self.sha256, dict(self.options)], sort_keys=True, default=str)
        return f"{self.reference} {hashlib.sha256(content.encode()).hexdigest()[:16]}"


class CustomBackbone(nn.Module):
    """Wraps a module from outside the package as a backbone.

    Args:
        module: B×3×H×W → B×C×H×W or B×C.
        size: side of the images it is tested with.
        name: its name in messages.

    Raises:
        ConfigError: it fails on images of that size, or its output has another shape.
    """

    def __init__(self, module: nn.Module, size: int, name: str) -> None:
        super().__init__()
        self.module = module
        try:
            features = self._try(size)
        except Exception as error:
            raise ConfigError(
                f"backbone {name!r} fails on images of {size} px ({type(error).__name__}: {in_one_line(error)}). Set the "
                "size that it expects with --image-size."
            ) from error
        if not isinstance(features, Tensor) or features.ndim not in (2, 4) or len(features) != 2:
            shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise ConfigError(f"backbone {name!r} returned {shape} for two images: it must return B×C×H×W or B×C.")
        self.num_features = int(features.shape[1])
        self.returns_vectors = features.ndim == 2
        try:
            fixed_size = self._try(size + max(32, size // 4)).shape[1] != self.num_features
        except Exception:
            fixed_size = True
        self.pretrained_cfg = {"fixed_input_size": fixed_size}

    def _try(self, size: int) -> Any:
        was_training = self.module.training
        self.module.eval()
        try:
            with torch.no_grad():
                device = next(self.module.parameters(), torch.empty(0)).device
                return self.module(torch.zeros(2, 3, size, size, device=device))
        finally:
            self.module.train(was_training)

    def forward_features(self, x: Tensor) -> Tensor:
        """B×3×H×W → B×C×H×W; vectors become maps with one position."""
        features: Tensor = self.module(x)
        return features[..., None, None] if self.returns_vectors else features

    def forward_head(self, x: Tensor, pre_logits: bool = True) -> Tensor:
        """B×C×H×W → B×C: the mean over positions; vectors are unchanged."""
        return x.mean(dim=(-2, -1))


def adapted(module: Any, size: int, name: str) -> nn.Module:
    """A backbone from the object that a reference or a user gave.

    Raises:
        ConfigError: it is not a module, or cannot be used as a backbone.
    """
    if not isinstance(module, nn.Module):
        raise ConfigError(f"backbone {name!r} returned a {type(module).__name__}: it must return an nn.Module.")
    if all(hasattr(module, member) for member in _MEMBERS):
        return module
    return CustomBackbone(module, size, name)


def default_pooling(backbone: nn.Module) -> str:
    """GeM for feature maps; the backbone's own if it pools by itself or returns tokens."""
    is_maps = isinstance(backbone, CustomBackbone) and not backbone.returns_vectors
    return "gem" if is_maps else "native"


def build_outside(loaded: plugins.Loaded, size: int, options: Mapping[str, Any]) -> tuple[nn.Module, CodeOrigin]:
    """The backbone of a reference, called with ``size`` if it has that argument, and the origin of its code."""
    maker = loaded.target
    if isinstance(maker, nn.Module):
        return adapted(maker, size, loaded.short), CodeOrigin(loaded.short, loaded.sha256)
    if not callable(maker):
        raise ConfigError(f"backbone {loaded.short!r} is a {type(maker).__name__}: it must be a class or a function.")
    arguments = dict(plugins.options_of(maker))
    own_size = {}
    if "size" in arguments and "size" not in options:
        own_size["size"] = size
        del arguments["size"]
    plugins.check_options(maker, options, f"backbone {loaded.short!r}", arguments)
    with plugins.errors_as_config(f"backbone {loaded.short!r}"):
        module = maker(**options, **own_size)
    return adapted(module, size, loaded.short), CodeOrigin(loaded.short, loaded.sha256, dict(options))


def rebuild(
    origin: CodeOrigin, size: int, folder: Path, backbone: str | nn.Module | None
) -> tuple[nn.Module, CodeOrigin]:
    """The backbone of a saved embedder; its tensors are loaded afterwards.

    Args:
        origin: the origin stated in ``embedder.json``. size: side of its images.
        folder: folder of the embedder; a file next to ``embedder.json`` is preferred to one in the current folder.
        backbone: the reference or the module, if the user gives it; otherwise ``--trust`` is required.

    Raises:
        ConfigError: it is neither given nor trusted, or it cannot be found.
    """
    if isinstance(backbone, nn.Module):
        built, now = build_outside(plugins.describe(backbone, "backbone"), size, {})
    else:
        name = backbone
        if name is None:
            file = folder / origin.reference.rpartition(":")[0]
            in_folder = file.suffix == ".py" and file.is_file()
            name = plugins.mark_untrusted(
                plugins.absolute_reference(origin.reference, folder) if in_folder else origin.reference
            )
        loaded = plugins.load("backbone", name)
        if loaded is None:
            raise ConfigError(f"{folder}: there is no backbone {name!r}. Install the package that provides it.")
        built, now = build_outside(loaded, size, origin.options)
    if origin.sha256 and now.sha256 != origin.sha256:
        logger.warning(
            f"{folder}: the code of the backbone {origin.reference} has changed since the embedder was saved; its vectors may "
            "differ from earlier ones."
        )
    return built, now
