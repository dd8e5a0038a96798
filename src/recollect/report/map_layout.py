"""Positions of vectors on a plane, so that neighbours stay neighbours as far as two dimensions allow.

With the extra ``map``, openTSNE; otherwise the two principal components, which need no package and keep only the coarsest
differences. The measurements behind the choice of the library are in docs/report.md.
"""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from recollect.common.console import ProgressLine
from recollect.common.imports import require

MOST_POINTS = 20_000
"""Maximum number of images on a map; if there are more, a random part."""
Method = Literal["t-SNE", "PCA"]
_FEWEST = 50  # number of images from which neighbourhoods show more than principal components
_PERPLEXITY = 30
# A third of openTSNE's iterations, and coarser sums over distant points: docs/report.md has what that costs and saves.
_EARLY, _LATER, _THETA = 100, 150, 0.8
_BETWEEN = 50  # iterations between two steps of the progress line
_COMPONENTS = 50  # enough for neighbourhoods, and neighbours are found in a tenth of the time

Plane = NDArray[np.float64]


def available_method(count: int) -> Method:
    """The method that lays out ``count`` vectors."""
    return "t-SNE" if count >= _FEWEST and find_spec("openTSNE") is not None else "PCA"


def lay_out(vectors: NDArray[np.float32], method: Method, like: Plane | None = None) -> Plane:
    """N × 2 positions from 0 to 1, with equal scales on both axes.

    Args:
        vectors: N × d of length 1.
        method: see ``available_method``.
        like: another layout of the same images; the new one is rotated and mirrored to resemble it.
    """
    reduced = principal_components(vectors, _COMPONENTS if method == "t-SNE" else 2)
    plane = reduced[:, :2]
    if method == "t-SNE":
        plane = _neighbourhoods(reduced, plane)
    if like is not None:
        plane = turned_like(plane, like)
    return _fitted(plane)


def principal_components(vectors: NDArray[np.float32], count: int) -> Plane:
    """The first ``count`` principal components, or as many as there are; at least two columns."""
    rows = torch.from_numpy(np.ascontiguousarray(vectors, np.float32))
    rows = rows - rows.mean(dim=0)
    _, directions = torch.linalg.eigh((rows.T @ rows).double())
    components: Plane = (rows @ directions.flip(1)[:, :count].float()).double().numpy()
    # The sign of an eigenvector is arbitrary: put the longer tail on the right and at the bottom.
    components *= np.where((components**3).sum(axis=0) < 0, -1.0, 1.0)
    return components if components.shape[1] > 1 else np.column_stack([components, np.zeros(len(components))])


def _neighbourhoods(reduced: Plane, start: Plane) -> Plane:
    opentsne = require("openTSNE", "map", "a map of neighbourhoods")
    spread = start[:, 0].std() or 1.0
    title, rounds = f"map of {len(reduced):,} images", _EARLY + _LATER
    with warnings.catch_warnings(), ProgressLine(title, rounds, "rounds") as line:

        def done(*_: object) -> None:
            line.advance(_BETWEEN)

        warnings.simplefilter("ignore")
        placed = opentsne.TSNE(
            perplexity=min(_PERPLEXITY, (len(reduced) - 1) // 3),
            initialization=start / spread * 1e-4,
            early_exaggeration_iter=_EARLY,
            n_iter=_LATER,
            theta=_THETA,
            n_jobs=torch.get_num_threads(),
            random_state=0,
            callbacks=done,
            callbacks_every_iters=_BETWEEN,
        ).fit(reduced)
    return np.asarray(placed, np.float64)


def turned_like(plane: Plane, like: Plane) -> Plane:
    """``plane`` rotated and mirrored so that its points are as close as possible to those of ``like`` (Procrustes)."""
    here, there = plane - plane.mean(axis=0), like - like.mean(axis=0)
    left, _, right = np.linalg.svd(here.T @ there)
    return np.asarray(here @ (left @ right), np.float64)


def _fitted(plane: Plane) -> Plane:
    low, high = plane.min(axis=0), plane.max(axis=0)
    scale = float((high - low).max()) or 1.0
    fitted: Plane = (plane - (low + high) / 2) / scale + 0.5
    return fitted
