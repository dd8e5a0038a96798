"""Vectors of a run's test images before and after training, and their metrics.

Numbers are over the complete test set, as in ``recollect eval``, without classes that the run was trained on. Pictures and
pairwise checks use at most ``LIMIT`` images, the same for every run on the same data. Vectors come from ``inference``; a
copy is kept in ``RUN/report/vectors.npz``, so that a report can be written without the images; only the pictures are then
missing.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.common.errors import DataError, RecollectError
from recollect.common.images import BadImage
from recollect.common.machine import available_bytes
from recollect.common.text import number_of
from recollect.config.recipes import published_tests
from recollect.config.resolve import relocated_root
from recollect.config.schema import DataConfig
from recollect.data import ImageSet, summary
from recollect.data.registry import without_missing
from recollect.evaluation import Evaluation, evaluate
from recollect.evaluation.ranks import DEFAULT_MEMORY
from recollect.inference.content_keys import content_keys, set_digest
from recollect.inference.embedding_sets import embed_set, files_left_out
from recollect.inference.opening import Opened, open_model, open_start
from recollect.inference.test_sets import EVERY_K, published_ks
from recollect.inference.trained_on import TrainedOn, load_by_record, read_trained_on, screen, together
from recollect.report.runs import Run
from recollect.report.shown_images import Kept, Shown, read_kept, write_kept
from recollect.search.encoder import fingerprint

LIMIT = 4000
"""Images in galleries, the map and pairwise checks by default."""
_MOST_KEPT = 100_000  # images of which vectors are copied into the run: at 512 numbers, 200 MB per network
MOST_FOR_MAP = 20_000
"""Images up to which mAP is computed. It needs the rank of every positive, and takes three times as long as all else."""


@dataclass(frozen=True)
class Contender:
    """One way to embed those images, and its results.

    Attributes:
        name: short. what: in a few words, which weights. trained: False for what training started from.
        spread: of a mean over seeds, the standard deviation of each metric.
        seen: whether it was trained on the classes that it is tested on. steps: that were taken; None if not known.
    """

    name: str
    what: str
    vectors: NDArray[np.float32]
    evaluation: Evaluation
    trained: bool = True
    spread: Mapping[str, float] | None = None
    seen: bool = False
    steps: int | None = None

    def among(self, places: NDArray[np.int64], labels: NDArray[np.int64]) -> Contender:
        """Itself, evaluated among some of the images."""
        if len(places) == len(self.vectors):
            return self
        metrics = ("r@k", "map@r", "map", "first_rank")
        found = evaluate(self.vectors[places], labels, ks=(1,), metrics=metrics, memory=_memory())
        return dataclasses.replace(self, vectors=self.vectors[places], evaluation=found)


BEFORE, AFTER = "before training", "after training"
"""Names on the page for the weights that training started from, and for those of its only run."""

Results = MutableMapping[tuple[str, ...], Evaluation]
"""Evaluations by images and weights: runs that started from the same weights are evaluated once."""


@dataclass(frozen=True)
class Measured:
    """Results of a run's weights on its test images.

    Attributes:
        left_out: images not included in the numbers, and why, as sentences. copies: images that were trained on.
    """

    shown: Shown
    init: Contender | None
    trained: Contender | None
    init_key: str
    remarks: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    copies: list[int] = field(default_factory=list)


def measure(
    run: Run,
    *,
    split: str | None = None,
    root: str | None = None,
    device: str | None = None,
    skip_bad: bool = True,
    results: Results | None = None,
    beside: Sequence[Run] = (),
) -> Measured:
    """Embed and evaluate a run's test images with its starting weights and its final weights.

    Args:
        run: the run.
        split: the split to use; the run's ``data.test_split`` by default.
        root: new folder of its images; by default the recorded one.
        device: where to embed.
        skip_bad: skip images that cannot be read, with a remark, instead of stopping.
        results: results of other runs, which are reused and extended.
        beside: other runs that it is compared with. Those on the same data are tested on classes that none was trained on.

    Raises:
        RecollectError: there are neither images nor vectors from an earlier report.
    """
    if run.config is None:
        raise DataError("its settings cannot be read, so its test images are not known.")
    data = run.config.data
    chosen = split or data.test_split
    # Of another split, beside those of the test: a look at the training images does not cost a later report its test.
    part = "" if chosen == data.test_split else "-" + re.sub(r"[^\w.+-]+", "_", chosen)[:80]
    path = run.folder.path / "report" / f"vectors{part}.npz"
    try:
        known = read_trained_on(run.folder.path)
        whole, against = _test_images(data, known, beside, chosen, root, _options(data, skip_bad))
    except RecollectError as error:
        if root is not None:  # a mistake to be told, not a reason for older vectors
            raise
        said: list[str] = []
        kept = read_kept(path, said)
        moved = [] if data.root is None else ["If the images moved, name their folder with --root."]
        if kept is None or kept.shown.split != chosen:
            raise DataError(" ".join([str(error), *said, *moved])) from error
        reason = str(error).partition("\n")[0].rstrip(".")  # the next lines say what a data set consists of
        remark = f"The images are not available ({reason}), so the vectors of an earlier report were used."
        remark = " ".join([remark, *moved])
        known = read_trained_on(run.folder.path)
        classes = {kept.shown.class_names[label] for label in kept.shown.labels.tolist()}
        result = _with_kept(_evaluated(run, kept, [remark], results), kept)
        return _marked(result, known is not None and classes <= known.classes)
    screened = screen(whole, content_keys(whole), against)
    images, keys, remarks = screened.images, screened.keys, screened.remarks()
    # A set in folders has no name of its own: the folder tells it from others.
    title = (
        dataclasses.replace(data, root=relocated_root(data.root, root)).title
        if images.name == "folder"
        else images.name
    )
    shown = Shown(title, chosen, list(images.names), images.labels, list(images.class_names), len(images), images)
    kept = Kept(shown, {}, {"images": set_digest(images, keys)}, {})
    if screened.excluded:
        trained = "class that was trained on/classes that were trained on"
        kept.left_out.append(number_of(len(screened.trained_classes), trained))
    all_trained = bool(screened.trained_classes) and not screened.excluded  # no class is new
    if known is not None and not all_trained:
        seen = {key.tobytes() for key in known.keys}
        kept.copies.extend(name for name, key in zip(images.names, keys, strict=True) if key.tobytes() in seen)
    config = run.config

    def start() -> Opened:
        return open_start(config)

    def end() -> Opened:
        return open_model(run.folder.path)

    skipped: list[BadImage] = []
    ways: tuple[tuple[str, str, Callable[[], Opened]], ...] = (("init", "initial", start), ("trained", "trained", end))
    for name, what, opening in ways:
        try:
            opened = opening()
        except RecollectError as error:
            remarks.append(f"There are no {what} weights to embed with: {error}")
            continue
        found = embed_set(
            opened.embedder,
            images,
            frozen=config.model.freeze,
            keys=keys,
            device=device,
            on_bad_image="skip" if skip_bad else "error",
        )
        skipped = found.skipped
        remarks += [] if opened.remark is None else [opened.remark]
        remarks += [f"Cannot be read, and left out: {bad.reason}" for bad in found.skipped[:20]]
        kept.vectors[name], kept.words[name] = found.vectors, opened.weights
        kept.keys[name] = fingerprint(opened.embedder)  # with the size of the images: results are reused by it
    if files := files_left_out(whole, skipped):
        remarks.append(f"{summary(len(images) - len(skipped), files)}.")
    earlier = read_kept(path, remarks)
    outdated = earlier is None or (earlier.keys, earlier.left_out, earlier.copies) != (
        kept.keys,
        kept.left_out,
        kept.copies,
    )
    if outdated and len(images) <= _MOST_KEPT:
        write_kept(path, kept, remarks)
    result = _with_kept(_evaluated(run, kept, list(dict.fromkeys(remarks)), results), kept)
    return _marked(result, True) if all_trained else result


def _with_kept(result: Measured, kept: Kept) -> Measured:
    """``result`` with what was known of the images when they were chosen."""
    trained = set(kept.copies)
    copies = [place for place, name in enumerate(result.shown.names) if name in trained]
    return dataclasses.replace(result, left_out=[*result.left_out, *kept.left_out], copies=copies)


def _options(data: DataConfig, skip_bad: bool) -> Mapping[str, Any]:
    """How the images of a run are read: as in its training, or without those that are missing."""
    return without_missing(data.name, data.options) if skip_bad else data.options


def _test_images(
    data: DataConfig,
    known: TrainedOn | None,
    beside: Sequence[Run],
    split: str,
    root: str | None,
    options: Mapping[str, Any],
) -> tuple[ImageSet, TrainedOn | None]:
    """The test images of a run, and what they must not contain: what it and those ``beside`` it were trained on.

    A folder that changed between two trainings has other test classes in each. Those that neither was trained on are a
    test of both. If fewer than two are left, each run has its own.
    """
    place = relocated_root(data.root, root)
    own = load_by_record(data.name, place, split, known, options)
    if known is None or split != "test":
        return own, known
    records = [known]
    for other in beside:
        theirs = None if other.config is None else other.config.data
        if theirs is None or theirs.name != data.name or relocated_root(theirs.root, root) != place:
            continue
        record = read_trained_on(other.folder.path)
        # A final training leaves no class to test on: it does not cost the others theirs.
        if record is not None and record.data == known.data and theirs.train_split != "all":
            records.append(record)
    joint = together(records)
    if joint is known:
        return own, known
    common = load_by_record(data.name, place, split, joint, options)
    left = set(common.class_names) - joint.classes - joint.validation_classes
    return (common, joint) if len(left) > 1 else (own, known)


def _marked(result: Measured, seen: bool) -> Measured:
    """``result``, with its run marked if it was trained on all classes of the test: then it is not a test."""
    return dataclasses.replace(
        result, trained=None if result.trained is None else dataclasses.replace(result.trained, seen=seen)
    )


def training_images(run: Run, limit: int | None, root: str | None = None) -> tuple[ImageSet | None, int]:
    """At most ``limit`` of the images that a run was trained on, and how many there are; None if they are not at hand."""
    if run.config is None:
        return None, 0
    data = run.config.data
    try:
        known, options = read_trained_on(run.folder.path), _options(data, skip_bad=True)
        images = load_by_record(data.name, relocated_root(data.root, root), data.train_split, known, options)
    except RecollectError:
        return None, 0
    return images.subset(choose(images.labels, limit)), len(images)


def choose(labels: NDArray[np.int64], limit: int | None) -> NDArray[np.int64]:
    """Positions of at most ``limit`` images: random classes, whole unless one would fill a tenth of the limit.

    A query is evaluated with the images of its class, so a class is included with all of its images or, if it is very
    large, with enough of them. The choice depends only on the set.
    """
    classes = np.unique(labels)
    if limit is None or len(labels) <= limit:
        return np.arange(len(labels))
    random = np.random.default_rng(0)
    most = max(2, limit // min(10, len(classes)))
    chosen: list[NDArray[np.int64]] = []
    room = limit
    for label in random.permutation(classes):
        members = random.permutation(np.flatnonzero(labels == label))[:most]
        if len(members) <= room:
            chosen.append(members)
            room -= len(members)
        if room < 2:
            break
    return np.sort(np.concatenate(chosen)) if chosen else np.arange(limit)


def _memory() -> int:
    """Bytes for an evaluation. With a quarter of what is free, 100,000 images are compared once per pair, not twice."""
    return max(DEFAULT_MEMORY, available_bytes() // 4)


def _evaluated(run: Run, kept: Kept, remarks: list[str], results: Results | None = None) -> Measured:
    """Results for the embedded images; images that could not be read for one embedder are left out for all."""
    shown, vectors, left_out = kept.shown, dict(kept.vectors), []
    good = np.ones(len(shown.names), bool)
    for rows in vectors.values():
        good &= np.isfinite(rows).all(axis=1)
    if not good.all():
        left_out.append(number_of(int((~good).sum()), "image that cannot be read/images that cannot be read"))
        shown, vectors = shown.subset(np.flatnonzero(good)), {name: rows[good] for name, rows in vectors.items()}
    asked = {k for row in published_tests(run.setting("published")).values() for k in published_ks(row)}
    ks = sorted({*EVERY_K, *asked})
    known = {} if results is None else results

    def contender(name: str) -> Contender | None:
        if name not in vectors:
            return None
        # What decides a result: images, weights, which of the images could be read, and k.
        key = (kept.keys.get("images", ""), kept.keys.get(name, ""), str(int(good.sum())), str(ks))
        if key not in known or not all(key[:2]):
            metrics = ["r@k", "map@r", "first_rank"] + (["map"] if len(shown.names) <= MOST_FOR_MAP else [])
            known[key] = evaluate(vectors[name], shown.labels, ks=ks, metrics=metrics, memory=_memory(), progress=True)
        trained = name == "trained"
        what = kept.words.get(name, name)
        steps = run.steps_taken if trained else 0
        return Contender(run.name if trained else BEFORE, what, vectors[name], known[key], trained, steps=steps)

    try:
        before, after = contender("init"), contender("trained")
    except RecollectError as error:
        raise DataError(f"{shown.data} ({shown.split}) cannot be evaluated: {error}") from error
    for one in (after, before):
        if one is not None and (alone := len(shown.names) - one.evaluation.counted):
            several = "queries without a positive: the only images of their classes"
            left_out.append(number_of(alone, f"query without a positive: the only image of its class/{several}"))
            break
    return Measured(shown, before, after, kept.keys.get("init", ""), remarks, left_out)
