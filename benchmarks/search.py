"""Search: an index in a file, codes for approximate search, PostgreSQL, Milvus; and how long a folder takes to be up to date.

    python -m benchmarks.search                               # everything; 8 GB of memory
    python -m benchmarks.search --only file codes --threads 1
    python -m benchmarks.search --only codes --vectors all.npz   # real vectors, of recollect embed

Generated vectors have 512 values of falling spectrum and lie in classes of 50, as embeddings do. Times are the shortest of
some runs, since the machine may be busy; those of a server are of all its processes and of the client.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import resource
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.timing import peak_mib, report, reset_peak
from recollect.search import Index, Item, Store, open_store
from recollect.search.exact import nearest_unchecked
from recollect.search.sync import digest_of, stamp_of

DIM = 512
K = 10
_PARTS = ["sync", "file", "codes", "pgvector", "milvus"]


def vectors(count: int, seed: int = 0, chunk: int = 50_000) -> Iterator[np.ndarray]:
    """Unit vectors, some thousand at a time."""
    spectrum = np.arange(1, DIM + 1, dtype=np.float32) ** -0.5
    centres = np.random.default_rng(1).standard_normal((max(2, min(count // 50, 20_000)), DIM), dtype=np.float32)
    random = np.random.default_rng(seed)
    for start in range(0, count, chunk):
        size = min(chunk, count - start)
        rows = centres[random.integers(0, len(centres), size)]
        rows = (rows + 0.7 * random.standard_normal((size, DIM), dtype=np.float32)) * spectrum
        yield rows / np.linalg.norm(rows, axis=1, keepdims=True)


class Times(NamedTuple):
    """Seconds on the clock, and of the processor, by user and by system."""

    wall: float
    user: float
    system: float


def clock(work: Callable[[], object], repeats: int = 1, server: int | None = None) -> Times:
    """The run with the least processor time; with the processes of a server, if it has an id."""
    times_of = []
    for _ in range(repeats):
        before, wall = processor_time(server), time.perf_counter()
        work()
        wall, after = time.perf_counter() - wall, processor_time(server)
        times_of.append(Times(wall, after[0] - before[0], after[1] - before[1]))
    return min(times_of, key=lambda times: times.user + times.system)


def processor_time(server: int | None) -> tuple[float, float]:
    """Seconds of this process, and of a server and its children, ended ones included (Linux)."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    user, system = usage.ru_utime, usage.ru_stime
    if server is None:
        return user, system
    children, ticks = defaultdict(list), {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended
        own = int(entry.parent.name)
        children[int(fields[1])].append(own)
        ticks[own] = np.array(fields[11:15], int).reshape(2, 2).sum(axis=0)  # its own and of children that ended

    def total(one: int) -> np.ndarray:
        return ticks.get(one, 0) + sum(total(child) for child in children[one])

    more = total(server) / os.sysconf("SC_CLK_TCK")
    return user + more[0], system + more[1]


def notes(name: str, rows: list[dict[str, object]]) -> Callable[..., None]:
    """A function that adds a row and prints it, so that a long run shows how far it is."""

    def note(what: str, times: Times, each: int = 1, **more: object) -> None:
        milliseconds = {key: round(1000 * value / each, 2) for key, value in times._asdict().items()}
        rows.append({"index": name, "what": what, **milliseconds, "recall": "", "MiB": "", **more})
        print(rows[-1], flush=True)

    return note


def fill(store: Store, parts: Iterable[np.ndarray], batch: int = 4096) -> None:
    store.create_generation(1, DIM)
    number = 0
    for rows in parts:
        for first in range(0, len(rows), batch):
            some = rows[first : first + batch]
            names = range(number, number + len(some))
            metadata = [{"label": str(name % 100), "half": str(name % 2)} for name in names]
            store.put(1, [Item(f"{n:09d}", row, about) for n, row, about in zip(names, some, metadata, strict=True)])
            number += len(some)


def file(count: int) -> list[dict[str, object]]:
    """An index in a file: what it takes to write it, open it, search it and follow changes."""
    rows: list[dict[str, object]] = []
    note = notes(f"file, {count:,} × {DIM}", rows)
    queries, more = next(vectors(64, seed=7)), next(vectors(2000, seed=8))
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        path = Path(folder) / "bench.index"
        store = open_store(path, create=True)
        embeddings = list(vectors(count))
        note("add in batches of 256", clock(lambda: fill(store, embeddings, 256)))
        embeddings.clear()
        store.close()
        opened: list[Store] = []
        size = round(path.stat().st_size / 2**20)
        note("open", clock(lambda: opened.append(open_store(path))), MiB=size)
        store = opened[0]
        reset_peak()
        note("first search", clock(lambda: store.search(1, queries[:1], K)), MiB=round(peak_mib()))
        note("one query", clock(lambda: store.search(1, queries[:1], K, approximate=False), 9))
        note("32 queries, each", clock(lambda: store.search(1, queries[:32], K, approximate=False), 5), 32)
        note("filter 1 %", clock(lambda: store.search(1, queries[:1], K, {"label": "7"}, approximate=False), 5))
        note("filter 50 %", clock(lambda: store.search(1, queries[:1], K, {"half": "1"}, approximate=False), 5))
        new = iter([Item(f"new {n}", row) for n, row in enumerate(more)])
        old = iter([f"{number:09d}" for number in range(5000)])

        def add() -> None:
            store.put(1, [next(new) for _ in range(256)])
            store.search(1, queries[:1], K, approximate=False)

        def delete() -> None:
            store.delete(1, [next(old) for _ in range(1000)])
            store.search(1, queries[:1], K, approximate=False)

        note("add 256 and search", clock(add, 5))
        note("delete 1,000 and search", clock(delete, 5))
        note("read all items with vectors", clock(lambda: sum(1 for _ in store.iterate(1, vectors=True))))
        if importlib.util.find_spec("faiss") is not None:
            approximate(store, queries, note)
        store.close()
    return rows


def approximate(store: Store, queries: np.ndarray, note: Callable[..., None], server: int | None = None) -> None:
    """Build approximate search, and the time and recall of its queries by the number of candidates."""
    exact = [{hit.id for hit in hits} for hits in store.search(1, queries, K, approximate=False)]

    def build() -> None:
        store.build_approximate(1)
        store.search(1, queries[:1], K, approximate=True)

    note("build approximate search", clock(build, server=server), MiB=round(peak_mib()))
    for candidates in (50, 100, 200, 400):

        def search(candidates: int = candidates) -> list[set[str]]:
            answers = [store.search(1, query[None], K, None, True, candidates)[0] for query in queries]
            return [{hit.id for hit in hits} for hits in answers]

        recall = np.mean([len(right & hits) / K for right, hits in zip(exact, search(), strict=True)])
        times = clock(search, 3, server)
        note(f"approximate query, {candidates} candidates", times, len(queries), recall=round(float(recall), 4))
    filtered = clock(lambda: store.search(1, queries[:1], K, {"half": "1"}, True), 5, server)
    note("approximate query, filter 50 %", filtered)


def codes(gallery: np.ndarray, queries: np.ndarray) -> list[dict[str, object]]:
    """Codes of faiss: time to make them, time of a query whose best 100 are compared exactly, recall beside exact search."""
    import faiss

    faiss.omp_set_num_threads(torch.get_num_threads())
    rows: list[dict[str, object]] = []
    dim = gallery.shape[1]
    note = notes(f"codes, {len(gallery):,} × {dim}", rows)
    right = nearest_unchecked(queries, gallery, K).indices
    some = queries[:50]
    note("exact", clock(lambda: [nearest_unchecked(query[None], gallery, K) for query in some], 3), len(some), recall=1)
    for name in (f"IVF1,PQ{dim // 2}x4fs", "RaBitQfs"):  # ours, and another
        try:
            index = faiss.index_factory(dim, name, faiss.METRIC_INNER_PRODUCT)
        except RuntimeError:
            print(f"{name}: this version of faiss does not have it, or not for vectors of {dim} values")
            continue

        if hasattr(index, "pq"):
            index.pq.cp.niter = 8

        def build(index: object = index) -> None:
            index.train(gallery[np.linspace(0, len(gallery) - 1, 4096).astype(np.int64)])
            index.add(gallery)

        def search(queries: np.ndarray, index: object = index) -> np.ndarray:
            results = []
            for query in queries:
                near = index.search(query[None], 100)[1][0]
                results.append(near[np.argsort(-(gallery[near] @ query))[:K]])
            return np.stack(results)

        built = clock(build)
        recall = np.mean(
            [len(set(a) & set(b)) / K for a, b in zip(right.tolist(), search(queries).tolist(), strict=True)]
        )
        note(f"{name}: build", built)
        note(f"{name}: query", clock(lambda: search(some), 3), len(some), recall=round(float(recall), 4))
    return rows


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
    note("build", clock(lambda: fill(store, vectors(count)), server=process))
    queries = next(vectors(64, seed=7))
    store.search(1, queries[:1], K)
    note("one query", clock(lambda: store.search(1, queries[:1], K), 5, process))
    note("filter 1 %", clock(lambda: store.search(1, queries[:1], K, {"label": "7"}), 5, process))
    approximate(store, queries, note, process)
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
            files = []
            for number in range(first, last):
                place = photos / f"class{number % 50}"
                place.mkdir(parents=True, exist_ok=True)
                pixels = np.kron(random.integers(0, 256, (6, 6, 3), dtype=np.uint8), np.ones((16, 16, 1), np.uint8))
                files.append(place / f"{number}.jpg")
                Image.fromarray(pixels).save(files[-1])
            return files

        with Index.create(Path(folder) / "x.index", "lite0-in1k") as index:
            files = make(0, count)
            embeddings = random.standard_normal((count, index.generation.dim), dtype=np.float32)
            items = [
                Item(
                    path.relative_to(photos).as_posix(),
                    row / np.linalg.norm(row),
                    {"name": path.name, "label": path.parent.name},
                    digest_of(path)[0],
                    str(path.resolve()),
                    stamp_of(path),
                )
                for path, row in zip(files, embeddings, strict=True)
            ]
            index.store.put(1, items)
            note("nothing new", clock(lambda: index.sync(photos)))
            make(count, count + new)
            changes = []
            note(f"{new} new photos", clock(lambda: changes.append(index.sync(photos))))
            assert (changes[0].added, changes[0].embedded, changes[0].unchanged) == (new, new, count), changes
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=100_000, help="items in the file")
    parser.add_argument("--coded-items", type=int, default=1_000_000, help="vectors under the codes")
    parser.add_argument("--vectors", help="an .npz of recollect embed, for codes of real vectors")
    parser.add_argument("--server-items", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", nargs="*", choices=_PARTS)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    parts = options.only or _PARTS
    rows: list[dict[str, object]] = []
    if "sync" in parts:
        rows += sync()
    if "file" in parts:
        rows += file(options.items)
    if "codes" in parts:
        if options.vectors is None:
            gallery, queries = np.concatenate(list(vectors(options.coded_items))), next(vectors(200, seed=7))
        else:
            real = np.load(options.vectors)["embeddings"].astype(np.float32)
            random = np.random.default_rng(0).permutation(len(real))
            gallery, queries = real[random[200:]], real[random[:200]]
        rows += codes(gallery, queries)
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    for kind in ("pgvector", "milvus"):
        if kind in parts:
            rows += server(kind, options.server_items)
    report("search", rows)


if __name__ == "__main__":
    main()
