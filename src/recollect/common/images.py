"""Images: the decoder, the policy for images that cannot be read, and batches of images of equal size.

``read_image`` takes a path, bytes, a PIL image or an array, and returns upright RGB. Data (training, evaluation) and models
(``Embedder.embed``) both read images here, so an image looks the same to both. Files are not trusted: only regular files
are opened, sizes are checked before pixels are decoded, and large images are decoded a few at a time. The conversion to
RGB is in ``common/pixels.py``, a model's preprocessing in ``common/preprocessing.py``.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import re
import stat
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError

from recollect.common import pixels
from recollect.common.errors import ConfigError, ImageError, InputError, RecollectError, in_bytes, require
from recollect.common.text import number_of, printable

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

_max_pixels = MAX_PIXELS
_PIL_PIXELS = Image.MAX_IMAGE_PIXELS or 0


def set_max_pixels(limit: int | None) -> None:
    """Set the limit on the size of images for this process; None for ``MAX_PIXELS``.

    Used by the command line's ``--max-pixels`` and the setting ``data.max_pixels``.
    """
    global _max_pixels
    if limit is not None and limit < 1:
        raise ConfigError(f"max_pixels is {limit}: it must be at least 1.")
    _max_pixels = MAX_PIXELS if limit is None else limit
    # PIL refuses twice this number by itself, whatever is allowed here.
    Image.MAX_IMAGE_PIXELS = max(_PIL_PIXELS, _max_pixels)


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
        if (
            source.dtype != np.uint8
            or source.ndim not in (2, 3)
            or (source.ndim == 3 and source.shape[2] not in (3, 4))
        ):
            raise InputError(f"an image array must be H×W or H×W×3 of uint8, not {source.shape} of {source.dtype}.")
        if not source.size:
            raise ImageError(f"an image array of shape {source.shape} has no pixels.")
        source = Image.fromarray(source)
    if isinstance(source, Image.Image):
        _refuse_large(f"an image of mode {source.mode}", source.size)
        with _sentences("a PIL image"):
            # A copy if it must be rotated, because the image belongs to the caller.
            turned = source.getexif().get(ExifTags.Base.Orientation, 1) != 1
            return pixels.upright(source.copy()) if turned else pixels.to_rgb(source)
    if not isinstance(source, str | Path | bytes):
        raise InputError(
            f"an image must be a path, bytes, a PIL image, an array or a tensor, not a {type(source).__name__}."
        )
    with _opened(source) as (name, image):
        _refuse_large(name, image.size)
        if at_least is not None:
            image.draft("RGB", (at_least, at_least))
        with _BUDGET.of(8 * image.width * image.height):
            return pixels.upright(image)


def image_size(source: str | Path | bytes) -> tuple[int, int]:
    """Width and height of the result of ``read_image``, from the file's header only.

    Raises:
        ImageError: as ``read_image``, if the problem shows in the header.
    """
    with _opened(source) as (_, image):
        sideways = image.getexif().get(ExifTags.Base.Orientation) in _SIDEWAYS
        return (image.height, image.width) if sideways else image.size


def file_bytes(path: Path | str) -> bytes:
    """The content of an image file; like ``read_image``, it refuses anything but a regular file.

    Raises:
        ImageError: it cannot be read.
    """
    name = printable(str(path))
    with _sentences(name), _regular(path, name) as file:
        return file.read()


def file_sha256(path: Path | str) -> str:
    """The SHA-256 of an image file's content, refused as ``file_bytes`` refuses."""
    name = printable(str(path))
    with _sentences(name), _regular(path, name) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def largest_file() -> int:
    """Bytes of the largest image file that is read: what the most pixels take without any compression."""
    return _BYTES_PER_PIXEL * _max_pixels + 2**24


def can_read_heif() -> bool:
    """Whether the extra ``heic`` is installed."""
    return importlib.util.find_spec("pillow_heif") is not None


@contextmanager
def _opened(source: str | Path | bytes) -> Iterator[tuple[str, Image.Image]]:
    """The name of an image for messages, and the image with its header read; every failure is an ``ImageError``."""
    if isinstance(source, bytes):
        name = f"an image of {len(source):,} bytes"
        with _sentences(name), _identified(_Content(source), source[:12], name) as image:
            yield name, image
        return
    name = printable(str(source))
    with _sentences(name), _regular(source, name) as file, _identified(file, None, name) as image:
        yield name, image


class _Content(io.BytesIO):
    """The content of a file from elsewhere. PIL reads segments, chunks and comments one by one, in Python: millions of
    them would take a minute. A photo has some hundred, a PNG of 20 MB some ten thousand."""

    _reads = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self._reads += 1
        if self._reads > _READS:
            raise ImageError("an image of too many parts.", "too many parts")
        return super().read(size)


@contextmanager
def _regular(path: Path | str, name: str) -> Iterator[io.BufferedReader]:
    """An open file, if it is a regular one and not too large to be an image."""
    # Non-blocking: opening a named pipe would wait for a writer.
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0))
    state = os.fstat(handle)
    if not stat.S_ISREG(state.st_mode):
        os.close(handle)
        raise ImageError(f"{name}: not an image file but a folder, a pipe or a device.", "not an image")
    with os.fdopen(handle, "rb") as file:
        if state.st_size > largest_file():
            raise ImageError(
                f"{name}: {in_bytes(state.st_size)} are more than an image of {_max_pixels:,} pixels can have. Raise the "
                "limit with --max-pixels (data.max_pixels in YAML) if you trust it.",
                "too large",
            )
        yield file


def _identified(file: Any, start: bytes | None, name: str) -> Image.Image:
    try:
        return Image.open(file, formats=_known_formats())
    except UnidentifiedImageError:
        file.seek(0)
        start = file.read(12) if start is None else start
        file.seek(0)
        if not start:
            raise ImageError(f"{name}: an empty file.", "empty") from None
        if start[4:8] != b"ftyp" or start[8:12] not in _HEIF_BRANDS:
            raise
        if not can_read_heif():
            raise ImageError(
                f'{name}: a HEIC image. To read it,  pip install "recollect[heic]", or convert it to JPEG.',
                "HEIC",
            ) from None
        _register_heif()
        return Image.open(file, formats=("HEIF",))


@contextmanager
def _sentences(name: str) -> Iterator[None]:
    """Turn every exception from opening and decoding into an ``ImageError`` that names the file."""
    try:
        yield
    except RecollectError:
        raise
    except FileNotFoundError as error:
        raise ImageError(f"{name}: no such file.", "missing") from error
    except UnidentifiedImageError as error:
        raise ImageError(f"{name}: not a readable image.", "not an image") from error
    except Image.DecompressionBombError as error:
        found = re.search(r"\d+", str(error))
        raise _too_large(name, f"{int(found[0]):,} pixels" if found else "too many pixels") from error
    except Exception as error:  # PIL's decoders raise nearly anything on damaged files
        if isinstance(error, OSError) and error.strerror:
            raise ImageError(f"{name}: cannot be read ({error.strerror}).", "not readable") from error
        raise ImageError(f"{name}: damaged or unreadable ({_reason(error)}).") from error


def _reason(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "not enough memory to decode it"
    return printable(" ".join(str(error).split())) or type(error).__name__


def _refuse_large(name: str, size: tuple[int, int]) -> None:
    if size[0] * size[1] > _max_pixels:
        raise _too_large(name, f"{size[0]:,}×{size[1]:,} pixels")


def _too_large(name: str, size: str) -> ImageError:
    return ImageError(
        f"{name}: {size}, more than the limit of {_max_pixels:,}. Shrink the file, or raise the limit with --max-pixels "
        "(data.max_pixels in YAML, set_max_pixels in Python) if you trust it.",
        "too large",
    )


@cache
def _known_formats() -> tuple[str, ...]:
    # Requesting a format that PIL was built without fails with a KeyError on every file.
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


@cache
def _register_heif() -> None:
    require("pillow_heif", "heic", "reading HEIC images").register_heif_opener()


class DecodeBudget:
    """Makes threads that decode large images wait for each other; small images never wait.

    Eight threads with a photo of 100 megapixels each would take 6 GB. One image is always allowed, however large.
    """

    SMALL = 64 * 2**20

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0
        self._changed = threading.Condition()

    @contextmanager
    def of(self, size: int) -> Iterator[None]:
        """Reserve ``size`` bytes inside the block."""
        if size <= self.SMALL:
            yield
            return
        with self._changed:
            self._changed.wait_for(lambda: self.used == 0 or self.used + size <= self.limit)
            self.used += size
        try:
            yield
        finally:
            with self._changed:
                self.used -= size
                self._changed.notify_all()


_BUDGET = DecodeBudget(2**30)


# Images that cannot be read -----------------------------------------------------------------------------------------

ON_BAD_IMAGE = ("error", "skip")

OnBadImage = Literal["error", "skip"] | Callable[[int, ImageError], None]
"""The policy for images that cannot be read: ``"error"`` stops at the first, ``"skip"`` continues and keeps the list; a
function is called with the image's number and the error. The caller decides how to replace a bad image: training batches
use another one of the same class, evaluation leaves it out, ``Embedder.embed`` returns a row of NaN."""

_SHOWN = 20


@dataclass(frozen=True)
class BadImage:
    """An image that could not be read. ``kind`` is the reason in one or two words, for counting."""

    index: int
    name: str
    reason: str
    kind: str = "broken"


class BadImages:
    """The images that could not be read so far. Safe to use from several threads.

    Args:
        policy: see ``OnBadImage``.
        name_of: the name of an image by its number; by default "image 7".

    Examples:
        >>> bad = BadImages("skip")
        >>> bad.add(7, ImageError("b.jpg: no such file.", "missing"))
        >>> 7 in bad, bad.counts()
        (True, {'missing': 1})
    """

    def __init__(self, policy: OnBadImage | str = "error", name_of: Callable[[int], str] | None = None) -> None:
        if not callable(policy) and policy not in ON_BAD_IMAGE:
            raise ConfigError(f"on_bad_image {policy!r} is unknown: choose one of {', '.join(ON_BAD_IMAGE)}.")
        self.policy = policy
        self._name_of = name_of or (lambda index: f"image {index}")
        self._found: dict[int, ImageError] = {}
        self._lock = threading.Lock()

    def add(self, index: int, error: ImageError) -> None:
        """Add image ``index``, once.

        Raises:
            ImageError: the policy is ``"error"``; the message says how to continue without the image.
        """
        if self.policy == "error":
            raise ImageError(
                f"{error} Repair or remove it, or skip such images with --skip-bad (in Python: skip_bad=True or "
                "on_bad_image='skip', whichever the function has).",
                error.kind,
            ) from error
        with self._lock:
            new = index not in self._found
            self._found.setdefault(index, error)
        if new and callable(self.policy):
            self.policy(index, error)

    def __contains__(self, index: int) -> bool:
        return index in self._found

    def __len__(self) -> int:
        return len(self._found)

    def listed(self) -> list[BadImage]:
        """All bad images, in the order of the images."""
        with self._lock:
            found = sorted(self._found.items())
        return [BadImage(index, self._name_of(index), str(error), error.kind) for index, error in found]

    def counts(self) -> dict[str, int]:
        """The number of bad images of each kind."""
        return dict(Counter(bad.kind for bad in self.listed()))

    def sentence(self, consequence: str) -> str:
        """A message that names up to 20 of them, e.g. with the consequence "their rows are NaN"."""
        lines = [bad.reason if bad.name in bad.reason else f"{bad.name}: {bad.reason}" for bad in self.listed()]
        shown = "\n  ".join(lines[:_SHOWN]) + ("\n  ..." if len(lines) > _SHOWN else "")
        return f"{number_of(len(lines), 'image')} could not be read; {consequence}:\n  {shown}"


# Images of equal size -----------------------------------------------------------------------------------------------

Size = TypeVar("Size", bound=Hashable)
Item = TypeVar("Item")


class SizeGroups(Generic[Size, Item]):
    """Items waiting for a group of their size.

    Args:
        room: how many items of a size make a group.
        cost: the cost of a waiting item of a size.
        most: the largest total cost of waiting items; beyond it the fullest group is returned, so that many sizes with
            few items each stay within bounds. None for no limit.

    Examples:
        >>> groups = SizeGroups(lambda size: 2)
        >>> [group for size, item in (("a", 1), ("b", 2), ("a", 3)) for group in groups.add(size, item)]
        [[1, 3]]
        >>> list(groups.rest())
        [[2]]
    """

    def __init__(
        self,
        room: Callable[[Size], int],
        cost: Callable[[Size], int] = lambda size: 1,
        most: int | None = None,
    ) -> None:
        self._room, self._cost, self._most = room, cost, most
        self._waiting: dict[Size, list[Item]] = {}
        self._held = 0

    def add(self, size: Size, item: Item) -> Iterator[list[Item]]:
        """Add one item; yields every group that is now complete."""
        self._waiting.setdefault(size, []).append(item)
        self._held += self._cost(size)
        if len(self._waiting[size]) >= self._room(size):
            yield self._take(size)
        elif self._most is not None and self._held > self._most:
            yield self._take(max(self._waiting, key=lambda other: len(self._waiting[other])))

    def rest(self) -> Iterator[list[Item]]:
        """The remaining items, in the order in which sizes appeared."""
        for size in list(self._waiting):
            yield self._take(size)

    def _take(self, size: Size) -> list[Item]:
        taken = self._waiting.pop(size)
        self._held -= len(taken) * self._cost(size)
        return taken


def grouped(sizes: Iterable[Hashable], batch_size: int | None = None) -> list[list[int]]:
    """Groups of positions with equal size, at most ``batch_size`` each, in the order of their first position.

    Examples:
        >>> grouped([(2, 3), (3, 2), (2, 3), (2, 3)], 2)
        [[0, 2], [1], [3]]
    """
    groups: SizeGroups[Hashable, int] = SizeGroups(lambda size: batch_size or 2**62)
    found = [group for position, size in enumerate(sizes) for group in groups.add(size, position)]
    return sorted([*found, *groups.rest()])
