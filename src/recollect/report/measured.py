"""A run's vectors of its test images, before and after training, and what they are worth.

``recollect train`` keeps no vectors, so the report makes them: at most ``limit`` images, whole classes where that is
possible, the same images for every run on the same data. They are kept in ``RUN/report/vectors.npz``; a second report
embeds nothing, and one made where the images are not at hand still has everything but its pictures.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from recollect.common.errors import DataError, RecollectError
from recollect.config.overrides import published_tests
from recollect.data import ImageSet, load
from recollect.evaluation import Evaluation, evaluate
from recollect.report.runs import Run
from recollect.report.vectors import Kept, Shown, embed, read_kept, write_kept
from recollect.report.weights import init_key, initial, initial_words, trained, trained_key, trained_words
from recollect.training.validation import KS

LIMIT = 4000
"""Images that a report embeds by default: a minute or two on two cores with a small network."""


@dataclass(frozen=True)
class Contender:
    """One way to embed those images, and its results.

    Attributes:
        name: short. what: in a few words, which weights.
    """

    name: str
    what: str
    vectors: NDArray[np.float32]
    evaluation: Evaluation


@dataclass(frozen=True)
class Measured:
    """What a run's weights make of its test images."""

    shown: Shown
    init: Contender | None
    trained: Contender | None
    init_key: str
    remarks: list[str] = field(default_factory=list)


def measure(
    run: Run,
    *,
    limit: int | None = LIMIT,
    split: str | None = None,
    device: str | None = None,
    shared: dict[tuple[str, str], NDArray[np.float32]] | None = None,
) -> Measured:
    """Embed and evaluate a run's test images with what it started from and what came out.

    Args:
        run: the run.
        limit: how many images at most; None for all.
        split: which part of its data; the run's ``data.test_split`` by default.
        device: where to embed.
        shared: vectors that several runs have in common, filled and used: runs compared often start from the same.

    Raises:
        RecollectError: neither images nor vectors kept from an earlier report are there.
    """
    if run.config is None:
        raise DataError("its settings cannot be read, so it is not known which images it is about.")
    data, path = run.config.data, run.folder.path / "report" / "vectors.npz"
    chosen = split or data.test_split
    remarks: list[str] = []
    try:
        whole = load(data.name, data.root, chosen, **data.options)
    except RecollectError as error:
        kept = read_kept(path, None)
        if kept is None or kept.shown.split != chosen:
            raise
        remarks.append(f"The images are not at hand, so the vectors of an earlier report were used. ({error})")
        return _evaluated(run, kept, remarks)
    images = whole.subset(choose(whole, limit))
    shown = Shown(images.name, chosen, list(images.names), images.labels, list(images.class_names), len(whole), images)
    keys = {"images": f"{images.fingerprint} {len(whole)}", "init": init_key(run), "trained": trained_key(run)}
    earlier = read_kept(path, images)
    known: dict[tuple[str, str], NDArray[np.float32]] = {} if shared is None else shared
    if earlier is not None and earlier.keys.get("images") == keys["images"]:
        known.update({(keys["images"], earlier.keys[name]): rows for name, rows in earlier.vectors.items()})
    vectors = {}
    for name, key in (("init", keys["init"]), ("trained", keys["trained"])):
        place = (keys["images"], key)
        if place not in known:
            try:
                embedder = initial(run.config) if name == "init" else trained(run)
            except RecollectError as error:
                what = "initial" if name == "init" else "trained"
                remarks.append(f"There are no {what} weights to embed with: {error}")
                continue
            known[place] = embed(embedder, images, device)
        vectors[name] = known[place]
    kept = Kept(shown, vectors, keys)
    if earlier is None or earlier.keys != keys or earlier.vectors.keys() != vectors.keys():
        write_kept(path, kept, remarks)
    return _evaluated(run, kept, remarks)


def choose(images: ImageSet, limit: int | None) -> NDArray[np.int64]:
    """Positions of at most ``limit`` images: random classes, whole unless one would fill a tenth of the limit.

    A query is judged by the images of its class, so a class is shown with all of them or, if it is very large, with
    enough. The choice depends on the set alone.
    """
    if limit is None or len(images) <= limit:
        return np.arange(len(images))
    random = np.random.default_rng(0)
    most = max(2, limit // 10)
    chosen: list[NDArray[np.int64]] = []
    room = limit
    for label in random.permutation(np.unique(images.labels)):
        members = random.permutation(np.flatnonzero(images.labels == label))[:most]
        if len(members) <= room:
            chosen.append(members)
            room -= len(members)
        if room < 2:
            break
    return np.sort(np.concatenate(chosen)) if chosen else np.arange(limit)


def _evaluated(run: Run, kept: Kept, remarks: list[str]) -> Measured:
    """Results of what was embedded; images that one of the embedders could not read are left out for all."""
    shown, vectors = kept.shown, dict(kept.vectors)
    good = np.ones(len(shown.names), bool)
    for rows in vectors.values():
        good &= np.isfinite(rows).all(axis=1)
    if not good.all():
        remarks.append(f"{int((~good).sum()):,} images could not be read and are left out.")
        places = np.flatnonzero(good)
        labels, names = shown.labels[places], [shown.names[place] for place in places]
        images = None if shown.images is None else shown.images.subset(places)
        classes = shown.class_names
        if images is not None:
            labels, classes = images.labels, list(images.class_names)
        shown = dataclasses.replace(shown, names=names, labels=labels, class_names=classes, images=images)
        vectors = {name: rows[places] for name, rows in vectors.items()}
    asked = {int(key[2:]) for row in published_tests(run.setting("published")).values() for key in row if _is_r_at(key)}
    ks = sorted({*KS, *asked})

    def contender(name: str, what: str) -> Contender | None:
        if name not in vectors:
            return None
        metrics = ("r@k", "map@r", "first_rank", "map")
        result = evaluate(vectors[name], shown.labels, ks=ks, metrics=metrics, progress=True)
        return Contender(run.name if name == "trained" else "init", what, vectors[name], result)

    try:
        before, after = contender("init", initial_words(run)), contender("trained", trained_words(run))
    except RecollectError as error:
        raise DataError(f"{shown.data} ({shown.split}) cannot be evaluated: {error}") from error
    return Measured(shown, before, after, init_key(run), remarks)


def _is_r_at(key: str) -> bool:
    return key.startswith("r@") and key[2:].isdigit() and int(key[2:]) > 0
