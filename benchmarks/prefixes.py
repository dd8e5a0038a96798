"""What ``loss.dims`` (Matryoshka) is worth: r@1 of the first numbers of an embedding, with it and without.

    python -m benchmarks.prefixes [--cars DIR] [--seeds 3] [--alone]

Trains RS@k on the embedded characters or, with ``--cars``, the last layer on frozen features of the Cars196 photos of 96
pixels: without ``loss.dims``, with it, and with ``--alone`` one network for each length. Everything else is equal. Prints
one line per run and a table of means and standard deviations over seeds, with processor seconds of training.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

DIMS = {"glyphs": [8, 16, 32, 64], "cars196-96px": [16, 32, 64, 128, 256]}


def one_run(recipe: str, settings: dict[str, Any], dims: list[int], folder: Path) -> dict[str, Any]:
    from recollect.config.resolve import resolve
    from recollect.inference.evaluate import embed_test, evaluate_prefixes
    from recollect.inference.models import open_model
    from recollect.inference.test_sets import load_test
    from recollect.training.trainer import train

    start = time.process_time()
    train(resolve(recipe, settings), folder)
    seconds = time.process_time() - start
    opened = open_model(folder)
    target = embed_test(opened, load_test(folder))
    metrics = evaluate_prefixes(target, dims, [1])
    return {"r@1": {dim: 100 * metrics["r@1"] for dim, metrics in metrics.items()}, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cars", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--alone", action="store_true")
    options = parser.parse_args()
    # Learning rates and steps that validation classes chose for RS@k, or near them (docs/results).
    head = {"model.freeze": "pooling", "data.cache": "none", "loss.options": {}, "optimizer.lr": 1e-4}
    head |= {"optimizer.schedule": "constant", "run.steps": 243, "batch.chunk": "auto", "data.root": str(options.cars)}
    small = {"optimizer.lr": 3e-3, "optimizer.warm_up": 0.1, "batch.batches_per_epoch": 60, "run.epochs": 1}
    benches: dict[str, dict[str, Any]] = {"cars196-96px": head} if options.cars else {"glyphs": small}
    for recipe, settings in benches.items():
        dims, results = DIMS[recipe], {}
        for seed in range(1, options.seeds + 1):
            ways: dict[str, dict[str, Any]] = {"without": {}, "with": {"loss.dims": dims}}
            ways |= {f"alone {dim}": {"model.dim": dim} for dim in dims} if options.alone else {}
            for way, more in ways.items():
                with tempfile.TemporaryDirectory() as folder:
                    changes = {**settings, **more, "run.seed": seed, "run.evaluate_first": False}
                    prefixes = [dim for dim in dims if dim < more.get("model.dim", 10**6)] if way != "with" else dims
                    result = one_run(recipe, changes, prefixes, Path(folder) / "run")
                print(json.dumps({"recipe": recipe, "seed": seed, "way": way, **result}), flush=True)
                results.setdefault(way, []).append(result)
        print(f"\n| numbers | without | with loss.dims | trained alone |   ({recipe})\n|---|---|---|---|")
        for dim in results["with"][0]["r@1"]:
            cells = [[run["r@1"][dim] for run in results[way]] for way in ("without", "with")]
            cells.append([run["r@1"][dim] for run in results.get(f"alone {dim}", [])])
            texts = [f"{statistics.mean(c):.1f} ± {statistics.stdev(c):.1f}" if len(c) > 1 else "" for c in cells]
            print(f"| {dim} | {' | '.join(texts)} |")
        times = {way: statistics.mean(run["seconds"] for run in results[way]) for way in ("without", "with")}
        print(
            f"\nprocessor seconds of training: without {times['without']:.0f}, with {times['with']:.0f}\n", flush=True
        )


if __name__ == "__main__":
    main()
