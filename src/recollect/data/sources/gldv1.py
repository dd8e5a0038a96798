"""Google Landmarks, first version: photos of landmarks from the web, to train for instance search.

Published as a list of URLs, so every copy lacks many photos: these are skipped and counted, and landmarks with
fewer than ``min_images`` photos left are dropped. There is no test part; use ``roxford5k`` and ``rparis6k``.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np

from recollect.common.errors import DataError, DataWarning
from recollect.data.image_set import ImageSet
from recollect.data.listing import as_number, make_set, need, read_csv
from recollect.data.registry import Counts, Source

FOLDERS = ("", "train", "images", "jpg")
PUBLIC = Counts(1_225_029, 14_951)
"""Rows and landmarks of the public file, before missing photos and small landmarks are removed."""


def read(root: Path, split: str, *, missing: str = "drop", min_images: int = 4) -> ImageSet:
    """Read ``train.csv`` and keep the photos that exist.

    Args:
        root: the folder of ``train.csv`` and of the photos, which are next to it or in ``train``, ``images`` or ``jpg``.
        split: ``"train"``.
        missing: what to do with missing photos; by default they are skipped.
        min_images: landmarks with fewer photos are dropped.
    """
    path = need(SOURCE, root / "train.csv")
    identities, classes = [], []
    for _, row in read_csv(path, ("id", "landmark_id")):
        if "/" in row["id"] or "\\" in row["id"]:
            raise DataError(f"{path}: {row['id']!r} is not an image id.")
        if row["landmark_id"] != "None":  # the public file marks rows without a landmark this way
            identities.append(row["id"])
            classes.append(as_number(row["landmark_id"], path, "landmark_id"))
    folder = _image_folder(root, identities)
    names = [f"{folder}{identity}.jpg" for identity in identities]
    images = make_set(SOURCE, root, split, names, classes, missing=missing)
    large = images.class_sizes >= min_images
    if not large.any():
        raise SOURCE.trouble(
            f"no landmark below {root} has {min_images} photos: complete the copy, or lower min_images."
        )
    if not large.all():
        small = int((~large).sum())
        warnings.warn(
            f"gldv1: {small:,} of {len(large):,} landmarks have fewer than {min_images} photos and are dropped "
            f"({int(images.class_sizes[~large].sum()):,} photos).",
            DataWarning,
            stacklevel=3,
        )
    return images.of_classes(np.flatnonzero(large))


def _image_folder(root: Path, identities: list[str]) -> str:
    """The first of ``FOLDERS`` that contains any of the photos, as a prefix."""
    wanted = {f"{identity}.jpg" for identity in identities}
    for folder in FOLDERS:
        if (root / folder).is_dir() and any(path.name in wanted for path in (root / folder).iterdir()):
            return f"{folder}/" if folder else ""
    places = ", ".join(str(root / folder) for folder in FOLDERS)
    raise SOURCE.trouble(f"none of the {len(identities):,} photos of train.csv is in {places}.")


SOURCE = Source(
    name="gldv1",
    title="Google Landmarks v1: photos of landmarks, to train for instance search",
    read=read,
    splits=("train",),
    layout="root/train.csv with the columns id,url,landmark_id, and <id>.jpg in root or its train, images or jpg",
    homepage="https://www.kaggle.com/c/landmark-recognition-challenge/data",
    licence="terms on its page; each photo under its owner's licence",
    published={"train": Counts(1_060_709, 12_894)},
    test_splits=(),
)
SOURCES = (SOURCE,)
