"""What the start of a last layer is worth: features alone, a random layer trained, the closed form, and both.

    python -m benchmarks.last_layer FOLDER [--size 224] [--resize 224] [--seeds 3] [--steps 200] [--simix]
        [--classes N] [--stages N]

FOLDER holds train/ and test/ with class folders. Features of EfficientNet-Lite0 are computed once and kept; shrinkage and
learning rate are chosen on half of the training classes, as ``recollect train --data`` does, then the layer is trained on all
of them and measured on the test classes. Prints r@1 / mAP@R per seed, and processor seconds behind the features.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from recollect.config.schema import Config
    from recollect.data import ImageSet
    from recollect.models import Embedder
    from recollect.training.head import HeadData

RATES = (3e-5, 1e-4, 3e-4, 1e-3)


def one_seed(config: Config, images: ImageSet, data: HeadData, steps: int) -> dict[str, tuple[Embedder, str]]:
    """A network for every start, trained on all classes with what half of them chose."""
    from recollect.data import class_disjoint_split
    from recollect.inference.models import make_embedder
    from recollect.training.head import SHRINKAGES, closed_forms, measured_head, train_head, with_whitening

    fresh = make_embedder(config.model, config.run.seed).eval()
    names = set(class_disjoint_split(images, "random", config.run.seed)[0].names)
    fitting = np.array([name in names for name in images.names])
    fit, validation = data.of(fitting), data.of(~fitting)

    def trained(start: Embedder, part: HeadData, rate: float) -> Embedder:
        trial = copy.deepcopy(start)
        sized = replace(config, batch=replace(config.batch, size=4 * min(part.classes, 98)))
        train_head(trial, part, sized, rate, steps)
        return trial

    def best_rate(start: Embedder) -> float:
        return max(RATES, key=lambda rate: measured_head(trained(start, fit, rate), validation).merit)

    def closed_form(part: HeadData, shrinkage: float) -> Embedder:
        (form,) = closed_forms(fresh, part, [fresh.config.stages]).values()
        return with_whitening(*form, shrinkage)

    shrinkage = max(SHRINKAGES, key=lambda value: measured_head(closed_form(fit, value), validation).merit)
    random_rate, rate = best_rate(fresh), best_rate(closed_form(fit, shrinkage))
    closed = closed_form(data, shrinkage)
    return {
        "random, trained": (trained(fresh, data, random_rate), f"lr {random_rate:g}"),
        "closed form": (closed, f"shrinkage {shrinkage:g}"),
        "closed form, trained": (trained(closed, data, rate), f"lr {rate:g}"),
    }


def main() -> None:
    """Measure, and print a table."""
    from recollect.config.resolve import resolve
    from recollect.data import load
    from recollect.inference.models import load_initial_model, make_embedder
    from recollect.inference.vectors import part_rows
    from recollect.training.head import HeadData, measured_head

    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--resize", type=int)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--classes", type=int, help="Only so many classes of each part, in the order of the alphabet.")
    parser.add_argument("--simix", action="store_true")
    parser.add_argument("--stages", type=int, default=0, help="Features of so many earlier stages besides.")
    options = parser.parse_args()
    settings = {
        "data.root": options.folder,
        "model.freeze": "pooling",
        "model.stages": options.stages,
        "model.image_size": options.size,
        "run.device": "cpu",
    }
    settings |= {"model.resize": options.resize or "default", "loss.options": {"simix": True} if options.simix else {}}
    config = resolve("folder", settings)
    sets = {split: load("folder", options.folder, split) for split in ("train", "test")}
    if options.classes:
        sets = {split: images.of_classes(np.arange(options.classes)) for split, images in sets.items()}
    embedder = make_embedder(config.model, 0).eval()
    data = {}
    for split, images in sets.items():
        rows = part_rows(embedder, images, frozen="pooling").rows
        data[split] = HeadData(torch.from_numpy(np.array(rows)), images.labels)
    plain = load_initial_model(config).embedder
    pooled = part_rows(plain, sets["test"], frozen="pooling").rows
    own = HeadData(torch.from_numpy(np.array(pooled)), sets["test"].labels)
    print(f"features: {measured_head(plain, own)}", flush=True)
    results: dict[str, list[tuple[float, float]]] = {}
    for seed in range(options.seeds):
        begun = time.process_time()
        of_seed = replace(config, run=replace(config.run, seed=seed))
        for name, (model, words) in one_seed(of_seed, sets["train"], data["train"], options.steps).items():
            value = measured_head(model, data["test"])
            results.setdefault(name, []).append((100 * value.r1, 100 * value.map_at_r))
            print(f"seed {seed}  {name} ({words}): {value}", flush=True)
        print(f"seed {seed}  {time.process_time() - begun:.0f} s of processor time", flush=True)
    for name, values in results.items():
        columns = list(zip(*values, strict=True))
        texts = [f"{statistics.mean(c):.1f} ± {statistics.stdev(c) if len(c) > 1 else 0:.1f}" for c in columns]
        print(f"| {name} | {texts[0]} | {texts[1]} |")


if __name__ == "__main__":
    main()
