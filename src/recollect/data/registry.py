"""The table of data sets: a description of each, and ``load``, which loads a set by name.

A data set of the package is one file in ``data/sources`` with a tuple ``SOURCES``; it is found automatically, so adding
one changes no other file. ``Source`` lists what a source must define. What sources share to read lists is in
``data/tables.py``. Data sets outside the package are found by ``common/plugins.py``: ``my.py:load_mine``, or a name that an
installed package adds.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import pkgutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.common import plugins
from recollect.common.errors import ConfigError, DataError, DataWarning, SplitNotAllowedError
from recollect.common.images import ON_BAD_IMAGE
from recollect.common.text import check_choice
from recollect.data.image_set import ImageSet

AUGMENTATIONS = ("crop", "glyph", "whole", "none")
"""Names of recollect's own augmentations (``transforms.py``, which needs torch)."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Counts:
    """The published numbers of images and classes of a split; ``classes`` is None if it has none."""

    images: int
    classes: int | None = None

    def __str__(self) -> str:
        return f"{self.images:,} images" + ("" if self.classes is None else f" of {self.classes:,} classes")


@dataclass(frozen=True)
class Source:
    """One data set: its name, description, origin, and the function that reads it.

    Args:
        name: the name that users type.
        title: a one-line description.
        read: ``read(root, split, **options)`` returns the set; its keyword-only arguments are the options.
        splits: the available splits.
        layout: which files it expects below the root.
        homepage: the official page to get it from.
        licence: its terms of use, in one line.
        published: the published counts of each split.
        distributed: the counts of the copies that its publisher gives out, where they differ from the published ones.
        test_splits: the splits that together form the test set, e.g. the three lists of VehicleID.
        needs_root: False for a generated set.
        find_splits: ``find_splits(root, **options)`` returns the existing splits, if they depend on the copy (a user's own
            list can name its own); ``splits`` are then only the usual ones.
    """

    name: str
    title: str
    read: Callable[..., ImageSet]
    splits: tuple[str, ...]
    layout: str
    homepage: str
    licence: str
    published: Mapping[str, Counts] = field(default_factory=dict)
    distributed: Mapping[str, Counts] = field(default_factory=dict)
    test_splits: tuple[str, ...] = ("test",)
    needs_root: bool = True
    find_splits: Callable[..., tuple[str, ...]] | None = None

    def layout_error(self, what: str) -> DataError:
        """An error about this data set that also names the expected files and where to get them."""
        origin = f"\nGet it from: {self.homepage}" if "://" in self.homepage else ""
        return DataError(f"{self.name}: {what}\nExpected: {self.layout}{origin}")

    @property
    def options(self) -> dict[str, inspect.Parameter]:
        """The keyword options that ``load`` passes on."""
        parameters = inspect.signature(self.read).parameters
        return {name: option for name, option in parameters.items() if option.kind is option.KEYWORD_ONLY}


@cache
def available_data() -> dict[str, Source]:
    """Every data set by name, in alphabetical order.

    Examples:
        >>> available()["sop"].published["train"].images
        59551
    """
    from recollect.data import sources

    table: dict[str, Source] = {}
    for module in pkgutil.iter_modules(sources.__path__, f"{sources.__name__}."):
        for source in getattr(importlib.import_module(module.name), "SOURCES", ()):
            table[source.name] = source
    return dict(sorted(table.items()))


def is_source(name: str) -> bool:
    """Whether ``name`` is a data set: from the table, from an installed package, or a reference.

    An existing file or folder of that name is not; only ``.py`` files contain a data set.
    """
    return name in available() or (not Path(name).exists() and plugins.is_plugin("data set", name))


def check_ambiguous_name(name: str) -> None:
    """Refuse a name, given without a root, that is a data set of the table and also a folder or file here.

    Raises:
        ConfigError: it is both; the message says how to name each.
    """
    if name in available() and Path(name).exists():
        theirs = f"add --root FOLDER to --data {name}" if available()[name].needs_root else "rename the folder"
        raise ConfigError(
            f"--data {name}: there is a data set {name!r}, and a folder {name!r} here. Write --data ./{name} for the folder; "
            f"for the data set, {theirs}."
        )


def find_source(name: str) -> Source:
    """The data set called ``name``: from the table, from an installed package, or given by a reference.

    Raises:
        ConfigError: there is no such data set; the message lists the names.
    """
    if name in (table := available()):
        return table[name]
    loaded = plugins.load("data set", name)
    if loaded is not None:
        return _source_from_outside(loaded)
    hint = f" To read your own folder, use the data set 'folder' with the root {name!r}." if Path(name).exists() else ""
    error = plugins.unknown("data set", name, table)
    raise ConfigError(f"{error}{hint}")


def _source_from_outside(loaded: plugins.Loaded) -> Source:
    """A ``Source`` for a function that returns an ``ImageSet``, or the ``Source`` that a reference names.

    The arguments ``root`` and ``split`` are passed if the function has them; all others are options.
    """
    target, what = loaded.target, f"data set {loaded.short!r}"
    if isinstance(target, Source):
        return target
    if not callable(target):
        raise ConfigError(f"{what} is a {type(target).__name__}: it must be a function that returns an ImageSet.")
    arguments = plugins.options_of(target)

    def read(root: Path | None, split: str, **options: Any) -> ImageSet:
        location = {name: value for name, value in (("root", root), ("split", split)) if name in arguments}
        with plugins.errors_as_config(what):
            images = target(**location, **options)
        if not isinstance(images, ImageSet):
            raise ConfigError(
                f"{what} returned a {type(images).__name__}: it must return an ImageSet "
                "(recollect.data.from_hugging_face converts a datasets.Dataset)."
            )
        return images

    own = [parameter for name, parameter in arguments.items() if name not in ("root", "split")]
    keyword = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    read.__signature__ = inspect.Signature(keyword)  # type: ignore[attr-defined]
    splits = tuple(getattr(target, "splits", ("train", "test")))
    needs_root = "root" in arguments and arguments["root"].default is inspect.Parameter.empty
    title = (inspect.getdoc(target) or "a data set of your own").split("\n")[0]
    return Source(
        loaded.short,
        title,
        read,
        splits,
        layout=f"the files that {loaded.short} reads",
        homepage="",
        licence="",
        needs_root=needs_root,
        find_splits=lambda root, **options: splits,
    )


def load(
    name: str, root: Path | str | None = None, split: str = "train", *, on_bad_image: str = "error", **options: Any
) -> ImageSet:
    """Load a split of a data set by name.

    Args:
        name: a name from ``available()``, e.g. ``"folder"`` or ``"glyphs"``, or a reference such as ``my.py:load_mine``.
        root: the folder of the data set; not needed for a generated set like ``glyphs``.
        split: usually ``"train"`` or ``"test"``.
        on_bad_image: ``"error"`` refuses a set that lists files that do not exist; ``"skip"`` leaves them out, with a
            warning.
        **options: options of that source, e.g. ``test_share=0.3``.

    Raises:
        ConfigError: an unknown name, split or option.
        DataError: files are missing; the message names the paths searched and where to get them.

    Warns:
        DataWarning: the counts differ from the published ones, or files were left out.
    """
    source = find_source(name)
    images = without_missing(source, read_split(source, root, split, options), on_bad_image)
    difference = count_difference(source, images, split)
    if difference is not None:
        warnings.warn(difference, DataWarning, stacklevel=2)
    return images


def read_split(source: Source, root: Path | str | None, split: str, options: Mapping[str, Any]) -> ImageSet:
    """A split as the data set lists it, with files that may not exist; for the arguments see ``load``."""
    check_split_allowed(f"{source.name}/{split}", split)
    if split not in source.splits and source.find_splits is None:
        raise ConfigError(f"{source.name} has no split {split!r}: choose one of {', '.join(source.splits)}.")
    plugins.check_options(source.read, options, f"data set {source.name!r}", source.options)
    return source.read(check_root(source, root), split, **options)


def without_missing(source: Source, images: ImageSet, on_bad_image: str) -> ImageSet:
    """``images`` without those whose files do not exist; see ``load``.

    Raises:
        DataError: there are some and ``on_bad_image`` is ``"error"``, or nothing is left.
    """
    check_choice("on_bad_image", on_bad_image, ON_BAD_IMAGE)
    missing = images.missing
    if not len(missing):
        return images
    what = (
        f"{len(missing):,} of {len(images):,} images of the split {images.split!r} are not below {images.root}, e.g. "
        f"{images.names[missing[0]]}"
    )
    if on_bad_image == "error":
        raise source.layout_error(
            f"{what}. Complete the copy, or leave them out with --skip-bad (on_bad_image='skip')."
        )
    if len(missing) == len(images):
        raise source.layout_error(f"{what}.")
    warnings.warn(f"{source.name}: {what}; they are left out.", DataWarning, stacklevel=3)
    skipped = {**images.facts.get("left_out", {}), "missing": len(missing)}
    present = images.subset(np.setdiff1d(np.arange(len(images)), missing))
    return replace(present, facts={**images.facts, "left_out": skipped})


def make_set(
    source: Source,
    root: Path,
    split: str,
    names: Sequence[str],
    classes: Sequence[int] | Sequence[str],
    *,
    boxes: NDArray[np.float64] | None = None,
    titles: Mapping[int, str] | None = None,
    coarse: Mapping[Any, str] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> ImageSet:
    """The set of listed images; its classes are numbered in the order of their sorted keys.

    Args:
        source: the data set, for its name and for error messages.
        root: the folder that ``names`` are below.
        split: the part this is.
        names: one path per listed image.
        classes: one key per image, all numbers or all text.
        boxes: one box per image.
        titles: the class name of each key, if not ``str(key)``.
        coarse: the coarser class that the class of a key belongs to.
        facts: see ``ImageSet``.
    """
    if not names:
        raise source.layout_error(f"the list of the split {split!r} below {root} is empty.")
    keys, labels = np.unique(np.asarray(classes), return_inverse=True)
    kinds, kind = np.unique(["" if coarse is None else coarse[key] for key in keys.tolist()], return_inverse=True)
    return ImageSet(
        source.name,
        names,
        labels.astype(np.int64),
        [str(key) if titles is None else titles[key] for key in keys.tolist()],
        root=root,
        split=split,
        boxes=boxes,
        coarse_labels=None if coarse is None else kind[labels],
        coarse_names=[] if coarse is None else kinds.tolist(),
        facts=facts or {},
    )


_allowed_splits: list[frozenset[str]] = []


@contextmanager
def only_splits(*splits: str) -> Iterator[None]:
    """Inside the block, in the whole process, ``load`` loads these splits and refuses every other.

    Keeps a search for settings from loading the test set.

    Examples:
        >>> with only_splits("train"):
        ...     load("glyphs", split="test")
        Traceback (most recent call last):
        ...
        recollect.common.errors.SplitNotAllowedError: glyphs/test was requested, but only train may be read here.
    """
    _allowed_splits.append(frozenset(splits))
    try:
        yield
    finally:
        _allowed_splits.pop()


def check_split_allowed(what: str, split: str | None = None) -> None:
    """Check ``what`` against ``only_splits``; every function that loads images by name calls this first.

    Raises:
        SplitNotAllowedError: ``only_splits`` excludes it.
    """
    for allowed in _allowed_splits:
        if split not in allowed:
            raise SplitNotAllowedError(f"{what} was requested, but only {', '.join(sorted(allowed))} may be read here.")


def count_difference(source: Source, images: ImageSet, split: str) -> str | None:
    """How the counts differ from the published ones; None if they agree or none are published."""
    published = source.published.get(split)
    if published is None:
        return None
    counts = Counts(len(images), None if published.classes is None else images.num_classes)
    if counts == source.distributed.get(split):
        logger.info(f"{source.name}, {split}: {counts}, as distributed; the paper's table has {published}")
        return None
    if counts == published:
        return None
    return f"{source.name}, {split}: found {counts}, but the published split has {published}. Results will not be comparable."


def check_root(source: Source, root: Path | str | None) -> Path | None:
    """``root`` as an existing path; raises an error that names the expected files."""
    if not source.needs_root:
        return None if root is None else Path(root)
    if root is None:
        raise source.layout_error("no root was given: give the folder of the data set.")
    path = Path(root).expanduser()
    if not path.exists():
        raise source.layout_error(f"there is no folder {path}.")
    return path


available = available_data  # its name inside the package
