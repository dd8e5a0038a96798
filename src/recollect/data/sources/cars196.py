"""Cars196 (Stanford Cars): photos of cars, by model; the first 98 models are for training, the other 98 for testing.

There are three forms: the original with ``cars_annos.mat``; class folders, as in most copies today; and the development
kit, as in torchvision and on Kaggle: ``cars_train``, ``cars_test`` and lists with the models' numbers for both. Class
folders are in alphabetical order. The other forms order models by maker only: the first 98 are the same, but the first 49,
on which the paper's validation trains, differ in one (the 50th is the Buick Verano here and the Buick Enclave there). The
published train/test flag is for classification and is ignored, and so are the boxes: this benchmark uses whole photos.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from recollect.common.errors import DataError, require
from recollect.data.image_files import class_images
from recollect.data.image_set import ImageSet
from recollect.data.listing import make_set, need
from recollect.data.registry import Counts, Source

CLASSES, TRAINING = 196, 98


def read(root: Path, split: str, *, missing: str = "error") -> ImageSet:
    """Read the form that is present; if both are, ``cars_annos.mat`` is used if its photos exist."""
    annotations = root / "cars_annos.mat"
    kit = _find_kit(root)
    if annotations.exists() and (kit is None or (root / "car_ims").is_dir()):
        rows = _mat_rows(annotations)
    else:
        rows = _folder_rows(root) if kit is None else _kit_rows(root, kit)
    chosen = [row for row in rows if (row[1] <= TRAINING) == (split == "train")]
    return make_set(
        SOURCE,
        root,
        split,
        [name for name, _, _ in chosen],
        [number for _, number, _ in chosen],
        missing=missing,
        titles={number: title for _, number, title in chosen},
    )


Row = tuple[str, int, str]  # path, number of the model from 1, its name


def _mat_rows(path: Path) -> list[Row]:
    rows = _annotations(path, 0, 5)
    return _titled(rows, _titles(path), path)


def _kit_rows(root: Path, kit: Path) -> list[Row]:
    """The photos of both lists; their numbers repeat, so they are named by their folder."""
    tests = [place / f"cars_test_annos_with{gap}labels.mat" for place in (root, kit, kit.parent) for gap in ("", "_")]
    labelled = next((path for path in tests if path.is_file()), None)
    if labelled is None:
        raise SOURCE.trouble(
            f"cars_test_annos_withlabels.mat is not in {root} or {kit}. It is needed because the kit's cars_test_annos.mat "
            "has no classes, and half of the photos of every model are among the test photos."
        )
    rows: list[tuple[str, int]] = []
    for path, part in ((kit / "cars_train_annos.mat", "cars_train"), (labelled, "cars_test")):
        # Kaggle's copy has each folder inside one of the same name.
        folder = f"{part}/{part}" if (root / part / part).is_dir() else part
        rows += [(f"{folder}/{name}", number) for name, number in _annotations(path, "fname", "class")]
    meta = kit / "cars_meta.mat"
    return _titled(rows, _titles(meta), meta)


def _find_kit(root: Path) -> Path | None:
    """The folder with the kit's lists below ``root``."""
    places = (root / "devkit", root / "car_devkit" / "devkit", root)
    return next((place for place in places if (place / "cars_train_annos.mat").is_file()), None)


def _annotations(path: Path, name: str | int, model: str | int) -> list[tuple[str, int]]:
    """Path and number of the model of each photo in a list; ``name`` and ``model`` are the fields to read."""
    content = _read_mat(path)
    try:
        records = np.atleast_1d(content["annotations"])
        return [(str(record[name]), int(record[model])) for record in records]
    except Exception as error:
        raise DataError(f"{path}: not the annotations of Cars196 ({type(error).__name__}: {error}).") from error


def _titles(path: Path) -> list[str]:
    try:
        return [str(title) for title in np.atleast_1d(_read_mat(path)["class_names"]).tolist()]
    except (KeyError, TypeError) as error:
        raise DataError(f"{path}: has no class names ({type(error).__name__}: {error}).") from error


def _titled(rows: list[tuple[str, int]], titles: list[str], path: Path) -> list[Row]:
    numbers = {number for _, number in rows}
    if not numbers <= set(range(1, len(titles) + 1)):
        raise DataError(
            f"{path}: classes must be numbers from 1 to {len(titles)}, but there are numbers up to {max(numbers)}."
        )
    return [(name, number, titles[number - 1]) for name, number in rows]


def _read_mat(path: Path) -> Any:
    loadmat = require("scipy.io", "cars196", f"reading {path.name}").loadmat
    try:
        return loadmat(need(SOURCE, path), squeeze_me=True)
    except DataError:
        raise
    # A damaged file can raise scipy's own exceptions and almost any other exception.
    except Exception as error:
        raise DataError(f"{path}: not the annotations of Cars196 ({type(error).__name__}: {error}).") from error


def _folder_rows(root: Path) -> list[Row]:
    # Copies made for classification have the same models below train/ and test/; both together are the data set.
    parts = [part for part in ("train", "test") if (root / part).is_dir()]
    found = [row for part in parts or [""] for row in class_images(root, part, Counter())]
    titles = sorted({title for _, title in found})
    if len(titles) != CLASSES:
        raise SOURCE.trouble(
            f"there is no cars_annos.mat in {root}, and it has {len(titles)} class folders with images instead of {CLASSES}."
        )
    numbers = {title: number for number, title in enumerate(titles, start=1)}
    return [(name, numbers[title], title) for name, title in found]


SOURCE = Source(
    name="cars196",
    title="Cars196 (Stanford Cars): photos of cars, by model and year",
    read=read,
    splits=("train", "test"),
    layout=(
        "root/cars_annos.mat and root/car_ims/<number>.jpg; or 196 class folders: root/<model>/<image> "
        "or root/{train,test}/<model>/<image>; or root/devkit/{cars_meta,cars_train_annos}.mat, "
        "root/cars_test_annos_withlabels.mat and root/{cars_train,cars_test}/<number>.jpg"
    ),
    homepage="https://ai.stanford.edu/~jkrause/cars/car_dataset.html (often down; most copies are class folders)",
    licence="non-commercial research",
    published={"train": Counts(8_054, 98), "test": Counts(8_131, 98)},
)
SOURCES = (SOURCE,)
