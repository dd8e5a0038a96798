"""Suspected wrong labels in a report: how many are found, and how many right ones are suspected, by the rule.

    python -m benchmarks.wrong_labels grocery_96px cars196_96px omniglot

Test images of every folder (4,000 at most, as in a report), vectors of lite0-in1k at 96 pixels. Of the images, 2 % get the
label of another class, drawn at random; that is repeated with other draws. The same is done with few images of 40 classes and
of 3, and with classes of two images among larger ones.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from benchmarks.near_copies import folder_sets
from benchmarks.timing import report
from recollect.data import ImageSet
from recollect.inference.vectors import embed_set
from recollect.models import Embedder
from recollect.report import checks
from recollect.report.checks import neighbours_of_all, suspected_labels
from recollect.report.results import LIMIT, choose

SHARE = 0.02
RULES = {
    "5 of 5": {"AGREEING": 5, "AMONG": 5, "CLEAR": 5, "FEW": 0},
    "4 of 5, own 0 of 10": {"AGREEING": 4, "AMONG": 5, "CLEAR": 10, "FEW": 5},
    "3 of 5, own 0 of 10": {"AGREEING": 3, "AMONG": 5, "CLEAR": 10, "FEW": 5},
    "the same in small classes": {"AGREEING": 3, "AMONG": 5, "CLEAR": 10, "FEW": 0},
    "3 of 5, own 0 of 5": {"AGREEING": 3, "AMONG": 5, "CLEAR": 5, "FEW": 5},
    "5 of 10, own 0 of 10": {"AGREEING": 5, "AMONG": 10, "CLEAR": 10, "FEW": 5},
}
"""Constants of ``checks.py``."""
PARTS = {
    "all": [],
    "40 × 12": [(40, 12)],
    "40 × 6": [(40, 6)],
    "3 × 12": [(3, 12)],
    "3 × 6": [(3, 6)],
    "28 × 20, 12 × 2": [(28, 20), (12, 2)],
}
"""Classes, and images of each."""

Rows = NDArray[np.float32]
Labels = NDArray[np.int64]


def drawn(labels: Labels, part: list[tuple[int, int]]) -> NDArray[np.int64]:
    """Positions of a part of the images; all if it is empty."""
    if not part:
        return np.arange(len(labels))
    random = np.random.default_rng(0)
    each = [count for classes, count in part for _ in range(classes)]
    classes = random.permutation(np.unique(labels))[: len(each)]
    members = [random.permutation(np.flatnonzero(labels == label)) for label in classes]
    return np.concatenate([those[:count] for those, count in zip(members, each, strict=True)])


def relabelled(labels: Labels, repeats: int) -> Iterator[tuple[Labels, set[int]]]:
    """Labels with wrong ones among them, and where these are; at least two."""
    random, classes = np.random.default_rng(0), int(labels.max()) + 1
    count = max(2, round(SHARE * len(labels)))
    for _ in range(repeats):
        places = random.choice(len(labels), count, replace=False)
        wrong = labels.copy()
        wrong[places] = (wrong[places] + random.integers(1, classes, count)) % classes
        yield wrong, set(places.tolist())


def rates(vectors: Rows, labels: Labels, repeats: int) -> dict[str, dict[str, float]]:
    """For each rule: the share found, that among the first (as many as are wrong), and right labels suspected per draw."""
    neighbours = neighbours_of_all(vectors)
    result = {}
    for name, constants in RULES.items():
        counts = []
        with mock.patch.multiple(checks, **constants):
            for labels_given, wrong in relabelled(labels, repeats):
                listed = [suspect.image for suspect in suspected_labels(vectors, labels_given, neighbours)]
                hits = [image in wrong for image in listed]
                counts.append((sum(hits) / len(wrong), sum(hits[: len(wrong)]) / len(wrong), len(hits) - sum(hits)))
        means = np.mean(counts, axis=0)
        result[name] = dict(zip(("found", "found first", "false alarms"), means.tolist(), strict=True))
    return result


def embedded(images: ImageSet) -> Rows:
    return embed_set(Embedder.create("lite0-in1k", dim=None, size=96, resize=96).eval(), images).rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    rows: list[dict[str, object]] = []
    for name, images in folder_sets(options.folders, "test").items():
        some = images.subset(choose(images, LIMIT))
        vectors = embedded(some)
        for part, sizes in PARTS.items():
            places = drawn(some.labels, sizes)
            _, labels = np.unique(some.labels[places], return_inverse=True)
            for rule, values in rates(vectors[places], labels, options.repeats).items():
                rows.append({"set": name, "part": part, "images": len(places), "rule": rule, **values})
                print(rows[-1], flush=True)
    report("wrong_labels", rows)


if __name__ == "__main__":
    main()
