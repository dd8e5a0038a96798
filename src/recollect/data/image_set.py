"""``ImageSet``: images with labels. Every source returns one, and everything else reads one.

A set is a description, cheap to create, slice and compare: no pixel is read until ``read``. Sources (``data/sources``)
create sets; the sampler needs only ``labels``; the pipeline needs ``read``; a run's manifest keeps ``fingerprint``. What
images are (files, arrays, bytes, rows of another library) only ``open`` knows: the others go through it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from recollect.common.errors import InputError
from recollect.common.images import ImageSource, file_sha256, image_size, read_image
from recollect.common.text import check_choice

Indices = NDArray[np.int64]
"""Numbers of images."""


@dataclass(frozen=True, eq=False)
class ImageSet:
    """N images with integer labels: files below a root, arrays in memory, or items that are read when needed.

    Args:
        name: name of the data set, e.g. ``"sop"``, for messages and manifests.
        names: N names, unique: paths relative to ``root`` (with ``/``), or any names for arrays.
        labels: N class numbers, indices into ``class_names``.
        class_names: the name of every class.
        root: the folder that ``names`` are below; None for arrays.
        arrays: N × H × W (grey) or N × H × W × 3 uint8 pixels, instead of files.
        split: which split this is: ``"train"``, ``"test"``, ``"val"``, ``"all"`` or a name of the source's own.
        boxes: N × 4 boxes (x1, y1, x2, y2) to crop to, in pixels of the upright image; NaN rows mean the whole image.
        coarse_labels: N numbers of coarser classes, indices into ``coarse_names``, e.g. the kind of product in
            addition to the product; None if there is no such level. All images of a class have the same one.
        coarse_names: the name of every coarser class.
        items: N images that are neither files nor arrays, of any type the decoder accepts, e.g. rows of another library's
            data set.
        facts: how the set was made, as plain values for a run's manifest: ``left_out`` (files by reason) and ``split``.

    Raises:
        InputError: lengths that differ, labels out of range, a name twice, neither or both of root and arrays, a class
            in two coarser ones.

    Examples:
        >>> pixels = np.zeros((4, 8, 8), np.uint8)
        >>> images = ImageSet("demo", list("abcd"), [0, 0, 1, 1], ["x", "y"], arrays=pixels)
        >>> len(images), images.num_classes, images.subset([0, 1]).num_classes
        (4, 2, 1)
    """

    name: str
    names: Sequence[str]
    labels: NDArray[np.int64]
    class_names: Sequence[str]
    root: Path | None = None
    arrays: NDArray[np.uint8] | None = None
    split: str = "all"
    boxes: NDArray[np.float64] | None = None
    coarse_labels: NDArray[np.int64] | None = None
    coarse_names: Sequence[str] = ()
    items: Sequence[ImageSource] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        count = len(self.names)
        if (self.root is None) + (self.arrays is None) + (self.items is None) != 2:
            raise InputError(f"{self.name}: give exactly one of root, arrays and items.")
        for what in ("labels", "arrays", "boxes", "coarse_labels", "items"):
            value = getattr(self, what)
            if value is not None and len(value) != count:
                raise InputError(f"{self.name}: {count} names but {len(value)} {what}.")
        for what, names in (("labels", self.class_names), ("coarse_labels", self.coarse_names)):
            if getattr(self, what) is not None:
                numbers = np.asarray(getattr(self, what), dtype=np.int64)
                object.__setattr__(self, what, numbers)
                if count and not 0 <= numbers.min() <= numbers.max() < len(names):
                    raise InputError(f"{self.name}: {what} must be numbers from 0 to {len(names) - 1}.")
        if self.coarse_labels is not None:
            classes = np.unique(np.stack([self.labels, self.coarse_labels]), axis=1)[0]
            if len(twice := classes[1:][classes[1:] == classes[:-1]]):
                name = self.class_names[twice[0]]
                raise InputError(f"{self.name}: images of the class {name!r} are in more than one coarser class.")
        if len(set(self.names)) != count:
            repeated = next(name for name in self.names if self.names.count(name) > 1)
            raise InputError(f"{self.name}: names must be unique, but {repeated!r} occurs more than once.")

    @property
    def coarse_of_classes(self) -> list[int] | None:
        """For each class the number of its coarser class; None without such classes."""
        if self.coarse_labels is None:
            return None
        numbers = np.zeros(len(self.class_names), dtype=np.int64)
        numbers[self.labels] = self.coarse_labels
        return numbers.tolist()

    def __len__(self) -> int:
        return len(self.names)

    @property
    def num_classes(self) -> int:
        """How many classes have at least one image here."""
        return len(np.unique(self.labels))

    @cached_property
    def class_sizes(self) -> NDArray[np.int64]:
        """The number of images of each class in ``class_names``."""
        return np.bincount(self.labels, minlength=len(self.class_names)).astype(np.int64)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over names, class names and boxes: equal for equal sets in different folders.

        For arrays, which have no files, it also covers the pixels.
        """
        digest = hashlib.sha256()
        for index, (name, label) in enumerate(zip(self.names, self.labels.tolist(), strict=True)):
            box = "" if self.boxes is None else np.array2string(self.boxes[index], precision=3)
            digest.update(f"{name}\0{self.class_names[label]}\0{box}\n".encode("utf-8", "surrogateescape"))
        if self.arrays is not None:
            digest.update(np.ascontiguousarray(self.arrays).data)
        return digest.hexdigest()

    def path(self, index: int) -> Path:
        """The file of image ``index``."""
        if self.root is None:
            raise InputError(f"{self.name}: its images have no files.")
        return self.root / self.names[index]

    def open(self, index: int) -> ImageSource:
        """Image ``index`` as it is stored: a path, the content of a file, a PIL image or an array. Nothing is decoded."""
        if self.root is not None:
            return self.root / self.names[index]
        if self.arrays is not None:
            pixels: NDArray[np.uint8] = self.arrays[index]
            return pixels
        source = (self.items or ())[index]
        return source() if callable(source) else source

    def read(self, index: int, *, crop: bool = True, at_least: int | None = None) -> Image.Image:
        """Image ``index`` as upright RGB, cropped to its box if it has one; with ``crop=False`` the whole image.

        ``at_least`` as in ``read_image``, for images without a box, whose coordinates refer to the full size.
        """
        box = None if self.boxes is None else self.box(index)
        image = read_image(self.open(index), at_least=at_least if box is None else None)
        return image.crop(box) if crop and box is not None else image

    def size(self, index: int) -> tuple[int, int]:
        """Width and height of the whole image ``index``, upright; of a file, from its header."""
        return image_size(self.open(index))

    def digest(self, index: int) -> bytes:
        """SHA-256 of the content of image ``index``, without its box: of the file, or of the pixels of an image in memory.

        Raises:
            ImageError: it cannot be read.
        """
        source = self.open(index)
        if isinstance(source, str | Path):
            return bytes.fromhex(file_sha256(source))
        if isinstance(source, bytes):
            return hashlib.sha256(source).digest()
        if isinstance(source, np.ndarray):
            return hashlib.sha256(str(source.shape).encode() + np.ascontiguousarray(source).data).digest()
        image = read_image(source)
        return hashlib.sha256(f"{image.mode} {image.size}\0".encode() + image.tobytes()).digest()

    def identity(self, index: int) -> str:
        """What changes if image ``index`` changes: path, size and time of a file, the digest of one in memory."""
        source = self.open(index)
        if not isinstance(source, str | Path):
            return self.digest(index).hex()
        status = Path(source).stat()
        return f"{Path(source).absolute()}\0{status.st_size}\0{status.st_mtime_ns}"

    def box(self, index: int) -> tuple[float, float, float, float] | None:
        """The box that image ``index`` is cropped to, if any."""
        if self.boxes is None or np.isnan(self.boxes[index]).any():
            return None
        left, top, right, bottom = self.boxes[index].tolist()
        return left, top, right, bottom

    @property
    def missing(self) -> Indices:
        """The images whose files do not exist.

        Each folder is listed once, which for a million files takes seconds where a million look-ups take minutes.
        """
        folders: dict[str, frozenset[str]] = {}
        absent = []
        for index, name in enumerate(self.names if self.root is not None else ()):
            folder, file = os.path.split(name)
            if folder not in folders:
                folders[folder] = frozenset()
                with contextlib.suppress(OSError):
                    folders[folder] = frozenset(os.listdir(Path(self.root or "", folder)))  # noqa: PTH208 (names only)
            # Check names missing from the listing again: some systems accept another case or spelling.
            if file not in folders[folder] and not self.path(index).exists():
                absent.append(index)
        return np.array(absent, np.int64)

    def subset(self, indices: Sequence[int] | NDArray[np.int64], split: str | None = None) -> ImageSet:
        """The images at ``indices`` (each once), in that order.

        Classes without an image are dropped and the rest renumbered in order.
        """
        rows = np.asarray(indices, dtype=np.int64)
        classes, labels = np.unique(self.labels[rows], return_inverse=True)
        coarse, coarse_names = self.coarse_labels, self.coarse_names
        if coarse is not None:
            coarse_classes, coarse = np.unique(coarse[rows], return_inverse=True)
            coarse_names = [coarse_names[c] for c in coarse_classes.tolist()]
        return replace(
            self,
            names=[self.names[i] for i in rows.tolist()],
            labels=labels.astype(np.int64),
            class_names=[self.class_names[c] for c in classes.tolist()],
            arrays=None if self.arrays is None else self.arrays[rows],
            boxes=None if self.boxes is None else self.boxes[rows],
            items=None if self.items is None else _Subset(self.items, rows),
            split=self.split if split is None else split,
            coarse_labels=coarse,
            coarse_names=coarse_names,
        )

    def joined(self, other: ImageSet, split: str = "all") -> ImageSet:
        """The images of both, these first; classes of the same name become one, coarser ones too.

        Raises:
            InputError: they have different roots, one has files and the other arrays, or arrays of another size.
        """
        fits = self.root == other.root and (self.arrays is None) == (other.arrays is None)
        fits = fits and self.items is None and other.items is None
        if self.arrays is not None and other.arrays is not None:
            fits = fits and self.arrays.shape[1:] == other.arrays.shape[1:]
        if not fits or (self.coarse_labels is None) != (other.coarse_labels is None):
            raise InputError(
                f"{self.name} and {other.name} cannot be joined: the images of both must be below the same root, or be arrays "
                "of the same size, and both or neither must have coarser classes."
            )
        boxes = [np.full((len(part), 4), np.nan) if part.boxes is None else part.boxes for part in (self, other)]
        labels, class_names = _merged((self.labels, self.class_names), (other.labels, other.class_names))
        coarse: NDArray[np.int64] | None = None
        coarse_names: Sequence[str] = ()
        if self.coarse_labels is not None and other.coarse_labels is not None:
            pairs = (self.coarse_labels, self.coarse_names), (other.coarse_labels, other.coarse_names)
            coarse, coarse_names = _merged(*pairs)
        return replace(
            self,
            names=[*self.names, *other.names],
            labels=labels,
            class_names=class_names,
            arrays=None if self.arrays is None else np.concatenate([self.arrays, other.arrays]),
            boxes=None if self.boxes is None and other.boxes is None else np.concatenate(boxes),
            split=split,
            coarse_labels=coarse,
            coarse_names=coarse_names,
        )

    def of_classes(self, classes: Sequence[int] | NDArray[np.int64], split: str | None = None) -> ImageSet:
        """All images of the given classes, in their present order."""
        return self.subset(np.flatnonzero(np.isin(self.labels, np.asarray(classes))), split)


class _Subset(Sequence[ImageSource]):
    """Some items of a sequence, in another order; each is fetched when it is needed."""

    def __init__(self, items: Sequence[ImageSource], rows: NDArray[np.int64]) -> None:
        self._items, self._rows = items, rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        return self._items[int(self._rows[index])]


_Labelled = tuple[NDArray[np.int64], Sequence[str]]


def _merged(first: _Labelled, second: _Labelled) -> _Labelled:
    """Labels of both in one numbering by name: the names of the first, then those only the second has."""
    numbers = {name: number for number, name in enumerate(first[1])}
    for name in second[1]:
        numbers.setdefault(name, len(numbers))
    place = np.array([numbers[name] for name in second[1]], dtype=np.int64)
    return np.concatenate([first[0], place[second[0]]]), list(numbers)


# Splits by class: retrieval is tested on unseen classes, so validation must use unseen classes too. ----------------------

_DRAWS = 64


def held_out_classes(sizes: NDArray[np.int64], share: float, seed: int = 0) -> NDArray[np.int64]:
    """Draw classes for testing, with about ``share`` of the classes and of the images.

    Classes are sorted by size and divided into as many consecutive groups as classes are needed; one class is drawn from
    each, so both sides get large and small ones. Of 64 such draws, the one whose share of the images is closest to
    ``share`` is used.

    Args:
        sizes: the number of images of each class, at least two classes.
        share: the share for testing, between 0 and 1; with an odd number of classes, the larger half is for training.
        seed: seed of the draw.

    Returns:
        The numbers of the classes held out, in order.

    Examples:
        >>> held_out_classes(np.array([10, 1, 9, 2]), 0.5).tolist()
        [0, 1]
    """
    count = len(sizes)
    testing = min(max(1, int(count * share + 1e-9)), count - 1)
    drawn = min(testing, count - testing)  # of the smaller side, so that every group has at least two classes
    target = share if drawn == testing else 1 - share
    random = np.random.default_rng(seed)
    best: tuple[float, NDArray[np.int64]] | None = None
    for _ in range(_DRAWS):
        order = np.lexsort((random.permutation(count), -sizes))
        groups = np.array_split(order, drawn)
        classes = np.array([run[random.integers(len(run))] for run in groups])
        distance = abs(float(sizes[classes].sum()) / max(1, int(sizes.sum())) - target)
        if best is None or distance < best[0] - 1e-12:
            best = distance, classes
    classes = np.sort(best[1] if best is not None else np.empty(0, np.int64))
    return classes if drawn == testing else np.setdiff1d(np.arange(count), classes)


def class_disjoint_split(images: ImageSet, mode: str = "paper", seed: int = 0) -> tuple[ImageSet, ImageSet]:
    """Split training images into a training part and a validation part with no class in common.

    Args:
        images: a training set.
        mode: ``"paper"``: the first half of the classes, in their order, is for training and the second for validation;
            ``"random"``: a random half.
        seed: seed of the random half; ``"paper"`` ignores it.

    Returns:
        The training part (split ``"train"``) and the validation part (split ``"val"``).

    Examples:
        >>> pixels = np.zeros((4, 1, 1), np.uint8)
        >>> images = ImageSet("demo", list("abcd"), [0, 1, 2, 3], list("wxyz"), arrays=pixels)
        >>> [list(part.class_names) for part in class_disjoint_split(images)]
        [['w', 'x'], ['y', 'z']]
    """
    check_choice("split mode", mode, ("paper", "random"))
    classes = np.unique(images.labels)
    if len(classes) < 2:
        raise InputError(f"{images.name}: 1 class is too few to split into 2 parts.")
    if mode == "random":
        classes = np.random.default_rng(seed).permutation(classes)
    middle = (len(classes) + 1) // 2  # the larger half is for training
    return images.of_classes(classes[:middle], "train"), images.of_classes(classes[middle:], "val")


def class_folds(images: ImageSet, folds: int, seed: int | None = 0) -> list[tuple[ImageSet, ImageSet]]:
    """k pairs of training and validation parts: every class is in exactly one of the validation parts.

    Args:
        images: a training set.
        folds: k, at least 2 and at most the number of classes; their sizes in classes differ by at most one.
        seed: chooses the folds; None keeps the order of classes, in k consecutive runs.
    """
    classes = np.unique(images.labels)
    if not 2 <= folds <= len(classes):
        raise InputError(
            f"{images.name}: folds must be at least 2 and at most its {len(classes)} classes, not {folds}."
        )
    if seed is not None:
        classes = np.random.default_rng(seed).permutation(classes)
    pairs = []
    for validation in np.array_split(classes, folds):
        training = np.setdiff1d(classes, validation)
        pairs.append((images.of_classes(training, "train"), images.of_classes(validation, "val")))
    return pairs
