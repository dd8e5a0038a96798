"""Search: an index in a file beside faiss, PostgreSQL and Milvus; and how long a folder takes to be up to date.

    python -m benchmarks.search                         # everything; an hour on two idle cores, 12 GB of memory
    python -m benchmarks.search --items 200000 --only file
    python -m benchmarks.search --only servers sync

Vectors are 512-dimensional and lie in classes, as embeddings do. A warm query is one query at a time, k = 10, against
faiss's flat index in the same process, in turn; ratios of the shortest times, since the machine may be busy.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from benchmarks.timing import peak_mib, report
from recollect.search import Index, Item, Store, open_store
from recollect.search.approximate_search import measure
from recollect.search.settings import Generation

DIM = 512
K = 10


def vectors(count: int, seed: int = 0, chunk: int = 50_000) -> Iterator[np.ndarray]:
    """Unit vectors in classes of about 20, some thousand at a time."""
    centres = np.random.default_rng(1).standard_normal((max(2, min(count // 20, 20_000)), DIM), dtype=np.float32)
    random = np.random.default_rng(seed)
    for start in range(0, count, chunk):
        size = min(chunk, count - start)
        rows = centres[random.integers(0, len(centres), size)]
        rows = rows + 1.2 * random.standard_normal((size, DIM), dtype=np.float32)
        yield rows / np.linalg.norm(rows, axis=1, keepdims=True)


def clock(work: Callable[[], object], repeats: int = 1) -> tuple[float, float]:
    """Shortest wall-clock and processor time of some runs, in seconds."""
    wall, processor = [], []
    for _ in range(repeats):
        start, start_processor = time.perf_counter(), time.process_time()
        work()
        wall.append(time.perf_counter() - start)
        processor.append(time.process_time() - start_processor)
    return min(wall), min(processor)


def notes(name: str, rows: list[dict[str, object]]) -> Callable[..., None]:
    """A function that adds a row and prints it, so that a long run shows how far it is."""

    def note(what: str, seconds: float, **more: object) -> None:
        empty = {"beside faiss": "", "recall": "", "MiB": ""}
        rows.append({"index": name, "what": what, "seconds": round(seconds, 4), **empty, **more})
        print(rows[-1], flush=True)

    return note


def fill(store: Store, count: int, half: bool = False) -> float:
    store.create_generation(1, DIM, half)
    start, number = time.perf_counter(), 0
    for rows in vectors(count):
        for first in range(0, len(rows), 4096):
            some = rows[first : first + 4096]
            store.put(1, [Item(f"{number + i:09d}", row, {"label": str(i % 100)}) for i, row in enumerate(some)])
            number += len(some)
    return time.perf_counter() - start


def recall(store: Store, queries: int = 200) -> float:
    generation = Generation(1, {"fingerprint": ""}, DIM)
    return measure(store, generation, queries, K)[0]


def file(count: int, half: bool, graph: bool) -> list[dict[str, object]]:
    """An index in a file: build, open, warm queries beside faiss, and the graph."""
    import faiss

    faiss.omp_set_num_threads(torch.get_num_threads())
    name = f"file, {count:,} × {DIM}{', half' if half else ''}"
    rows: list[dict[str, object]] = []

    note = notes(name, rows)
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        path = Path(folder) / "bench.index"
        store = open_store(path, create=True)
        note("build", fill(store, count, half), MiB=round(path.stat().st_size / 2**20))
        store.close()
        queries = next(vectors(64, seed=7))
        store = open_store(path)
        note("open and first query", clock(lambda: store.search(1, queries[:1], K))[0], MiB=round(peak_mib()))
        flat = faiss.IndexFlatIP(DIM)
        for some in vectors(count):
            flat.add(some)
        found = store.search(1, queries[:8], K)
        right = flat.search(queries[:8], K)[1]
        if not half:
            assert [[int(hit.id) for hit in hits] for hits in found] == right.tolist(), (
                "exact search differs from faiss"
            )
        ours: list[tuple[float, float]] = []
        theirs: list[tuple[float, float]] = []
        for number in range(15):
            query = queries[number : number + 1]
            ours.append(clock(lambda query=query: store.search(1, query, K)))
            theirs.append(clock(lambda query=query, flat=flat: flat.search(query, K)))
        best = [min(pair[i] for pair in times) for times in (ours, theirs) for i in range(2)]
        note(
            "warm exact query",
            best[0],
            **{"beside faiss": f"{best[0] / best[2]:.2f} wall, {best[1] / best[3]:.2f} cpu"},
        )
        note("faiss flat", best[2])
        note("warm exact query, one label of 100", clock(lambda: store.search(1, queries[:1], K, {"label": "7"}), 5)[0])
        batch = clock(lambda: store.search(1, queries[:32], K), 3)[0] / 32
        note("exact, 32 queries together, each", batch)
        del flat
        if graph:
            built = clock(lambda: store.build_approximate(1, {"m": 16, "ef_construction": 80, "ef_search": 128}))[0]
            note("build HNSW (m 16, ef_construction 80)", built, MiB=round(peak_mib()))
            one = clock(lambda: store.search(1, queries[:1], K, approximate=True), 15)[0]
            note("HNSW query (ef_search 128)", one, recall=round(recall(store), 4))
        store.close()
    return rows


def server(kind: str, count: int) -> list[dict[str, object]]:
    """PostgreSQL or Milvus: the same, by the server that the tests start."""
    from tests.search import servers

    address = f"{servers.postgres()}&index=bench" if kind == "pgvector" else f"{servers.milvus()}/bench"
    store = open_store(address, create=True)
    rows: list[dict[str, object]] = []
    note = notes(f"{kind}, {count:,} × {DIM}", rows)
    note("build", fill(store, count))
    queries = next(vectors(64, seed=7))
    store.search(1, queries[:1], K)
    note("warm exact query", clock(lambda: store.search(1, queries[:1], K), 5)[0])
    note("warm exact query, one label of 100", clock(lambda: store.search(1, queries[:1], K, {"label": "7"}), 5)[0])
    note("build HNSW (m 16, ef_construction 80)",
         clock(lambda: store.build_approximate(1, {"m": 16, "ef_construction": 80, "ef_search": 128}))[0])  # fmt: skip
    store.search(1, queries[:1], K, approximate=True)
    one = clock(lambda: store.search(1, queries[:1], K, approximate=True), 15)[0]
    note("HNSW query (ef_search 128)", one, recall=round(recall(store, 50), 4))
    store.drop_generation(1)
    store.close()
    return rows


def sync(count: int = 10_000, new: int = 100) -> list[dict[str, object]]:
    """100 new photos in a folder of 10,000 that is indexed already."""
    from PIL import Image

    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        photos, random = Path(folder) / "photos", np.random.default_rng(0)

        def make(first: int, last: int) -> None:
            for number in range(first, last):
                place = photos / f"class{number % 50}"
                place.mkdir(parents=True, exist_ok=True)
                pixels = np.kron(random.integers(0, 256, (6, 6, 3), dtype=np.uint8), np.ones((16, 16, 1), np.uint8))
                Image.fromarray(pixels).save(place / f"{number}.jpg")

        make(0, count)
        with Index.create(Path(folder) / "x.index", "lite0-in1k") as index:
            for what, prepare in (
                (f"index {count:,} photos", lambda: None),
                ("nothing new", lambda: None),
                (f"{new} new photos", lambda: make(count, count + new)),
            ):
                prepare()
                wall, processor = clock(lambda: index.sync(photos))
                row = {"index": "file, lite0-in1k", "what": what, "seconds": round(wall, 3), "cpu": round(processor, 3)}
                rows.append(row)
                print(row, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--server-items", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--no-graph", action="store_true", help="leave out the HNSW graph, which takes longest to build"
    )
    parser.add_argument("--only", nargs="*", choices=["file", "half", "servers", "sync"])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    chosen = options.only or ["file", "half", "servers", "sync"]
    rows: list[dict[str, object]] = []
    if "file" in chosen:
        rows += file(options.items, False, not options.no_graph)
    if "half" in chosen:
        rows += file(options.items, True, False)
    if "servers" in chosen:
        for kind in ("pgvector", "milvus"):
            rows += server(kind, options.server_items)
    if rows:
        report("search", rows)
    if "sync" in chosen:
        report("search-sync", sync())


if __name__ == "__main__":
    main()
