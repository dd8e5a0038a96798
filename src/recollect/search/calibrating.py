"""Calibrates a model or an index on labelled images. Used by ``recollect calibrate``; the computation is in ``thresholds``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.common import plugins
from recollect.common.console import ProgressLine
from recollect.common.errors import ConfigError, DataError, InputError
from recollect.common.files import make_folder_for
from recollect.common.text import number_of
from recollect.data import load
from recollect.data.folder_layout import part_to_use
from recollect.data.registry import refuse_two_meanings, without_missing
from recollect.inference.content_keys import KEY_BYTES, Keys, content_keys
from recollect.inference.embedding_sets import files_as_set
from recollect.inference.trained_on import is_unseen, read_trained_on
from recollect.search.addresses import is_index
from recollect.search.encoder import Encoder, open_encoder
from recollect.search.filling import stored_vectors
from recollect.search.index import Index
from recollect.search.indexed_files import list_images
from recollect.search.thresholds import FILE, ThresholdCalibration, calibrate, write_calibration

Labelled = tuple[list[Any], list[str]]
"""Images with their labels."""


def calibrate_target(
    target: str | Path,
    data: str | None = None,
    *,
    model: str | Path | None = None,
    root: str | Path | None = None,
    split: str = "test",
    same_rate: float = 1e-3,
    similar_rate: float = 5e-2,
    wait: float = 0.0,
    **opening: Any,
) -> tuple[ThresholdCalibration, list[str]]:
    """Measure thresholds and store them with a run, a saved embedder or an index.

    Args:
        target: one of these.
        data: a folder or ``.csv`` of labelled images, or a data set by name; for an index, its own labelled images by default.
        model: new folder of the model of an index, if it moved.
        root: the folder of a data set. split: the split to use, if there are splits.
        same_rate, similar_rate: see ``thresholds.calibrate``.
        wait: seconds to wait for another process that is writing to the index.
        opening: ``weights``, ``device``, ``batch_size``, ``download`` for the model.

    Returns:
        The calibration, and remarks on what it was measured on.

    Raises:
        ConfigError: the model of the index moved. InputError: ``data`` is missing, or ``model`` is given without an index.

    Example:
        >>> found, remarks = calibrate_target("run", "photos", same_rate=0.05, similar_rate=0.2)
        >>> found.same.similarity >= found.similar.similarity
        True
    """
    rates = {"same_rate": same_rate, "similar_rate": similar_rate}
    remarks: list[str] = []
    if is_index(target):
        with Index.open(target, model, **opening) as index:
            place = _place_of_model(index) if model is None else index.encoder.note.get("model")
            if data is None:
                vectors, labels = _of_index(index, place, remarks)
                name = "the labelled images of the index"
            else:
                (images, labels), name = _labelled(data, root, split, place, remarks), data
                vectors = stored_vectors(_embedded(index.encoder, images), index.generation)
                vectors, labels = _readable(vectors, labels, remarks)
            found = calibrate(vectors, labels, fingerprint=index.model["fingerprint"], data=name, **rates)
            index.set_calibration(found.as_dict(), wait=wait)
        return found, remarks
    if model is not None:
        raise InputError(
            f"--model {model} names the new folder of an index's model, but {target} is not an index. To calibrate {model} "
            "itself, give it as the target."
        )
    if data is None:
        raise InputError("give labelled images of classes that the model was not trained on, with --data.")
    if Path(target).is_dir():
        make_folder_for(Path(target) / FILE)  # a read-only folder is noticed before the images are embedded
    encoder = open_encoder(target, **opening)
    images, labels = _labelled(data, root, split, encoder.note.get("model"), remarks)
    vectors, labels = _readable(_embedded(encoder, images), labels, remarks)
    found = calibrate(vectors, labels, fingerprint=encoder.fingerprint, data=data, **rates)
    if not Path(target).is_dir():
        remarks.append(
            f"{target} is not a folder, so the thresholds are not stored: calibrate an index that uses it instead."
        )
    else:
        write_calibration(Path(target), found)
    return found, remarks


def _place_of_model(index: Index) -> Any:
    """The place of the index's model, whose folder records what it was trained on.

    A folder is recorded as an absolute path, perhaps on another machine. Initialisations by name and ``hf://`` addresses
    have no record.

    Raises:
        ConfigError: the folder no longer exists. OtherModelError: another model lies there.
    """
    place = index.model.get("model")
    text = str(place)
    is_path = PurePosixPath(text).is_absolute() or PureWindowsPath(text).is_absolute()
    if is_path and not plugins.is_reference(text) and not Path(text).exists():
        raise ConfigError(
            f"{text}, the model of {index.address}, no longer exists, so it is not known on which classes it was trained. "
            "If it moved, give its new folder with --model."
        )
    # Opening it refuses another model that lies there now, whose record would be of other classes.
    return index.encoder.note.get("model") if is_path and Path(text).is_dir() else place


def _of_index(index: Index, model: Any, remarks: list[str]) -> tuple[NDArray[np.float32], list[str]]:
    items = [item for item in index.store.iterate(index.generation.number, vectors=True) if "label" in item.metadata]
    if not items:
        raise DataError(f"{index.address}: no image has a label; give labelled images with --data.")
    labels = [item.metadata["label"] for item in items]
    digests = [bytes.fromhex(item.digest)[:KEY_BYTES].ljust(KEY_BYTES, b"\0") for item in items]
    keys = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, KEY_BYTES)
    kept = _unseen(labels, keys, "folder", model, remarks)
    vectors = np.stack([vector for place in kept if (vector := items[place].vector) is not None])
    return vectors, [labels[place] for place in kept]


def _labelled(data: str, root: str | Path | None, split: str, model: Any, remarks: list[str]) -> Labelled:
    """Labelled images of classes that the model was not trained on."""
    if root is None:
        refuse_two_meanings(data)
    if root is None and Path(data).exists():
        listed, left_out = list_images(data)
        remarks += left_out
        parts = {entry.metadata["split"] for entry in listed if "split" in entry.metadata}
        split = part_to_use(split, parts)
        kept = [
            entry
            for entry in listed
            if "label" in entry.metadata and (not parts or entry.metadata.get("split") == split)
        ]
        if not kept:
            where = f" of the part {split!r}" if parts else ""
            raise DataError(f"{data}: no labelled images{where}. Give a folder with one folder per class.")
        paths, names = [entry.path for entry in kept], [entry.metadata["label"] for entry in kept]
        places = _unseen(names, content_keys(files_as_set(paths)), "folder", model, remarks)
        return [paths[place] for place in places], [names[place] for place in places]
    images = load(data, root, split, **without_missing(data, {}))
    names = [images.class_names[label] for label in images.labels.tolist()]
    places = _unseen(names, content_keys(images), images.name, model, remarks)
    files = images.arrays is None and images.boxes is None
    return [images.path(place) if files else images.read(place) for place in places], [names[p] for p in places]


def _unseen(labels: list[str], keys: Keys, data: str, model: Any, remarks: list[str]) -> list[int]:
    """Positions of the images whose classes the model was not trained on; of all where there are no others, with a warning."""
    known = read_trained_on(Path(str(model))) if model else None
    if known is None:
        return list(range(len(labels)))
    unseen = is_unseen(labels, keys, data, known)
    kept = np.flatnonzero(unseen).tolist()
    trained = len({label for label, new in zip(labels, unseen.tolist(), strict=True) if not new})
    if not kept:
        remarks.append(
            "WARNING: the model was trained on all of these classes. On new ones, images of one class are less similar than "
            "measured here: calibrate with --data FOLDER, a folder of classes that were held out."
        )
        return list(range(len(labels)))
    if trained:
        remarks.append(f"{number_of(trained, 'class was/classes were')} trained on and left out.")
    return kept


def _embedded(encoder: Encoder, images: Sequence[Any]) -> NDArray[np.float32]:
    rows = np.empty((len(images), encoder.dim), np.float32)
    with ProgressLine("embedding", len(images)) as line:
        for start in range(0, len(images), 256):
            some = images[start : start + 256]
            rows[start : start + len(some)] = encoder.embed(some, lambda number, error: None)
            line.advance(len(some))
    return rows


def _readable(
    vectors: NDArray[np.float32], labels: list[str], remarks: list[str]
) -> tuple[NDArray[np.float32], list[str]]:
    good = np.asarray(np.isfinite(vectors).all(axis=1))
    if not good.all():
        remarks.append(f"{number_of(int((~good).sum()), 'image')} could not be read, and left out.")
    return vectors[good], [label for label, fine in zip(labels, good.tolist(), strict=True) if fine]
