"""Images: the decoder, the preprocessing of a model, and the policy for images that cannot be read.

``read_image`` takes a path, bytes, a PIL image or an array, and returns upright RGB. Files are not trusted: only regular files
are opened, sizes are checked before pixels are decoded, and large images are decoded a few at a time. ``Preprocessing`` is
what a model expects, saved with the model. The operations on pixels are in ``common/pixels.py``.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import stat
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError

from recollect.common import pixels
from recollect.common.errors import ConfigError, ImageError, InputError, RecollectError, in_bytes
from recollect.common.text import check_choice, number_of, printable

if TYPE_CHECKING:
    import torch

# PIL warns below the limit that is enforced here. Set once, not around each read: filters are not safe in threads.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)

MAX_PIXELS = 100_000_000
"""Larger images are refused as decompression bombs, unless ``set_max_pixels`` changes the limit. PIL uses 4 bytes per
pixel, and an image is briefly in memory twice, decoded and converted: 100 megapixels take 0.8 GB, in addition to the
decoder's own memory."""

_BYTES_PER_PIXEL = 16
"""At most, in the formats below: four channels of 32 bits."""

_READS = 30_000
"""Of the content of an image in memory: about 0.1 s."""

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "AVIF", "JPEG2000")
"""Formats PIL may try. Rare ones with fragile decoders are left out."""

HEIF_SUFFIXES = frozenset({".heic", ".heif", ".hif"})
"""Photos of recent phones; readable if the extra ``heic`` is installed."""

_USUAL = frozenset({".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".tif", ".tiff", ".avif"})
IMAGE_SUFFIXES = _USUAL | {".bmp", ".ppm", ".pgm", ".jp2"} | HEIF_SUFFIXES

ImageSource = str | Path | bytes | Image.Image | NDArray[np.uint8] | Callable[[], Image.Image]
"""A file, its content, a PIL image, an H × W or H × W × 3 array, or a function that reads one when it is needed."""

_SIDEWAYS = frozenset({5, 6, 7, 8})  # EXIF orientations that exchange width and height
_HEIF_BRANDS = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"})

_LARGE_PIXELS = 25_000_000
_LARGE = threading.Lock()
_max_pixels = MAX_PIXELS
_PIL_PIXELS = Image.MAX_IMAGE_PIXELS or 0


def set_max_pixels(limit: int | None) -> None:
    """Set the limit on the size of images for this process; None for ``MAX_PIXELS``.

    Used by the command line's ``--max-pixels`` and the setting ``data.max_pixels``.
    """
    global _max_pixels
    _max_pixels = MAX_PIXELS if limit is None else limit
    # PIL refuses twice this number by itself, whatever is allowed here.
    Image.MAX_IMAGE_PIXELS = max(_PIL_PIXELS, _max_pixels)


def max_pixels() -> int:
    """The limit on the size of images in this process."""
    return _max_pixels


def read_image(source: ImageSource, *, at_least: int | None = None) -> Image.Image:
    """Read an image as 8-bit RGB, upright by its EXIF orientation.

    Palettes, greyscale, CMYK and 16-bit images are converted; transparent images get a white background.

    Args:
        source: a path, a file's content, a PIL image, a uint8 array, or a function that returns one of these.
        at_least: a JPEG is decoded at a half, a quarter or an eighth of its size, as long as both sides keep this many
            pixels: three to seven times as fast for a photo of 4,000 px. For a network's input ``Preprocessing.at_least``, so
            that the same file always gives the same pixels. Images that are already in memory are not changed.

    Raises:
        ImageError: the file is missing, not a regular file, broken, truncated, too large or not an image; the message
            names it.
        InputError: ``source`` has another type.
    """
    if callable(source):
        source = source()
    if isinstance(source, np.ndarray):
        if source.dtype != np.uint8 or source.ndim < 2 or source.shape[2:] not in ((), (3,), (4,)):
            raise InputError(f"an image array must be H×W or H×W×3 of uint8, not {source.shape} of {source.dtype}.")
        if not source.size:
            raise ImageError(f"an image array of shape {source.shape} has no pixels.")
        source = Image.fromarray(source)
    if isinstance(source, Image.Image):
        with _errors_named("an image"):
            if source.width * source.height > _max_pixels:
                raise _too_large(f"{source.width:,}×{source.height:,} pixels")
            # A copy if it must be rotated, because the image belongs to the caller.
            turned = source.getexif().get(ExifTags.Base.Orientation, 1) != 1
            return pixels.upright(source.copy()) if turned else pixels.to_rgb(source)
    with _opened(source) as file, _identified(file) as image:
        if at_least is not None:
            image.draft("RGB", (at_least, at_least))
        # One large image at a time: eight threads with a photo of 100 megapixels each would take 6 GB.
        with _LARGE if image.width * image.height > _LARGE_PIXELS else nullcontext():
            return pixels.upright(image)


def image_size(source: ImageSource) -> tuple[int, int]:
    """Width and height of the result of ``read_image``; of a file, from its header only.

    Raises:
        ImageError: as ``read_image``, if the problem shows in the header.
    """
    if not isinstance(source, str | Path | bytes):
        return read_image(source).size
    with _opened(source) as file, _identified(file) as image:
        sideways = image.getexif().get(ExifTags.Base.Orientation) in _SIDEWAYS
        return (image.height, image.width) if sideways else image.size


def file_sha256(path: Path | str) -> str:
    """The SHA-256 of an image file's content; like ``read_image``, it refuses anything but a regular file."""
    with _opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def largest_file() -> int:
    """Bytes of the largest image file that is read: what the most pixels take without any compression."""
    return _BYTES_PER_PIXEL * _max_pixels + 2**24


def can_read_heif() -> bool:
    """Whether the extra ``heic`` is installed."""
    return importlib.util.find_spec("pillow_heif") is not None


class _Content(io.BytesIO):
    """The content of a file from elsewhere. PIL reads segments, chunks and comments one by one, in Python: millions of
    them would take a minute. A photo has some hundred, a PNG of 20 MB some ten thousand."""

    _reads = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self._reads += 1
        if self._reads > _READS:
            raise ImageError("too many parts.", "too many parts")
        return super().read(size)


@contextmanager
def _opened(source: str | Path | bytes) -> Iterator[Any]:
    """The content of an image, open for reading: a regular file, not too large to be an image, or bytes.

    Every exception inside the block becomes an ``ImageError`` that names the image.
    """
    if isinstance(source, bytes):
        with _errors_named(f"an image of {len(source):,} bytes"):
            yield _Content(source)
        return
    if not isinstance(source, str | Path):
        raise InputError(f"an image must be a path, bytes, a PIL image or an array, not a {type(source).__name__}.")
    with _errors_named(printable(str(source))):
        # Non-blocking: opening a named pipe would wait for a writer.
        handle = os.open(source, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0))
        state = os.fstat(handle)
        if not stat.S_ISREG(state.st_mode):
            os.close(handle)
            raise ImageError("not an image file but a folder, a pipe or a device.", "not an image")
        with os.fdopen(handle, "rb") as file:
            if state.st_size > largest_file():
                raise _too_large(in_bytes(state.st_size))
            yield file


@contextmanager
def _errors_named(name: str) -> Iterator[None]:
    """Turn every exception from opening and decoding into an ``ImageError`` that names the image."""
    try:
        yield
    except ImageError as error:
        raise ImageError(error.reason, error.kind, name) from error.__cause__
    except RecollectError:
        raise
    except FileNotFoundError as error:
        raise ImageError("no such file.", "missing", name) from error
    except UnidentifiedImageError as error:
        raise ImageError("not a readable image.", "not an image", name) from error
    except Image.DecompressionBombError as error:
        raise ImageError(_too_large("too many pixels").reason, "too large", name) from error
    except Exception as error:  # PIL's decoders raise nearly anything on damaged files
        if isinstance(error, OSError) and error.strerror:
            raise ImageError(f"cannot be read ({error.strerror}).", "not readable", name) from error
        memory = isinstance(error, MemoryError)
        why = "not enough memory to decode it" if memory else printable(" ".join(str(error).split()))
        raise ImageError(f"damaged or unreadable ({why or type(error).__name__}).", name=name) from error


def _identified(file: Any) -> Image.Image:
    Image.init()
    try:
        # Requesting a format that PIL was built without fails with a KeyError on every file.
        image = Image.open(file, formats=tuple(filter(Image.OPEN.__contains__, FORMATS)))
    except UnidentifiedImageError:
        file.seek(0)
        start = file.read(12)
        file.seek(0)
        if not start:
            raise ImageError("an empty file.", "empty") from None
        if start[4:8] != b"ftyp" or start[8:12] not in _HEIF_BRANDS:
            raise
        if not can_read_heif():
            raise ImageError(
                'a HEIC image. To read it,  pip install "recollect[heic]", or convert it to JPEG.', "HEIC"
            ) from None
        importlib.import_module("pillow_heif").register_heif_opener()
        image = Image.open(file, formats=("HEIF",))
    if image.width * image.height > _max_pixels:
        raise _too_large(f"{image.width:,}×{image.height:,} pixels")
    return image


def _too_large(size: str) -> ImageError:
    return ImageError(
        f"{size}, more than the limit of {_max_pixels:,} pixels allows. Shrink the file, or raise the limit with "
        "--max-pixels (data.max_pixels in YAML, set_max_pixels in Python) if you trust it.",
        "too large",
    )


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
        check_choice("interpolation", self.interpolation, INTERPOLATIONS)
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
            return np.array(pixels.fitted(image, self.size, self.resize, self.interpolation, self.max_side))
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
        """The inverse of ``as_dict``."""
        return cls(**{**values, "mean": tuple(values["mean"]), "std": tuple(values["std"])})


ON_BAD_IMAGE = ("error", "skip")
"""The policy for images that cannot be read: stop at the first, or continue without them and list them."""

_MOST_LISTED = 20


@dataclass(frozen=True)
class BadImage:
    """An image that could not be read. ``kind`` is the reason in one or two words, for counting.

    Examples:
        >>> print(BadImage(7, "b.jpg", "no such file.", "missing"))
        b.jpg: no such file.
    """

    index: int
    name: str
    reason: str
    kind: str = "broken"

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


def with_skip_advice(error: ImageError, name: str) -> ImageError:
    """The error that stops at the image ``name``: it also says how to continue without such images."""
    advice = "Repair or remove it, or skip such images with --skip-bad (in Python: on_bad_image='skip')."
    return ImageError(f"{error.reason} {advice}", error.kind, error.name or printable(name))


def bad_image_summary(bad: Sequence[BadImage | ImageError], consequence: str) -> str:
    """A message that names up to 20 of them, e.g. with the consequence "their rows are NaN"."""
    lines = "\n  ".join([*map(str, bad[:_MOST_LISTED]), *(["..."] if len(bad) > _MOST_LISTED else [])])
    return f"{number_of(len(bad), 'image')} could not be read; {consequence}:\n  {lines}"
