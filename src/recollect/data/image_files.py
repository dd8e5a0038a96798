"""Image files below folders: the files, their classes, and which files were skipped and why.

``data/sources/folder.py`` makes image sets from them; ``list_images`` lists files to embed, with or without labels. The
file name extension decides what counts as an image; whether it can be read is known when it is decoded.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from recollect.common.errors import DataError, DataWarning
from recollect.common.images import HEIF_SUFFIXES, IMAGE_SUFFIXES, can_read_heif
from recollect.common.reading import is_folder, visible_entries
from recollect.common.text import number_of, printable
from recollect.data.folder_layout import PARTS, find_inner_classes, find_parts, remark_on_siblings
from recollect.data.listing import read_lines

Refused = Callable[[str, str], None]
"""Called with the name of a file or folder that cannot be used, and the reason."""

BESIDE = "beside the class folders"
BESIDE_SPLITS = "beside the split folders"
GIVEN_TWICE = "given twice"
TO_READ_HEIC = 'To read HEIC:  pip install "recollect[heic]"'


@dataclass(frozen=True)
class Listed:
    """Image files in order.

    Attributes:
        paths: the files.
        names: relative to ``root`` if all come from one folder; otherwise as given.
        labels: the class of each, "" for an image outside class folders; None if there are no class folders.
        root: the one folder that was given.
        left_out: how many files were left out, by reason; for an image that was given twice, the repetition.
    """

    paths: list[Path]
    names: list[str]
    labels: list[str] | None
    root: Path | None
    left_out: dict[str, int] = field(default_factory=dict)


def list_images(inputs: Sequence[Path | str], *, missing: Literal["error", "keep"] = "error") -> Listed:
    """Folders, image files, and ``.txt`` lists of paths (one per line, relative to the list) to images.

    Images in class folders have labels, as for training; images next to them, single files and lists have none. An image
    that several inputs contain is listed once, with its class if one of them gives it one.

    Args:
        inputs: what to list.
        missing: ``"keep"`` leaves it to the reader to find files of a ``.txt`` list missing.

    Raises:
        DataError: an input does not exist, or there is no image.
    """
    given = [Path(item) for item in inputs]
    root = given[0].resolve() if len(given) == 1 and given[0].is_dir() else None
    given = given if root is None else [root]
    counts: dict[str, Counter[str]] = {}
    found: list[_Found] = []
    for number, path in enumerate(given):
        here = counts[_real(path)] = Counter()
        found += [_Found(number, file, label) for file, label in _images_of(path, missing, here)]
    left_out: Counter[str] = Counter()
    for folder, here in counts.items():
        # The files of a folder inside another one that was given are counted there.
        if here and not any(str(above) in counts for above in Path(folder).parents):
            left_out += here
    if not found:
        reason = f" ({counted(left_out)} left out)" if left_out else ""
        raise DataError(f"there are no images to embed{reason}: give folders, image files or a .txt list of them.")
    found = _once(found, left_out) if root is None else found
    paths, labels = [image.path for image in found], [image.label for image in found]
    names = [(path if root is None else path.relative_to(root)).as_posix() for path in paths]
    if any(labels):
        return Listed(paths, names, labels, root, dict(left_out))
    direct = {path.parent for path in paths}
    if (said := remark_on_siblings([path for path in given if path in direct])) is not None:
        warnings.warn(said, DataWarning, stacklevel=2)
    return Listed(paths, names, None, root, dict(left_out))


class _Found(NamedTuple):
    """An image, and the number of the input that it was found by."""

    given: int
    path: Path
    label: str


def _images_of(path: Path, missing: str, left_out: Counter[str]) -> Iterator[tuple[Path, str]]:
    """The images of one input with their classes, "" for none."""
    if path.is_dir():
        for name, label in _labelled(path, left_out):
            yield path / name, label
    elif path.suffix.lower() == ".txt":
        yield from ((file, "") for file in _from_list(path, missing))
    elif path.suffix.lower() in (".csv", ".tsv") and path.exists():
        raise DataError(
            f"{printable(str(path))}: tables are not read here. Give folders, image files or .txt lists: write the "
            "paths of the table to a .txt file, one per line."
        )
    elif path.exists():
        yield path, ""
    else:
        raise DataError(f"{printable(str(path))}: no such file or folder.")


def _once(found: Sequence[_Found], left_out: Counter[str]) -> list[_Found]:
    """Each image once, at its first place, with the first class it has; repetitions are counted.

    Links with different names to one file, inside one folder or list, are different images, as when it is given alone.
    """
    kept: list[_Found] = []
    places: dict[str, list[int]] = {}
    for image in found:
        same = places.setdefault(_real(image.path), [])
        if all(kept[i].given == image.given and not _spelt_alike(kept[i].path, image.path) for i in same):
            same.append(len(kept))
            kept.append(image)
            continue
        left_out[GIVEN_TWICE] += 1
        for i in same:
            kept[i] = kept[i]._replace(label=kept[i].label or image.label)
    return kept


def _spelt_alike(first: Path, second: Path) -> bool:
    return os.path.normpath(first) == os.path.normpath(second)


def _real(path: Path) -> str:
    try:
        return os.path.realpath(path)
    except ValueError:  # a null character in a list; the reader of the image refuses it
        return str(path)


def _labelled(root: Path, left_out: Counter[str]) -> Iterator[tuple[str, str]]:
    """Every image below ``root`` with its class: its folder below ``root`` or below a part of it."""
    parts = find_parts(root, instead="list its images in a .txt file, which gives them no classes")
    if not parts and (inner := find_inner_classes(root)) is not None:
        warnings.warn(inner.remark(), DataWarning, stacklevel=4)
    yield from class_images(root, "", left_out, loose=True, parts=frozenset(parts.values()))


def _from_list(path: Path, missing: str) -> list[Path]:
    if not path.is_file():
        raise DataError(f"{printable(str(path))}: no such list of paths.")
    found = [path.parent / line for _, line in read_lines(path)]
    absent = [entry for entry in found if not entry.is_file()]
    if absent and missing == "error":
        more = f" {number_of(len(absent) - 1, 'other is/others are')} missing too." if len(absent) > 1 else ""
        raise DataError(
            f"{path}: lists {printable(str(absent[0]))}, which does not exist.{more} Correct the list, or leave missing files "
            "out with --skip-bad."
        )
    return found


def class_images(
    root: Path,
    part: str,
    left_out: Counter[str],
    *,
    loose: bool = False,
    parts: Collection[str] = (),
) -> Iterator[tuple[str, str]]:
    """Path relative to ``root`` and class of every image in the class folders below ``root/part`` (or ``root``).

    A link to the folder of another class is left out: the same images would have two classes.

    Args:
        root: the folder that paths are relative to.
        part: the folder of the class folders, or "".
        left_out: counts skipped files.
        loose: include images next to the class folders, without a class, instead of counting them as skipped.
        parts: folders of ``root`` that contain class folders themselves.
    """
    entries = sorted(visible_entries(root / part), key=lambda entry: entry.name)
    above = _above(root, bool(part or parts))
    owners = _owners([entry for entry in entries if entry.name not in parts], above)
    for entry in entries:
        relative = f"{part}/{entry.name}" if part else entry.name
        if entry.name in parts:
            yield from class_images(root, entry.name, left_out, loose=loose)
        elif is_folder(entry):
            others = partial(_is_of_another, owners, entry.name)
            found = walk_images(root, relative, left_out, above, others=others)
            yield from ((name, entry.name) for name in found)
        elif _is_image(entry, left_out):
            if loose:
                yield relative, ""
            else:
                left_out[BESIDE] += 1


def count_beside_splits(entries: Sequence[os.DirEntry[str]], left_out: Counter[str]) -> None:
    """Count the files among ``entries``, which are next to the split folders and not used."""
    for entry in entries:
        if not is_folder(entry) and _is_image(entry, left_out):
            left_out[BESIDE_SPLITS] += 1


def _above(root: Path, has_parts: bool) -> frozenset[str]:
    """The real paths of ``root``, of its splits and of every folder above it: none of them belongs to one class."""
    words = frozenset.union(*PARTS.values()) if has_parts else ()
    splits = [entry.path for entry in visible_entries(root) if entry.name.lower() in words]
    real = Path(os.path.realpath(root))
    return frozenset({str(real), *_parents(real), *map(os.path.realpath, splits)})


def _parents(real: str | Path) -> frozenset[str]:
    return frozenset(map(str, Path(real).parents))


def _owners(entries: Sequence[os.DirEntry[str]], above: frozenset[str]) -> dict[str, str]:
    """The class of each class folder, by the folder's real path; a folder comes before the links to it."""
    owners: dict[str, str] = {}
    for entry in sorted(filter(is_folder, entries), key=os.DirEntry.is_symlink):
        real = os.path.realpath(entry.path)
        if real not in above and not _is_of_another(owners, entry.name, real):
            owners[real] = entry.name
    return owners


def _is_of_another(owners: Mapping[str, str], name: str, real: str) -> bool:
    """Whether a folder is, or is below, the folder of a class other than ``name``."""
    return any(owners.get(str(folder), name) != name for folder in (real, *Path(real).parents))


def walk_images(
    root: Path,
    folder: str,
    left_out: Counter[str],
    above: frozenset[str] = frozenset(),
    *,
    refused: Refused | None = None,
    others: Callable[[str], bool] | None = None,
) -> Iterator[str]:
    """Every image below ``root/folder``, sorted, as paths relative to ``root``.

    Links are followed, except to a parent folder.

    Args:
        root: the folder that paths are relative to.
        folder: where to look, or "".
        left_out: counts skipped files by reason.
        above: the parent folders.
        refused: called with each image and folder that cannot be used, and the reason.
        others: whether a folder, by its real path, belongs to another class; links to such folders are left out.
    """
    real = os.path.realpath(root / folder)
    above = above if folder else above | _parents(real)
    if real in above or (others is not None and (root / folder).is_symlink() and others(real)):
        left_out["link to a parent folder" if real in above else "link to another class"] += 1
        return
    for entry in sorted(visible_entries(root / folder), key=lambda entry: entry.name):
        name = f"{folder}/{entry.name}" if folder else entry.name
        descends = is_folder(entry)
        if refused is not None and (descends or Path(entry.name).suffix.lower() in IMAGE_SUFFIXES):
            against = _reason_against(entry)
            if against is not None:
                left_out[against[0]] += 1
                refused(name, against[1])
                continue
        if descends:
            yield from walk_images(root, name, left_out, above | {real}, refused=refused, others=others)
        elif _is_image(entry, left_out):
            yield name


def _reason_against(entry: os.DirEntry[str]) -> tuple[str, str] | None:
    """Why an image or a folder cannot be used, in two words for counting and as a sentence; None if it can."""
    if any("\ud800" <= character <= "\udfff" for character in entry.name):
        return "name not UTF-8", "its name is not valid UTF-8. Rename it."
    if entry.is_symlink() and not os.path.exists(entry.path):  # noqa: PTH110 (False for a link to itself)
        return "broken link", "a broken link."
    if not is_folder(entry) and not _is_file(entry):
        return "not a file", "not a file."
    return None


def _is_image(entry: os.DirEntry[str], left_out: Counter[str]) -> bool:
    """Whether a file is an image to use; if not, it is counted with the reason."""
    suffix = Path(entry.name).suffix.lower()
    if suffix not in IMAGE_SUFFIXES:
        left_out["not an image"] += 1
        return False
    if suffix in HEIF_SUFFIXES and not can_read_heif():
        left_out["HEIC"] += 1
        return False
    if not _is_file(entry):
        left_out["broken link" if entry.is_symlink() else "not a file"] += 1
        return False
    return True


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:
        return False


def counted(counts: Mapping[str, int]) -> str:
    """Counts with their reasons, largest first.

    Examples:
        >>> counted({"broken": 1, "HEIC": 10})
        '10 HEIC, 1 broken'
    """
    return ", ".join(f"{count:,} {reason}" for reason, count in sorted(counts.items(), key=lambda c: (-c[1], c[0])))


def summary(used: int, left_out: Mapping[str, int], held_out: int = 0) -> str:
    """One line that says how many files of a folder are used and how many are left out.

    Args:
        used: images that are used.
        left_out: files that are not used, by reason, including those of ``BadImages.counts``.
        held_out: classes kept for testing.

    Examples:
        >>> summary(1053, {"HEIC": 10, "broken": 1, "not an image": 1}, 13)
        '1,053 images used; 12 left out: 10 HEIC, 1 broken, 1 not an image; 13 classes held out for testing'
    """
    parts = [f"{number_of(used, 'image')} used"]
    if total := sum(left_out.values()):
        parts.append(f"{total:,} left out: {counted(left_out)}")
    if held_out:
        parts.append(f"{number_of(held_out, 'class')} held out for testing")
    return "; ".join(parts)
