"""Check a data set in one pass over every file: counts, missing and unreadable files, duplicates, class sizes."""

from __future__ import annotations

import inspect
import os
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import numpy as np

from recollect.common.console import ProgressLine
from recollect.common.errors import DataWarning, ImageError
from recollect.common.pixels import resized_size
from recollect.common.text import number_of
from recollect.data.image_set import ImageSet
from recollect.data.registry import Source, check_root, count_difference, find_source, read_split

EXAMPLES = 5  # examples of each kind in the text; the JSON has all
BAR = 40


@dataclass(frozen=True)
class SplitReport:
    """One split: its counts, the published counts, and the number of readable images per class."""

    split: str
    images: int
    classes: int
    published_images: int | None
    published_classes: int | None
    missing: int
    unreadable: int
    class_sizes: list[int]
    usable_classes: int
    usable_images: int
    fingerprint: str

    @property
    def histogram(self) -> dict[str, int]:
        """Number of classes by size, in ranges that double: 1, 2–3, 4–7, …; 0 for classes with nothing left."""
        bins, histogram = Counter(size.bit_length() for size in self.class_sizes), {}
        for bits in range(min(bins, default=0), max(bins, default=0) + 1):
            low, high = (1 << bits) >> 1, (1 << bits) - 1
            histogram[str(low) if low >= high else f"{low}–{high}"] = bins[bits]
        return histogram


@dataclass(frozen=True)
class Report:
    """The result of the whole check. ``ok`` decides the exit code."""

    name: str
    root: str | None
    samples_per_class: int
    splits: list[SplitReport]
    count_differences: list[str]
    notes: list[str]
    missing: list[str]
    unreadable: dict[str, str]
    duplicates: list[list[str]]
    duplicates_across: list[list[str]]
    contradictions: list[list[str]]
    """Identical files in different classes."""
    seconds: float

    @property
    def problems(self) -> list[str]:
        """The problems, one sentence each; duplicates inside a split are a remark, not a problem."""
        problems = list(self.count_differences)
        if self.missing:
            problems.append(f"{number_of(len(self.missing), 'file is/files are')} missing.")
        if self.unreadable:
            problems.append(f"{number_of(len(self.unreadable), 'file')} cannot be read.")
        if self.duplicates_across:
            problems.append(f"{number_of(len(self.duplicates_across), 'image is/images are')} in both train and test.")
        return problems

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def as_dict(self) -> dict[str, Any]:
        """Plain values, with every file named."""
        splits = [{**asdict(split), "histogram": split.histogram} for split in self.splits]
        return {**asdict(self), "splits": splits, "problems": self.problems, "ok": self.ok}

    def as_text(self) -> str:
        """The report as text."""
        lines = [f"{self.name}" + (f" in {self.root}" if self.root else "") + f", checked in {self.seconds:.1f} s"]
        for split in self.splits:
            lines += ["", *self._split_lines(split)]
        groups = {
            "Identical files in both train and test": self.duplicates_across,
            "Identical files in different classes": self.contradictions,
            "Identical files": [group for group in self.duplicates if group not in self.contradictions],
        }
        for title, noun, examples in (
            ("Missing", "file", self.missing),
            ("Unreadable", "file", [f"{name}: {reason}" for name, reason in self.unreadable.items()]),
            *((title, "group", [" = ".join(group) for group in each]) for title, each in groups.items()),
        ):
            if examples:
                lines += [
                    "",
                    f"{title}: {number_of(len(examples), noun)}",
                    *(f"  {line}" for line in examples[:EXAMPLES]),
                ]
            if len(examples) > EXAMPLES:
                lines.append(f"  … and {len(examples) - EXAMPLES:,} more")
        if self.notes:
            lines += ["", "Remarks", *(f"  {note}" for note in self.notes)]
        lines += ["", "No problems found." if self.ok else "Problems:", *(f"  {problem}" for problem in self.problems)]
        return "\n".join(lines)

    def _split_lines(self, split: SplitReport) -> Iterator[str]:
        published = "" if split.published_images is None else f"   published {split.published_images:,}"
        if split.published_classes is not None:
            published += f" of {split.published_classes:,} classes"
        classes = f" of {split.classes:,} classes" if split.classes > 1 else ""
        yield f"{split.split}: {split.images:,} images{classes}{published}"
        if split.missing or split.unreadable:
            yield f"  missing {split.missing:,}, unreadable {split.unreadable:,}"
        if split.classes < 2:
            return  # a benchmark of instance search has no classes
        yield (
            f"  classes the sampler can use at {self.samples_per_class} images per class: "
            f"{split.usable_classes:,} of {split.classes:,} ({split.usable_images:,} images)"
        )
        yield "  images per class   classes"
        largest = max(split.histogram.values(), default=0)
        for sizes, count in split.histogram.items():
            bar = "█" * -(-BAR * count // max(largest, 1))
            yield f"  {sizes:>16}   {count:>7,}  {bar}"


SHORTER_SIDE = 256
"""Most models resize the shorter side of an image to this; see ``Preprocessing``."""


def verify_data(
    name: str, root: Path | str | None = None, *, samples_per_class: int = 4, workers: int | None = None, **options: Any
) -> Report:
    """Check every file of a data set.

    Args:
        name: the data set.
        root: its folder.
        samples_per_class: m of the sampler; the report counts the classes with at least that many images.
        workers: threads that read and decode; by default as many as there are processors, at most 8.
        **options: the source's own, as for ``load``.

    Raises:
        DataError: its lists are missing or cannot be read, so there is nothing to check.

    Example:
        >>> verify("folder", "photos").ok
        True
    """
    start, source = time.monotonic(), find_source(name)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sets = {split: read_split(source, root, split, options) for split in _splits(source, root, options)}
    counts = {split: count_difference(source, images, split) for split, images in sets.items()}
    notes = [str(w.message) for w in caught if issubclass(w.category, DataWarning)]

    missing = {images.names[index] for images in sets.values() for index in images.missing.tolist()}
    contents, unreadable = _read_all(sets, missing, workers)
    bad = missing | set(unreadable)
    sides: dict[str, set[str]] = defaultdict(set)
    classes: dict[str, set[str]] = defaultdict(set)
    for split, images in sets.items():
        for image, label in zip(images.names, images.labels.tolist(), strict=True):
            sides[image].add(_side(split))
            classes[image].add(images.class_names[label])
    # A single name counts if both the training and a test list have it.
    groups = sorted(sorted(names) for names in contents.values() if len(names) > 1 or len(sides[names[0]]) > 1)
    across = [group for group in groups if len(set.union(*(sides[name] for name in group))) > 1]
    inside = [group for group in groups if group not in across]
    return Report(
        name=name,
        root=None if root is None else str(root),
        samples_per_class=samples_per_class,
        splits=[
            _split_report(source, split, images, bad, missing, samples_per_class) for split, images in sets.items()
        ],
        count_differences=[difference for difference in counts.values() if difference is not None],
        notes=list(dict.fromkeys(notes)) + _shared_classes(sets),
        missing=sorted(missing),
        unreadable=dict(sorted(unreadable.items())),
        duplicates=inside,
        duplicates_across=across,
        contradictions=[group for group in inside if len(set.union(*(classes[name] for name in group))) > 1],
        seconds=time.monotonic() - start,
    )


def _splits(source: Source, root: Path | str | None, options: dict[str, Any]) -> tuple[str, ...]:
    if source.find_splits is not None:
        parameters = inspect.signature(source.find_splits).parameters
        return source.find_splits(check_root(source, root), **{k: v for k, v in options.items() if k in parameters})
    return ("train", *source.test_splits) if "train" in source.splits else source.splits


def _read_all(
    sets: dict[str, ImageSet], missing: set[str], workers: int | None
) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Files by the hash of their content, and the reason for each that cannot be read."""
    places: dict[str, tuple[ImageSet, int]] = {}
    for images in sets.values():
        for index, name in enumerate(images.names):
            if name not in missing:
                places.setdefault(name, (images, index))
    contents: dict[str, list[str]] = defaultdict(list)
    unreadable: dict[str, str] = {}
    threads = workers or min(8, os.cpu_count() or 1)
    # Not ``ThreadPoolExecutor``: a million files would be a million futures.
    with ProgressLine("verifying", len(places)) as line, ThreadPool(threads) as pool:
        for name, (digest, problem) in zip(
            places, pool.imap(lambda place: _read(*place), places.values()), strict=True
        ):
            if digest is not None:
                contents[digest].append(name)
            if problem is not None:
                unreadable[name] = problem
            line.advance()
    return contents, unreadable


def _read(images: ImageSet, index: int) -> tuple[str | None, str | None]:
    """The hash of an image's content and its problem; either may be None."""
    digest = None
    try:
        digest = images.digest(index).hex()
        resized_size(*images.read(index).size, SHORTER_SIDE)
    except ImageError as error:
        return digest, error.reason
    except ValueError as error:  # not broken, but training would refuse it
        return digest, f"{error}."
    return digest, None


def _side(split: str) -> str:
    return split if split in ("train", "val") else "test"


def _shared_classes(sets: dict[str, ImageSet]) -> list[str]:
    train = set(sets["train"].class_names) if "train" in sets else set()
    notes = []
    for split, images in sets.items():
        shared = train & set(images.class_names) if _side(split) == "test" else set()
        if shared:
            example = min(shared)
            count = number_of(len(shared), f"class of {split} is/classes of {split} are")
            notes.append(f"{count} also in train, e.g. {example!r}: not unseen.")
    return notes


def _split_report(
    source: Source, split: str, images: ImageSet, bad: set[str], missing: set[str], samples_per_class: int
) -> SplitReport:
    good = np.array([name not in bad for name in images.names])
    sizes = np.bincount(images.labels[good], minlength=len(images.class_names))
    usable = sizes >= samples_per_class
    published = source.published.get(split)
    return SplitReport(
        split=split,
        images=len(images),
        classes=images.num_classes,
        published_images=None if published is None else published.images,
        published_classes=None if published is None else published.classes,
        missing=sum(name in missing for name in images.names),
        unreadable=sum(name in bad and name not in missing for name in images.names),
        class_sizes=[int(size) for size in sizes],
        usable_classes=int(usable.sum()),
        usable_images=int(sizes[usable].sum()),
        fingerprint=images.fingerprint,
    )


verify = verify_data  # its name inside the package
