"""Backbones from outside the package: a function or class that returns an ``nn.Module``, or the module itself.

The module takes normalized images B×3×H×W and returns feature maps B×C×H×W or vectors B×C. ``OutsideBackbone`` adds what
``Embedder`` needs; a module that has these members already, as every timm model does, is used unchanged.
``embedder.json`` records the reference, its options and the SHA-256 of its file (``CodeOrigin``); the code itself is not
saved, and a saved embedder runs it only if the user trusts it or gives it again (``saving.py``).
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from recollect.common import doors
from recollect.common.errors import ConfigError, in_one_line

logger = logging.getLogger(__name__)

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


class OutsideBackbone(nn.Module):
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
            found = self._try(size)
        except Exception as error:
            raise ConfigError(
                f"backbone {name!r} fails on images of {size} px ({type(error).__name__}: {in_one_line(error)}). Set the "
                "size that it expects with --image-size."
            ) from error
        if not isinstance(found, Tensor) or found.ndim not in (2, 4) or len(found) != 2:
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ConfigError(f"backbone {name!r} returned {shape} for two images: it must return B×C×H×W or B×C.")
        self.num_features = int(found.shape[1])
        self.gives_vectors = found.ndim == 2
        self.pretrained_cfg = {"fixed_input_size": not self._takes_other_sizes(size)}

    def _try(self, size: int) -> Any:
        was_training = self.module.training
        self.module.eval()
        try:
            with torch.no_grad():
                place = next(self.module.parameters(), torch.empty(0)).device
                return self.module(torch.zeros(2, 3, size, size, device=place))
        finally:
            self.module.train(was_training)

    def _takes_other_sizes(self, size: int) -> bool:
        try:
            return (
                isinstance(found := self._try(size + max(32, size // 4)), Tensor)
                and found.shape[1] == self.num_features
            )
        except Exception:
            return False

    def forward_features(self, x: Tensor) -> Tensor:
        """B×3×H×W → B×C×H×W; vectors become maps with one position."""
        found: Tensor = self.module(x)
        return found[..., None, None] if self.gives_vectors else found

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
    return OutsideBackbone(module, size, name)


def natural_pooling(backbone: nn.Module) -> str:
    """GeM for feature maps; the backbone's own if it pools by itself or returns tokens."""
    is_maps = isinstance(backbone, OutsideBackbone) and not backbone.gives_vectors
    return "gem" if is_maps else "native"


def build_outside(loaded: doors.Loaded, size: int, options: Mapping[str, Any]) -> tuple[nn.Module, CodeOrigin]:
    """The backbone of a reference, called with ``size`` if it has that argument, and the origin of its code."""
    maker = loaded.target
    if isinstance(maker, nn.Module):
        return adapted(maker, size, loaded.short), CodeOrigin(loaded.short, loaded.sha256)
    if not callable(maker):
        raise ConfigError(f"backbone {loaded.short!r} is a {type(maker).__name__}: it must be a class or a function.")
    arguments = doors.options_of(maker)
    known = {name: parameter for name, parameter in arguments.items() if name != "size" or "size" in options}
    doors.check_options(maker, options, f"backbone {loaded.short!r}", known)
    told = {"size": size} if "size" in arguments and "size" not in options else {}
    with doors.running(f"backbone {loaded.short!r}"):
        made = maker(**options, **told)
    return adapted(made, size, loaded.short), CodeOrigin(loaded.short, loaded.sha256, dict(options))


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
        loaded = doors.given(backbone, "backbone")
    else:
        name = backbone
        if name is None:
            file = folder / origin.reference.rpartition(":")[0]
            beside = file.suffix == ".py" and file.is_file()
            name = doors.sealed(doors.anchored(origin.reference, folder) if beside else origin.reference)
        found = doors.outside("backbone", name)
        if found is None:
            raise ConfigError(f"{folder}: there is no backbone {name!r}. Install the package that provides it.")
        loaded = found
    built, now = build_outside(loaded, size, {} if isinstance(backbone, nn.Module) else origin.options)
    if origin.sha256 and now.sha256 != origin.sha256:
        logger.warning(
            f"{folder}: the code of the backbone {origin.reference} has changed since the embedder was saved; its vectors may "
            "differ from earlier ones."
        )
    return built, now
