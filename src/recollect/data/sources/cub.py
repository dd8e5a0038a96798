"""CUB-200-2011: photos of birds, by species; the first 100 species are for training, the other 100 for testing."""

from __future__ import annotations

from pathlib import Path

from recollect.common.errors import DataError
from recollect.data.image_set import ImageSet
from recollect.data.listing import as_number, make_set, need, read_fields
from recollect.data.registry import Counts, Source

TRAINING = 100


def read(root: Path, split: str, *, missing: str = "error") -> ImageSet:
    """Read ``images.txt`` and ``image_class_labels.txt``; the published train/test flag is not used."""
    files, labels = need(SOURCE, root / "images.txt"), need(SOURCE, root / "image_class_labels.txt")
    class_of = {
        image: as_number(label, labels, "class_id") for image, label in read_fields(labels, 2, "image_id class_id")
    }
    names, classes, titles = [], [], {}
    for image, name in read_fields(files, 2, "image_id path"):
        if image not in class_of:
            raise DataError(f"{labels}: image {image} of {files.name} has no class.")
        if (class_of[image] <= TRAINING) == (split == "train"):
            names.append(f"images/{name}")
            classes.append(class_of[image])
            titles[class_of[image]] = name.split("/")[0]
    return make_set(SOURCE, root, split, names, classes, missing=missing, titles=titles)


SOURCE = Source(
    name="cub",
    title="CUB-200-2011: photos of birds, by species",
    read=read,
    splits=("train", "test"),
    layout="root/images.txt, root/image_class_labels.txt and root/images/<species>/<file>.jpg",
    homepage="https://www.vision.caltech.edu/datasets/cub_200_2011/",
    licence="non-commercial research and education",
    published={"train": Counts(5_864, 100), "test": Counts(5_924, 100)},
)
SOURCES = (SOURCE,)
