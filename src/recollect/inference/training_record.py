"""Records what a run was trained on: names of classes and contents of images, in ``RUN/trained_on.npz``.

The division into training and test classes must not change after training, but a folder may get new classes, and a test
set may contain trained ones. So images for a run are compared with this file. A class counts as trained if the run has a
class of that name from the same data set, or if at least half of its different images are training images by content,
under any names.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.common.errors import ConfigError, DataError, DataWarning
from recollect.common.files import atomic_write
from recollect.common.reading import parse_json, read_npz
from recollect.common.text import Remark, number_of, some_names
from recollect.data import ImageSet, load
from recollect.inference.models import RunFiles
from recollect.inference.store import KEY_BYTES, Keys, content_keys, set_digest
from recollect.models.saving import MODEL

FILE = "trained_on.npz"
_REMEDY = (
    "Restore it from a complete copy. If there is none, remove it: test classes are then no longer compared with the "
    "training classes."
)


@dataclass(frozen=True)
class TrainedOn:
    """Classes and images of a training.

    Attributes:
        data: the name of the data set. digest: of the whole training set, names and labels included.
        classes: names of the trained classes. validation_classes: of those that chose the weights.
        keys: contents of the training images, M × 16.
        runs: how many trainings it records, see ``merge_records``.
    """

    data: str
    digest: str
    classes: frozenset[str]
    validation_classes: frozenset[str]
    keys: Keys
    runs: int = 1

    @property
    def all_classes(self) -> frozenset[str]:
        """Names of all classes that took part."""
        return self.classes | self.validation_classes

    def write(self, run: Path) -> None:
        """Keep it in the run folder."""
        facts = {
            "data": self.data,
            "digest": self.digest,
            "classes": sorted(self.classes),
            "validation_classes": sorted(self.validation_classes),
        }
        text = np.frombuffer(json.dumps(facts).encode(), np.uint8)
        with atomic_write(run / FILE) as file:
            np.savez(file, facts=text, images=self.keys)


def trained_on(train: ImageSet, validation: ImageSet | None = None) -> TrainedOn:
    """The record for a new run. Reads every training image once, unless its digest is stored."""
    keys = content_keys(train)
    chose = frozenset(_classes(validation) if validation is not None and validation.name == train.name else ())
    return TrainedOn(train.name, set_digest(train, keys), frozenset(_classes(train)), chose, np.unique(keys, axis=0))


def read_trained_on(run: Path) -> TrainedOn | None:
    """The record of a run or of its saved embedder; None if there is none (written by an earlier version).

    Raises:
        DataError: the file is damaged.
    """
    if not (run / FILE).is_file() and run.name == MODEL and RunFiles(run.parent).is_run:
        run = run.parent  # earlier versions did not keep it with the embedder
    if not (run / FILE).is_file():
        return None
    try:
        arrays = read_npz(run / FILE)
        facts = parse_json(arrays["facts"].astype(np.uint8).tobytes().decode(), str(run / FILE), dict)
        keys = arrays["images"].astype(np.uint8).reshape(-1, KEY_BYTES)
        trained, validating = (frozenset(map(str, facts[key])) for key in ("classes", "validation_classes"))
        return TrainedOn(str(facts["data"]), str(facts["digest"]), trained, validating, keys)
    except (DataError, KeyError, ValueError, TypeError) as error:
        raise DataError(f"{run / FILE}: damaged ({error}). {_REMEDY}") from error


def carry_record(source: Path, target: Path) -> None:
    """Keep the record of a run or an embedder with a copy of its weights, so that the copy is compared with it too."""
    if (record := read_trained_on(source)) is not None:
        record.write(target)


def merge_records(records: Sequence[TrainedOn]) -> TrainedOn:
    """One record of several trainings on the same data set, with what any of them was trained on."""
    first = records[0]
    if all((one.classes, one.validation_classes) == (first.classes, first.validation_classes) for one in records):
        return first
    trained = frozenset(chain.from_iterable(one.classes for one in records))
    chose = frozenset(chain.from_iterable(one.validation_classes for one in records))
    keys = np.unique(np.concatenate([one.keys for one in records]), axis=0)
    return TrainedOn(first.data, "", trained, chose, keys, len(records))


def split_of(run: Path | str) -> dict[str, Any]:
    """Settings that divide the classes of a folder as for ``run``, to compare a new training with it.

    Its training classes are for training, and all others for testing, also if photos were added or corrected since.

    Raises:
        ConfigError: it was not trained on a folder. DataError: it has no record.

    Example:
        >>> split_of("run")
        {'data.options.train_classes': ['class0', 'class1', 'class3', 'class6']}
    """
    if not RunFiles(Path(run)).is_run:
        raise DataError(f"{run} is not a run: it has no config.yaml.")
    record = read_trained_on(Path(run))
    if record is None:
        raise DataError(f"{run} has no record of its training classes ({FILE}): it was written by an earlier version.")
    if record.data != "folder":
        raise ConfigError(f"{run} was trained on {record.data}, which says itself what is for testing.")
    return {"data.options.train_classes": sorted(record.all_classes)}


def load_by_record(
    name: str, root: Path | str | None, split: str, record: TrainedOn | None, options: Mapping[str, Any]
) -> ImageSet:
    """A split of a run's own data set. Of drawn classes, those that did or did not take part in its training.

    Which classes of a folder are for testing depends on all of its photos: after one more, others might be drawn. So if the
    classes are not those of the run's record, they are taken from it, and ``ScreenedTestSet.remarks`` says so.

    Args:
        name, root, options: the data set, as in ``recollect.data.load``.
        split: of the data set; only ``"train"`` and ``"test"`` are drawn.
        record: the record of the run; None changes nothing.
    """
    images = load(name, root, split, **options)
    drawn = split in ("train", "test") and "split" in images.facts
    if record is None or not drawn or images.name != record.data:
        return images
    everything = load_whole(name, root, options)
    titles = [title for title in everything.class_names if (title in record.all_classes) == (split == "train")]
    if not titles or set(titles) == set(_classes(images)):
        return images
    part = everything.of_classes([everything.class_names.index(title) for title in titles], split)
    return replace(part, facts={**part.facts, "by_record": len(titles), "records": record.runs})


def refuse_other_training_images(run: Path, train: ImageSet) -> None:
    """Check that a resumed run has the same images as at its start, in names, classes and contents.

    Raises:
        ConfigError: the images differ.
    """
    record = read_trained_on(run)
    if record is None:
        return
    keys = content_keys(train)
    if set_digest(train, keys) == record.digest:
        return
    new, missing = int((~_contained(keys, record.keys)).sum()), int((~_contained(record.keys, keys)).sum())
    classes = sorted(record.classes ^ frozenset(_classes(train)))
    raise ConfigError(
        f"{run} was started with other training images, names or labels. New: {new:,}; missing: {missing:,}; classes that "
        f"differ: {some_names(classes) or 'none'}. Restore those it was started with, or start a new run."
    )


def load_whole(name: str, root: Path | str | None, options: Mapping[str, Any]) -> ImageSet:
    """Load every class of a data set, without repeating its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        return load(name, root, "all", **options)


def refuse_foreign_images(run: Path, record: TrainedOn, images: ImageSet) -> str | None:
    """Compare the images of a final training with those of the run that its settings and length come from.

    Photos may have been added, removed or relabelled since; none of them left is probably another folder.

    Returns:
        A remark if some training images of the run are missing.

    Raises:
        ConfigError: all of them are missing.
    """
    missing = int((~_contained(record.keys, content_keys(images))).sum())
    of = f"the {len(record.keys):,} training images"
    if missing and missing == len(record.keys):
        raise ConfigError(
            f"{images.root or images.name} contains none of {of} of {run}, whose settings and length were found on them. "
            "Give their folder with --root, or train on the new images with recollect train --data."
        )
    are = "is" if missing == 1 else "are"
    return f"{missing:,} of {of} of {run} {are} no longer there: its settings were found with all." if missing else None


@dataclass(frozen=True)
class ScreenedTestSet:
    """A test set compared with the training images of its run.

    Attributes:
        images: the images to test, without excluded classes. keys: their keys.
        trained_classes: names of classes in the test set that were trained on.
        validation_classes: names of those that were used to choose the weights.
        trained_images: how many of ``images`` were trained on, by content.
        excluded: whether trained classes were left out.
    """

    images: ImageSet
    keys: Keys
    trained_classes: tuple[str, ...] = ()
    validation_classes: tuple[str, ...] = ()
    trained_images: int = 0
    excluded: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Plain values for ``metrics.json``."""
        return {
            "classes_by_record": bool(self.images.facts.get("by_record")),
            "trained_classes": len(self.trained_classes),
            "trained_classes_excluded": self.excluded,
            "trained_class_names": list(self.trained_classes[:100]),
            "validation_classes": len(self.validation_classes),
            "trained_images": self.trained_images,
        }

    def remarks(self) -> list[Remark]:
        """What to know of the result; nothing for a test on unseen classes."""
        remarks = []
        facts, trained = self.images.facts, len(self.trained_classes)
        if classes := facts.get("by_record"):  # the test classes differ from a fresh split
            count = number_of(int(classes) - (trained if self.excluded else 0), "class")
            if self.images.split == "train":
                text = f"These are the {count} that took part in the training, not those that would be drawn now."
            elif facts.get("records", 1) > 1:
                text = (
                    f"The runs were trained on different classes: the test uses the {count} that took no part in any "
                    "training. recollect train --split-of RUN holds out the same classes as RUN."
                )
            else:
                text = f"The photos have changed since: the test uses the {count} that took no part in the training."
            remarks.append(Remark(text))
        if trained:
            text = f"{number_of(trained, 'class was/classes were')} trained on, by name or images"
            meaning = "The result does not show how well the model works on unseen classes."
            if self.excluded:
                meaning = "Left out of the result: recollect eval --trained-classes keep includes such classes."
            remarks.append(Remark(f"{text} ({some_names(self.trained_classes)}). {meaning}", warning=True))
        if self.validation_classes:
            count = number_of(len(self.validation_classes), "class of the test set was/classes of the test set were")
            remarks.append(Remark(f"{count} used to choose the weights; the result is slightly too good."))
        if self.trained_images and (self.excluded or not trained):
            count = number_of(self.trained_images, "image of the test set was/images of the test set were")
            remarks.append(Remark(f"{count} trained on, in other classes.", warning=True))
        return remarks


def exclude_trained_classes(
    images: ImageSet, keys: Keys, record: TrainedOn | None, trained_classes: str = "auto"
) -> ScreenedTestSet:
    """Compare a test set with the training images of its run.

    Args:
        images, keys: the set.
        record: the record of the run; None changes nothing.
        trained_classes: ``"auto"`` leaves trained classes out if there are others, and keeps them if there are none;
            ``"exclude"`` and ``"keep"`` force one of these.

    Raises:
        ConfigError: nothing is left.
    """
    if trained_classes not in ("auto", "exclude", "keep"):
        raise ConfigError(f"--trained-classes {trained_classes}: choose auto, exclude or keep.")
    if record is None:
        return ScreenedTestSet(images, keys)
    same_data = images.name == record.data
    seen = _contained(keys, record.keys)
    trained = _seen_classes(images.class_names, images.labels, keys, seen, record.classes if same_data else ())
    others = ((images.class_sizes > 0) & ~trained).any()
    exclude = bool(trained.any()) and (trained_classes == "exclude" or (trained_classes == "auto" and bool(others)))
    names = np.array(images.class_names, object)
    if exclude:
        if not others:
            raise ConfigError("every class was trained on: use --trained-classes keep to evaluate them.")
        unseen = np.flatnonzero(~trained[images.labels])
        images, keys, seen = images.subset(unseen), keys[unseen], seen[unseen]
    return ScreenedTestSet(
        images,
        keys,
        tuple(names[trained].tolist()),
        tuple(name for name in _classes(images) if same_data and name in record.validation_classes),
        int(seen.sum()),
        exclude,
    )


def is_unseen(labels: Sequence[str], keys: Keys, data: str, record: TrainedOn) -> NDArray[np.bool_]:
    """Which images are of a class that took no part in a training, by its name or its images.

    Args:
        labels: the name of each image's class.
        keys: of the images.
        data: the name of their data set; classes are known by name only in the one that was trained on.
        record: of the training; classes that chose the weights count as trained.
    """
    names, numbers = np.unique(np.asarray(labels, object).astype(str), return_inverse=True)
    seen = _contained(keys, record.keys)
    trained = _seen_classes(names.tolist(), numbers, keys, seen, record.all_classes if data == record.data else ())
    return ~trained[numbers]


def _seen_classes(
    names: Sequence[str], labels: NDArray[np.int64], keys: Keys, seen: NDArray[np.bool_], trained_names: Collection[str]
) -> NDArray[np.bool_]:
    """Which classes were trained on: those in ``trained_names``, and those with at least half of their images ``seen``.

    Copies of one file count once, since they may be a broken download that is everywhere.
    """
    rows = np.column_stack([labels.astype("<i8").view(np.uint8).reshape(-1, 8), keys])
    first = np.unique(rows, axis=0, return_index=True)[1]
    sizes = np.bincount(labels[first], minlength=len(names))
    counts = np.bincount(labels[first], weights=seen[first], minlength=len(names))
    by_name = np.array([name in trained_names for name in names], bool)
    trained: NDArray[np.bool_] = (by_name | (counts >= 0.5 * sizes)) & (sizes > 0)
    return trained


def _classes(images: ImageSet) -> Sequence[str]:
    return [images.class_names[label] for label in np.unique(images.labels).tolist()]


def _contained(keys: Keys, others: Keys) -> NDArray[np.bool_]:
    contents = {key.tobytes() for key in others}
    return np.array([key.tobytes() in contents for key in keys], bool)
