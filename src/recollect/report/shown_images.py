"""The images of a report and their vectors, with a copy in the run (``report/vectors.npz``).

The copy is for a report that is written without the images; with them, vectors come from ``inference``, which embeds no
image twice.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from recollect.common.errors import DataError
from recollect.common.files import atomic_write
from recollect.common.reading import parse_json, read_npz
from recollect.data import ImageSet


@dataclass(frozen=True)
class Shown:
    """The images a report is about.

    Attributes:
        data, split: which set. names, labels, class_names: of the images. whole: images in the split, readable or not.
        images: the image set, for pictures; None if it is not available.
    """

    data: str
    split: str
    names: list[str]
    labels: NDArray[np.int64]
    class_names: list[str]
    whole: int
    images: ImageSet | None = None

    def subset(self, places: NDArray[np.int64]) -> Shown:
        """Some of the images, in the order of ``places``."""
        if len(places) == len(self.names):
            return self
        names, labels, classes = [self.names[place] for place in places.tolist()], self.labels[places], self.class_names
        images = None if self.images is None else self.images.subset(places)
        if images is not None:
            labels, classes = images.labels, list(images.class_names)
        return replace(self, names=names, labels=labels, class_names=classes, images=images)

    def same_as(self, other: Shown) -> bool:
        """Whether both are of the same images in the same order."""
        return self.names == other.names and bool(np.array_equal(self.labels, other.labels))


@dataclass(frozen=True)
class Kept:
    """The content of ``vectors.npz``: images, vectors before and after training, and values that show if it is outdated.

    ``left_out``: what is not included, as sentences. ``copies``: names of images that were trained on.
    """

    shown: Shown
    vectors: dict[str, NDArray[np.float32]]
    keys: dict[str, str]
    words: dict[str, str]
    left_out: list[str] = field(default_factory=list)
    copies: list[str] = field(default_factory=list)


def write_kept(path: Path, kept: Kept, remarks: list[str]) -> None:
    """Keep vectors for the next report."""
    shown = kept.shown
    facts = {"data": shown.data, "split": shown.split, "whole": shown.whole, "keys": kept.keys}
    facts |= {"words": kept.words, "left_out": kept.left_out, "copies": kept.copies}
    try:
        with atomic_write(path) as file:
            np.savez(
                file,
                facts=np.array(json.dumps(facts)),
                names=np.array(shown.names),
                labels=shown.labels,
                class_names=np.array(shown.class_names),
                **{f"vectors_{name}": rows for name, rows in kept.vectors.items()},  # type: ignore[arg-type]
            )
    except (OSError, DataError) as error:  # a run on a read-only disk can still have a report
        remarks.append(f"The vectors could not be kept in {path}: {error}")


def read_kept(path: Path, remarks: list[str]) -> Kept | None:
    """The vectors of an earlier report; None if there are none, or if they are damaged, which is added to ``remarks``."""
    if not path.exists():
        return None
    kept = _read(path)
    if kept is None:
        remarks.append(f"The vectors kept in {path} are damaged and are not used.")
    return kept


def _read(path: Path) -> Kept | None:
    try:
        archive = read_npz(path)
        facts = parse_json(str(archive["facts"]), str(path), dict)
        labels = archive["labels"].astype(np.int64)
        shown = Shown(
            facts["data"],
            facts["split"],
            [str(name) for name in archive["names"]],
            labels,
            [str(name) for name in archive["class_names"]],
            int(facts["whole"]),
        )
        vectors = {name[8:]: rows for name, rows in archive.items() if name.startswith("vectors_")}
        keys, words = (
            {str(name): str(value) for name, value in facts.get(key, {}).items()} for key in ("keys", "words")
        )
        left_out, copies = ([str(value) for value in facts.get(key, [])] for key in ("left_out", "copies"))
    except (DataError, KeyError, ValueError, TypeError, AttributeError):
        return None
    sound = all(rows.ndim == 2 and len(rows) == len(shown.names) == len(labels) for rows in vectors.values())
    sound = sound and bool(len(labels)) and 0 <= labels.min() <= labels.max() < len(shown.class_names)
    return Kept(shown, vectors, keys, words, left_out, copies) if sound else None
