"""Transforms of decoded images: crops, affine maps for characters, whole images, torchvision's and your own.

A transform takes an image and its random numbers and returns H × W × 3 uint8; it keeps no state, so threads share it. To
add one, write a subclass of ``Transform``. Random numbers belong to an image, not to a worker: they
are a function of (seed, epoch, batch, image, occurrence), so they do not depend on workers, processes or order. Changing a
constant of theirs changes the augmentation of every run; the tests check some values. Crops and affine maps give the same
result as torchvision v2. ``LongerSide`` is for instance search: it reads the image itself, because the bound of a cropped
query depends on the size of the whole picture.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from recollect.common import plugins
from recollect.common.errors import ConfigError, ImageError
from recollect.common.images import INTERPOLATIONS, Preprocessing
from recollect.common.text import check_choice
from recollect.data.image_set import ImageSet, Indices
from recollect.data.registry import AUGMENTATIONS

Uniforms = NDArray[np.float64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def uniforms(seed: int, epoch: int, batch: int, indices: Indices, occurrences: Indices, count: int) -> Uniforms:
    """``count`` numbers in [0, 1) for every image, as len(indices) × count.

    Args:
        seed: of the run.
        epoch: of the run.
        batch: number of the batch within the epoch, from 0: an image in several batches is augmented differently in each.
        indices: the images.
        occurrences: how often each occurred before in its batch: a repeated image is augmented differently.
        count: numbers per image.

    Examples:
        >>> rows = uniforms(0, 0, 0, np.array([7, 8]), np.array([0, 0]), 3)
        >>> bool((rows[1] == uniforms(0, 0, 0, np.array([8]), np.array([0]), 3)[0]).all())
        True
    """
    key = np.full(len(indices), seed, dtype=np.uint64)
    for part in (epoch, batch, indices, occurrences):
        key = _mix(key) + np.asarray(part).astype(np.uint64)
    steps = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
    bits = _mix(_mix(key)[:, None] + steps)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def occurrences(indices: Indices) -> Indices:
    """For every entry, the number of equal entries before it."""
    order = np.argsort(indices, kind="stable")
    ordered = indices[order]
    positions = np.arange(len(indices))
    first = np.r_[True, ordered[1:] != ordered[:-1]] if len(indices) else np.zeros(0, dtype=bool)
    result = np.empty(len(indices), dtype=np.int64)
    result[order] = positions - np.maximum.accumulate(np.where(first, positions, 0))
    return result


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64: a bijection of 64-bit words that passes the usual test batteries as a counter."""
    values = values + _GOLDEN
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


Pixels = NDArray[np.uint8]
"""H × W × 3."""


class Transform:
    """What the pipeline needs from a transform, and the base class of your own.

    Override ``size`` or ``side``, ``draws`` (unless it is deterministic) and ``__call__``; also ``key``, unless ``repr``
    describes the transform completely, as it does for a dataclass.
    """

    side: int

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width of every result, by default ``side`` × ``side``; None if images keep their own sizes."""
        return (self.side, self.side)

    @property
    def draws(self) -> int:
        """Random numbers per image; 0 means deterministic, and then results may be cached."""
        return 0

    @property
    def key(self) -> str:
        """A complete description: equal keys must mean equal results."""
        return repr(self)

    @property
    def read_key(self) -> str:
        """A complete description of what ``read`` returns."""
        return f"as decoded for {self.at_least}"

    @property
    def at_least(self) -> int | None:
        """JPEGs are decoded at a fraction of their size as long as both sides keep this many pixels; None for all."""
        return None

    @property
    def max_side(self) -> int | None:
        """The largest side of any result, if images keep their own sizes and there is a bound."""
        return None

    def read(self, images: ImageSet, index: int) -> Image.Image:
        """Image ``index`` as ``__call__`` takes it."""
        return images.read(index, at_least=self.at_least)

    def output_size(self, images: ImageSet, index: int) -> tuple[int, int]:
        """Height and width that image ``index`` will have, from its header alone."""
        return self.size or images.size(index)[::-1]

    def __call__(self, image: Image.Image | Pixels, random: Uniforms) -> Pixels:
        """Transform an RGB image with ``draws`` numbers in [0, 1)."""
        raise NotImplementedError


_ATTEMPTS = 10  # torchvision's RandomResizedCrop gives up after this many and takes a central crop


@dataclass(frozen=True)
class RandomResizedCrop(Transform):
    """A random part of the image, resized to ``side`` × ``side``, flipped with probability 1/2.

    The box is drawn as torchvision's ``RandomResizedCrop`` does. Two kernels resize it:

    - ``"torch"`` gives exactly what torchvision v2 gives for uint8 tensors. Against its result for PIL images, which
      rounds more finely, values differ by at most 1 of 255 (bicubic: one in ten thousand by more, up to 5). Three
      times as fast.
    - ``"pil"`` gives exactly what torchvision v2 gives for PIL images. Lanczos exists only here.
    """

    side: int = 224
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: bool = True
    interpolation: str = "bilinear"
    kernel: str = "torch"
    at_least: int | None = None

    def __post_init__(self) -> None:
        check_choice("interpolation", self.interpolation, INTERPOLATIONS)
        check_choice("kernel", self.kernel, ("torch", "pil"))
        if self.kernel == "torch" and self.interpolation == "lanczos":
            raise ConfigError("the torch kernel cannot resize with lanczos: set kernel to 'pil'.")
        for name, (low, high) in (("scale", self.scale), ("ratio", self.ratio)):
            if not 0 < low <= high:
                raise ConfigError(f"{name} {(low, high)} must be two numbers above 0, the smaller first.")

    draws = 2 * _ATTEMPTS + 3  # two per attempt, two for the position, one for the flip

    def box(self, width: int, height: int, random: Uniforms) -> tuple[int, int, int, int]:
        """Left, top, right and bottom of the crop."""
        area = width * height
        log_low, log_high = math.log(self.ratio[0]), math.log(self.ratio[1])
        for attempt in range(_ATTEMPTS):
            target = area * (self.scale[0] + (self.scale[1] - self.scale[0]) * float(random[2 * attempt]))
            aspect = math.exp(log_low + (log_high - log_low) * float(random[2 * attempt + 1]))
            w, h = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
            if 0 < w <= width and 0 < h <= height:
                top = int(random[2 * _ATTEMPTS] * (height - h + 1))
                left = int(random[2 * _ATTEMPTS + 1] * (width - w + 1))
                return left, top, left + w, top + h
        in_ratio = width / height
        w, h = width, height
        if in_ratio < self.ratio[0]:
            h = round(w / self.ratio[0])
        elif in_ratio > self.ratio[1]:
            w = round(h * self.ratio[1])
        left, top = (width - w) // 2, (height - h) // 2
        return left, top, left + w, top + h

    def __call__(self, image: Image.Image | Pixels, random: Uniforms) -> Pixels:
        """See ``Transform``."""
        if isinstance(image, Image.Image):
            cropped: Image.Image | Pixels = image.crop(self.box(image.width, image.height, random))
        else:
            left, top, right, bottom = self.box(image.shape[1], image.shape[0], random)
            cropped = image[top:bottom, left:right]
        resize = resize_torch if self.kernel == "torch" else resize_pil
        pixels = resize(cropped, self.side, self.interpolation)
        return mirrored(pixels) if self.flip and random[-1] < 0.5 else pixels


@dataclass(frozen=True)
class Resized(Transform):
    """The deterministic test transform: exactly ``Preprocessing``'s pixels."""

    preprocessing: Preprocessing

    draws = 0

    @property
    def at_least(self) -> int | None:
        """See ``Preprocessing``."""
        return self.preprocessing.at_least

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of every result."""
        return (self.preprocessing.size, self.preprocessing.size)

    @property
    def key(self) -> str:
        """A complete description; mean and deviation are not part of the pixels."""
        settings = self.preprocessing
        steps = f"size={settings.size}, resize={settings.resize}, interpolation={settings.interpolation!r}"
        return f"Resized({steps}, at_least={self.at_least})"

    def __call__(self, image: Image.Image | Pixels, random: Uniforms) -> Pixels:
        """See ``Transform``."""
        return self.preprocessing.pixels(image if isinstance(image, Image.Image) else Image.fromarray(image))


def mirrored(pixels: Pixels) -> Pixels:
    """The mirrored image, as a contiguous array."""
    result = np.empty_like(pixels)
    # One channel at a time: numpy copies a reversed H×W×3 view four times slower.
    for channel in range(3):
        result[:, :, channel] = pixels[:, ::-1, channel]
    return result


def resize_pil(image: Image.Image | Pixels, side: int, interpolation: str) -> Pixels:
    """Resize to ``side`` × ``side`` as PIL does, antialiased."""
    picture = image if isinstance(image, Image.Image) else Image.fromarray(image)
    if picture.size != (side, side):
        picture = picture.resize((side, side), Image.Resampling[interpolation.upper()])
    return np.asarray(picture)


def resize_torch(image: Image.Image | Pixels, side: int, interpolation: str) -> Pixels:
    """Resize to ``side`` × ``side`` as torch does for uint8, antialiased."""
    # Contiguous through numpy: torch would copy a crop with all its threads, and a team of them in every worker costs
    # more than the work. The resize itself runs in the calling thread, without the interpreter's lock.
    pixels = np.array(image, order="C")
    tensor = torch.from_numpy(pixels)[None].permute(0, 3, 1, 2)
    resized = torch.nn.functional.interpolate(
        tensor, [side, side], mode=interpolation, antialias=True, align_corners=False
    )
    result: Pixels = resized[0].permute(1, 2, 0).numpy()
    return result


@dataclass(frozen=True)
class GlyphAffine(Transform):
    """For small grey shapes on a plain background: slight rotation, shear, scaling and shift; no mirroring.

    A mirrored letter is another letter, and an aggressive crop cuts it off. Areas that move in from outside get the
    colour of the image's corners. The whole image is then resized to ``side`` × ``side``, antialiased.
    """

    side: int = 32
    degrees: float = 10.0
    translate: float = 0.1
    scale: tuple[float, float] = (0.8, 1.2)
    shear: float = 8.0
    interpolation: str = "bilinear"

    draws = 5

    def parameters(self, width: int, height: int, random: Uniforms) -> tuple[float, float, float, float, float]:
        """Angle in degrees, shift right and down in pixels, scale, shear in degrees."""
        signed = 2.0 * random - 1.0
        low, high = math.log(self.scale[0]), math.log(self.scale[1])
        return (
            float(signed[0]) * self.degrees,
            float(signed[1]) * self.translate * width,
            float(signed[2]) * self.translate * height,
            math.exp(low + (high - low) * float(random[3])),
            float(signed[4]) * self.shear,
        )

    def __call__(self, image: Image.Image | Pixels, random: Uniforms) -> Pixels:
        """See ``Transform``."""
        if not isinstance(image, Image.Image):
            image = Image.fromarray(image)
        width, height = image.size
        matrix = _inverse_affine(width, height, *self.parameters(width, height, random))
        corners = zip(*(image.getpixel((x, y)) for x in (0, width - 1) for y in (0, height - 1)), strict=True)
        # The middle value of the four corners, so that a stroke that reaches one of them does not set the background.
        ground = tuple(sum(sorted(values)[1:3]) // 2 for values in corners)
        moved = image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR, fillcolor=ground)
        return resize_pil(moved, self.side, self.interpolation)


def _inverse_affine(
    width: int, height: int, degrees: float, right: float, down: float, scale: float, shear: float
) -> tuple[float, float, float, float, float, float]:
    """PIL's matrix from output to input pixels: around the centre, shear along x, rotate, scale, then shift."""
    angle, slant = math.radians(degrees), math.tan(math.radians(shear))
    cos, sin = math.cos(angle) / scale, math.sin(angle) / scale
    a, b = cos - slant * sin, sin + slant * cos
    c, d = -sin, cos
    x, y = width / 2, height / 2
    return (a, b, x - a * (x + right) - b * (y + down), c, d, y - c * (x + right) - d * (y + down))


@dataclass(frozen=True)
class LongerSide(Transform):
    """Crop to the box, if there is one; then shrink until the longer side is at most ``imsize``. Never enlarge.

    For a cropped image the bound is ``imsize · max(crop) / max(whole image)``, rounded down: a query is shown at the
    scale its whole picture would have had. Lanczos; ``imsize=None`` keeps every size. ``flip`` mirrors half of the
    images, for training.
    """

    imsize: int | None = 1024
    flip: bool = False

    size = None

    @property
    def draws(self) -> int:
        """One, if images may be mirrored."""
        return int(self.flip)

    @property
    def max_side(self) -> int | None:
        """See ``Transform``."""
        return self.imsize

    @property
    def read_key(self) -> str:
        """See ``Transform``: images are shrunk while they are read, and mirrored afterwards."""
        return replace(self, flip=False).key

    def read(self, images: ImageSet, index: int) -> Image.Image:
        """Image ``index``, cropped and shrunk."""
        whole, box = images.read(index, crop=False), _pixel_box(images, index)
        image = whole if box is None else whole.crop(box)
        if min(image.size) < 1:
            outside = f"its box {box} lies outside the {whole.width}×{whole.height} image."
            raise ImageError(outside, name=images.names[index])
        return image.resize(self._fit(image.size, whole.size), Image.Resampling.LANCZOS)

    def output_size(self, images: ImageSet, index: int) -> tuple[int, int]:
        """See ``Transform``."""
        whole, box = images.size(index), _pixel_box(images, index)
        width, height = self._fit(whole if box is None else (box[2] - box[0], box[3] - box[1]), whole)
        return height, width

    def __call__(self, image: Image.Image | Pixels, random: Uniforms) -> Pixels:
        """The pixels of an image from ``read``, mirrored or not; see ``Transform``."""
        pixels = np.asarray(image)
        return mirrored(pixels) if self.flip and random[0] < 0.5 else pixels

    def _fit(self, size: tuple[int, int], whole: tuple[int, int]) -> tuple[int, int]:
        """Width and height after shrinking, the aspect ratio kept as closely as whole pixels allow."""
        width, height = size
        if self.imsize is None:
            return size
        bound = max(1, math.floor(self.imsize * max(size) / max(whole)))
        if max(size) <= bound:
            return size
        if width >= height:
            return bound, _closest(bound * height / width, lambda n: abs(width / height - bound / n))
        return _closest(bound * width / height, lambda n: abs(width / height - n / bound)), bound


def _closest(value: float, error: Callable[[int], float]) -> int:
    """The whole number next to ``value`` with the smaller error, at least 1."""
    return max(min(math.floor(value), math.ceil(value), key=lambda n: error(n) if n else math.inf), 1)


def _pixel_box(images: ImageSet, index: int) -> tuple[int, int, int, int] | None:
    """The crop in whole pixels, rounded as PIL rounds."""
    box = images.box(index)
    return None if box is None else (round(box[0]), round(box[1]), round(box[2]), round(box[3]))


_TORCH_RANDOM = threading.Lock()


@dataclass(frozen=True)
class FromTorchvision(Transform):
    """Your own torchvision v2 transform, PIL image to a uint8 tensor 3 × size × size.

    Its randomness comes from torch's global generator, which all threads share and the model draws from too. So the
    pipeline calls it in the thread that requests batches, seeded for the image, and restores the generator.
    This is reproducible, but the workers only decode, and nothing is transformed ahead of use: for speed, write a
    ``Transform``. With ``random=False`` it must not draw random numbers, and runs in the workers.
    """

    transform: Callable[[Image.Image], Any]
    side: int
    random: bool = True

    @property
    def draws(self) -> int:
        """One, as a seed, if the transform is random."""
        return int(self.random)

    @property
    def key(self) -> str:
        """As complete a description as the transform's own ``repr`` is."""
        return f"FromTorchvision({self.transform!r}, {self.side})"

    def __call__(self, image: Image.Image | Pixels, random: Uniforms) -> Pixels:
        """See ``Transform``."""
        picture = image if isinstance(image, Image.Image) else Image.fromarray(image)
        with plugins.errors_as_config(f"the transform {type(self.transform).__name__}"):
            if self.random:
                with _TORCH_RANDOM, torch.random.fork_rng(devices=[]):
                    torch.manual_seed(int(random[0] * 2**53))
                    tensor = self.transform(picture)
            else:
                tensor = self.transform(picture)
        expected = (3, self.side, self.side)
        if not isinstance(tensor, torch.Tensor) or tensor.dtype != torch.uint8 or tuple(tensor.shape) != expected:
            kind = f"{tensor.dtype} {tuple(tensor.shape)}" if isinstance(tensor, torch.Tensor) else type(tensor)
            raise ConfigError(
                f"the transform must return a uint8 tensor of shape {expected}, not {kind}: remove scaling and "
                "normalization, which the model does."
            )
        pixels: Pixels = tensor.permute(1, 2, 0).numpy()
        return pixels


def train_transform(
    preprocessing: Preprocessing, scale: tuple[float, float] = (0.08, 1.0), flip: bool = True, kernel: str = "torch"
) -> RandomResizedCrop:
    """The released code's training augmentation at a model's size: random resized crop and horizontal flip.

    Args:
        preprocessing: the model's; its size and interpolation are used.
        scale: range of the share of the image's area.
        flip: mirror half of the images.
        kernel: which implementation resizes, see ``RandomResizedCrop``.
    """
    if preprocessing.interpolation == "lanczos":
        kernel = "pil"
    return RandomResizedCrop(
        preprocessing.size,
        scale,
        flip=flip,
        interpolation=preprocessing.interpolation,
        kernel=kernel,
        at_least=preprocessing.at_least,
    )


def test_transform(preprocessing: Preprocessing) -> Transform:
    """``preprocessing`` as a transform: resize the shorter side and crop the centre, or keep the aspect ratio."""
    if preprocessing.resize is None:
        return LongerSide(preprocessing.max_side)
    return Resized(preprocessing)


def whole_transform(preprocessing: Preprocessing, flip: bool = False) -> LongerSide:
    """Training on whole images, as instance search does: shrunk as for the test, never cut; mirrored with ``flip``.

    Raises:
        ConfigError: the model takes crops of one size.
    """
    if preprocessing.resize is not None:
        raise ConfigError(
            f"this model is tested on squares of {preprocessing.size} pixels and cannot be trained on whole images: "
            "keep the aspect ratio with model.resize=null, or crop with data.augmentation=crop."
        )
    return LongerSide(preprocessing.max_side, flip)


def glyph_transform(preprocessing: Preprocessing) -> GlyphAffine:
    """Training augmentation for characters at a model's size, see ``GlyphAffine``."""
    return GlyphAffine(preprocessing.size, interpolation=preprocessing.interpolation)


def make_augmentation(
    name: str,
    preprocessing: Preprocessing,
    *,
    scale: tuple[float, float] = (0.08, 1.0),
    flip: bool = True,
    options: Mapping[str, Any] | None = None,
) -> Transform:
    """The transform for training images.

    Args:
        name: one of ``AUGMENTATIONS``, or a reference to a class or function that returns a ``Transform`` or a torchvision
            transform from a PIL image to a uint8 tensor 3 × size × size. The arguments ``preprocessing`` and ``size`` are
            passed if it has them; all others are options.
        preprocessing: the input format of the model.
        scale, flip: see ``train_transform``.
        options: options of your own augmentation.

    Raises:
        ConfigError: an unknown name or option, or a result that is not a transform.
    """
    if name == "crop":
        return train_transform(preprocessing, scale=scale, flip=flip)
    if name == "glyph":
        return glyph_transform(preprocessing)
    if name == "whole":
        return whole_transform(preprocessing, flip=flip)
    if name == "none":
        return test_transform(preprocessing)
    loaded = plugins.load("augmentation", name)
    if loaded is None:
        raise plugins.unknown("augmentation", name, AUGMENTATIONS)
    what, maker = f"augmentation {loaded.short!r}", loaded.target
    if not callable(maker):
        raise ConfigError(f"{what} is a {type(maker).__name__}: it must be a class or a function.")
    arguments, own = plugins.options_of(maker), dict(options or {})
    model = {"preprocessing": preprocessing, "size": preprocessing.size}
    plugins.check_options(maker, own, what, {name: arguments[name] for name in arguments if name not in model})
    with plugins.errors_as_config(what):
        transform = maker(**own, **{name: value for name, value in model.items() if name in arguments})
    if isinstance(transform, Transform):
        return transform
    if not callable(transform):
        raise ConfigError(f"{what} returned a {type(transform).__name__}: it must return a transform.")
    return FromTorchvision(transform, preprocessing.size)
