"""Your own images: class folders, train/test folders of class folders, or a CSV file.

- ``root/<class>/<image>``: half of the classes for training, the rest for testing; see ``class_split``.
- ``root/{train,test[,val]}/<class>/<image>``: the given split; ``Training``, ``testing``, ``valid`` and similar names are
  recognized. Loading one part does not read the others, which need not exist.
- ``root/<file>.csv`` with the columns ``path,label[,split]``: paths relative to the CSV's folder, or absolute ones below it;
  without a split column, classes are divided as in the first form.

Class folders may contain folders. Files that are left out are counted by reason (``ImageSet.facts``).
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from recollect.common.errors import ConfigError, DataError, DataWarning
from recollect.common.images import IMAGE_SUFFIXES
from recollect.common.reading import is_folder, visible_entries
from recollect.common.text import check_choice, check_flag, check_whole, number_of, some_names
from recollect.data.folders import (
    OUTSIDE_CLASS_FOLDERS,
    OUTSIDE_SPLIT_FOLDERS,
    PARTS,
    SPLIT_OF,
    TO_READ_HEIC,
    SkippedFile,
    class_images,
    counted,
    find_inner_classes,
    find_parts,
    is_image,
    part_to_use,
)
from recollect.data.image_set import ImageSet, held_out_classes
from recollect.data.registry import Source, make_set
from recollect.data.tables import read_csv, relative_to

_REMEDIES = {
    "HEIC": TO_READ_HEIC,
    OUTSIDE_CLASS_FOLDERS: "Put each image into a folder named after its class",
    OUTSIDE_SPLIT_FOLDERS: "Put images beside the split folders into a class folder of a split",
}

LISTED_TWICE = "listed twice"
_TRAIN_CLASSES = "train_classes (--split-of)"


def read(
    root: Path,
    split: str,
    *,
    csv: str | Path | None = None,
    class_split: str = "balanced",
    test_share: float | None = None,
    split_seed: int | None = None,
    train_classes: Sequence[str] | None = None,
    nested: bool = False,
) -> ImageSet:
    """Read a folder in one of the three forms.

    Args:
        root: the folder, or the CSV file itself.
        split: ``"train"``, ``"test"``, ``"val"``, ``"all"``, or a value of the CSV's split column.
        csv: the CSV file, relative to ``root``; without it, folders are read.
        class_split: how classes are divided if the data has no split: ``"balanced"``, a random draw with a seed, with
            about ``test_share`` of the images and of the classes for testing; or ``"alphabet"``: the first half of the
            sorted classes for training.
        test_share: the share of the classes for testing, between 0 and 1; 0.5 by default. If it is given, the splits of
            the data are pooled and whole classes are drawn, as for data without splits.
        split_seed: seed of the draw, 0 by default.
        train_classes: names of the classes for training, instead of a draw; all others are for testing. Splits of the
            data are pooled here too.
        nested: the folders of ``root`` are the classes, even if the folders inside them look like classes; by default an
            error asks then (``find_inner_classes``).
    """
    check_choice("class_split", class_split, ("balanced", "alphabet"))
    check_flag("nested", nested)
    # Options come from YAML.
    if test_share is not None and (not isinstance(test_share, float | int) or not 0 < test_share < 1):
        raise ConfigError(f"test_share is {test_share!r}: it must be a number between 0 and 1.")
    if split_seed is not None:
        split_seed = check_whole("split_seed", split_seed, 0, 2**63 - 1)
    if class_split == "alphabet" and test_share not in (None, 0.5):
        raise ConfigError("class_split='alphabet' divides the classes in halves: remove test_share, or use 'balanced'.")
    if train_classes is not None:
        if not isinstance(train_classes, list | tuple) or {*map(type, train_classes)} - {str}:
            raise ConfigError(f"train_classes is {train_classes!r}: it must be a list of names of classes.")
        if test_share is not None or split_seed is not None:
            raise ConfigError(
                f"{_TRAIN_CLASSES} says which classes are for testing: remove --test-share (test_share) and split_seed."
            )
    if root.is_file() and csv is None:
        if root.suffix.lower() in IMAGE_SUFFIXES:
            raise SOURCE.layout_error(f"{root} is an image. Give a folder with one folder per class.")
        root, csv = root.parent, root.name
    split = SPLIT_OF.get(split.lower(), split)
    unused: list[SkippedFile] = []
    pooled = test_share is not None or train_classes is not None
    rows = _rows(root, csv, unused, "all" if pooled else split, nested=nested)
    skipped = Counter([each.reason for each in unused])
    parts = [] if pooled else sorted({part for _, _, part in rows} - {""})
    facts: dict[str, Any] = {"left_out": dict(skipped)}
    part, choices = part_to_use(split, parts), parts or ["train", "test"]
    if part not in (*choices, "all"):
        raise DataError(f"{root}: there is no split {split!r}; the splits are {', '.join(map(repr, choices))}.")
    if split == "all":
        rows_of_split = rows
    elif parts:
        if split_seed is not None:
            raise ConfigError(f"{root} says itself what is for testing: remove split_seed, or also give test_share.")
        if part != split:
            sentence = f"{root}: there is no test part, so the part {part!r} is used for testing."
            warnings.warn(sentence, DataWarning, stacklevel=3)
        rows_of_split = [row for row in rows if row[2] == part]
    else:
        if train_classes is None:
            test_share, split_seed = test_share or 0.5, split_seed or 0
            testing = _test_classes(rows, root, class_split, test_share, split_seed)
        else:
            testing, class_split = _other_classes(rows, root, train_classes), "given"
        rows_of_split = [row for row in rows if (row[1] in testing) == (split == "test")]
        facts["split"] = {"class_split": class_split, "held_out_classes": len(testing)}
        if class_split == "balanced":
            facts["split"] |= {"test_share": test_share, "split_seed": split_seed}
    names, classes = [row[0] for row in rows_of_split], [row[1] for row in rows_of_split]
    unreadable = Counter([each.reason for each in unused if each.reason not in ("not an image", LISTED_TWICE)])
    if unreadable:
        remedies = "".join([f". {remedy}" for reason, remedy in _REMEDIES.items() if reason in unreadable])
        # Each part has counts of its own. Named, they stay two remarks if the numbers are the same.
        place = f"{root}, part {part!r}" if parts and split != "all" else f"{root}"
        warnings.warn(f"{place}: left out {counted(unreadable)}{remedies}.", DataWarning, stacklevel=3)
    return make_set(SOURCE, root, split, names, classes, facts=facts)


def find_splits(root: Path, *, csv: str | Path | None = None, nested: bool = False) -> tuple[str, ...]:
    """The splits of this folder, ``"train"`` first."""
    if root.is_file() and csv is None:
        root, csv = root.parent, root.name
    rows = _rows(root, csv, [], nested=nested)
    parts = {part for _, _, part in rows} - {""} or {"train", "test"}
    return tuple(sorted(parts, key=lambda part: (part != "train", part)))


Row = tuple[str, str, str]  # path relative to the root, class, split or ""
_listings: dict[tuple[object, ...], tuple[list[Row], list[SkippedFile]]] | None = None


@contextmanager
def listed_once() -> Iterator[None]:
    """Inside the block, a folder is walked once, however many of its splits are read."""
    global _listings
    _listings = {}
    try:
        yield
    finally:
        _listings = None


def _rows(
    root: Path, csv: str | Path | None, skipped: list[SkippedFile], split: str = "all", *, nested: bool = False
) -> list[Row]:
    listings, key = {} if _listings is None else _listings, (root, csv, nested)
    if key in listings:
        rows, unused = listings[key]
        skipped.extend(unused)
        return rows
    if csv is not None:
        rows = list(_csv_rows(root, Path(csv), skipped))
    else:
        rows = list(_folder_rows(root, skipped, split, nested))
    if csv is not None or not any(part for _, _, part in rows):  # of split folders, only the requested one was read
        listings[key] = rows, list(skipped)
    if rows:
        return rows
    if csv is not None:
        raise SOURCE.layout_error(f"{root / csv} lists no images.")
    reasons = Counter([each.reason for each in skipped])
    if loose := reasons[OUTSIDE_CLASS_FOLDERS]:
        raise SOURCE.layout_error(
            f"{root} has {number_of(loose, 'image')} but no class folders. Give a folder with one folder per class; "
            f"if {root.name or 'this'} is one of the classes, give the folder that contains it."
        )
    left_out = f"; left out: {counted(reasons)}" if reasons else ""
    raise SOURCE.layout_error(f"no images below {root} (looked for {', '.join(sorted(IMAGE_SUFFIXES))}{left_out}).")


def _test_classes(rows: list[Row], root: Path, class_split: str, test_share: float, split_seed: int) -> frozenset[str]:
    sizes = Counter([label for _, label, _ in rows])
    classes = sorted(sizes)
    if len(classes) < 2:
        raise DataError(
            f"{root}: a single class ({classes[0]!r}) cannot be split into train and test: put each class into a folder of "
            "its own."
        )
    if class_split == "alphabet":
        return frozenset(classes[(len(classes) + 1) // 2 :])
    held_out = held_out_classes(np.array([sizes[name] for name in classes]), test_share, split_seed)
    return frozenset([classes[number] for number in held_out.tolist()])


def _other_classes(rows: list[Row], root: Path, train_classes: Sequence[str]) -> frozenset[str]:
    """The classes that are not in ``train_classes``."""
    classes, train = {label for _, label, _ in rows}, set(train_classes)
    if not classes & train:
        count, names = number_of(len(train), "class"), some_names(sorted(train))
        raise DataError(
            f"{root}: none of the {count} of {_TRAIN_CLASSES} is here ({names}). Give the folder that has them."
        )
    if classes <= train:
        raise DataError(f"{root}: every class is one of {_TRAIN_CLASSES}, so that none is left for testing.")
    if missing := sorted(train - classes):
        count = number_of(len(missing), "class of train_classes is/classes of train_classes are")
        warnings.warn(
            f"{root}: {count} not here ({some_names(missing)}). Under another name, a class is for testing.",
            DataWarning,
            stacklevel=4,
        )
    return frozenset(classes - train)


def _csv_rows(root: Path, csv: Path, skipped: list[SkippedFile]) -> Iterator[Row]:
    path = root / csv
    if not path.is_file():
        raise SOURCE.layout_error(f"{path} is missing.")
    rows: dict[str, tuple[int, Row]] = {}
    halves: set[bool] = set()
    for line, row in read_csv(path, ("path", "label"), ("split",)):
        name, part = relative_to(root, row["path"]), SPLIT_OF.get(row["split"].lower(), row["split"])
        first, before = rows.setdefault(name, (line, (name, row["label"], part)))
        if before != (name, row["label"], part):
            raise DataError(
                f"{path}, line {line}: {name!r} is already listed in line {first}, with another label or split. Remove "
                "one of the two."
            )
        if first != line:
            skipped.append(SkippedFile(name, LISTED_TWICE))
            continue
        halves.add(bool(part))
        if len(halves) > 1:
            raise DataError(f"{path}, line {line}: fill 'split' in every row or in none.")
        yield name, row["label"], part


def _folder_rows(root: Path, skipped: list[SkippedFile], split: str, nested: bool) -> Iterator[Row]:
    if not root.is_dir():
        raise SOURCE.layout_error(f"{root} is not a folder.")
    parts = find_parts(root)
    if not parts and not nested and (inner := find_inner_classes(root)) is not None:
        raise DataError(inner.question())
    if not parts:
        for name, label in class_images(root, "", skipped):
            yield name, label, ""
        return
    entries = [entry for entry in visible_entries(root) if entry.name not in parts.values()]
    if others := sorted(entry.name for entry in entries if is_folder(entry)):
        warnings.warn(
            f"{root}: read as train/test folders, so {some_names(others, 5)} next to them is left out.",
            DataWarning,
            stacklevel=2,
        )
    part_of_split = part_to_use(split, parts)
    reading = [part_of_split] if part_of_split in parts else list(parts)
    # Files beside the splits belong to none of them. Only the first split counts them, so that no sum has them twice.
    if next(part for part in PARTS if part in parts) in reading:
        files = [entry for entry in entries if not is_folder(entry) and is_image(entry, entry.name, skipped)]
        skipped += [SkippedFile(file.name, OUTSIDE_SPLIT_FOLDERS) for file in files]
    for part in reading:
        for name, label in class_images(root, parts[part], skipped):
            yield name, label, part


SOURCE = Source(
    name="folder",
    title="Your own images, in class folders or listed in a CSV file",
    read=read,
    splits=("train", "test", "val", "all"),
    layout="root/<class>/<image>, or root/{train,test}/<class>/<image>, or a CSV file with path,label[,split]",
    homepage="your own disk",
    licence="yours",
    find_splits=find_splits,
)
SOURCES = (SOURCE,)
