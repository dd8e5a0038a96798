"""Evaluation: time as a ratio to other ways of getting the same numbers, and memory beside the inputs.

    python -m benchmarks.evaluation                 # everything; about half an hour on two idle cores
    python -m benchmarks.evaluation --only grid     # class sizes × how hard the vectors are
    python -m benchmarks.evaluation --queries 6000  # a tenth of the large set's queries against the same gallery

All contenders run in one process, in turn, several times; a ratio is that of the shortest times, on the clock and of the
processor. With other work going on, wall-clock times of multi-threaded code say little (threads wait for each other's
turn): use ``--threads 1`` there and read the ratio of processor times.
"""

from __future__ import annotations

import argparse
import json
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.timing import processor_name
from recollect.evaluation import evaluate

KS = (1, 10, 100, 1000)
METRICS = ("r@k", "map@r")
TILE = 1024
CLASSES, SPREADS = (4, 20, 100), (1.0, 4.0, math.inf)


def make(count: int, classes: int, dim: int, noise: float, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Unit vectors in classes of at least two, which themselves lie in twelve groups, as the shape of SOP's test set.

    ``noise`` sets how hard it is; infinity gives vectors without any structure.
    """
    random = torch.Generator().manual_seed(seed)
    labels = torch.cat(
        [torch.arange(classes).repeat(2), torch.randint(0, classes, (count - 2 * classes,), generator=random)]
    )
    labels = labels[torch.randperm(count, generator=random)]
    vectors = torch.randn(count, dim, generator=random)
    if math.isfinite(noise):
        group = torch.randn(12, dim, generator=random)
        centre = torch.randn(classes, dim, generator=random) + 0.5 * group[torch.arange(classes) % 12]
        vectors = centre[labels] + noise * vectors
    return torch.nn.functional.normalize(vectors, dim=1), labels


def bare_product(queries: torch.Tensor, gallery: torch.Tensor) -> None:
    """E·Eᵀ in the same tiles, and nothing else."""
    buffer = torch.empty(TILE * TILE)
    for start in range(0, len(gallery), TILE):
        items = gallery[start : start + TILE]
        for first in range(0, len(queries), TILE):
            some = queries[first : first + TILE]
            torch.mm(some, items.T, out=buffer[: len(some) * len(items)].view(len(some), len(items)))


def faiss_top_k(queries: np.ndarray, gallery: np.ndarray, k: int) -> np.ndarray:
    """Exact search, one neighbour more than asked because the query finds itself."""
    import faiss

    faiss.omp_set_num_threads(torch.get_num_threads())
    index = faiss.IndexFlatIP(gallery.shape[1])
    index.add(gallery)
    return index.search(queries, k + 1)[1]


def top_k_lists(vectors: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    """The way of Open Metric Learning: all distances, a list of the first k of each query, metrics from the lists."""
    distances = torch.cdist(vectors, vectors)
    distances.fill_diagonal_(math.inf)
    same = labels[:, None] == labels[None, :]
    same.fill_diagonal_(False)
    positives = same.sum(dim=1)
    depth = max(max(KS), int(positives.max()))
    nearest = distances.topk(depth, dim=1, largest=False).indices
    hits = same.gather(1, nearest)
    metrics = {f"r@{k}": hits[:, :k].any(dim=1).double().mean().item() for k in KS}
    place = torch.arange(1, depth + 1)
    precision = hits.cumsum(dim=1) / place
    inside = place <= positives[:, None]
    counted = positives > 0
    at_r = ((precision * hits * inside).sum(dim=1) / positives.clamp_min(1))[counted]
    metrics["map@r"] = at_r.double().mean().item()
    return metrics


def metric_learning(vectors: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    """pytorch-metric-learning's calculator; it has no r@k beyond k = 1."""
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    names = ("precision_at_1", "mean_average_precision_at_r")
    return AccuracyCalculator(include=names, device=torch.device("cpu")).get_accuracy(vectors, labels)


class Memory:
    """The growth of this process's private memory while a block runs, in MiB, and what watching it cost in seconds."""

    def __enter__(self) -> Memory:
        self.before = self.peak = _private()
        self.spent = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def grown(self) -> float:
        return (self.peak - self.before) / 1024

    def _watch(self) -> None:
        while not self._stop.wait(0.005):
            self.peak = max(self.peak, _private())
        self.spent = time.thread_time()


def _private() -> int:
    with Path("/proc/self/status").open() as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon"))


def race(contenders: dict[str, Callable[[], Any]], repeats: int) -> dict[str, dict[str, float]]:
    """Run all in turn, ``repeats`` times."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    cpu: dict[str, list[float]] = {name: [] for name in contenders}
    grown: dict[str, float] = {}
    for _ in range(repeats):
        for name, work in contenders.items():
            with Memory() as memory:
                start, start_cpu = time.perf_counter(), time.process_time()
                work()
                times[name].append(time.perf_counter() - start)
                used = time.process_time() - start_cpu
            cpu[name].append(used - memory.spent)
            grown[name] = max(memory.grown, grown.get(name, 0.0))
            print(
                f"  {name:<46}{times[name][-1]:9.2f} s   {cpu[name][-1]:8.2f} s cpu   +{memory.grown:6.0f} MiB",
                flush=True,
            )
    return {
        name: {
            "seconds": min(taken),
            "median": float(np.median(taken)),
            "cpu_seconds": min(cpu[name]),
            "mebibytes": grown[name],
        }
        for name, taken in times.items()
    }


def grid(repeats: int) -> list[dict[str, Any]]:
    """20,000 vectors of 512 dimensions: classes of three sizes, from well separated to without any structure."""
    results = []
    for size in CLASSES:
        for spread in SPREADS:
            vectors, labels = clusters(20_000, size, 512, spread)
            metrics = evaluate(vectors, labels, ks=KS, metrics=METRICS).metrics
            print(f"20,000 × 512, classes of {size}, spread {spread}: r@1 {metrics['r@1']:.2f}")
            results.append(
                {"size": size, "spread": spread, "metrics": metrics, "rows": _cell(vectors, labels, repeats)}
            )
    return results


def clusters(count: int, size: int, dim: int, spread: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Unit vectors in classes of ``size``; ``spread`` is the distance from the centre beside that between centres."""
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % (count // size)
    vectors = torch.randn(count, dim, generator=random)
    if math.isfinite(spread):
        vectors = torch.randn(count // size, dim, generator=random)[labels] + spread * vectors
    return torch.nn.functional.normalize(vectors, dim=1), labels


def _cell(vectors: torch.Tensor, labels: torch.Tensor, repeats: int) -> dict[str, dict[str, float]]:
    array = vectors.numpy()
    return race(
        {
            "bare product in tiles": lambda: bare_product(vectors, vectors),
            "recollect, r@k and mAP@R": lambda: evaluate(vectors, labels, ks=KS, metrics=METRICS),
            "recollect, all metrics": lambda: evaluate(vectors, labels, ks=KS),
            "faiss, exact top 1000 (search only)": lambda: faiss_top_k(array, array, 1000),
        },
        repeats,
    )


def large(queries: int | None, repeats: int, noise: float) -> dict[str, Any]:
    """SOP's test set in shape: 60,502 vectors of 512 dimensions in 11,316 classes."""
    vectors, labels = make(60_502, 11_316, 512, noise)
    gallery, array = vectors, vectors.numpy()
    some = slice(None) if queries is None else slice(0, queries)
    own = [[i] for i in range(len(vectors))][some]

    def ours(metrics: tuple[str, ...] | None) -> Any:
        if queries is None:
            return evaluate(vectors, labels, ks=KS, metrics=metrics)
        return evaluate(vectors[some], labels[some], vectors, labels, ks=KS, metrics=metrics, junk=own)

    print(f"60,502 × 512, {'all' if queries is None else queries} queries, noise {noise}")
    rows = race(
        {
            "bare product in tiles": lambda: bare_product(vectors[some], gallery),
            "recollect, r@k and mAP@R": lambda: ours(METRICS),
            "recollect, all metrics": lambda: ours(None),
            "faiss, exact top 1000 (search only)": lambda: faiss_top_k(array[some], array, 1000),
        },
        repeats,
    )
    metrics = ours(METRICS).metrics
    return {"shape": [60_502, 512], "noise": noise, "queries": queries or 60_502, "rows": rows, "metrics": metrics}


def medium(repeats: int) -> dict[str, Any]:
    """10,000 vectors, against libraries that compute the metrics too."""
    vectors, labels = make(10_000, 1870, 512, 3.0)
    print("10,000 × 512")
    results: dict[str, Any] = {}

    def keep(name: str, work: Callable[[], Any]) -> Callable[[], None]:
        return lambda: results.update({name: work()})

    rows = race(
        {
            "recollect, r@k and mAP@R": keep("ours", lambda: evaluate(vectors, labels, ks=KS, metrics=METRICS).metrics),
            "recollect, all metrics": keep("all", lambda: evaluate(vectors, labels, ks=KS).metrics),
            "pytorch-metric-learning (r@1 and mAP@R only)": keep("pml", lambda: metric_learning(vectors, labels)),
            "top-k lists (Open Metric Learning's way)": keep("lists", lambda: top_k_lists(vectors, labels)),
        },
        repeats,
    )
    for name, value in results["lists"].items():
        assert abs(value - results["ours"][name]) < 1e-4, (name, value, results["ours"][name])
    assert abs(results["pml"]["mean_average_precision_at_r"] - results["ours"]["map@r"]) < 1e-4
    return {"shape": [10_000, 512], "rows": rows, "metrics": results["ours"]}


def show(result: dict[str, Any]) -> None:
    rows = result["rows"]
    ours = rows["recollect, r@k and mAP@R"]
    metrics = ", ".join(f"{name} {value:.4f}" for name, value in result["metrics"].items())
    print(f"\n{result['shape'][0]:,} × {result['shape'][1]}: {metrics}")
    print(f"  {'':<46}{'shortest':>10}{'median':>10}{'cpu':>10}{'ratio':>8}{'cpu ratio':>11}{'memory':>12}")
    for name, row in rows.items():
        print(
            f"  {name:<46}{row['seconds']:8.2f} s{row['median']:8.2f} s{row['cpu_seconds']:8.2f} s"
            f"{row['seconds'] / ours['seconds']:8.2f}{row['cpu_seconds'] / ours['cpu_seconds']:11.2f}"
            f"{row['mebibytes']:8.0f} MiB"
        )


def show_grid(cells: list[dict[str, Any]]) -> None:
    """Processor times in units of the bare product, and faiss's in units of ours."""
    print("\n20,000 × 512, processor time ÷ that of the bare product, and of faiss ÷ ours (all metrics; r@k and mAP@R)")
    print(f"  {'classes of':<12}{'spread':>8}{'r@1':>8}{'all':>8}{'r@k …':>8}{'faiss':>8}{'faiss ÷ ours':>18}")
    for cell in cells:
        bare, some, everything, faiss = (row["cpu_seconds"] for row in cell["rows"].values())
        print(
            f"  {cell['size']:<12}{cell['spread']:>8}{cell['metrics']['r@1']:>8.2f}{everything / bare:>8.2f}"
            f"{some / bare:>8.2f}{faiss / bare:>8.2f}{faiss / everything:>10.2f}{faiss / some:>8.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--queries", type=int, help="only the first so many queries of the large set")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--noise", type=float, default=2.5, help="difficulty of the large set; inf for no structure")
    parser.add_argument("--only", choices=["grid", "medium", "large"])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{processor_name()}, {options.threads} threads")
    results: dict[str, Any] = {}
    if options.only in (None, "grid"):
        results["grid"] = grid(options.repeats)
    if options.only in (None, "medium"):
        results["medium"] = medium(options.repeats)
    if options.only in (None, "large"):
        results["large"] = large(options.queries, options.repeats, options.noise)
    for name, result in results.items():
        (show_grid if name == "grid" else show)(result)
    path = Path("benchmarks/results/evaluation.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps(
            {"threads": options.threads, "torch": torch.__version__, "processor": processor_name(), **results}, indent=2
        )
    )
    print(f"\nwritten: {path}")


if __name__ == "__main__":
    main()
