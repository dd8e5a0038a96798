"""The closed-form last layer learned from few classes, by how many of its directions are kept.

    python -m benchmarks.few_classes FOLDER [--classes 2 5 8 12 20 40] [--photos 10] [--tested 20] [--seeds 3] [--choose]

FOLDER holds train/ and test/ with class folders. Features of EfficientNet-Lite0 at 224 px are computed once, of at most 20
photos per class, and kept. Prints r@1 / mAP@R on the first test classes, mean over draws of training classes. With
``--choose`` 512 directions, as a training chooses them on half of the classes: with the last layer alone, and with stages.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

SHRINKAGES = (0.2, 0.5, 0.8)
MOST = 20


def features(folder: str, part: str, stages: bool) -> tuple[Tensor, np.ndarray]:
    """Inputs of the last layer of some photos of every class, or pooled features of all stages, and their labels."""
    from recollect.data import load
    from recollect.inference.vectors import head_inputs, part_rows
    from recollect.models import Embedder

    images, random = load("folder", folder, part), np.random.default_rng(0)
    drawn = [random.permutation(np.flatnonzero(images.labels == label))[:MOST] for label in range(images.num_classes)]
    some = images.subset(np.sort(np.concatenate(drawn)))
    if stages:
        embedder = Embedder.create("lite0-in1k", dim=512, stages=3).eval()
        return torch.from_numpy(np.asarray(part_rows(embedder, some).rows)), some.labels
    return head_inputs(Embedder.create("lite0-in1k", dim=512).eval(), some), some.labels


def chosen(train: Tensor, labels: np.ndarray, test: Tensor, counts: Sequence[int]) -> Tensor:
    """Vectors of test images by the closed form that is best on half of the training classes, or their features."""
    from recollect.models import Embedder
    from recollect.training import head

    embedder = Embedder.create("lite0-in1k", dim=512, stages=3).eval()
    order = np.random.default_rng(0).permutation(int(labels.max()) + 1)
    data, fitting = head.HeadData(train, labels), np.isin(labels, order[: (len(order) + 1) // 2])
    validation = data.of(~fitting)
    results = head._tried(head.closed_forms(embedder, data.of(fitting), counts), head.SHRINKAGES, validation)
    count, value = max(results, key=lambda pair: results[pair].merit)
    plain = embedder.with_own_head(0).head
    with torch.no_grad():
        if head._measured(plain.inputs(validation.pooled), validation.labels).merit > results[count, value].merit:
            return plain.inputs(test)
        start = head.with_whitening(*head.closed_forms(embedder, data, [count])[count], value)
        return start.split("pooling")[1].eval()(test)


def main() -> None:
    """Measure, and print a line for each number of classes and directions."""
    from recollect.evaluation import evaluate
    from recollect.models.whitening import class_statistics

    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--classes", type=int, nargs="+", default=[2, 5, 8, 12, 20, 40])
    parser.add_argument("--photos", type=int, default=10)
    parser.add_argument("--tested", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--choose", action="store_true")
    options = parser.parse_args()
    train, labels = features(options.folder, "train", options.choose)
    test, tested = features(options.folder, "test", options.choose)
    test, tested = test[tested < options.tested], tested[tested < options.tested]

    def recalls(vectors: Tensor) -> tuple[float, float]:
        unit = functional.normalize(vectors.float(), dim=1)
        metrics = evaluate(unit, torch.from_numpy(tested), ks=(1,), metrics=("r@k", "map@r")).metrics
        return 100 * metrics["r@1"], 100 * metrics["map@r"]

    def drawn(count: int, seed: int) -> np.ndarray:
        classes = np.random.default_rng(seed).permutation(int(labels.max()) + 1)[:count]
        return np.concatenate([np.flatnonzero(labels == one)[: options.photos] for one in classes])

    for count in options.classes if options.choose else ():
        for name, counts in (("the last layer", range(1)), ("stages", range(4))):
            values = []
            for seed in range(options.seeds):
                places = drawn(count, seed)
                again = np.unique(labels[places], return_inverse=True)[1].astype(np.int64)
                values.append(recalls(chosen(train[places], again, test, counts)))
            r1, ap = np.mean(values, axis=0)
            print(f"{count} classes × {options.photos} photos, {name}: {r1:.1f} / {ap:.1f}", flush=True)
    if options.choose:
        return
    print("features: {:.1f} / {:.1f}".format(*recalls(test)), flush=True)
    for count in options.classes:
        for dim in (512, test.shape[1]):
            values = []
            for seed in range(options.seeds):
                places = drawn(count, seed)
                statistics = class_statistics(train[places], torch.from_numpy(labels[places]))
                layers = [statistics.whitening(shrinkage).linear(dim) for shrinkage in SHRINKAGES]
                values.append([recalls(test.double() @ weight.T + bias) for weight, bias in layers])
            means = np.mean(values, axis=0)
            texts = (f"λ {value:g}: {r1:.1f} / {ap:.1f}" for value, (r1, ap) in zip(SHRINKAGES, means, strict=True))
            print(f"{count} classes × {options.photos} photos, {dim} directions: {', '.join(texts)}", flush=True)


if __name__ == "__main__":
    main()
