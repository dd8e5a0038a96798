"""The paper's data sets in their true formats, a few coloured patterns each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from recipes import landmarks


def images(root: Path, names: list[str], label: int) -> Iterator[str]:
    """Write images of one class: a pattern of its own with noise."""
    random = np.random.default_rng(label)
    pattern = np.kron(random.integers(0, 256, (4, 4, 3)), np.ones((8, 8, 1)))
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        noisy = (pattern + random.normal(0, 40, pattern.shape)).clip(0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(path, format="JPEG")
        yield name


def write(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


CLASSES = {"train": range(8), "test": range(8, 12)}
EACH = 5


def make_inaturalist(root: Path) -> None:
    for split, labels in CLASSES.items():
        names = [
            name
            for label in labels
            for name in images(root, [f"train_val2018/Aves/{label}/{i}.jpg" for i in range(EACH)], label)
        ]
        write(root / "Inat_dataset_splits" / f"Inaturalist_{split}_set1.txt", names)


def make_sop(root: Path) -> None:
    for split, labels in CLASSES.items():
        lines = ["image_id class_id super_class_id path"]
        for label in labels:
            for name in images(root, [f"chair_final/{label}_{i}.JPG" for i in range(EACH)], label):
                lines.append(f"{len(lines)} {label + 1} 1 {name}")
        write(root / f"Ebay_{split}.txt", lines)


def make_vehicleid(root: Path) -> None:
    lists = {"train_list": CLASSES["train"], **{f"test_list_{n}": CLASSES["test"] for n in (800, 1600, 2400)}}
    for name, labels in lists.items():
        numbers = {label: [10 * label + i for i in range(EACH)] for label in labels}
        for label, mine in numbers.items():
            list(images(root, [f"image/{number:07d}.jpg" for number in mine], label))
        write(root / "train_test_split" / f"{name}.txt", [f"{n} {label}" for label in labels for n in numbers[label]])


def make_cars196(root: Path) -> None:
    """Class folders, the form most copies are in: 98 models train, of which most have one image only."""
    for label in range(196):
        few = EACH if label < 8 or label >= 194 else 1
        list(images(root, [f"Model {label:03d}/{i}.jpg" for i in range(few)], label))


def make_gldv1(root: Path) -> None:
    """40 landmarks of 4 photos: enough pairs of one class to learn a whitening of 192 dimensions; and its validation."""
    landmarks.make_gldv1(root, range(40), each=4)
    landmarks.make_sfm(root, range(100, 103))


MAKERS: dict[str, Callable[[Path], None]] = {
    "inaturalist": make_inaturalist,
    "sop": make_sop,
    "vehicleid": make_vehicleid,
    "cars196": make_cars196,
    "gldv1": make_gldv1,
}
