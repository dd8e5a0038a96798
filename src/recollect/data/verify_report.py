"""The result of checking a data set, as an object, as plain data for JSON, and as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from recollect.common.words import number_of

SHOWN = 5  # examples of each kind in the text; the JSON has all
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
        bins = Counter(size.bit_length() for size in self.class_sizes)
        return {_range(b): bins[b] for b in range(min(bins, default=0), max(bins, default=0) + 1)}


def _range(bits: int) -> str:
    low, high = (1 << bits) >> 1, (1 << bits) - 1
    return str(low) if low >= high else f"{low}–{high}"


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
        found = list(self.count_differences)
        if self.missing:
            found.append(f"{number_of(len(self.missing), 'file is/files are')} missing.")
        if self.unreadable:
            found.append(f"{number_of(len(self.unreadable), 'file')} cannot be read.")
        if self.duplicates_across:
            found.append(f"{number_of(len(self.duplicates_across), 'image is/images are')} in both train and test.")
        return found

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
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"{self.name}" + (f" in {self.root}" if self.root else "") + f", checked in {self.seconds:.1f} s"
        for split in self.splits:
            yield ""
            yield from self._split_lines(split)
        if self.missing:
            yield from ("", f"Missing: {number_of(len(self.missing), 'file')}", *_examples(self.missing))
        if self.unreadable:
            reasons = [f"{name}: {reason}" for name, reason in self.unreadable.items()]
            yield from ("", f"Unreadable: {number_of(len(reasons), 'file')}", *_examples(reasons))
        for title, groups in (
            ("Identical files in both train and test", self.duplicates_across),
            ("Identical files in different classes", self.contradictions),
            ("Identical files", [group for group in self.duplicates if group not in self.contradictions]),
        ):
            if groups:
                yield from (
                    "",
                    f"{title}: {number_of(len(groups), 'group')}",
                    *_examples([" = ".join(group) for group in groups]),
                )
        if self.notes:
            yield from ("", "Remarks", *(f"  {note}" for note in self.notes))
        yield ""
        yield "No problems found." if self.ok else "Problems:"
        yield from (f"  {problem}" for problem in self.problems)

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


def _examples(lines: Sequence[str]) -> Iterator[str]:
    yield from (f"  {line}" for line in lines[:SHOWN])
    if len(lines) > SHOWN:
        yield f"  … and {len(lines) - SHOWN:,} more"
