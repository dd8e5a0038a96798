"""``glyphs``: characters in 53 typefaces, 48 × 48 pixels, part of the package.

A class is a character, an image is that character in one typeface, and test characters are never seen in training:
open-set retrieval of real designs. ``experiments/glyphs.py`` draws the file from the typefaces.
"""

from __future__ import annotations

import hashlib
import io
import lzma
from importlib import resources
from pathlib import Path

import numpy as np

from recollect.common.errors import ConfigError
from recollect.data.image_set import ImageSet
from recollect.data.registry import Source

FILE = "glyphs.npz.xz"
DRAWN = (8, 32)
"""Two sets are stored. Fewer characters are compared in the second, so a few more of them are told apart."""


def read(root: Path | None, split: str, *, min_faces: int = DRAWN[0]) -> ImageSet:
    """The glyphs of a split.

    Args:
        root: not used.
        split: ``"train"``, ``"test"`` or ``"all"``; half of the characters are for training, by a hash of their code.
        min_faces: characters with fewer different pictures are left out; 8 to 53.
    """
    if not DRAWN[0] <= min_faces <= 53:
        raise ConfigError(f"min_faces must be from {DRAWN[0]} to 53, the number of typefaces, not {min_faces}.")
    drawn = max(number for number in DRAWN if number <= min_faces)
    content = lzma.decompress(resources.files("recollect.data.sources").joinpath(FILE).read_bytes())
    with np.load(io.BytesIO(content)) as arrays:
        pictures, labels, names, class_names = (
            arrays[f"{name}_{drawn}"] for name in ("pictures", "labels", "names", "class_names")
        )
        pixels = arrays["pixels"][pictures]
    images = ImageSet("glyphs", names.tolist(), labels.astype(np.int64), class_names.tolist(), arrays=pixels)
    train = [character_digest(name) < 0.5 for name in images.class_names]
    classes = [
        label
        for label, size in enumerate(images.class_sizes.tolist())
        if size >= min_faces and split in ("all", "train" if train[label] else "test")
    ]
    return images.of_classes(classes, split)


def character_digest(class_name: str) -> float:
    """A number from 0 to 1 that depends on the code point alone: below 0.5 a character is for training."""
    return int.from_bytes(hashlib.sha256(class_name.split()[0].encode()).digest()[:6]) / 2**48


SOURCES = (
    Source(
        name="glyphs",
        title="Characters in many typefaces, part of the package: no download",
        read=read,
        splits=("train", "test", "all"),
        layout="nothing: the images are part of the package",
        homepage="part of the package",
        licence="pictures of typefaces under the OFL, Apache, DejaVu and STIX licences (experiments/README.md)",
        needs_root=False,
    ),
)
