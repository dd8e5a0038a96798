"""Image files for an index: the images of a folder or a CSV file, with metadata, stamps and digests."""

from __future__ import annotations

import hashlib
import io
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from recollect.common.errors import DataError, InputError
from recollect.common.images import IMAGE_SUFFIXES, file_sha256
from recollect.common.text import number_of
from recollect.data.folders import TO_READ_HEIC, SkippedFile, class_images, find_inner_classes, find_parts
from recollect.data.tables import read_csv, relative_to

_EXPECTED = ("not an image", "HEIC")
"""Files that are left out without a message for each."""


@dataclass(frozen=True)
class IndexedFile:
    """One image file to be in the index."""

    id: str
    path: Path
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ImageListing:
    """The images of a folder or of a CSV file.

    Attributes:
        source: the folder or the file.
        images: those that exist.
        remarks: messages about skipped files, and about labels that are not clear.
        skipped: the number of skipped files, by reason.
    """

    source: Path
    images: list[IndexedFile] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)


def list_images(source: Path | str, *, prefix: str = "", labels: bool = True) -> ImageListing:
    """List the images of a folder or of a CSV file.

    A folder: every image below it. The id is its path relative to the folder, ``label`` the first folder on that path
    (below ``train``, ``test`` and ``val``, which become ``split``; ``Testing`` and similar names are recognized), ``name``
    the file's name.

    A CSV file: the column ``path`` (relative to the CSV's folder), ``id`` if there is one, and all other columns as
    metadata.

    Args:
        source: the folder or the CSV file.
        prefix: prefix of every id, to keep several folders apart.
        labels: find ``label`` and ``split`` of the images of a folder, with messages where they are not clear.

    Raises:
        DataError: it is neither, or contains no images.
    """
    listing = ImageListing(root := Path(source))
    if root.is_dir():
        listing.images.extend(_folder(listing, prefix, labels))
    elif root.suffix.lower() == ".csv" and root.is_file():
        listing.images.extend(_csv(listing, prefix))
    elif root.exists():
        raise DataError(f"{root}: an index is filled from folders and .csv files; add single files with --add.")
    else:
        raise DataError(f"{root}: no such folder or .csv file.")
    if not listing.images:
        why = f" {listing.remarks[0]}" if listing.remarks else ""
        raise DataError(f"{root}: no images found (looked for {', '.join(sorted(IMAGE_SUFFIXES))}).{why}")
    return listing


def _folder(listing: ImageListing, prefix: str, labels: bool) -> Iterator[IndexedFile]:
    root, remarks, skipped = listing.source, listing.remarks, listing.skipped
    unused: list[SkippedFile] = []
    split_of: dict[str, str] = {}
    if labels:
        try:
            split_of = {folder: part for part, folder in find_parts(root).items()}
        except DataError as error:  # labels are a help here, and no reason to refuse a folder
            remarks.append(f"{error} Its name is taken for a label.")
        if not split_of and (inner := find_inner_classes(root)) is not None:
            remarks.append(inner.remark(tables=True))
    for name, label in class_images(root, "", unused, loose=True, parts=split_of):
        if any("\ud800" <= character <= "\udfff" for character in name):
            unused.append(SkippedFile(name, "name not UTF-8"))
            continue
        metadata = {"name": name.split("/")[-1]}
        if (part := split_of.get(name.split("/")[0])) is not None:
            metadata["split"] = part
        if labels and label:
            metadata["label"] = label
        yield IndexedFile(prefix + name, root / name, metadata)
    skipped.update(each.reason for each in unused)
    remarks += [f"{root / name}: skipped ({reason})." for name, reason in unused if reason not in _EXPECTED]
    if skipped["HEIC"]:
        count = number_of(skipped["HEIC"], "HEIC image is/HEIC images are")
        remarks.append(f"{root}: {count} skipped. {TO_READ_HEIC}.")


def _csv(listing: ImageListing, prefix: str) -> Iterator[IndexedFile]:
    path, remarks, skipped = listing.source, listing.remarks, listing.skipped
    seen: dict[str, int] = {}
    for line, row in read_csv(path, ("path",), ("id", "label"), others=True):
        name = relative_to(path.parent, row.pop("path"))
        identity = prefix + (row.pop("id", "") or Path(name).as_posix())
        if identity in seen:
            raise DataError(f"{path}, line {line}: {identity!r} is already listed in line {seen[identity]}.")
        seen[identity] = line
        if (path.parent / name).is_file():
            columns = {column: value for column, value in row.items() if column and value}
            yield IndexedFile(identity, path.parent / name, {"name": Path(name).name, **columns})
            continue
        skipped["missing"] += 1
        if skipped["missing"] <= 5:
            remarks.append(f"{path}, line {line}: {name} does not exist; skipped.")
    if skipped["missing"] > 5:
        remarks.append(f"{path}: {skipped['missing']:,} files do not exist in total.")


def stamp_of(path: Path) -> str:
    """Size and time of a file, to detect changes without reading it."""
    state = path.stat()
    return f"{state.st_size}:{state.st_mtime_ns}"


def digest_of(image: Any) -> tuple[str, bytes | None]:
    """SHA-256 of an image's bytes, and those bytes unless it is a file (arrays and PIL images as PNG)."""
    if isinstance(image, str | Path):
        return file_sha256(image), None
    if isinstance(image, bytes):
        return hashlib.sha256(image).hexdigest(), image
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8:
            raise InputError(f"an image array must be H×W or H×W×3 of uint8, not {image.shape} of {image.dtype}.")
        image = Image.fromarray(image)
    if isinstance(image, Image.Image):
        buffer = io.BytesIO()
        image.save(buffer, "PNG")
        return hashlib.sha256(buffer.getvalue()).hexdigest(), buffer.getvalue()
    raise InputError(f"an image must be a path, bytes, a PIL image or a uint8 array, not a {type(image).__name__}.")
