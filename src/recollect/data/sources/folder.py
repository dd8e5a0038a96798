"""Your own images: class folders, train/test folders of class folders, or a CSV file.

- ``root/<class>/<image>``: the first half of the sorted classes trains, the rest tests.
- ``root/{train,test[,val]}/<class>/<image>``: as it stands. Who asks for one part has no look at the others, which need
  not even be there.
- ``root/<file>.csv`` with the columns ``path,label[,split]``: paths relative to the CSV's folder; without a split, as
  the first form.

Class folders may hold folders themselves; hidden files and files that are not images are passed over.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path

from recollect.common.decode import IMAGE_SUFFIXES
from recollect.common.errors import DataError, DataWarning
from recollect.common.files import inside
from recollect.data.image_set import ImageSet
from recollect.data.listing import make_set, read_csv
from recollect.data.registry import Source
from recollect.data.splits import first_half

PARTS = ("train", "test", "val")


def read(
    root: Path, split: str, *, csv: str | Path | None = None, missing: str = "error", allow_outside: bool = False
) -> ImageSet:
    """Read a folder in one of the three forms.

    Args:
        root: the folder, or the CSV file itself.
        split: ``"train"``, ``"test"``, ``"val"``, ``"all"``, or a word from the CSV's split column.
        csv: the CSV file, relative to ``root``; the folder form is read without it.
        missing: what to do about files the CSV lists that are not there: ``"error"``, ``"drop"``, ``"keep"``.
        allow_outside: whether CSV paths and symbolic links may leave ``root``.
    """
    if root.is_file() and csv is None:
        root, csv = root.parent, root.name
    rows = _rows(root, csv, allow_outside, split)
    parts = sorted({part for _, _, part in rows if part})
    if split == "all":
        chosen = rows
    elif parts:
        chosen = [row for row in rows if row[2] == split]
        if not chosen:
            raise DataError(f"{root}: no images of the split {split!r}; there are {', '.join(map(repr, parts))}.")
    else:
        chosen = _half(rows, split, root)
    names, classes = [row[0] for row in chosen], [row[1] for row in chosen]
    # The folder form lists what is there, so only a CSV can name files that are not.
    policy = missing if csv is not None else "keep"
    return make_set(SOURCE, root, split, names, classes, missing=policy, allow_outside=allow_outside)


def find_splits(root: Path, *, csv: str | Path | None = None, allow_outside: bool = False) -> tuple[str, ...]:
    """The splits this copy has, ``"train"`` first."""
    if root.is_file() and csv is None:
        root, csv = root.parent, root.name
    parts = {part for _, _, part in _rows(root, csv, allow_outside) if part} or {"train", "test"}
    return tuple(sorted(parts, key=lambda part: (part != "train", part)))


Row = tuple[str, str, str]  # path relative to the root, class, split or ""


def _rows(root: Path, csv: str | Path | None, allow_outside: bool, split: str = "all") -> list[Row]:
    rows = list(_csv_rows(root, Path(csv)) if csv is not None else _folder_rows(root, allow_outside, split))
    if not rows:
        raise SOURCE.trouble(f"no images below {root} (looked for {', '.join(sorted(IMAGE_SUFFIXES))}).")
    return rows


def _half(rows: list[Row], split: str, root: Path) -> list[Row]:
    classes = sorted({row[1] for row in rows})
    if split not in ("train", "test"):
        raise DataError(
            f"{root}: without a split of its own, it has the splits 'train', 'test' and 'all', not {split!r}."
        )
    if len(classes) < 2:
        raise DataError(
            f"{root}: one class ({classes[0]!r}) cannot be split into train and test: put each class into a folder of "
            "its own, or use split='all'."
        )
    training, testing = first_half(classes)
    wanted = set(training if split == "train" else testing)
    return [row for row in rows if row[1] in wanted]


def _csv_rows(root: Path, csv: Path) -> Iterator[Row]:
    path = root / csv
    if not path.is_file():
        raise SOURCE.trouble(f"{path} is missing.")
    seen: dict[str, int] = {}
    halves: set[bool] = set()
    for line, row in read_csv(path, ("path", "label"), ("split",)):
        name, part = row["path"], row["split"]
        if name in seen:
            raise DataError(f"{path}, line {line}: {name!r} is there already, in line {seen[name]}.")
        seen[name] = line
        halves.add(bool(part))
        if len(halves) > 1:
            raise DataError(f"{path}, line {line}: fill 'split' in every row or in none.")
        yield name, row["label"], part


def _folder_rows(root: Path, allow_outside: bool, split: str) -> Iterator[Row]:
    if not root.is_dir():
        raise SOURCE.trouble(f"{root} is not a folder.")
    parts = [part for part in PARTS if (root / part).is_dir()]
    if "train" not in parts or (len(parts) < 2 and not _holds_only_train(root)):
        yield from ((name, label, "") for name, label in class_images(root, "", allow_outside))
        return
    others = [entry for entry in _visible(root) if entry not in parts and (root / entry).is_dir()]
    if others:
        warnings.warn(
            f"{root}: read as train/test folders, so {', '.join(others[:5])} beside them is passed over.",
            DataWarning,
            stacklevel=2,
        )
    for part in [split] if split in parts else parts:
        yield from ((name, label, part) for name, label in class_images(root, part, allow_outside))


def _holds_only_train(root: Path) -> bool:
    """Whether ``train`` is the only folder and has folders itself: a training set whose test set lies elsewhere."""
    folders = [entry for entry in _visible(root) if (root / entry).is_dir()]
    return folders == ["train"] and any((root / "train" / entry).is_dir() for entry in _visible(root / "train"))


def class_images(root: Path, part: str, allow_outside: bool) -> Iterator[tuple[str, str]]:
    """Path relative to ``root`` and class of every image in the class folders below ``root/part`` (or ``root``)."""
    loose = 0
    for entry in _visible(root / part):
        relative = f"{part}/{entry}" if part else entry
        if (root / relative).is_dir():
            for name in walk_images(root, relative, allow_outside):
                yield name, entry
        else:
            loose += Path(entry).suffix.lower() in IMAGE_SUFFIXES
    if loose:
        warnings.warn(
            f"{root / part}: {loose:,} images lie beside the class folders and are passed over; "
            "put each into a folder named after its class.",
            DataWarning,
            stacklevel=2,
        )


def walk_images(root: Path, folder: str, allow_outside: bool, above: frozenset[str] = frozenset()) -> Iterator[str]:
    """Every image below ``root/folder``, sorted, as paths relative to ``root``.

    Links are followed inside the root, and out of it only when allowed; a link to a folder above itself is not.
    """
    real = os.path.realpath(inside(root, folder, allow_outside=allow_outside))
    if real in above:
        return
    for entry in _visible(root / folder):
        name = f"{folder}/{entry}"
        path = root / name
        if path.is_dir():
            yield from walk_images(root, name, allow_outside, above | {real})
        elif path.suffix.lower() in IMAGE_SUFFIXES:
            if path.is_symlink():
                inside(root, name, allow_outside=allow_outside)
            yield name


def _visible(folder: Path) -> list[str]:
    return sorted(entry for entry in os.listdir(folder) if not entry.startswith((".", "__MACOSX")))  # noqa: PTH208


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
