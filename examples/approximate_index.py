"""What an approximate faiss index loses and saves, compared with exact search of the same vectors.

recollect embed runs/mine photos --out all.npz
python examples/approximate_index.py all.npz
"""

from __future__ import annotations

import sys
import time

import faiss  # pip install faiss-cpu
import numpy as np
from numpy.typing import NDArray


def toy_vectors(classes: int = 80, each: int = 15, dim: int = 32) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Unit vectors around the centres of classes, and their classes; replace them by yours."""
    random = np.random.default_rng(0)
    labels = np.arange(classes).repeat(each)
    vectors = random.standard_normal((classes, dim))[labels] + 1.5 * random.standard_normal((len(labels), dim))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32), labels


def indexes(count: int, dim: int) -> list[tuple[str, str, tuple[int, ...]]]:
    """faiss's name of each index, its search parameter, and the values to try."""
    clusters = (f"IVF{max(1, count // 40)},Flat", "nprobe", (1, 4, 16, 64))
    codes = [(f"PQ{size}x4", "", (0,)) for size in (8, 16, 32, 64) if dim % size == 0]  # 4 bits per part
    return [("Flat", "", (0,)), clusters, ("HNSW32", "efSearch", (16, 64, 256)), *codes]


def main(vectors: NDArray[np.float32], labels: NDArray[np.int64]) -> dict[str, tuple[float, float, float, float]]:
    """Share of the exact first 10, r@1, milliseconds per query and MiB, for every index and setting."""
    rows = {}
    for name, knob, values in indexes(*vectors.shape):
        index = faiss.index_factory(vectors.shape[1], name, faiss.METRIC_INNER_PRODUCT)
        index.train(vectors)
        index.add(vectors)
        for value in values:
            if knob:
                faiss.ParameterSpace().set_index_parameter(index, knob, value)
            begun = time.perf_counter()
            _, found = index.search(vectors, 11)
            milliseconds = 1000 * (time.perf_counter() - begun) / len(vectors)
            # Each query is moved behind its results; a stable sort changes nothing else.
            order = np.argsort(found == np.arange(len(found))[:, None], axis=1, kind="stable")
            found = np.take_along_axis(found, order, axis=1)[:, :10]
            if not rows:
                exact = found  # of "Flat", which compares every vector
            share = float(np.mean([np.isin(one, two).mean() for one, two in zip(exact, found, strict=True)]))
            r1 = float(((labels[found[:, 0]] == labels) & (found[:, 0] >= 0)).mean())
            size = faiss.serialize_index(index).nbytes / 2**20
            rows[f"{name} {knob}={value}" if knob else name] = share, r1, milliseconds, size
    return rows


if __name__ == "__main__":
    data = np.load(sys.argv[1]) if len(sys.argv) > 1 else None
    for setting, row in main(*(toy_vectors() if data is None else (data["embeddings"], data["labels"]))).items():
        print("{:24} found@10 {:.3f}   r@1 {:.3f}   {:.3f} ms per query   {:.1f} MiB".format(setting, *row))
