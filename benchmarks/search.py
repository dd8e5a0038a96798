"""Search: an index in a file beside faiss, PostgreSQL and Milvus; and how long a folder takes to be up to date.

    python -m benchmarks.search                         # everything; 8 GB of memory
    python -m benchmarks.search --items 200000 --only file
    python -m benchmarks.search --only pgvector milvus sync

Vectors are 512-dimensional and lie in classes, as embeddings do. A warm query is one query at a time, k = 10, against
faiss's flat index in the same process, in turn; ratios of the shortest times, since the machine may be busy. Processor time
of a server is that of all its processes and of the client.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from benchmarks.timing import peak_mib, report, reset_peak
from recollect.search import Index, Item, Store, open_store
from recollect.search.approximate_search import RECALL, WIDEST, Questions
from recollect.search.indexed_files import digest_of, stamp_of
from recollect.search.settings import Generation

DIM = 512
K = 10
_PARTS = ["sync", "file", "half", "pgvector", "milvus"]


def vectors(count: int, seed: int = 0, chunk: int = 50_000) -> Iterator[np.ndarray]:
    """Unit vectors in classes of about 20, some thousand at a time."""
    centres = np.random.default_rng(1).standard_normal((max(2, min(count // 20, 20_000)), DIM), dtype=np.float32)
    random = np.random.default_rng(seed)
    for start in range(0, count, chunk):
        size = min(chunk, count - start)
        rows = centres[random.integers(0, len(centres), size)]
        rows = rows + 1.2 * random.standard_normal((size, DIM), dtype=np.float32)
        yield rows / np.linalg.norm(rows, axis=1, keepdims=True)


def clock(work: Callable[[], object], repeats: int = 1, server: int | None = None) -> tuple[float, float]:
    """Shortest wall-clock and processor time of some runs, in seconds; with the processes of a server, if it has an id."""
    wall, processor = [], []
    for _ in range(repeats):
        start, start_processor = time.perf_counter(), time.process_time() + processor_of(server)
        work()
        wall.append(time.perf_counter() - start)
        processor.append(time.process_time() + processor_of(server) - start_processor)
    return min(wall), min(processor)


def processor_of(process: int | None) -> float:
    """Processor seconds of a process and its children, ended ones included (Linux)."""
    if process is None:
        return 0.0
    children, ticks = defaultdict(list), {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended
        own = int(entry.parent.name)
        children[int(fields[1])].append(own)
        ticks[own] = sum(map(int, fields[11:15]))  # user and system time, its own and of children that ended

    def total(one: int) -> int:
        return ticks.get(one, 0) + sum(total(child) for child in children[one])

    return total(process) / os.sysconf("SC_CLK_TCK")


def notes(name: str, rows: list[dict[str, object]]) -> Callable[..., None]:
    """A function that adds a row and prints it, so that a long run shows how far it is."""

    def note(what: str, seconds: tuple[float, float], **more: object) -> None:
        empty = {"beside faiss": "", "recall": "", "MiB": ""}
        wall, processor = (round(value, 4) for value in seconds)
        rows.append({"index": name, "what": what, "seconds": wall, "processor": processor, **empty, **more})
        print(rows[-1], flush=True)

    return note


def fill(store: Store, count: int, half: bool = False) -> None:
    store.create_generation(1, DIM, half)
    number = 0
    for rows in vectors(count):
        for first in range(0, len(rows), 4096):
            some = rows[first : first + 4096]
            store.put(1, [Item(f"{number + i:09d}", row, {"label": str(i % 100)}) for i, row in enumerate(some)])
            number += len(some)


GRAPH = {"m": 16, "ef_construction": 80, "ef_search": 128}


def approximate(
    store: Store, queries: np.ndarray, note: Callable[..., None], asked: int, server: int | None = None
) -> None:
    """Build the graph, then widen the search as ``recollect index --approximate`` does, with a row for every width."""
    questions = Questions.of(store, Generation(1, {"fingerprint": ""}, DIM), asked)
    reset_peak()
    built = clock(lambda: store.build_approximate(1, GRAPH), server=server)
    note("build HNSW (m 16, ef_construction 80)", built, MiB=round(peak_mib()))
    width, found = GRAPH["ef_search"], 0.0
    while found < RECALL and width <= WIDEST:
        store.widen_approximate(1, width)
        store.search(1, queries[:1], K, approximate=True)
        one = clock(lambda: [store.search(1, query[None], K, approximate=True) for query in queries], 3, server)
        found = questions.recall(store)
        each = (one[0] / len(queries), one[1] / len(queries))
        note(f"HNSW query (ef_search {width})", each, recall=round(found, 4))
        width = min(2 * width, WIDEST) if width < WIDEST else WIDEST + 1


def file(count: int, half: bool, exact: bool, graph: bool) -> list[dict[str, object]]:
    """An index in a file: build, open, warm queries beside faiss, and the graph."""
    rows: list[dict[str, object]] = []
    note = notes(f"file, {count:,} × {DIM}{', half' if half else ''}", rows)
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        path = Path(folder) / "bench.index"
        store = open_store(path, create=True)
        built = clock(lambda: fill(store, count, half))
        note("build", built, MiB=round(path.stat().st_size / 2**20))
        store.close()
        queries = next(vectors(64, seed=7))
        reset_peak()
        store = open_store(path)
        note("open and first query", clock(lambda: store.search(1, queries[:1], K)), MiB=round(peak_mib()))
        if exact:
            beside_faiss(store, queries, count, half, note)
        if graph:
            approximate(store, queries, note, 200)
        store.close()
    return rows


def beside_faiss(store: Store, queries: np.ndarray, count: int, half: bool, note: Callable[..., None]) -> None:
    """Warm exact queries, ours and faiss's in turn."""
    import faiss

    faiss.omp_set_num_threads(torch.get_num_threads())
    flat = faiss.IndexFlatIP(DIM)
    for some in vectors(count):
        flat.add(some)
    found = store.search(1, queries[:8], K)
    right = flat.search(queries[:8], K)[1]
    if not half:
        assert [[int(hit.id) for hit in hits] for hits in found] == right.tolist(), "exact search differs from faiss"
    ours: list[tuple[float, float]] = []
    theirs: list[tuple[float, float]] = []
    for number in range(15):
        query = queries[number : number + 1]
        ours.append(clock(lambda query=query: store.search(1, query, K)))
        theirs.append(clock(lambda query=query: flat.search(query, K)))
    (wall, processor), (wall_of_faiss, processor_of_faiss) = (
        tuple(min(pair[i] for pair in times) for i in range(2)) for times in (ours, theirs)
    )
    ratio = f"{wall / wall_of_faiss:.2f} wall, {processor / processor_of_faiss:.2f} cpu"
    note("warm exact query", (wall, processor), **{"beside faiss": ratio})
    note("faiss flat", (wall_of_faiss, processor_of_faiss))
    note("warm exact query, one label of 100", clock(lambda: store.search(1, queries[:1], K, {"label": "7"}), 5))
    batch = clock(lambda: store.search(1, queries[:32], K), 3)
    note("exact, 32 queries together, each", (batch[0] / 32, batch[1] / 32))


def server(kind: str, count: int) -> list[dict[str, object]]:
    """PostgreSQL or Milvus: the same, by the server that the tests start."""
    from search import servers  # tests/search, which main puts on the path

    rows: list[dict[str, object]] = []
    if kind == "pgvector":
        address, process = f"{servers.postgres()}&index=bench", servers.PROCESSES.get("postgres")
        note = notes(f"pgvector, {count:,} × {DIM}", rows)
    elif importlib.util.find_spec("milvus") is not None:
        address, process = f"{servers.milvus_standalone()}/bench", servers.PROCESSES["milvus-standalone"]
        note = notes(f"Milvus 2.3.5, {count:,} × {DIM}", rows)
    else:
        print(
            "no standalone Milvus server (extra 'servers', Linux with x86-64): milvus-lite instead, which is far slower"
        )
        address, process = f"{servers.milvus()}/bench", servers.PROCESSES.get("milvus")
        note = notes(f"milvus-lite, {count:,} × {DIM}", rows)
    store = open_store(address, create=True)
    note("build", clock(lambda: fill(store, count), server=process))
    queries = next(vectors(64, seed=7))
    store.search(1, queries[:1], K)
    note("warm exact query", clock(lambda: store.search(1, queries[:1], K), 5, process))
    only = clock(lambda: store.search(1, queries[:1], K, {"label": "7"}), 5, process)
    note("warm exact query, one label of 100", only)
    approximate(store, queries, note, 50, process)
    store.drop_generation(1)
    store.close()
    return rows


def sync(count: int = 10_000, new: int = 100) -> list[dict[str, object]]:
    """100 new photos in a folder of 10,000 that is indexed already (with vectors that were not computed)."""
    from PIL import Image

    rows: list[dict[str, object]] = []
    note = notes(f"file of {count:,} photos, lite0-in1k", rows)
    with tempfile.TemporaryDirectory() as folder:
        photos, random = Path(folder) / "photos", np.random.default_rng(0)

        def make(first: int, last: int) -> list[Path]:
            made = []
            for number in range(first, last):
                place = photos / f"class{number % 50}"
                place.mkdir(parents=True, exist_ok=True)
                pixels = np.kron(random.integers(0, 256, (6, 6, 3), dtype=np.uint8), np.ones((16, 16, 1), np.uint8))
                made.append(place / f"{number}.jpg")
                Image.fromarray(pixels).save(made[-1])
            return made

        with Index.create(Path(folder) / "x.index", "lite0-in1k") as index:
            made = make(0, count)
            known = random.standard_normal((count, index.generation.dim), dtype=np.float32)
            items = [
                Item(
                    path.relative_to(photos).as_posix(),
                    row / np.linalg.norm(row),
                    {"name": path.name, "label": path.parent.name},
                    digest_of(path)[0],
                    str(path.resolve()),
                    stamp_of(path),
                )
                for path, row in zip(made, known, strict=True)
            ]
            index.store.put(1, items)
            note("nothing new", clock(lambda: index.sync(photos)))
            make(count, count + new)
            changes = []
            note(f"{new} new photos", clock(lambda: changes.append(index.sync(photos))))
            assert (changes[0].added, changes[0].embedded, changes[0].unchanged) == (new, new, count), changes
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--graph-items", type=int, default=1_000_000, help="items under the HNSW graph; 0 for none")
    parser.add_argument("--server-items", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="*", choices=_PARTS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    chosen = options.only or _PARTS
    rows: list[dict[str, object]] = []
    if "sync" in chosen:
        rows += sync()
    if "file" in chosen:
        rows += file(options.items, False, True, options.graph_items == options.items)
        if options.graph_items not in (0, options.items):
            rows += file(options.graph_items, False, False, True)
    if "half" in chosen:
        rows += file(options.items, True, True, False)
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    for kind in ("pgvector", "milvus"):
        if kind in chosen:
            rows += server(kind, options.server_items)
    report("search", rows)


if __name__ == "__main__":
    main()
