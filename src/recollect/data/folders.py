"""Images in folders: the files, which folders are splits and classes, and which files are left out and why.

``data/sources/folder.py`` makes image sets from them, ``list_images`` lists files to embed, ``search/sync.py``
those of an index; all of them walk folders with ``class_images``. The file name extension decides what counts as an
image; whether it can be read is known when it is decoded.
"""

from __future__ import annotations

import os
import re
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from recollect.common.errors import DataError, DataWarning
from recollect.common.images import HEIF_SUFFIXES, IMAGE_SUFFIXES, can_read_heif
from recollect.common.reading import is_folder, visible_entries
from recollect.common.text import number_of, printable, some_names
from recollect.data.tables import read_lines

OUTSIDE_CLASS_FOLDERS = "beside the class folders"
OUTSIDE_SPLIT_FOLDERS = "beside the split folders"
REPEATED = "given twice"
TO_READ_HEIC = 'To read HEIC:  pip install "recollect[heic]"'


class SkippedFile(NamedTuple):
    """A file or folder that is not used, and why, in a few words for counting."""

    name: str
    reason: str


def class_images(
    root: Path, part: str, skipped: list[SkippedFile], *, loose: bool = False, parts: Collection[str] = ()
) -> Iterator[tuple[str, str]]:
    """Path relative to ``root`` and class of every image in the class folders below ``root/part`` (or ``root``), sorted.

    Links are followed, except to a parent folder or to a split.

    Args:
        root: the folder that paths are relative to.
        part: the folder of the class folders, or "".
        skipped: gets the files that are left out.
        loose: include images next to the class folders, without a class, instead of leaving them out.
        parts: folders of ``root`` that contain class folders themselves.
    """
    # The root, its splits and every folder above it: none of them belongs to one class.
    real_root = Path(os.path.realpath(root))
    above = {str(real_root), *map(str, real_root.parents)}
    if part or parts:
        above |= {os.path.realpath(root / name) for name in _folders(root) if name.lower() in SPLIT_OF}
    for entry in sorted(visible_entries(root / part), key=attrgetter("name")):
        name = f"{part}/{entry.name}" if part else entry.name
        if entry.name in parts:
            yield from class_images(root, entry.name, skipped, loose=loose)
        elif is_folder(entry):
            for image in _walk(root, name, skipped, frozenset(above)):
                yield image, entry.name
        elif is_image(entry, name, skipped):
            if loose:
                yield name, ""
            else:
                skipped.append(SkippedFile(name, OUTSIDE_CLASS_FOLDERS))


def _walk(root: Path, folder: str, skipped: list[SkippedFile], above: frozenset[str]) -> Iterator[str]:
    """Every image below ``root/folder``."""
    real = os.path.realpath(root / folder)
    if real in above:
        skipped.append(SkippedFile(folder, "link to a parent folder"))
        return
    for entry in sorted(visible_entries(root / folder), key=attrgetter("name")):
        name = f"{folder}/{entry.name}"
        if is_folder(entry):
            yield from _walk(root, name, skipped, above | {real})
        elif is_image(entry, name, skipped):
            yield name


def is_image(entry: os.DirEntry[str], name: str, skipped: list[SkippedFile]) -> bool:
    """Whether a file is an image to use; if not, it is added to ``skipped``."""
    suffix = Path(entry.name).suffix.lower()
    reason = ""
    if suffix not in IMAGE_SUFFIXES:
        reason = "not an image"
    elif suffix in HEIF_SUFFIXES and not can_read_heif():
        reason = "HEIC"
    elif not os.path.isfile(entry.path):  # noqa: PTH113 (False for a link to itself)
        reason = "broken link" if entry.is_symlink() else "not a file"
    if reason:
        skipped.append(SkippedFile(name, reason))
    return not reason


PARTS: Mapping[str, frozenset[str]] = {
    "train": frozenset({"train", "training"}),
    "test": frozenset({"test", "testing"}),
    "val": frozenset({"val", "valid", "validation"}),
}
"""Splits of a data set and the names of their folders, ignoring case."""
SPLIT_OF = {word: part for part, words in PARTS.items() for word in words}

_IN_A_TABLE = "list the images in a CSV file with the columns path,label,split"
_SPLIT_WORD = re.compile(
    r"(?<![^\W\d_])"
    r"(train|training|tests?|testing|val|valid|validation|dev|eval|evaluation|holdout|query|queries|gallery|probe)"
    r"(set|images?|imgs?|data|split|photos?)?(?![^\W\d_])",
    re.IGNORECASE,
)
"""A word in the name of a folder that may be a split: ``train_set``, ``testset``, ``val2017``, ``02_test``."""
_FEW = 10
"""From this number on, folders that contain folders are classes: groups of classes are few, classes are many."""


def find_parts(root: Path, *, instead: str = _IN_A_TABLE) -> dict[str, str]:
    """The folders of ``root`` that are splits, by split: ``{"train": "Training", "test": "Testing"}``.

    Empty if the folders are classes. A folder called ``train`` is a split if it is the only folder and contains folders
    itself; next to other folders it is a class with that name.

    Args:
        root: the folder.
        instead: what the error advises apart from renaming.

    Raises:
        DataError: it is ambiguous, e.g. two folders for one split.
    """
    folders = _folders(root)
    named = [folder for folder in folders if folder.lower() in SPLIT_OF]
    by_split: dict[str, list[str]] = {}
    for folder in named:
        by_split.setdefault(SPLIT_OF[folder.lower()], []).append(folder)
    for part, same in by_split.items():
        if len(same) > 1 and len(by_split) > 1:
            both = " and ".join(map(repr, same))
            raise DataError(f"{root}: {both} would both be the split {part!r}. Merge or rename them, or {instead}.")
    first = {part: same[0] for part, same in by_split.items()}
    if len(by_split) > 1 and "train" in by_split:
        return first
    # A split contains folders and no images. Without a training split next to it, treating it as a class would be silently
    # wrong.
    splits = [folder for folder in named if not _has_images(root / folder) and _folders(root / folder)]
    if splits and named == folders:
        return first
    if splits:
        raise DataError(
            f"{root}: is {splits[0]!r} a class or a split? It has the name of a split and contains folders, but "
            f"{'there is no train folder' if 'train' not in by_split else 'there are other folders'} next to it. Rename it, or "
            f"{instead}."
        )
    return {}


def part_to_use(split: str, parts: Collection[str]) -> str:
    """``split``, or ``"val"`` for a test on data that have no other part to test on.

    Examples:
        >>> part_to_use("test", {"train", "val"}), part_to_use("test", {"train", "val", "test"})
        ('val', 'test')
    """
    return "val" if split == "test" and "test" not in parts and "val" in parts else split


@dataclass(frozen=True)
class InnerClasses:
    """Folders that contain folders of images, which are probably the classes.

    Attributes:
        root: the folder that was given. tops: its folders. inner: the folders inside them, as examples.
        splits: the tops that have the names of splits, if there are two or more.
        place: what to give instead, for a single top.
    """

    root: Path
    tops: list[str]
    inner: list[str]
    splits: list[str]
    place: Path | None

    def question(self) -> str:
        """Asks which folders are the classes, and says how to answer."""
        tops, inner = _quoted(self.splits or self.tops), some_names(self.inner)
        confirm = "say so with --set data.options.nested=true (recollect data verify: --nested)"
        if self.place is not None:
            return (
                f"{self.root}: its only folder, {tops}, contains folders ({inner}) and no images. Give {self.place}; if "
                f"{tops} is one class, {confirm}."
            )
        choice = "classes or splits" if self.splits else "the classes, or the folders inside"
        remedy = f"For the folders inside, give e.g. {self.root / self.tops[0]}"
        remedy = "Rename splits to train, test and val" if self.splits else remedy
        return (
            f"{self.root}: are {tops} {choice}? They contain folders ({inner}) and no images. {remedy}, or {_IN_A_TABLE}. If "
            f"{tops} are the classes, {confirm}."
        )

    def remark(self, *, tables: bool = False) -> str:
        """Says which labels the images get, and how they get the others; ``tables``: a CSV file can be given too."""
        places = [self.place] if self.place is not None else [self.root / top for top in self.tops]
        give = " ".join(map(str, places))
        if tables and len(places) > 1:
            give = f"one of them, such as {places[0]}, or a CSV file with the columns path,label"
        return (
            f"{self.root}: the images are labelled {_quoted(self.tops)}. To label them by the folders inside "
            f"({some_names(self.inner)}), give {give}."
        )


def find_inner_classes(root: Path) -> InnerClasses | None:
    """The classes that probably are one level further down than the folders of ``root``; None if those are the classes.

    No folder of ``root`` has images of its own, and one of these is true: there is only one; at least two have names of
    splits; or there are fewer than ten, some contain several folders, and no two contain a folder of the same name. Folders
    that several classes have, such as ``class/session1``, are part of their class.
    """
    tops = _folders(root)
    splits = list(filter(_SPLIT_WORD.search, tops))
    if len(tops) >= _FEW and len(splits) < 2:
        return None
    inner: dict[str, list[str]] = {}
    for top in tops:
        if _has_images(root / top):
            return None
        if folders := _folders_with_images(root / top):
            inner[top] = folders
    names = [name for folders in inner.values() for name in folders]
    splits = splits if len(inner.keys() & splits) > 1 else []
    single, groups = len(inner) == 1, len(inner) < len(names) == len(set(names))
    if not (single or splits or groups):
        return None
    return InnerClasses(root, list(inner), names, splits, _innermost(root / next(iter(inner))) if single else None)


def remark_on_siblings(folders: Collection[Path]) -> str | None:
    """Says how given folders of images become classes: by giving the folder that contains them, not ``photos/*``.

    None if that would not make at least two classes of them, e.g. because they are splits.
    """
    places = {Path(os.path.abspath(folder)) for folder in folders}  # noqa: PTH100 (a link keeps its name: the class)
    try:
        parent = Path(os.path.commonpath([place.parent for place in places]))
        names = sorted({place.relative_to(parent).parts[0] for place in places})
        if len(names) < 2 or find_parts(parent):
            return None
    except (DataError, ValueError):  # it could not be given, or there is none
        return None
    whole_disk = parent == Path(parent.anchor)
    remedy = (
        "move these into one folder and give that" if whole_disk else f"give the folder that contains these: {parent}"
    )
    return (
        f"the images have no classes, because {len(places)} folders of images were given one by one. To label them by folder "
        f"({some_names(names)}), {remedy}."
    )


def _innermost(folder: Path) -> Path:
    """The folder inside ``folder`` that has several folders, or splits."""
    inner = _folders_with_images(folder)
    if len(inner) != 1 or _has_images(folder / inner[0]) or _SPLIT_WORD.search(inner[0]):
        return folder
    return _innermost(folder / inner[0])


def _folders(folder: Path) -> list[str]:
    return sorted(map(attrgetter("name"), filter(is_folder, visible_entries(folder))))


def _folders_with_images(folder: Path) -> list[str]:
    """The folders in ``folder`` that have an image in them or further below; stops at the first of each."""
    below = {name: (file for _, _, files in os.walk(folder / name) for file in files) for name in _folders(folder)}
    return [name for name, files in below.items() if any(map(_is_image_name, files))]


def _has_images(folder: Path) -> bool:
    return any(_is_image_name(entry.name) for entry in visible_entries(folder) if not is_folder(entry))


def _is_image_name(name: str) -> bool:
    return Path(name).suffix.lower() in IMAGE_SUFFIXES


def _quoted(names: Collection[str]) -> str:
    words = [repr(name) for name in list(names)[:4]] + ["…"] * (len(names) > 4)
    return " and ".join(words) if len(words) < 3 else ", ".join(words)


@dataclass(frozen=True)
class Listed:
    """Image files in order.

    Attributes:
        paths: the files.
        names: relative to ``root`` if all come from one folder; otherwise as given.
        labels: the class of each, "" for an image outside class folders; None if there are no class folders.
        root: the one folder that was given.
        skipped: how many files were left out, by reason; for an image that was given twice, the repetition.
    """

    paths: list[Path]
    names: list[str]
    labels: list[str] | None
    root: Path | None
    skipped: dict[str, int] = field(default_factory=dict)


def list_images(inputs: Sequence[Path | str], *, on_bad_image: str = "error") -> Listed:
    """Folders, image files, and ``.txt`` lists of paths (one per line, relative to the list) to images.

    Images in class folders have labels, as for training; images next to them, single files and lists have none. An image
    that several inputs contain is listed once, with its class if one of them gives it one.

    Args:
        inputs: what to list.
        on_bad_image: ``"error"`` refuses a ``.txt`` list of files that do not exist; ``"skip"`` leaves that to the reader.

    Raises:
        DataError: an input does not exist, or there is no image.
    """
    sources = [Path(item) for item in inputs]
    root = sources[0].resolve() if len(sources) == 1 and sources[0].is_dir() else None
    sources = sources if root is None else [root]
    unused: dict[str, str] = {}  # a file that several inputs contain counts once
    images: dict[str, tuple[Path, str]] = {}  # each image once, at its first place, with the first class it has
    repeated = 0
    for path in sources:
        of_input: list[SkippedFile] = []
        for file, label in _images_of(path, on_bad_image, of_input):
            place = os.path.abspath(file)  # noqa: PTH100 (a link keeps its name)
            repeated += place in images
            first, earlier = images.get(place, (file, ""))
            images[place] = first, earlier or label
        unused |= {os.path.abspath(path / name): reason for name, reason in of_input}  # noqa: PTH100
    skipped = Counter(unused.values())
    if not images:
        reason = f" ({counted(skipped)} left out)" if skipped else ""
        raise DataError(f"there are no images to embed{reason}: give folders, image files or a .txt list of them.")
    if repeated:
        skipped[REPEATED] = repeated
    paths, labels = [path for path, _ in images.values()], [label for _, label in images.values()]
    names = [(path if root is None else path.relative_to(root)).as_posix() for path in paths]
    direct = {path.parent for path in paths}
    remark = None if any(labels) else remark_on_siblings([path for path in sources if path in direct])
    if remark is not None:
        warnings.warn(remark, DataWarning, stacklevel=2)
    return Listed(paths, names, labels if any(labels) else None, root, dict(skipped))


def _images_of(path: Path, on_bad_image: str, skipped: list[SkippedFile]) -> Iterator[tuple[Path, str]]:
    """The images of one input with their classes, "" for none."""
    if path.is_dir():
        parts = find_parts(path, instead="list its images in a .txt file, which gives them no classes")
        if not parts and (inner := find_inner_classes(path)) is not None:
            warnings.warn(inner.remark(), DataWarning, stacklevel=4)
        for name, label in class_images(path, "", skipped, loose=True, parts=frozenset(parts.values())):
            yield path / name, label
    elif path.suffix.lower() == ".txt":
        if not path.is_file():
            raise DataError(f"{printable(str(path))}: no such list of paths.")
        files = [path.parent / line for _, line in read_lines(path)]
        absent = [] if on_bad_image == "skip" else [file for file in files if not file.is_file()]
        if absent:
            more = f" {number_of(len(absent) - 1, 'other is/others are')} missing too." if len(absent) > 1 else ""
            raise DataError(
                f"{path}: lists {printable(str(absent[0]))}, which does not exist.{more} Correct the list, or leave missing "
                "files out with --skip-bad."
            )
        for file in files:
            yield file, ""
    elif path.suffix.lower() in (".csv", ".tsv") and path.exists():
        raise DataError(
            f"{printable(str(path))}: tables are not read here. Give folders, image files or .txt lists: write the "
            "paths of the table to a .txt file, one per line."
        )
    elif path.exists():
        yield path, ""
    else:
        raise DataError(f"{printable(str(path))}: no such file or folder.")


def counted(counts: Mapping[str, int]) -> str:
    """Counts with their reasons, largest first.

    Examples:
        >>> counted({"broken": 1, "HEIC": 10})
        '10 HEIC, 1 broken'
    """
    return ", ".join(f"{count:,} {reason}" for reason, count in sorted(counts.items(), key=lambda c: (-c[1], c[0])))


def summary(used: int, skipped: Mapping[str, int], held_out: int = 0) -> str:
    """One line that says how many files of a folder are used and how many are left out.

    Args:
        used: images that are used.
        skipped: files that are not used, by reason, including images that could not be read.
        held_out: classes kept for testing.

    Examples:
        >>> summary(1053, {"HEIC": 10, "broken": 1, "not an image": 1}, 13)
        '1,053 images used; 12 left out: 10 HEIC, 1 broken, 1 not an image; 13 classes held out for testing'
    """
    parts = [f"{number_of(used, 'image')} used"]
    if total := sum(skipped.values()):
        parts.append(f"{total:,} left out: {counted(skipped)}")
    if held_out:
        parts.append(f"{number_of(held_out, 'class')} held out for testing")
    return "; ".join(parts)
