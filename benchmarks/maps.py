"""The map of a report: openTSNE beside umap-learn, PaCMAP and PCA, on the same photos.

    python -m benchmarks.maps FOLDER …                     # 20,000 photos below these folders, lite0-in1k at 96 pixels
    python -m benchmarks.maps FOLDER … --points 4000 --only t-SNE UMAP

Every library gets the first 50 principal components and random seed 0, on one thread. Processor time includes compiling, which
libraries with numba do in every process. Quality is judged against the vectors themselves (1,280 dimensions, cosine): the
share of the 10 nearest images that are still among the 10 nearest, and trustworthiness (1: no image has a neighbour on the map
that is far from it in the embedding). Libraries that are not installed are skipped.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.timing import report
from recollect.inference.vectors import embed_files
from recollect.models import Embedder
from recollect.report.map import lay_out, principal_components
from recollect.search.exact import nearest_unchecked

NEAREST = 10
QUERIES = 2000
COMPONENTS = 50


def photos(folders: list[Path], count: int, size: int) -> NDArray[np.float32]:
    """Vectors of ``count`` photos, drawn at random."""
    files = sorted(path for folder in folders for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".png"))
    if len(files) < count:
        raise SystemExit(f"{len(files)} photos: give more folders, or a smaller --points.")
    places = np.sort(np.random.default_rng(0).choice(len(files), count, replace=False))
    embedder = Embedder.create("lite0-in1k", dim=None, size=size, resize=size).eval()
    return embed_files(embedder, [files[place] for place in places.tolist()]).rows


def tsne(vectors: NDArray[np.float32]) -> Any:
    return lay_out([vectors], "t-SNE")[0]


def pca(vectors: NDArray[np.float32]) -> Any:
    return lay_out([vectors], "PCA")[0]


def umap(vectors: NDArray[np.float32]) -> Any:
    from umap import UMAP

    reduced = principal_components(vectors, COMPONENTS)
    return UMAP(n_neighbors=15, random_state=0, n_jobs=1).fit_transform(reduced)


def pacmap(vectors: NDArray[np.float32]) -> Any:
    from pacmap import PaCMAP

    return PaCMAP(random_state=0, apply_pca=False).fit_transform(principal_components(vectors, COMPONENTS))


WAYS: dict[str, tuple[str, Callable[[NDArray[np.float32]], Any]]] = {
    "t-SNE": ("openTSNE", tsne),
    "UMAP": ("umap", umap),
    "PaCMAP": ("pacmap", pacmap),
    "PCA": ("torch", pca),
}


def quality(vectors: NDArray[np.float32], plane: NDArray[Any]) -> tuple[float, float]:
    """The share of neighbours kept, and trustworthiness, over ``QUERIES`` random images against all."""
    count = len(vectors)
    some = np.sort(np.random.default_rng(1).choice(count, min(QUERIES, count), replace=False))
    there = nearest_unchecked(vectors[some], vectors, NEAREST, own=some).indices
    # The nearest on the plane: the largest of x·y − |y|²/2.
    flat = (plane - plane.mean(axis=0)) / plane.std()
    items = np.column_stack([flat, -0.5 * (flat**2).sum(axis=1)]).astype(np.float32)
    queries = np.column_stack([flat[some], np.ones(len(some))]).astype(np.float32)
    here = nearest_unchecked(queries, items, NEAREST, own=some).indices
    same = np.mean([len(np.intersect1d(a, b)) for a, b in zip(here, there, strict=True)]) / NEAREST
    rows, too_far = torch.from_numpy(vectors), 0.0
    for places, neighbours in zip(np.array_split(some, 8), np.array_split(here, 8), strict=True):
        similar = rows[places] @ rows.T
        similar[torch.arange(len(places)), torch.from_numpy(places)] = -torch.inf
        for column in torch.from_numpy(neighbours).T:
            rank = 1 + (similar > similar.gather(1, column.unsqueeze(1))).sum(dim=1)
            too_far += float((rank - NEAREST).clamp(min=0).sum())
    return float(same), 1 - 2 * too_far / (len(some) * NEAREST * (2 * count - 3 * NEAREST - 1))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--points", type=int, default=20_000)
    parser.add_argument("--image-size", type=int, default=96)
    parser.add_argument("--only", nargs="+", choices=WAYS, default=list(WAYS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    vectors = photos(options.folders, options.points, options.image_size)
    rows: list[dict[str, object]] = []
    for name in options.only:
        module, work = WAYS[name]
        if importlib.util.find_spec(module) is None:
            print(f"{name}: {module} is not installed")
            continue
        start, processor = time.perf_counter(), time.process_time()
        plane = np.asarray(work(vectors), np.float64)
        spent = {"processor s": time.process_time() - processor, "clock s": time.perf_counter() - start}
        same, trust = quality(vectors, plane)
        rows.append({"map": name, "points": len(vectors), **spent, "kept": same, "trustworthiness": trust})
        print(rows[-1], flush=True)
    if rows:
        report("maps", rows)


if __name__ == "__main__":
    os.environ.setdefault("NUMBA_NUM_THREADS", "1")
    main()
