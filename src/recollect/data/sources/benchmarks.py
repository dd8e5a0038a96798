"""Benchmarks with classes: Stanford Online Products, CUB, Cars196, iNaturalist, VehicleID, Google Landmarks v1.

Each is a function that reads its publisher's lists, and a ``Source`` that describes it.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from recollect.common.errors import DataError, DataWarning, require
from recollect.data.folders import class_images
from recollect.data.image_set import ImageSet
from recollect.data.registry import Counts, Source, make_set, without_missing
from recollect.data.tables import as_number, need, read_csv, read_fields, read_lines

_SOP_COLUMNS = "image_id class_id super_class_id path"


def read_sop(root: Path, split: str) -> ImageSet:
    """Read the list of a split; a class is a product, by its number; the coarser one its kind."""
    path = need(SOP, root / f"Ebay_{split}.txt")
    rows = read_fields(path, 4, _SOP_COLUMNS)
    header = next(rows, None)
    if header != _SOP_COLUMNS.split():
        raise SOP.layout_error(f"the first line of {path} must be {_SOP_COLUMNS!r}, but is {' '.join(header or [])!r}.")
    names, classes, coarse = [], [], {}
    for _, label, _, name in rows:
        names.append(name)
        classes.append(as_number(label, path, "class_id"))
        # The super-class is taken from its folder, whose name corresponds to super_class_id.
        coarse[classes[-1]] = name.split("/")[0].removesuffix("_final")
    return make_set(SOP, root, split, names, classes, coarse=coarse)


SOP = Source(
    name="sop",
    title="Stanford Online Products: shop photos, by product",
    read=read_sop,
    splits=("train", "test"),
    layout="root/Ebay_{train,test}.txt and root/<category>_final/<file>.JPG",
    homepage="https://cvgl.stanford.edu/projects/lifted_struct/",
    licence="research use; the photos belong to their sellers",
    published={"train": Counts(59_551, 11_318), "test": Counts(60_502, 11_316)},
)


def read_cub(root: Path, split: str) -> ImageSet:
    """The first 100 species are for training, the other 100 for testing; the published flag is not used."""
    files, labels = need(CUB, root / "images.txt"), need(CUB, root / "image_class_labels.txt")
    class_of = {
        image: as_number(label, labels, "class_id") for image, label in read_fields(labels, 2, "image_id class_id")
    }
    names, classes, titles = [], [], {}
    for image, name in read_fields(files, 2, "image_id path"):
        if image not in class_of:
            raise DataError(f"{labels}: image {image} of {files.name} has no class.")
        if (class_of[image] <= 100) == (split == "train"):
            names.append(f"images/{name}")
            classes.append(class_of[image])
            titles[class_of[image]] = name.split("/")[0]
    return make_set(CUB, root, split, names, classes, titles=titles)


CUB = Source(
    name="cub",
    title="CUB-200-2011: photos of birds, by species",
    read=read_cub,
    splits=("train", "test"),
    layout="root/images.txt, root/image_class_labels.txt and root/images/<species>/<file>.jpg",
    homepage="https://www.vision.caltech.edu/datasets/cub_200_2011/",
    licence="non-commercial research and education",
    published={"train": Counts(5_864, 100), "test": Counts(5_924, 100)},
)


def read_cars196(root: Path, split: str) -> ImageSet:
    """The first 98 models are for training, the other 98 for testing.

    There are three forms: the original with ``cars_annos.mat``, which is used if its photos exist; class folders, as in most
    copies today; and the development kit, as in torchvision and on Kaggle: ``cars_train``, ``cars_test`` and lists with the
    models' numbers for both. Class folders are in alphabetical order. The other forms order models by maker only: the first
    98 are the same, but the first 49, on which the paper's validation trains, differ in one (the 50th is the Buick Verano
    here and the Buick Enclave there). The published train/test flag is for classification and is ignored, and so are the
    boxes: this benchmark uses whole photos.
    """
    annotations = root / "cars_annos.mat"
    kit = _find_kit(root)
    if annotations.exists() and (kit is None or (root / "car_ims").is_dir()):
        rows = _titled(_annotations(annotations, 0, 5), annotations)
    else:
        rows = _folder_rows(root) if kit is None else _kit_rows(root, kit)
    rows_of_split = [row for row in rows if (row[1] <= 98) == (split == "train")]
    names, numbers = [name for name, _, _ in rows_of_split], [number for _, number, _ in rows_of_split]
    return make_set(CARS196, root, split, names, numbers, titles={number: title for _, number, title in rows})


Row = tuple[str, int, str]  # path, number of the model from 1, its name


def _kit_rows(root: Path, kit: Path) -> list[Row]:
    """The photos of both lists; their numbers repeat, so they are named by their folder."""
    tests = [place / f"cars_test_annos_with{gap}labels.mat" for place in (root, kit, kit.parent) for gap in ("", "_")]
    labelled = next((path for path in tests if path.is_file()), None)
    if labelled is None:
        raise CARS196.layout_error(
            f"cars_test_annos_withlabels.mat is not in {root} or {kit}. It is needed because the kit's cars_test_annos.mat "
            "has no classes, and half of the photos of every model are among the test photos."
        )
    rows: list[tuple[str, int]] = []
    for path, part in ((kit / "cars_train_annos.mat", "cars_train"), (labelled, "cars_test")):
        # Kaggle's copy has each folder inside one of the same name.
        folder = f"{part}/{part}" if (root / part / part).is_dir() else part
        rows += [(f"{folder}/{name}", number) for name, number in _annotations(path, "fname", "class")]
    return _titled(rows, kit / "cars_meta.mat")


def _find_kit(root: Path) -> Path | None:
    """The folder with the kit's lists below ``root``."""
    places = (root / "devkit", root / "car_devkit" / "devkit", root)
    return next((place for place in places if (place / "cars_train_annos.mat").is_file()), None)


def _annotations(path: Path, name: str | int, model: str | int) -> list[tuple[str, int]]:
    """Path and number of the model of each photo in a list; ``name`` and ``model`` are the fields to read."""
    return [(str(record[name]), int(record[model])) for record in _read_mat(path, "annotations")]


def _titled(rows: list[tuple[str, int]], path: Path) -> list[Row]:
    """``rows`` with the names of the models, which are in another file or in the same one."""
    titles = [str(title) for title in _read_mat(path, "class_names")]
    if not {number for _, number in rows} <= set(range(1, len(titles) + 1)):
        raise DataError(f"{path}: the models must have numbers from 1 to {len(titles)}.")
    return [(name, number, titles[number - 1]) for name, number in rows]


def _read_mat(path: Path, key: str) -> Any:
    loadmat, path = require("scipy.io", "cars196", f"reading {path.name}").loadmat, need(CARS196, path)
    try:
        return np.atleast_1d(loadmat(path, squeeze_me=True)[key])
    # A damaged file can raise scipy's own exceptions and almost any other exception.
    except Exception as error:
        raise DataError(f"{path}: not the {key} of Cars196 ({type(error).__name__}: {error}).") from error


def _folder_rows(root: Path) -> list[Row]:
    # Copies made for classification have the same models below train/ and test/; both together are the data set.
    parts = [part for part in ("train", "test") if (root / part).is_dir()]
    rows = [row for part in parts or [""] for row in class_images(root, part, [])]
    titles = sorted({title for _, title in rows})
    if len(titles) != 196:
        raise CARS196.layout_error(
            f"there is no cars_annos.mat in {root}, and it has {len(titles)} class folders with images instead of 196."
        )
    numbers = {title: number for number, title in enumerate(titles, start=1)}
    return [(name, numbers[title], title) for name, title in rows]


CARS196 = Source(
    name="cars196",
    title="Cars196 (Stanford Cars): photos of cars, by model and year",
    read=read_cars196,
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


def read_inaturalist(root: Path, split: str) -> ImageSet:
    """Read the list of a split; a class is ``<super-category>/<category>``, the coarser one its first half."""
    path = need(INATURALIST, root / "Inat_dataset_splits" / f"Inaturalist_{split}_set1.txt")
    names, classes = [], []
    for number, name in read_lines(path):
        parts = name.split("/")
        if len(parts) < 3:
            raise DataError(
                f"{path}, line {number}: expected 'train_val2018/<super>/<category>/<file>', found {name!r}."
            )
        names.append(name)
        classes.append("/".join(parts[-3:-1]))
    coarse = {name: name.split("/")[0] for name in classes}
    return make_set(INATURALIST, root, split, names, classes, coarse=coarse)


INATURALIST = Source(
    name="inaturalist",
    title="iNaturalist 2018: photos of plants and animals, by species",
    read=read_inaturalist,
    splits=("train", "test"),
    layout=(
        "root/Inat_dataset_splits/Inaturalist_{train,test}_set1.txt (one path per line) "
        "and root/train_val2018/<super>/<category>/<file>.jpg"
    ),
    homepage="https://github.com/visipedia/inat_comp/tree/master/2018 (images); the lists come with Smooth-AP's code",
    licence="non-commercial research; each photo under its photographer's licence",
    published={"train": Counts(325_846, 5_690), "test": Counts(136_093, 2_452)},
)


_VEHICLEID_LISTS = {
    "train": "train_list",
    "test": "test_list_800",
    "test_small": "test_list_800",
    "test_medium": "test_list_1600",
    "test_large": "test_list_2400",
}


def read_vehicleid(root: Path, split: str) -> ImageSet:
    """Read the list of a split; ``"test"`` is the small one. A class is a vehicle, by its number."""
    path = need(VEHICLEID, root / "train_test_split" / f"{_VEHICLEID_LISTS[split]}.txt")
    names, classes = [], []
    for image, vehicle in read_fields(path, 2, "image_id vehicle_id"):
        names.append(f"image/{as_number(image, path, 'image_id'):07d}.jpg")
        classes.append(as_number(vehicle, path, "vehicle_id"))
    return make_set(VEHICLEID, root, split, names, classes)


_SMALL, _SMALL_V1 = Counts(7_332, 800), Counts(6_493, 800)
VEHICLEID = Source(
    name="vehicleid",
    title="PKU VehicleID: vehicles seen by road cameras; tests small, medium, large",
    read=read_vehicleid,
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


def read_gldv1(root: Path, split: str, *, min_images: int = 4) -> ImageSet:
    """Read ``train.csv`` and keep the photos that exist: published as a list of URLs, so every copy lacks many.

    Args:
        root: the folder of ``train.csv`` and of the photos, which are next to it or in ``train``, ``images`` or ``jpg``.
        split: ``"train"``.
        min_images: landmarks with fewer photos are dropped.
    """
    path = need(GLDV1, root / "train.csv")
    identities, classes = [], []
    for _, row in read_csv(path, ("id", "landmark_id")):
        if "/" in row["id"] or "\\" in row["id"]:
            raise DataError(f"{path}: {row['id']!r} is not an image id.")
        if row["landmark_id"] != "None":  # the public file marks rows without a landmark this way
            identities.append(row["id"])
            classes.append(as_number(row["landmark_id"], path, "landmark_id"))
    names = [f"{identity}.jpg" for identity in identities]
    for folder in ("", "train/", "images/", "jpg/"):
        if (root / folder).is_dir() and not set(names).isdisjoint(path.name for path in (root / folder).iterdir()):
            images = make_set(GLDV1, root, split, [f"{folder}{name}" for name in names], classes)
            break
    else:
        raise GLDV1.layout_error(
            f"none of the {len(names):,} photos of train.csv is in {root}, nor in its train, images or jpg."
        )
    images = without_missing(GLDV1, images, "skip")
    large = images.class_sizes >= min_images
    if not large.any():
        raise GLDV1.layout_error(
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


GLDV1 = Source(
    name="gldv1",
    title="Google Landmarks v1: photos of landmarks, to train for instance search",
    read=read_gldv1,
    splits=("train",),
    layout="root/train.csv with the columns id,url,landmark_id, and <id>.jpg in root or its train, images or jpg",
    homepage="https://www.kaggle.com/c/landmark-recognition-challenge/data",
    licence="terms on its page; each photo under its owner's licence",
    published={"train": Counts(1_060_709, 12_894)},
    test_splits=(),
)


SOURCES = (SOP, CUB, CARS196, INATURALIST, VEHICLEID, GLDV1)
