"""The table of data sets: a description of each, and ``load``, which loads a set by name.

A data set of the package is one file in ``data/sources`` with a tuple ``SOURCES``; it is found automatically, so adding
one changes no other file. ``Source`` lists what a source must define. What sources share to read lists is in
``data/listing.py``. Data sets outside the package are found by ``common/doors.py``: ``my.py:load_mine``, or a name that an
installed package adds.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from recollect.common import doors
from recollect.common.errors import ConfigError, DataError, DataWarning, SealedError
from recollect.common.words import did_you_mean
from recollect.data.image_set import ImageSet


@dataclass(frozen=True)
class Counts:
    """How many images and classes a part of a data set is published with; ``classes`` is None where it has none."""

    images: int
    classes: int | None = None

    def __str__(self) -> str:
        return f"{self.images:,} images" + ("" if self.classes is None else f" of {self.classes:,} classes")


@dataclass(frozen=True)
class Source:
    """One data set: its name, what it is, where it can be had, and the function that reads it.

    Args:
        name: the word users type.
        title: what it is, in a line.
        read: ``read(root, split, **options)`` gives the set; its keyword-only arguments are the options.
        splits: the available parts.
        layout: which files it expects below the root.
        homepage: the official page to get it from.
        licence: what its terms allow, in a line.
        published: the counts each split is published with.
        test_splits: the splits that together are the test, e.g. the three lists of VehicleID.
        needs_root: False for a set that is made rather than found.
        find_splits: ``find_splits(root, **options)`` tells which splits there are, where that depends on the copy (a
            user's own list names its own); ``splits`` are then only the usual ones.
    """

    name: str
    title: str
    read: Callable[..., ImageSet]
    splits: tuple[str, ...]
    layout: str
    homepage: str
    licence: str
    published: Mapping[str, Counts] = field(default_factory=dict)
    test_splits: tuple[str, ...] = ("test",)
    needs_root: bool = True
    find_splits: Callable[..., tuple[str, ...]] | None = None

    def trouble(self, what: str) -> DataError:
        """An error about this data set that also says what belongs where and where it can be had."""
        origin = f"\nIt can be had from: {self.homepage}" if "://" in self.homepage else ""
        return DataError(f"{self.name}: {what}\nExpected: {self.layout}{origin}")

    @property
    def options(self) -> tuple[str, ...]:
        """The keyword options that ``load`` passes on."""
        parameters = inspect.signature(self.read).parameters.values()
        return tuple(p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY)


@cache
def available() -> dict[str, Source]:
    """Every data set by name, in alphabetical order.

    Examples:
        >>> available()["sop"].published["train"].images
        59551
    """
    from recollect.data import sources

    found: list[Source] = []
    for module in pkgutil.iter_modules(sources.__path__, f"{sources.__name__}."):
        found.extend(getattr(importlib.import_module(module.name), "SOURCES", ()))
    return {source.name: source for source in sorted(found, key=lambda source: source.name)}


def is_source(name: str) -> bool:
    """Whether ``name`` chooses a data set: one of the table, of an installed package, or a reference.

    A file or folder of that name is what it says; only ``.py`` files hold a data set.
    """
    return name in available() or (doors.knows("data set", name) and not Path(name).exists())


def find_source(name: str) -> Source:
    """The data set called ``name``: of the table, of an installed package, or behind a reference.

    Raises:
        ConfigError: there is no such data set; the message lists the names.
    """
    if name in (known := available()):
        return known[name]
    loaded = doors.outside("data set", name)
    if loaded is not None:
        return _source_from_outside(loaded)
    hint = f" To read your own folder, use the data set 'folder' with the root {name!r}." if Path(name).exists() else ""
    error = doors.unknown("data set", name, known)
    raise ConfigError(f"{error}{hint}")


def _source_from_outside(loaded: doors.Loaded) -> Source:
    """A row for a function that gives an ``ImageSet``, or the ``Source`` itself that a reference names.

    Of the function's arguments ``root`` and ``split`` are given if it has them; all others are options.
    """
    target = loaded.target
    if isinstance(target, Source):
        return target
    if not callable(target):
        raise ConfigError(
            f"data set {loaded.short!r} is a {type(target).__name__}: a function that gives an ImageSet is expected."
        )
    arguments = doors.options_of(target)

    def read(root: Path | None, split: str, **options: Any) -> ImageSet:
        doors.check_options(target, options, f"data set {loaded.short!r}", own)
        asked = {name: value for name, value in (("root", root), ("split", split)) if name in arguments}
        images = target(**asked, **options)
        if not isinstance(images, ImageSet):
            raise ConfigError(
                f"data set {loaded.short!r} gives a {type(images).__name__}: an ImageSet is expected "
                "(recollect.data.from_hugging_face makes one of a datasets.Dataset)."
            )
        return images

    own = {name: parameter for name, parameter in arguments.items() if name not in ("root", "split")}
    keyword = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own.values()]
    read.__signature__ = inspect.Signature(keyword)  # type: ignore[attr-defined]
    splits = tuple(getattr(target, "splits", ("train", "test")))
    needs_root = "root" in arguments and arguments["root"].default is inspect.Parameter.empty
    title = (inspect.getdoc(target) or "a data set from outside").split("\n")[0]
    return Source(
        loaded.short,
        title,
        read,
        splits,
        layout=f"what {loaded.short} reads",
        homepage="",
        licence="",
        needs_root=needs_root,
        find_splits=lambda root, **options: splits,
    )


def load(name: str, root: Path | str | None = None, split: str = "train", **options: Any) -> ImageSet:
    """Load a part of a data set by name.

    Args:
        name: a name from ``available()``, e.g. ``"folder"`` or ``"glyphs"``, or a reference such as ``my.py:load_mine``.
        root: the folder of the data set; not needed for a generated set like ``glyphs``.
        split: which part, usually ``"train"`` or ``"test"``.
        **options: options of that source, e.g. ``missing="drop"``, ``allow_outside=True``.

    Raises:
        ConfigError: an unknown name, split or option.
        DataError: files that are missing, with where they were looked for and where they can be had.

    Warns:
        DataWarning: the counts differ from the published ones.
    """
    refuse_if_sealed(f"{name}/{split}", split)
    source = find_source(name)
    if split not in source.splits and source.find_splits is None:
        raise ConfigError(f"{name} has no split {split!r}: choose one of {', '.join(source.splits)}.")
    for option in options:
        if option not in source.options:
            guess = did_you_mean(option, source.options)
            raise ConfigError(
                f"{name} has no option {option!r}.{guess} Its options: {', '.join(source.options) or 'none'}."
            )
    images = source.read(check_root(source, root), split, **options)
    difference = count_difference(source, images, split)
    if difference is not None:
        warnings.warn(difference, DataWarning, stacklevel=2)
    return images


_sealed: list[frozenset[str]] = []


@contextmanager
def only_splits(*splits: str) -> Iterator[None]:
    """Inside the block, in the whole process, ``load`` gives these splits and refuses every other.

    Keeps a search for settings from loading the test set.

    Examples:
        >>> with only_splits("train"):
        ...     load("glyphs", split="test")
        Traceback (most recent call last):
        ...
        recollect.common.errors.SealedError: glyphs/test was asked for where only train may be read.
    """
    _sealed.append(frozenset(splits))
    try:
        yield
    finally:
        _sealed.pop()


def refuse_if_sealed(what: str, split: str | None = None) -> None:
    """Raise if ``what`` is a part that ``only_splits`` excludes; every function that loads images by name calls this first.

    Raises:
        SealedError: it is not.
    """
    for allowed in _sealed:
        if split not in allowed:
            raise SealedError(f"{what} was asked for where only {', '.join(sorted(allowed))} may be read.")


def count_difference(source: Source, images: ImageSet, split: str) -> str | None:
    """A sentence on how the counts differ from the published ones; None when they agree or none are published."""
    published = source.published.get(split)
    if published is None:
        return None
    found = Counts(len(images), None if published.classes is None else images.num_classes)
    if found == published:
        return None
    return f"{source.name}, {split}: {found} found, but it is published with {published}. Results will not compare."


def check_root(source: Source, root: Path | str | None) -> Path | None:
    """``root`` as a path that exists, or an error that says what belongs there."""
    if not source.needs_root:
        return None if root is None else Path(root)
    if root is None:
        raise source.trouble("it needs the folder it lies in, and no root was given.")
    path = Path(root).expanduser()
    if not path.exists():
        raise source.trouble(f"there is no folder {path}.")
    return path
