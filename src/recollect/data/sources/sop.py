"""Stanford Online Products: shop photos, a few of each product; test products are unseen."""

from __future__ import annotations

from pathlib import Path

from recollect.data.image_set import ImageSet
from recollect.data.listing import as_number, make_set, need, read_fields
from recollect.data.registry import Counts, Source

COLUMNS = "image_id class_id super_class_id path"


def read(root: Path, split: str, *, missing: str = "error") -> ImageSet:
    """Read the list of a split; a class is a product, by its number; the coarser one its kind."""
    path = need(SOURCE, root / f"Ebay_{split}.txt")
    rows = read_fields(path, 4, COLUMNS)
    header = next(rows, None)
    if header != COLUMNS.split():
        raise SOURCE.trouble(f"the first line of {path} must be {COLUMNS!r}, but is {' '.join(header or [])!r}.")
    names, classes, coarse = [], [], {}
    for _, label, _, name in rows:
        names.append(name)
        classes.append(as_number(label, path, "class_id"))
        # The super-class is taken from its folder, whose name corresponds to super_class_id.
        coarse[classes[-1]] = name.split("/")[0].removesuffix("_final")
    return make_set(SOURCE, root, split, names, classes, missing=missing, coarse=coarse)


SOURCE = Source(
    name="sop",
    title="Stanford Online Products: shop photos, by product",
    read=read,
    splits=("train", "test"),
    layout="root/Ebay_{train,test}.txt and root/<category>_final/<file>.JPG",
    homepage="https://cvgl.stanford.edu/projects/lifted_struct/",
    licence="research use; the photos belong to their sellers",
    published={"train": Counts(59_551, 11_318), "test": Counts(60_502, 11_316)},
)
SOURCES = (SOURCE,)
