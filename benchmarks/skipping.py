"""What it saves and what it costs to leave out images whose gradients hardly matter (``batch.skip_share``).

    python -m benchmarks.skipping [--steps 60] [--seeds 2]

Trains the tiny network on glyphs with RS@k for each share, everything else equal, in chunks of an eighth of the batch, so
that a second forward can be spared for 7 of 8 images. Reports how many of those were skipped in the first, middle and
last third of the training, processor time of the steps against share 0, and r@1 on characters never seen.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "skipping.json"
SHARES = (0.0, 0.01, 0.05, 0.2)


def one_run(share: float, seed: int, steps: int, batch: int, folder: Path, test) -> dict[str, float]:
    import numpy as np

    from recollect.config.resolve import resolve
    from recollect.evaluation import evaluate
    from recollect.models import Embedder
    from recollect.training.run import RunFolder
    from recollect.training.trainer import train

    settings = {
        "model.image_size": 32,
        "batch.size": batch,
        "batch.chunk": batch // 8,
        "batch.skip_share": share,
        "optimizer.warm_up": 0.0,
        "run.epochs": None,
        "run.steps": steps,
        "run.seed": seed,
    }
    start = time.process_time()
    train(resolve("glyphs", settings), folder)
    seconds = time.process_time() - start
    records = [record for record in RunFolder(folder).read_metrics() if record["kind"] == "step"]
    spared = [record["skipped"] / (batch * 7 / 8) for record in records]
    light = [record["negligible_share"] for record in records]
    third = len(records) // 3
    pictures = [np.repeat(test.arrays[i][..., None], 3, -1) for i in range(len(test))]
    vectors = Embedder.load(folder / "model").embed(pictures, progress=False)
    return {
        "share": share,
        "seed": seed,
        "first": statistics.mean(spared[:third]),
        "middle": statistics.mean(spared[third : 2 * third]),
        "last": statistics.mean(spared[2 * third :]),
        "light_first": statistics.mean(light[:third]),
        "light_last": statistics.mean(light[2 * third :]),
        "cpu_s": seconds,
        "r@1": evaluate(vectors, test.labels, ks=(1,)).metrics["r@1"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=2)
    arguments = parser.parse_args()
    import numpy as np
    import torch

    from recollect.data import load

    torch.set_num_threads(1)
    test = load("glyphs", None, "test")
    classes = np.random.default_rng(0).permutation(np.unique(test.labels))[:150]
    test = test.of_classes(classes)
    print(f"tiny on glyphs, batch {arguments.batch}, {arguments.steps} steps; shares of images spared a second forward")
    print(f"{'share':>6} {'seed':>4} {'first':>7} {'middle':>7} {'last':>7} {'time':>6} {'r@1':>6}")
    rows: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(arguments.seeds):
            exact = None
            for share in SHARES:
                row = one_run(share, seed, arguments.steps, arguments.batch, Path(folder) / f"{share}-{seed}", test)
                exact = exact or row["cpu_s"]
                row["time"] = row["cpu_s"] / exact
                rows.append(row)
                spared = " ".join(f"{100 * row[part]:>6.1f}%" for part in ("first", "middle", "last"))
                print(f"{share:>6} {seed:>4} {spared} {row['time']:>6.2f} {100 * row['r@1']:>6.1f}", flush=True)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(rows, indent=2) + "\n")
    print(f"written: {RESULTS}")


if __name__ == "__main__":
    main()
