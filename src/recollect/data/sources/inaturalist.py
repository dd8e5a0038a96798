"""iNaturalist 2018 in the split of the retrieval literature: classes are species, test species are unseen."""

from __future__ import annotations

from pathlib import Path

from recollect.common.errors import DataError
from recollect.data.image_set import ImageSet
from recollect.data.listing import make_set, need, read_lines
from recollect.data.registry import Counts, Source


def read(root: Path, split: str, *, missing: str = "error") -> ImageSet:
    """Read the list of a split; a class is ``<super-category>/<category>``, the coarser one its first half."""
    path = need(SOURCE, root / "Inat_dataset_splits" / f"Inaturalist_{split}_set1.txt")
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
    return make_set(SOURCE, root, split, names, classes, missing=missing, coarse=coarse)


SOURCE = Source(
    name="inaturalist",
    title="iNaturalist 2018: photos of plants and animals, by species",
    read=read,
    splits=("train", "test"),
    layout=(
        "root/Inat_dataset_splits/Inaturalist_{train,test}_set1.txt (one path per line) "
        "and root/train_val2018/<super>/<category>/<file>.jpg"
    ),
    homepage="https://github.com/visipedia/inat_comp/tree/master/2018 (images); the lists come with Smooth-AP's code",
    licence="non-commercial research; each photo under its photographer's licence",
    published={"train": Counts(325_846, 5_690), "test": Counts(136_093, 2_452)},
)
SOURCES = (SOURCE,)
