"""Backbones by name: built with timm (or ``tiny``), always without weights; and the format of their features.

``weights.py`` loads the weights. Nothing here reads files or uses the network: timm's own loading is never used, because
it leaves a model random, without an error, if a file has an unknown layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from recollect.common.errors import ConfigError, ImageError
from recollect.models.tiny import TinyConvNet

# Architectures of timm whose position embeddings follow the image size at run time.
_ANY_SIZE_MODULES = ("timm.models.vision_transformer", "timm.models.eva")
_TOO_NARROW = ("Output size is too small", "Kernel size can't be greater")  # torch's error messages


def timm_library() -> Any:
    """The timm module, imported late, after the torchvision workaround."""
    from recollect.common import torchvision_fix

    torchvision_fix.apply()
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
    options: dict[str, Any] = {}
    if not timm.is_model(architecture.split(".")[0]):
        raise ConfigError(f"timm {timm.__version__} has no architecture {architecture!r}.")
    entry = timm.models.model_entrypoint(architecture.split(".")[0])
    if entry.__module__ in _ANY_SIZE_MODULES:
        options = {"img_size": size, "dynamic_img_size": True}
    elif _fixed_size(architecture) and size != _own_size(architecture):
        options = {"img_size": size}
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


def prefix_tokens(backbone: nn.Module) -> int:
    """Class and register tokens before the patches."""
    return int(getattr(backbone, "num_prefix_tokens", 0))


def feature_size(backbone: nn.Module, pooling: str) -> int:
    """Dimension of the pooled features; a few networks widen them in their own head."""
    if pooling == "native":
        return int(getattr(backbone, "head_hidden_size", None) or backbone.num_features)  # type: ignore[arg-type]
    return int(backbone.num_features)  # type: ignore[arg-type]


def patch_size(backbone: nn.Module) -> int:
    """Sides of an image must be multiples of this: the patch of a transformer, 1 for a convnet."""
    if feature_kind(backbone) != "tokens":
        return 1
    size = getattr(getattr(backbone, "patch_embed", None), "patch_size", 1)
    return int(size[0] if isinstance(size, tuple | list) else size)


def takes_any_size(backbone: nn.Module) -> bool:
    """Whether the network accepts images of other sizes than the one it was built for."""
    if isinstance(backbone, TinyConvNet):
        return True
    if getattr(backbone, "dynamic_img_size", False):
        return True
    cfg: Any = getattr(backbone, "pretrained_cfg", {})
    return not cfg.get("fixed_input_size", False)


def _own_size(architecture: str) -> int:
    return int(timm_library().get_pretrained_cfg(architecture).input_size[-1])


def _fixed_size(architecture: str) -> bool:
    return bool(timm_library().get_pretrained_cfg(architecture).fixed_input_size)
