"""What else the frozen network gives besides features of several stages: mirror images, resolutions, directions, shrinkages.

    python -m benchmarks.free_gains FOLDER [--photos 40] [--classes 250] [--seeds 3] [--resize 224] [--keep FILE]

FOLDER holds train/ and test/ with class folders. Features of EfficientNet-Lite0 are computed once at several resolutions, of
some photos per class; FILE keeps them. Each row is the closed form without a step. Number of stages and shrinkage are chosen
on half of the training classes as ``recollect train`` does, for the features as they are; then the layer is learned on all of
them. Prints r@1 / mAP@R on the test classes per seed, and the forward passes of 224 px that an image costs.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.timing import processor_name
from recollect.data import ImageSet, class_disjoint_split, load
from recollect.models import Embedder
from recollect.models.whitening import ClassStatistics, Whitening, class_statistics
from recollect.training import head
from recollect.training.head import HeadData, HeadResult

SIZES = (160, 224, 320)
COSTS = {
    "as it is": ("224", 1.0), "mirror image, 160 px": ("160 160m", 1.02), "160 and 224 px": ("160 224", 1.51),
    "mirror image": ("224 224m", 2.0), "320 px": ("320", 2.04), "224 and 320 px": ("224 320", 3.04),
}  # fmt: skip
"""Features whose mean is used, and what they cost."""
DUPLICATE = (0.98, 0.95, 0.9)
"""Cosines from which a photo counts as a near-duplicate of another of its class."""


def features(images: ImageSet) -> dict[str, Tensor]:
    """Pooled features of all stages at every resolution, N × D, and of the mirror image at two."""
    rows: dict[str, Tensor] = {}
    for size in SIZES:
        embedder = Embedder.create("lite0-in1k", stages=3, size=size, resize=size).eval()
        for mirrored in (False, True) if size < 320 else (False,):
            kept = torch.empty(len(images), embedder.pooled_dim)
            with torch.inference_mode():
                for places, batch in embedder._batches(images, 0, 16, "error", None, []):
                    kept[torch.as_tensor(places)] = embedder.pooled(batch.flip(-1) if mirrored else batch)
            rows[f"{size}{'m' * mirrored}"] = kept
    return rows


@dataclass
class Split:
    """The training classes, divided by a seed, and the test classes."""

    fit: HeadData
    validation: HeadData
    train: HeadData
    test: HeadData

    def of(self, columns: int) -> Split:
        """Groups normalized, and only so many values."""
        parts = (self.fit, self.validation, self.train, self.test)
        return Split(*(HeadData(part.pooled[:, :columns], part.labels) for part in parts))


def measured(whitening: Whitening, data: HeadData, dim: int = 512) -> HeadResult:
    """Of the first ``dim`` directions."""
    weight, bias = whitening.linear(min(dim, len(whitening.projection)))
    return head._measured((data.pooled.double() @ weight.T + bias).float(), data.labels)


def by_group(stats: ClassStatistics, groups: list[int], values: Iterable[float]) -> Whitening:
    """The closed form with a shrinkage per group towards the mean variance of the group."""
    shrinkages = torch.cat([torch.full((size,), value) for size, value in zip(groups, values, strict=True)]).double()
    means = torch.cat([part.mean().expand(len(part)) for part in stats.within.diagonal().split(groups)])
    root = (1 - shrinkages).sqrt()
    within = root[:, None] * stats.within * root + torch.diag(shrinkages * means)
    return replace(stats, within=within).whitening(0.0 if stats.spare >= len(within) else 1e-9)


def distinct(data: HeadData, columns: int, cosine: float) -> HeadData:
    """Without photos that are nearly one of their class before them."""
    kept = np.ones(len(data.labels), bool)
    unit = torch.nn.functional.normalize(data.pooled[:, :columns], dim=1)
    for label in range(data.classes):
        places = np.flatnonzero(data.labels == label)
        near = (unit[places] @ unit[places].T >= cosine).numpy()
        for number in range(1, len(places)):
            kept[places[number]] = not (near[number, :number] & kept[places[:number]]).any()
    return data.of(kept)


def statistics_of(data: HeadData) -> ClassStatistics:
    """Of all features."""
    return class_statistics(data.pooled, torch.from_numpy(data.labels))


def choose(fit: ClassStatistics, split: Split, groups: list[int]) -> tuple[int, float, float]:
    """Number of stages and shrinkage as a training chooses them, and their merit on validation classes."""
    merits: dict[tuple[int, float], float] = {}

    def measure(count: int, value: float) -> None:
        size = sum(groups[: count + 1])
        if (count, value) not in merits:
            merits[count, value] = measured(fit.leading(size).whitening(value), split.of(size).validation).merit

    for value in head.SHRINKAGES:
        measure(0, value)
    for count in (1, 2, 3):
        measure(count, max(merits, key=lambda pair: merits[pair])[1])
    count, value = max(merits, key=lambda pair: merits[pair])
    place = head.SHRINKAGES.index(value)
    for value in head.SHRINKAGES[max(place - 1, 0) : place + 2]:
        measure(count, value)
    count, value = max(merits, key=lambda pair: merits[pair])
    return count, value, merits[count, value]


def variants(split: Split, groups: list[int], count: int, value: float, merit: float) -> dict[str, HeadResult]:
    """Test results of everything that takes no other features; ``split`` and ``groups`` are those of ``count`` stages."""
    fit, final, columns = statistics_of(split.fit), statistics_of(split.train), groups[0]
    plain = final.whitening(value)
    results = {f"as it is ({count} stages, {value:g})": measured(plain, split.test)}
    for dim in (256, 384, 1024, len(final.mean)):
        results[f"{dim if dim < 1100 else 'all'} directions"] = measured(plain, split.test, dim)
    # One shrinkage towards the variance of each group, then each by itself.
    tried = {}
    for each in (0.05, *head.SHRINKAGES[:5]):
        tried[each] = measured(by_group(fit, groups, [each] * len(groups)), split.validation).merit
    each = max(tried, key=lambda pair: tried[pair])
    results[f"variance of each group ({each:g})"] = measured(by_group(final, groups, [each] * len(groups)), split.test)
    values, best = [each] * len(groups), tried[each]
    for group in range(len(groups)):
        for factor in (0.5, 2.0):
            trial = [min(v * factor, 0.95) if place == group else v for place, v in enumerate(values)]
            now = measured(by_group(fit, groups, trial), split.validation).merit
            if now > best:
                values, best = trial, now
    words = " ".join(f"{v:g}" for v in values)
    results[f"shrinkage per stage ({words})"] = measured(by_group(final, groups, values), split.test)
    left = merit, 1.0
    for cosine in DUPLICATE:
        few, less = distinct(split.fit, columns, cosine), distinct(split.train, columns, cosine)
        left = max(left, (measured(statistics_of(few).whitening(value), split.validation).merit, cosine))
        name = f"without near-duplicates of {cosine}"
        print(f"{name}: {len(less.labels)} of {len(split.train.labels)} photos", flush=True)
        results[name] = measured(statistics_of(less).whitening(value), split.test)
    chosen = results[f"without near-duplicates of {left[1]}"] if left[1] < 1 else measured(plain, split.test)
    results[f"without near-duplicates, chosen ({left[1]:g})"] = chosen
    return results


def main() -> None:
    """Measure, and print a line per variant and seed, then means."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--photos", type=int, default=40)
    parser.add_argument("--classes", type=int, default=250)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    sets = {}
    for split in ("train", "test"):
        images = load("folder", options.folder, split)
        images = images.of_classes(np.arange(min(options.classes, images.num_classes)))
        random = np.random.default_rng(0)
        places = (np.flatnonzero(images.labels == each) for each in range(images.num_classes))
        drawn = [random.permutation(own)[: options.photos] for own in places]
        sets[split] = images.subset(np.sort(np.concatenate(drawn)))
    if options.keep and options.keep.exists():
        kept = torch.load(options.keep)
    else:
        kept = {split: features(images) for split, images in sets.items()}
        if options.keep:
            torch.save(kept, options.keep)
    embedder = Embedder.create("lite0-in1k", stages=3)
    groups = embedder.head.groups
    print(processor_name(), {split: len(images) for split, images in sets.items()}, flush=True)
    table: dict[str, list[HeadResult]] = {}
    chosen: dict[int, tuple[int, float, float]] = {}
    for name, (parts, cost) in COSTS.items():
        data = {}
        for split, rows in kept.items():
            mean = torch.stack([rows[part] for part in parts.split()]).mean(0)
            data[split] = HeadData(embedder.head.inputs(mean).detach(), sets[split].labels)
        for seed in range(options.seeds):
            names = set(class_disjoint_split(sets["train"], "random", seed)[0].names)
            fitting = np.array([each in names for each in sets["train"].names])
            whole = Split(data["train"].of(fitting), data["train"].of(~fitting), data["train"], data["test"])
            if seed not in chosen:
                chosen[seed] = choose(statistics_of(whole.fit), whole, groups)
            count, value, merit = chosen[seed]
            own = whole.of(sum(groups[: count + 1]))
            if name == "as it is":
                results = variants(own, groups[: count + 1], count, value, merit)
            else:
                results = {f"cost {cost:g}": measured(statistics_of(own.train).whitening(value), own.test)}
            for row, result in results.items():
                print(f"seed {seed}  {name}, {row}: {result}", flush=True)
                table.setdefault(f"{name}, {row.split('(')[0].strip()}", []).append(result)
    for row, values in table.items():
        r1, ap = ([100 * getattr(each, key) for each in values] for key in ("r1", "map_at_r"))
        print(f"| {row} | {statistics.mean(r1):.1f} / {statistics.mean(ap):.1f} |")


if __name__ == "__main__":
    main()
