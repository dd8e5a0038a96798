"""Cars196 (Stanford Cars): photos of cars, by model; the first 98 models train, the other 98 test.

Two forms: the original with ``cars_annos.mat``, and class folders, the form most copies are in today. In the second the
models are in alphabetical order, which is their order in the first. The published train/test flag is for classification
and is ignored, and so are the boxes: this benchmark uses whole photos.
"""

from __future__ import annotations

from pathlib import Path

from recollect.common.errors import DataError
from recollect.common.imports import require
from recollect.data.image_set import ImageSet
from recollect.data.listing import make_set
from recollect.data.registry import Counts, Source
from recollect.data.sources.folder import class_images

CLASSES, TRAINING = 196, 98


def read(root: Path, split: str, *, missing: str = "error", allow_outside: bool = False) -> ImageSet:
    """Read either form: ``cars_annos.mat`` when it is there, class folders otherwise."""
    annotations = root / "cars_annos.mat"
    rows = _mat_rows(annotations) if annotations.exists() else _folder_rows(root, allow_outside)
    chosen = [row for row in rows if (row[1] <= TRAINING) == (split == "train")]
    return make_set(
        SOURCE,
        root,
        split,
        [name for name, _, _ in chosen],
        [number for _, number, _ in chosen],
        missing=missing,
        allow_outside=allow_outside,
        titles={number: title for _, number, title in chosen},
    )


Row = tuple[str, int, str]  # path, number of the model from 1, its name


def _mat_rows(path: Path) -> list[Row]:
    loadmat = require("scipy.io", "cars196", "reading cars_annos.mat").loadmat
    try:
        content = loadmat(path, squeeze_me=True)
        titles = [str(title) for title in content["class_names"].tolist()]
        rows = [(str(record[0]), int(record[5])) for record in content["annotations"].tolist()]
    # A damaged file fails in scipy's own exceptions and in nearly any other way.
    except Exception as error:
        raise DataError(f"{path}: not the annotations of Cars196 ({type(error).__name__}: {error}).") from error
    numbers = {number for _, number in rows}
    if not numbers <= set(range(1, len(titles) + 1)):
        raise DataError(f"{path}: classes should be numbers from 1 to {len(titles)}, found up to {max(numbers)}.")
    return [(name, number, titles[number - 1]) for name, number in rows]


def _folder_rows(root: Path, allow_outside: bool) -> list[Row]:
    # Copies made for classification have the same models below train/ and test/: together they are the whole.
    parts = [part for part in ("train", "test") if (root / part).is_dir()]
    found = [row for part in parts or [""] for row in class_images(root, part, allow_outside)]
    titles = sorted({title for _, title in found})
    if len(titles) != CLASSES:
        raise SOURCE.trouble(
            f"no cars_annos.mat in {root}, and {len(titles)} class folders with images instead of {CLASSES}."
        )
    numbers = {title: number for number, title in enumerate(titles, start=1)}
    return [(name, numbers[title], title) for name, title in found]


SOURCE = Source(
    name="cars196",
    title="Cars196 (Stanford Cars): photos of cars, by model and year",
    read=read,
    splits=("train", "test"),
    layout=(
        "root/cars_annos.mat and root/car_ims/<number>.jpg, or 196 class folders: root/<model>/<image> "
        "or root/{train,test}/<model>/<image>"
    ),
    homepage="https://ai.stanford.edu/~jkrause/cars/car_dataset.html (often down; most copies are class folders)",
    licence="non-commercial research",
    published={"train": Counts(8_054, 98), "test": Counts(8_131, 98)},
)
SOURCES = (SOURCE,)
