"""Image files for an index: the images of a folder or a CSV file, with metadata, stamps and digests."""

from __future__ import annotations

import csv
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
from recollect.common.reading import read_text
from recollect.common.text import number_of
from recollect.data.folder_layout import find_inner_classes, find_parts
from recollect.data.image_files import TO_READ_HEIC, walk_images
from recollect.data.listing import is_blank, refuse_repeated, refuse_torn, relative_to, table_reader

_COLUMNS = ("path", "id", "label")
"""Columns of a CSV file that are found in any case; the others are metadata, which may have several lines."""


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
        left_out: the number of skipped files, by reason.
    """

    source: Path
    images: list[IndexedFile] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)


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
    root, remarks, left_out = listing.source, listing.remarks, listing.left_out

    def refused(name: str, reason: str) -> None:
        remarks.append(f"{root / name}: skipped, {reason}")

    names = list(walk_images(root, "", left_out, refused=refused))
    split_of = _splits(root, remarks) if labels else {}
    for name in names:
        parts = name.split("/")
        metadata = {"name": parts[-1]}
        folders = parts[:-1] if labels else []
        if folders and folders[0] in split_of:
            metadata["split"] = split_of[folders.pop(0)]
        if folders:
            metadata["label"] = folders[0]
        yield IndexedFile(prefix + name, root / name, metadata)
    if left_out["HEIC"]:
        count = number_of(left_out["HEIC"], "HEIC image is/HEIC images are")
        remarks.append(f"{root}: {count} skipped. {TO_READ_HEIC}.")


def _splits(root: Path, remarks: list[str]) -> dict[str, str]:
    """The split of each folder of ``root`` that is one, and messages where labels are not clear."""
    try:
        split_of = {folder: part for part, folder in find_parts(root).items()}
    except DataError as error:  # labels are a help here, and no reason to refuse a folder
        remarks.append(f"{error} Its name is taken for a label.")
        split_of = {}
    if not split_of and (inner := find_inner_classes(root)) is not None:
        remarks.append(inner.remark(tables=True))
    return split_of


def _csv(listing: ImageListing, prefix: str) -> Iterator[IndexedFile]:
    path, remarks = listing.source, listing.remarks
    seen: dict[str, int] = {}
    try:
        with io.StringIO(read_text(path), newline="") as file:
            reader = table_reader(file)
            named = [name.strip() for name in reader.fieldnames or ()]
            reader.fieldnames = [name.lower() if name.lower() in _COLUMNS else name for name in named]
            if "path" not in reader.fieldnames:
                raise DataError(
                    f"{path}: there is no column 'path'; the first line names {', '.join(reader.fieldnames) or 'none'}."
                )
            refuse_repeated(path, reader.fieldnames, _COLUMNS)
            for row in reader:
                if is_blank(row):
                    continue
                refuse_torn(path, reader, row, _COLUMNS)
                name = relative_to(path.parent, (row.pop("path") or "").strip())
                if not name:
                    raise DataError(f"{path}, line {reader.line_num}: 'path' is empty.")
                own = (row.pop("id", "") or "").strip()
                identity = prefix + (own or Path(name).as_posix())
                if identity in seen:
                    raise DataError(
                        f"{path}, line {reader.line_num}: {identity!r} is already listed in line {seen[identity]}."
                    )
                seen[identity] = reader.line_num
                file_path = path.parent / name
                if not file_path.is_file():
                    listing.left_out["missing"] += 1
                    if listing.left_out["missing"] <= 5:
                        remarks.append(f"{path}, line {reader.line_num}: {name} does not exist; skipped.")
                    continue
                columns = {
                    key: value.strip() for key, value in row.items() if key and isinstance(value, str) and value.strip()
                }
                yield IndexedFile(identity, file_path, {"name": file_path.name, **columns})
    except csv.Error as error:
        raise DataError(f"{path}: not a CSV file ({error}).") from error
    if (missing := listing.left_out["missing"]) > 5:
        remarks.append(f"{path}: {missing:,} files do not exist in total.")


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
