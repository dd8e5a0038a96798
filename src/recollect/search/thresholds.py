"""Thresholds for "the same": similarities with their error rates, measured on labelled images.

Two images of one class *match*; the question is above which similarity to report a match. Over all pairs of two
classes, the *false-match rate* of a threshold is the share at or above it; over all pairs of one class, its *miss rate* is
the share below it. The threshold for *same* is the lowest whose false-match rate is at most the rate chosen; that for
*similar* likewise with a larger rate. Use classes the model was not trained on; otherwise the rates look better than they are.

Pairs are counted tile by tile in a histogram, so memory does not grow with their number, and the rates are upper bounds:
a threshold is always the upper edge of a bin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from recollect.common.errors import InputError
from recollect.common.files import write_json
from recollect.common.reading import read_json
from recollect.search.encoder import Encoder

BINS = 1 << 20
"""Bins over similarities from −1 to 1: 2e-6 wide, finer than float32 products are exact."""

SAME, SIMILAR, UNKNOWN = "same", "similar", "unknown"
FILE = "calibration.json"
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
        >>> found = calibrate(rows, ["a", "a", "b", "b"], same_rate=0.25, similar_rate=0.5, fingerprint="f")
        >>> found.same.miss_rate, found.same.false_match_rate, found.other_pairs
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
    one, two = _histograms(np.asarray(vectors, np.float32), codes)
    other = int(two.sum())
    if other * same_rate < 1:
        raise InputError(
            f"{other:,} pairs of different classes cannot tell a false-match rate of {same_rate:g}: give at least "
            f"{1 / same_rate:,.0f} pairs (more images), or choose a larger rate (--false-match-rate)."
        )
    curve = [_threshold(one, two, rate) for rate in _RATES if other * rate >= 1]
    return ThresholdCalibration(
        same=_threshold(one, two, same_rate),
        similar=_threshold(one, two, similar_rate),
        curve=curve,
        images=len(codes),
        classes=len(names),
        same_pairs=int(one.sum()),
        other_pairs=other,
        fingerprint=fingerprint,
        data=data,
    )


def _histograms(vectors: NDArray[np.float32], codes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Counts of similarities of pairs of one class and of two, each pair once."""
    if vectors.ndim != 2 or not np.isfinite(vectors).all():
        raise InputError("calibrating needs N × d vectors with finite values.")
    rows, classes = torch.from_numpy(np.ascontiguousarray(vectors)), torch.from_numpy(codes)
    counts = [torch.zeros(BINS, dtype=torch.int64) for _ in range(2)]
    for start in range(0, len(rows), _ROWS):
        left = rows[start : start + _ROWS]
        for first in range(start, len(rows), _ROWS):
            right = rows[first : first + _ROWS]
            bins = ((left @ right.T).add_(1).mul_(BINS / 2).floor_().clamp_(0, BINS - 1)).long()
            equal = classes[start : start + _ROWS, None] == classes[None, first : first + _ROWS]
            once = torch.ones_like(equal).triu_(1) if first == start else torch.ones_like(equal)
            for place, chosen in enumerate((equal & once, ~equal & once)):
                counts[place] += torch.bincount(bins[chosen], minlength=BINS)
    return counts[0].numpy(), counts[1].numpy()


def _threshold(one: NDArray[np.int64], two: NDArray[np.int64], rate: float) -> Threshold:
    """The lowest bin edge with at most ``rate`` of the pairs of two classes at or above it."""
    above = np.concatenate([np.cumsum(two[::-1])[::-1], [0]])  # pairs in bin b or higher
    edge = int(np.argmax(above <= rate * two.sum()))
    missed = int(one[:edge].sum())
    return Threshold(
        similarity=edge * 2 / BINS - 1,
        false_match_rate=float(above[edge] / two.sum()),
        miss_rate=missed / max(1, int(one.sum())),
    )


def verdict(similarity: float, calibration: Mapping[str, Any] | None) -> str | None:
    """*same*, *similar* or *unknown*; None without a calibration."""
    if calibration is None:
        return None
    if similarity >= float(calibration["same"]["similarity"]):
        return SAME
    return SIMILAR if similarity >= float(calibration["similar"]["similarity"]) else UNKNOWN


def write_calibration(folder: Path, calibration: ThresholdCalibration) -> Path:
    """Keep a calibration with a run or a saved embedder, as ``calibration.json`` in its folder."""
    path = folder / FILE
    write_json(path, calibration.as_dict())
    return path


def read_calibration(encoder: Encoder) -> dict[str, Any] | None:
    """The calibration kept with a model; None if there is none, or if it belongs to other weights."""
    place = encoder.note.get("model")
    path = Path(str(place)) / FILE if place else None
    if path is None or not path.is_file():
        return None
    found = read_json(path)
    if not isinstance(found, dict) or found.get("fingerprint") != encoder.fingerprint:
        return None
    return found
