"""Near-duplicates in a report: how many copies are found, and how many pairs in sets that have few or none.

    python -m benchmarks.near_copies cars196_96px grocery_96px

Of every folder, 150 photos are edited, and each is compared with its edited copy in three ways: by the correlation at 16 × 16
pixels alone, by that and the agreement of blocks, and as a report does. Then pairs are counted in the whole folders and in the
3,993 characters of the demonstration's report, whose accents differ.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
from PIL import Image, ImageEnhance

from benchmarks.timing import report
from recollect.data import ImageSet, load
from recollect.report import checks
from recollect.report.checks import AGREE, CANDIDATES, agreement, group_copies
from recollect.report.map import FINE, SIDE, SmallPictures, read_small
from recollect.report.results import LIMIT, choose

ALONE = 0.95  # correlation at 16 × 16 pixels, where nothing else is compared
PHOTOS = 150


def recompressed(image: Image.Image, quality: int) -> Image.Image:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return Image.open(io.BytesIO(file.getvalue())).convert("RGB")


def resized(image: Image.Image, factor: float) -> Image.Image:
    return image.resize((round(image.width * factor), round(image.height * factor)), Image.Resampling.LANCZOS)


def brighter(image: Image.Image, factor: float) -> Image.Image:
    return ImageEnhance.Brightness(image).enhance(factor)


def cropped(image: Image.Image, share: float) -> Image.Image:
    across, down = share * image.width, share * image.height
    box = (across, down, image.width - across, image.height - down)
    return image.resize(image.size, Image.Resampling.LANCZOS, box=box)


EDITS: dict[str, Callable[[Image.Image], Image.Image]] = {
    "recompressed, quality 50": lambda image: recompressed(image, 50),
    "recompressed, quality 20": lambda image: recompressed(image, 20),
    "half the size": lambda image: resized(image, 0.5),
    "brighter by 30 %": lambda image: brighter(image, 1.3),
    "darker by 30 %": lambda image: brighter(image, 0.7),
    "cropped by 3 %": lambda image: cropped(image, 0.03),
    "cropped by 3 %, 0.7 × the size, brighter by 20 %, recompressed": lambda image: recompressed(
        brighter(resized(cropped(image, 0.03), 0.7), 1.2), 50
    ),
    "cropped by 5 %": lambda image: cropped(image, 0.05),
}


def small(images: list[Image.Image]) -> SmallPictures:
    box = Image.Resampling.BOX
    return SmallPictures(
        np.arange(len(images)),
        np.stack([np.asarray(image.resize((SIDE, SIDE), box)) for image in images]),
        np.ones(len(images)),
        np.stack([np.asarray(image.convert("L").resize((FINE, FINE), box)) for image in images]),
    )


def folder_sets(folders: list[Path], split: str) -> dict[str, ImageSet]:
    """The images of some folders, by the folder's name."""
    return {folder.name: load("folder", folder, split) for folder in folders}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", type=Path, nargs="+")
    folders = parser.parse_args().folders
    sets = folder_sets(folders, "all")
    originals = [image for images in sets.values() for image in _some(images)]
    rows: list[dict[str, object]] = []
    first = small(originals)
    for name, edit in EDITS.items():
        second = small([edit(image) for image in originals])
        correlation = (first.signatures() * second.signatures()).sum(axis=1)
        close = correlation >= CANDIDATES
        now = agreement(first.fine, second.fine) >= AGREE
        with mock.patch.object(checks, "DIFFER", np.inf):
            blocks = agreement(first.fine, second.fine) >= AGREE
        shares = {"alone": correlation >= ALONE, "blocks": close & blocks, "now": close & now}
        rows.append({"copy": name, **{way: f"{100 * share.mean():.0f} %" for way, share in shares.items()}})
        print(rows[-1], flush=True)
    characters = load("glyphs", None, "test")
    for name, images in {**sets, "characters": characters.subset(choose(characters, LIMIT))}.items():
        pictures = read_small(images, np.arange(len(images)))
        groups = {"now": _groups(pictures)}
        with mock.patch.object(checks, "DIFFER", np.inf):
            groups["blocks"] = _groups(pictures)
        rows.append({"groups": name, "images": len(images), **groups})
        print(rows[-1], flush=True)
    report("near_copies", rows)


def _some(images: ImageSet) -> list[Image.Image]:
    places = np.random.default_rng(0).choice(len(images), PHOTOS, replace=False)
    return [images.read(place) for place in places.tolist()]


def _groups(pictures: SmallPictures) -> str:
    sizes = np.unique(group_copies(pictures)[0], return_counts=True)[1]
    return f"{int((sizes > 1).sum())} groups, the largest {int(sizes.max())}"


if __name__ == "__main__":
    main()
