"""Positions of vectors on a plane, so that neighbours stay neighbours as far as two dimensions allow.

With the extra ``map``, openTSNE; otherwise the two principal components, which need no package and keep only the coarsest
differences. The measurements behind the choice of the library are in docs/report.md.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from threading import Event, Lock
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from recollect.common.console import ProgressLine
from recollect.common.errors import require
from recollect.search.exact import nearest_unchecked

MOST_POINTS = 20_000
"""Maximum number of images on a map; if there are more, a random part."""
Method = Literal["t-SNE", "PCA"]
FEWEST = 50
"""Number of images from which neighbourhoods show more than principal components."""
_PERPLEXITY = 30
# A third of openTSNE's iterations, and coarser sums over distant points: docs/report.md has what that costs and saves.
_EARLY, _LATER, _THETA = 100, 150, 0.8
_BETWEEN = 50  # iterations between two steps of the progress line
_COMPONENTS = 50  # enough for neighbourhoods, and neighbours are found in a tenth of the time

Plane = NDArray[np.float64]


def available_method(count: int) -> Method:
    """The method that lays out ``count`` vectors."""
    return "t-SNE" if count >= FEWEST and find_spec("openTSNE") is not None else "PCA"


def lay_out(embeddings: Sequence[NDArray[np.float32]], method: Method) -> list[Plane]:
    """N × 2 positions from 0 to 1 for every embedding, with equal scales on both axes.

    Args:
        embeddings: vectors of the same N images by different weights, each N × d of length 1. The layouts are rotated and
            mirrored to resemble the first one.
        method: see ``available_method``.
    """
    reduced = [principal_components(vectors, _COMPONENTS if method == "t-SNE" else 2) for vectors in embeddings]
    planes = _neighbourhoods(reduced) if method == "t-SNE" else reduced
    return [_fitted(plane if not place else turned_like(plane, planes[0])) for place, plane in enumerate(planes)]


def principal_components(vectors: NDArray[np.float32], count: int) -> Plane:
    """The first ``count`` principal components, or as many as there are; at least two columns."""
    rows = torch.from_numpy(np.ascontiguousarray(vectors, np.float32))
    rows = rows - rows.mean(dim=0)
    _, directions = torch.linalg.eigh((rows.T @ rows).double())
    components: Plane = (rows @ directions.flip(1)[:, :count].float()).double().numpy()
    # The sign of an eigenvector is arbitrary: put the longer tail on the right and at the bottom.
    components *= np.where((components**3).sum(axis=0) < 0, -1.0, 1.0)
    return components if components.shape[1] > 1 else np.column_stack([components, np.zeros(len(components))])


def _neighbourhoods(embeddings: Sequence[Plane]) -> list[Plane]:
    """A map of each embedding, all at once: on two cores that saves 45 % of the time, two threads for one map a quarter."""
    maps = len(embeddings)
    jobs = max(1, torch.get_num_threads() // maps)
    title = f"map of {len(embeddings[0]):,} images" if maps == 1 else f"{maps} maps of {len(embeddings[0]):,} images"
    stopped, counting = Event(), Lock()
    with warnings.catch_warnings(), ProgressLine(title, maps * (_EARLY + _LATER), "rounds") as line:
        warnings.simplefilter("ignore")

        def done(*_: object) -> bool:
            with counting:
                line.advance(_BETWEEN)
            return stopped.is_set()

        with ThreadPoolExecutor(maps) as pool:
            begun = [pool.submit(_neighbourhood, reduced, jobs, done) for reduced in embeddings]
            try:
                return [one.result() for one in begun]
            except BaseException:
                stopped.set()
                raise


def _neighbourhood(reduced: Plane, jobs: int, done: Callable[..., bool]) -> Plane:
    opentsne = require("openTSNE", "map", "a map of neighbourhoods")
    start = reduced[:, :2]
    indices, distances = _nearest(reduced, min(3 * _PERPLEXITY, len(reduced) - 1))
    known = opentsne.nearest_neighbors.PrecomputedNeighbors(indices, distances)
    perplexity = min(_PERPLEXITY, (len(reduced) - 1) // 3)
    affinities = opentsne.affinity.PerplexityBasedNN(knn_index=known, perplexity=perplexity, n_jobs=jobs)
    placed = opentsne.TSNE(
        initialization=start / (start[:, 0].std() or 1.0) * 1e-4,
        early_exaggeration_iter=_EARLY,
        n_iter=_LATER,
        theta=_THETA,
        n_jobs=jobs,
        random_state=0,
        callbacks=done,
        callbacks_every_iters=_BETWEEN,
    ).fit(affinities=affinities)
    return np.asarray(placed, np.float64)


def _nearest(rows: Plane, count: int) -> tuple[NDArray[np.int64], Plane]:
    """The nearest other rows of each row, and their Euclidean distances: exact, in half the time of openTSNE's own search."""
    # |x − y|² = |x|² − 2 (x·y − |y|²/2): the nearest has the largest product with (y, −|y|²/2).
    squares = (rows**2).sum(axis=1)
    items = np.column_stack([rows, -squares / 2]).astype(np.float32)
    queries = np.column_stack([rows, np.ones(len(rows))]).astype(np.float32)
    found = nearest_unchecked(queries, items, count, own=np.arange(len(rows)))
    apart: Plane = np.sqrt(np.maximum(squares[:, None] - 2 * found.similarities.astype(np.float64), 0))
    return found.indices, apart


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
