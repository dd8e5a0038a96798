"""PKU VehicleID: vehicles seen by road cameras, by licence plate; three test lists of growing size."""

from __future__ import annotations

from pathlib import Path

from recollect.data.image_set import ImageSet
from recollect.data.listing import as_number, make_set, need, read_fields
from recollect.data.registry import Counts, Source

LISTS = {
    "train": "train_list",
    "test": "test_list_800",
    "test_small": "test_list_800",
    "test_medium": "test_list_1600",
    "test_large": "test_list_2400",
}


def read(root: Path, split: str, *, missing: str = "error") -> ImageSet:
    """Read the list of a split; ``"test"`` is the small one. A class is a vehicle, by its number."""
    path = need(SOURCE, root / "train_test_split" / f"{LISTS[split]}.txt")
    names, classes = [], []
    for image, vehicle in read_fields(path, 2, "image_id vehicle_id"):
        names.append(f"image/{as_number(image, path, 'image_id'):07d}.jpg")
        classes.append(as_number(vehicle, path, "vehicle_id"))
    return make_set(SOURCE, root, split, names, classes, missing=missing)


_SMALL, _SMALL_V1 = Counts(7_332, 800), Counts(6_493, 800)
SOURCE = Source(
    name="vehicleid",
    title="PKU VehicleID: vehicles seen by road cameras; tests small, medium, large",
    read=read,
    splits=("train", "test", "test_small", "test_medium", "test_large"),
    layout=(
        "root/train_test_split/{train_list,test_list_800,test_list_1600,test_list_2400}.txt "
        "and root/image/<image_id, 7 digits>.jpg"
    ),
    homepage="https://www.pkuml.org/resources/pku-vehicleid.html (on request)",
    licence="research use, by agreement with Peking University",
    published={
        "train": Counts(110_178, 13_134),
        "test": _SMALL,
        "test_small": _SMALL,
        "test_medium": Counts(12_995, 1_600),
        "test_large": Counts(20_038, 2_400),
    },
    distributed={  # V1.0, as other public loaders count it
        "train": Counts(113_346, 13_164),
        "test": _SMALL_V1,
        "test_small": _SMALL_V1,
        "test_medium": Counts(13_377, 1_600),
        "test_large": Counts(19_777, 2_400),
    },
    test_splits=("test_small", "test_medium", "test_large"),
)
SOURCES = (SOURCE,)
