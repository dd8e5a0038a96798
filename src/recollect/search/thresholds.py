"""Thresholds for "the same": similarities with their error rates, measured on labelled images.

Two images of one class *match*; the question is above which similarity to report a match. Over all pairs of two
classes, the *false-match rate* of a threshold is the share at or above it; over all pairs of one class, its *miss rate* is
the share below it. The threshold for *same* is the lowest whose false-match rate is at most the rate chosen; that for
*similar* likewise with a larger rate. Use classes the model was not trained on; otherwise the rates look better than they are.

Pairs are counted tile by tile in a histogram, so memory does not grow with their number, and the rates are upper bounds:
a threshold is always the upper edge of a bin. ``calibrate_target`` measures them for a model or an index.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from recollect.common import plugins
from recollect.common.errors import DataError, ImageError, InputError
from recollect.common.files import make_folder_for, write_json
from recollect.common.text import Remark, number_of
from recollect.data import load
from recollect.data.folders import part_to_use
from recollect.data.registry import check_ambiguous_name
from recollect.inference.store import KEY_BYTES, Keys, content_keys
from recollect.inference.training_record import is_unseen, read_trained_on
from recollect.inference.vectors import file_set
from recollect.search.encoder import CALIBRATION, Encoder, open_encoder, shorten
from recollect.search.exact import pair_tiles
from recollect.search.index import Index
from recollect.search.stores.base import is_index
from recollect.search.sync import scan_images

BINS = 1 << 20
"""Bins over similarities from −1 to 1: 2e-6 wide, finer than float32 products are exact."""

_RATES = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 1e-6)
_ROWS = 1024


@dataclass(frozen=True)
class Threshold:
    """A similarity with its error rates.

    Attributes:
        similarity: two images at least this similar match.
        false_match_rate: share of pairs of two classes at or above it.
        miss_rate: share of pairs of one class below it.
    """

    similarity: float
    false_match_rate: float
    miss_rate: float


@dataclass(frozen=True)
class ThresholdCalibration:
    """Thresholds of a model.

    Attributes:
        same, similar: the two thresholds in use.
        curve: thresholds at usual rates, as far as the number of pairs allows.
        images, classes, same_pairs, other_pairs: numbers of the calibration images.
        fingerprint: fingerprint of the model.
        data: the calibration images.
    """

    same: Threshold
    similar: Threshold
    curve: list[Threshold]
    images: int
    classes: int
    same_pairs: int
    other_pairs: int
    fingerprint: str
    data: str

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def calibrate(
    vectors: NDArray[np.float32],
    labels: Sequence[str] | NDArray[Any],
    *,
    same_rate: float = 1e-3,
    similar_rate: float = 5e-2,
    fingerprint: str,
    data: str = "",
) -> ThresholdCalibration:
    """Thresholds from vectors of labelled images.

    Args:
        vectors: N × d of length 1. labels: N classes.
        same_rate: false-match rate of *same*. similar_rate: of *similar*.
        fingerprint: of the model. data: what the images were.

    Raises:
        InputError: rates out of order, too few classes, or too few pairs for a rate.

    Examples:
        >>> rows = np.array([[1, 0], [1, 0], [0, 1], [0, 1]], np.float32)
        >>> thresholds = calibrate(rows, ["a", "a", "b", "b"], same_rate=0.25, similar_rate=0.5, fingerprint="f")
        >>> thresholds.same.miss_rate, thresholds.same.false_match_rate, thresholds.other_pairs
        (0.0, 0.0, 4)
    """
    if not 0 < same_rate <= similar_rate < 1:
        raise InputError(
            f"false-match rates {same_rate} (same) and {similar_rate} (similar): 0 < same ≤ similar < 1 is needed."
        )
    names, codes = np.unique(np.asarray(labels), return_inverse=True)
    if len(codes) != len(vectors):
        raise InputError(f"{len(vectors)} vectors but {len(codes)} labels: give one per vector.")
    if len(names) < 2 or len(names) == len(codes):
        raise InputError(
            f"{len(codes)} images of {len(names)} classes: calibrating needs at least two classes, and one with two images."
        )
    same, other = _histograms(np.asarray(vectors, np.float32), codes)
    pairs = int(other.sum())
    if pairs * same_rate < 1:
        raise InputError(
            f"{pairs:,} pairs of different classes cannot tell a false-match rate of {same_rate:g}: give at least "
            f"{1 / same_rate:,.0f} pairs (more images), or choose a larger rate (--false-match-rate)."
        )
    return ThresholdCalibration(
        same=_threshold(same, other, same_rate),
        similar=_threshold(same, other, similar_rate),
        curve=[_threshold(same, other, rate) for rate in _RATES if pairs * rate >= 1],
        images=len(codes),
        classes=len(names),
        same_pairs=int(same.sum()),
        other_pairs=pairs,
        fingerprint=fingerprint,
        data=data,
    )


def _histograms(vectors: NDArray[np.float32], codes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Counts of similarities of pairs of one class and of two, 2 × BINS, each pair once."""
    classes, counts = torch.from_numpy(codes), torch.zeros(2 * BINS, dtype=torch.int64)
    for left, right, tile, pairs in pair_tiles(vectors, _ROWS):
        bins = tile.add_(1).mul_(BINS / 2).floor_().clamp_(0, BINS - 1).long()
        bins += BINS * (classes[left, None] != classes[None, right])
        counts += torch.bincount(bins[pairs], minlength=2 * BINS)
    return counts.reshape(2, BINS).numpy()


def _threshold(same: NDArray[np.int64], other: NDArray[np.int64], rate: float) -> Threshold:
    """The lowest bin edge with at most ``rate`` of the pairs of two classes at or above it."""
    above = np.concatenate([np.cumsum(other[::-1])[::-1], [0]])  # pairs in bin b or higher
    edge = int(np.argmax(above <= rate * other.sum()))
    return Threshold(
        similarity=edge * 2 / BINS - 1,
        false_match_rate=float(above[edge] / other.sum()),
        miss_rate=int(same[:edge].sum()) / max(1, int(same.sum())),
    )


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
) -> tuple[ThresholdCalibration, list[Remark]]:
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
        >>> thresholds, remarks = calibrate_target("run", "photos", same_rate=0.05, similar_rate=0.2)
        >>> thresholds.same.similarity >= thresholds.similar.similarity
        True
    """
    rates = {"same_rate": same_rate, "similar_rate": similar_rate}
    remarks: list[Remark] = []
    if is_index(target):
        with Index.open(target, model, **opening) as index:
            record = _record_folder(index) if model is None else index.encoder.provenance.get("model")
            if data is None:
                vectors, labels = _indexed_vectors(index, record, remarks)
            else:
                vectors, labels = _labelled_vectors(lambda: index.encoder, data, root, split, record, remarks)
                vectors = shorten(vectors, index.generation.dim)
            source = data or "the labelled images of the index"
            calibration = calibrate(vectors, labels, fingerprint=index.model["fingerprint"], data=source, **rates)
            index.set_calibration(calibration.as_dict(), wait=wait)
        return calibration, remarks
    if model is not None:
        raise InputError(f"{target} is not an index, whose model may have moved: give {model} as the target instead.")
    if data is None:
        raise InputError("give labelled images of classes that the model was not trained on, with --data.")
    is_folder, file = Path(target).is_dir(), Path(target) / CALIBRATION
    if is_folder:
        make_folder_for(file)  # a read-only folder is noticed before the images are embedded
    encoder = open_encoder(target, **opening)
    vectors, labels = _labelled_vectors(lambda: encoder, data, root, split, encoder.provenance.get("model"), remarks)
    calibration = calibrate(vectors, labels, fingerprint=encoder.fingerprint, data=data, **rates)
    if is_folder:
        write_json(file, calibration.as_dict())
    else:
        text = f"{target} is not a folder, so the thresholds are not stored: calibrate an index that uses it instead."
        remarks.append(Remark(text))
    return calibration, remarks


def _record_folder(index: Index) -> Any:
    """The place of the index's model, whose folder records what it was trained on.

    A folder is recorded as an absolute path, perhaps on another machine. Initialisations by name and ``hf://`` addresses
    have no record.

    Raises:
        ConfigError: the folder no longer exists. OtherModelError: another model lies there, whose record would be of other
            classes.
    """
    place = str(index.model.get("model"))
    is_path = PurePosixPath(place).is_absolute() or PureWindowsPath(place).is_absolute()
    is_folder = is_path and not plugins.is_reference(place)
    return index.encoder.provenance.get("model") if is_folder else index.model.get("model")


def _indexed_vectors(index: Index, model: Any, remarks: list[Remark]) -> tuple[NDArray[np.float32], list[str]]:
    items = [item for item in index.store.iterate(index.generation.number, vectors=True) if "label" in item.metadata]
    if not items:
        raise DataError(f"{index.address}: no image has a label; give labelled images with --data.")
    digests = [bytes.fromhex(item.digest)[:KEY_BYTES].ljust(KEY_BYTES, b"\0") for item in items]
    keys = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, KEY_BYTES)
    rows = _unseen([item.metadata["label"] for item in items], keys, "folder", model, remarks)
    vectors = np.stack([vector for row in rows if (vector := items[row].vector) is not None])
    return vectors, [items[row].metadata["label"] for row in rows]


def _labelled_vectors(
    encoder: Callable[[], Encoder], data: str, root: str | Path | None, split: str, model: Any, remarks: list[Remark]
) -> tuple[NDArray[np.float32], list[str]]:
    """Vectors and labels of the images of classes that the model was not trained on, as far as they can be read.

    ``encoder`` opens the model, once it is known that there are images.
    """
    images: Sequence[Any]
    if root is None:
        check_ambiguous_name(data)
    if root is None and Path(data).exists():
        listing = scan_images(data)
        remarks += map(Remark, listing.remarks)
        splits = {file.metadata["split"] for file in listing.images if "split" in file.metadata}
        split = part_to_use(split, splits)
        files = [file for file in listing.images if "label" in file.metadata]
        files = [file for file in files if not splits or file.metadata.get("split") == split]
        if not files:
            where = f" of the part {split!r}" if splits else ""
            raise DataError(f"{data}: no labelled images{where}. Give a folder with one folder per class.")
        paths, labels = [file.path for file in files], [file.metadata["label"] for file in files]
        rows = _unseen(labels, content_keys(file_set(paths)), "folder", model, remarks)
        images = [paths[row] for row in rows]
    else:
        dataset = load(data, root, split, on_bad_image="skip")
        labels = [dataset.class_names[label] for label in dataset.labels.tolist()]
        rows = _unseen(labels, content_keys(dataset), dataset.name, model, remarks)
        are_files = dataset.arrays is None and dataset.boxes is None
        images = [dataset.path(row) if are_files else dataset.read(row) for row in rows]
    errors: dict[int, ImageError] = {}
    vectors = encoder().embed(images, errors.__setitem__)
    if errors:
        remarks.append(Remark(f"{number_of(len(errors), 'image')} could not be read, and left out."))
    good = [number for number in range(len(images)) if number not in errors]
    return vectors[good], [labels[rows[number]] for number in good]


def _unseen(labels: list[str], keys: Keys, data: str, model: Any, remarks: list[Remark]) -> list[int]:
    """Positions of the images whose classes the model was not trained on; of all where there are no others, with a warning."""
    record = read_trained_on(Path(str(model))) if model else None
    if record is None:
        return list(range(len(labels)))
    unseen = is_unseen(labels, keys, data, record)
    if not unseen.any():
        text = (
            "the model was trained on all of these classes. On new ones, images of one class are less similar than measured "
            "here: calibrate with --data FOLDER, a folder of classes that were held out."
        )
        remarks.append(Remark(text, warning=True))
        return list(range(len(labels)))
    if trained := len({label for label, new in zip(labels, unseen.tolist(), strict=True) if not new}):
        remarks.append(Remark(f"{number_of(trained, 'class was/classes were')} trained on and left out."))
    return [int(row) for row in np.flatnonzero(unseen)]
