"""``Preprocessing``: the preprocessing that a model expects, saved with the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from recollect.common.errors import ConfigError, ImageError
from recollect.common.pixels import fitted

if TYPE_CHECKING:
    import torch

INTERPOLATIONS = ("bilinear", "bicubic", "lanczos")

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Preprocessing:
    """The preprocessing that a model expects: resize the shorter side, crop the centre, normalize by mean and deviation.

    Calling it returns uint8 pixels; scaling and normalization happen in the model, on its device, so that a quarter of
    the bytes is transferred. ``resize=None`` keeps the aspect ratio (instance search): the image is shrunk only if its
    longer side is above ``max_side``.
    """

    size: int = 224
    resize: int | None = 256
    interpolation: str = "bilinear"
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    max_side: int | None = None

    def __post_init__(self) -> None:
        if self.interpolation not in INTERPOLATIONS:
            raise ConfigError(
                f"interpolation {self.interpolation!r} is unknown: choose one of {', '.join(INTERPOLATIONS)}."
            )
        if self.resize is not None and self.resize < self.size:
            raise ConfigError(f"resize {self.resize} is smaller than the crop of {self.size}: raise resize.")

    @property
    def at_least(self) -> int | None:
        """The pixels that both sides of a JPEG keep when it is decoded at a fraction of its size, see ``read_image``.

        Twice the shorter side after resizing: four pixels or more for each one that is kept. None for whole images, whose
        results have sizes of their own.
        """
        return None if self.resize is None else 2 * self.resize

    def pixels(self, image: Image.Image) -> NDArray[np.uint8]:
        """The RGB image resized and cropped, size × size × 3 (or its own height × width × 3).

        Raises:
            ImageError: it is so narrow that it would be huge after resizing its shorter side to ``resize``.
        """
        try:
            return np.array(fitted(image, self.size, self.resize, self.interpolation, self.max_side))
        except (ValueError, MemoryError) as error:
            reason = str(error) or f"{image.width:,}×{image.height:,} pixels cannot be resized: not enough memory"
            raise ImageError(f"{reason}. Cut the image into pieces.", "too large") from error

    def __call__(self, image: Image.Image) -> torch.Tensor:
        """RGB image to a uint8 tensor, 3 × size × size (or 3 × its own height × width)."""
        import torch

        return torch.from_numpy(self.pixels(image)).permute(2, 0, 1)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as written into ``embedder.json``."""
        return {**self.__dict__, "mean": list(self.mean), "std": list(self.std)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Preprocessing:
        """The inverse of ``as_dict``; unknown names are refused."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(values) - known):
            raise ConfigError(
                f"preprocessing has no setting {', '.join(unknown)}; its settings are {', '.join(sorted(known))}."
            )
        settings: dict[str, Any] = dict(values)
        for name in ("mean", "std"):
            if name in settings:
                settings[name] = tuple(settings[name])
        return cls(**settings)
