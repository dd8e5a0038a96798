"""Which folders of a data set are splits and which are classes, and the question if that is not clear."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from recollect.common.errors import DataError
from recollect.common.images import IMAGE_SUFFIXES
from recollect.common.reading import is_folder, visible_entries
from recollect.common.text import some_names

PARTS: Mapping[str, frozenset[str]] = {
    "train": frozenset({"train", "training"}),
    "test": frozenset({"test", "testing"}),
    "val": frozenset({"val", "valid", "validation"}),
}
"""Splits of a data set and the names of their folders, ignoring case."""

_IN_A_TABLE = "list the images in a CSV file with the columns path,label,split"
_SPLIT_WORD = re.compile(
    r"(train|training|tests?|testing|val|valid|validation|dev|eval|evaluation|holdout|query|queries|gallery|probe)"
    r"(set|images?|imgs?|data|split|photos?)?"
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
    folders = [entry.name for entry in visible_entries(root) if is_folder(entry)]
    found: dict[str, list[str]] = {}
    for folder in sorted(folders):
        for part, words in PARTS.items():
            if folder.lower() in words:
                found.setdefault(part, []).append(folder)
    for part, named in found.items():
        if len(named) > 1 and len(found) > 1:
            raise DataError(
                f"{root}: {' and '.join(map(repr, named))} would both be the split {part!r}. Merge or rename them, or "
                f"{instead}."
            )
    first = {part: named[0] for part, named in found.items()}
    if len(found) > 1 and "train" in found:
        return first
    if "train" in found and folders == [first["train"]] and _holds_classes(root / first["train"]):
        return first
    # A split without a training split next to it: treating it as a class would be silently wrong.
    alone = [folder for named in found.values() for folder in named if _holds_classes(root / folder)]
    if alone and set(folders) <= {folder for named in found.values() for folder in named}:
        return first
    if alone:
        raise DataError(
            f"{root}: is {alone[0]!r} a class or a split? It has the name of a split and contains folders, but "
            f"{'there is no train folder' if 'train' not in found else 'there are other folders'} next to it. Rename it, or "
            f"{instead}."
        )
    return {}


def _holds_classes(folder: Path) -> bool:
    """Whether a folder contains folders and no images, as a split does."""
    return not _has_images(folder) and any(map(is_folder, visible_entries(folder)))


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
        asked, remedy = (
            "the classes, or the folders inside",
            f"For the folders inside, give e.g. {self.root / self.tops[0]}",
        )
        if self.splits:
            asked, remedy = "classes or splits", "Rename splits to train, test and val"
        return (
            f"{self.root}: are {tops} {asked}? They contain folders ({inner}) and no images. {remedy}, or {_IN_A_TABLE}. If "
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
    tops = sorted(entry.name for entry in visible_entries(root) if is_folder(entry))
    splits = [top for top in tops if _is_split_like(top)]
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
    alone, groups = len(inner) == 1, len(inner) < len(names) == len(set(names))
    if not (alone or splits or groups):
        return None
    return InnerClasses(root, list(inner), names, splits, _innermost(root / next(iter(inner))) if alone else None)


def remark_on_siblings(folders: Collection[Path]) -> str | None:
    """Says how given folders of images become classes: by giving the folder that contains them, not ``photos/*``.

    None if that would not make at least two classes of them, e.g. because they are splits.
    """
    places = {Path(os.path.abspath(folder)) for folder in folders}  # noqa: PTH100 (a link keeps its name: the class)
    above = set.intersection(*(set(place.parents) for place in places)) if places else set()
    parent = max(above, key=lambda folder: len(folder.parts), default=None)
    if parent is None:
        return None
    names = sorted({place.relative_to(parent).parts[0] for place in places})
    try:
        if len(names) < 2 or find_parts(parent):
            return None
    except DataError:  # it could not be given
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
    if len(inner) != 1 or _has_images(folder / inner[0]) or _is_split_like(inner[0]):
        return folder
    return _innermost(folder / inner[0])


def _is_split_like(name: str) -> bool:
    return any(_SPLIT_WORD.fullmatch(word) for word in re.findall(r"[^\W\d_]+", name.lower()))


def _folders_with_images(folder: Path) -> list[str]:
    return sorted(entry.name for entry in visible_entries(folder) if is_folder(entry) and _has_images_below(entry.path))


def _has_images_below(folder: str) -> bool:
    """Whether there is an image in a folder or in one below it; stops at the first."""
    return any(_is_image_name(name) for _, _, files in os.walk(folder) for name in files)


def _has_images(folder: Path) -> bool:
    return any(_is_image_name(entry.name) for entry in visible_entries(folder) if not is_folder(entry))


def _is_image_name(name: str) -> bool:
    return Path(name).suffix.lower() in IMAGE_SUFFIXES


def _quoted(names: Collection[str]) -> str:
    shown = [repr(name) for name in list(names)[:4]] + ["…"] * (len(names) > 4)
    return " and ".join(shown) if len(shown) < 3 else ", ".join(shown)
