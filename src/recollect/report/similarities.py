"""Similarities of pairs of the same class and of different classes, counted tile by tile.

Over all pairs of up to ``MOST`` images, or of as many drawn at random: every pair of either kind is equally likely to be
drawn, so the shares are unbiased, and 32 million pairs give the same curve as 5 billion.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

MOST = 8000
"""Images whose pairs are counted."""
_FINE = 4000  # bins from -1 to 1, fine enough for the share of ordered pairs; drawn ones are sums of them
_ROWS = 512


@dataclass(frozen=True)
class Similarities:
    """Counts of pairs by similarity, in ``_FINE`` bins from −1 to 1.

    Attributes:
        positive: pairs of one class. negative: pairs of different classes.
    """

    positive: NDArray[np.float64]
    negative: NDArray[np.float64]

    @property
    def ordered(self) -> float | None:
        """The share of (positive, negative) pairs in which the positive is the more similar: 0.5 is chance, 1 perfect.

        Also known as the area under the ROC curve. None without positives or negatives.
        """
        total = self.positive.sum() * self.negative.sum()
        if not total:
            return None
        below = np.cumsum(self.negative) - self.negative / 2  # pairs in one bin count half
        return float((self.positive * below).sum() / total)

    def binned(
        self, low: float, high: float, bins: int = 64
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Counts of positives and negatives in ``bins`` from ``low`` to ``high``, and the bins' edges."""
        centres = (np.arange(_FINE) + 0.5) / _FINE * 2 - 1
        edges = np.linspace(low, high, bins + 1)
        place = np.clip(np.searchsorted(edges, centres, side="right") - 1, 0, bins - 1)
        positive = np.bincount(place, weights=self.positive, minlength=bins).astype(np.float64)
        negative = np.bincount(place, weights=self.negative, minlength=bins).astype(np.float64)
        return positive, negative, edges

    def span(self, share: float = 0.001) -> tuple[float, float]:
        """The similarities that all but a ``share`` of the pairs on either side lie between, for both kinds."""
        lows, highs = [], []
        for counts in (self.positive, self.negative):
            if counts.sum():
                risen = np.cumsum(counts) / counts.sum()
                lows.append(int(np.searchsorted(risen, share)))
                highs.append(int(np.searchsorted(risen, 1 - share)))
        if not lows:
            return -1.0, 1.0
        return min(lows) / _FINE * 2 - 1, min(max(highs) + 1, _FINE) / _FINE * 2 - 1


def count_similarities(vectors: NDArray[np.float32], labels: NDArray[np.int64]) -> Similarities:
    """Count all pairs of different rows, each once; with more than ``MOST`` rows, of a random part."""
    if len(vectors) > MOST:
        some = np.sort(np.random.default_rng(0).choice(len(vectors), MOST, replace=False))
        vectors, labels = vectors[some], labels[some]
    rows, classes = torch.from_numpy(np.ascontiguousarray(vectors)), torch.from_numpy(labels)
    counts = torch.zeros(2, _FINE, dtype=torch.float64)
    for start in range(0, len(rows), _ROWS):
        here = rows[start : start + _ROWS]
        tile = here @ rows[start:].T
        place = ((tile + 1) / 2 * _FINE).long().clamp_(0, _FINE - 1)
        same = classes[start : start + len(here), None] == classes[None, start:]
        # Only above the diagonal: each pair once, and no vector with itself.
        later = torch.arange(len(rows) - start)[None, :] > torch.arange(len(here))[:, None]
        for kind, chosen in enumerate((same & later, ~same & later)):
            counts[kind] += torch.bincount(place[chosen], minlength=_FINE)
    return Similarities(counts[0].numpy(), counts[1].numpy())
