"""Test sets: their images, compared with what a run was trained on, the name of the result, k, and published numbers.

A test set is a split of a data set, a folder of images, or a benchmark of instance search. The name of its result consists
of the set's name and a digest of its images, so that results of two sets are never mixed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from recollect.common.errors import ConfigError, DataError
from recollect.common.plugins import is_reference
from recollect.common.text import Remark, number_of
from recollect.config.recipes import published_tests
from recollect.config.resolve import relocated_root
from recollect.config.schema import Config, DataConfig
from recollect.data import ImageSet, RevisitedBenchmark, available, load_distractors, load_revisited
from recollect.data.registry import check_ambiguous_name, is_source
from recollect.data.sources.revisited import SFM_NAME
from recollect.evaluation import default_ks
from recollect.inference.models import RunFiles, refuse_moved
from recollect.inference.store import Keys, content_keys, set_digest
from recollect.inference.training_record import (
    ScreenedTestSet,
    exclude_trained_classes,
    load_by_record,
    load_whole,
    read_trained_on,
)

REVISITED = ("roxford5k", "rparis6k", SFM_NAME)
"""Data sets of queries with ground truth instead of classes."""

_BENCHMARK_KS = {
    "cars196": (1, 2, 4, 8),
    "cub": (1, 2, 4, 8),
    "inaturalist": (1, 4, 16, 32),
    "sop": (1, 10, 100, 1000),
    "vehicleid": (1, 5),
}


@dataclass(frozen=True)
class TestSet(ScreenedTestSet):
    """A test set; ``images`` are its labelled images, or the database of instance search.

    Attributes:
        data: the data set, with the split as ``test_split``. name: name of its result.
        notes: remarks needed to understand the result.
        benchmark: of instance search, with the keys of its queries. distractors: images that are wrong for every query.
    """

    __test__ = False  # not a test of pytest's

    data: DataConfig = field(default_factory=DataConfig)
    name: str = ""
    notes: tuple[Remark, ...] = ()
    benchmark: RevisitedBenchmark | None = None
    query_keys: Keys | None = None
    distractors: ImageSet | None = None


def choose_test(
    run: RunFiles | None = None,
    *,
    data: str | Path | None = None,
    root: str | Path | None = None,
    split: str | None = None,
    recipe: Config | None = None,
) -> tuple[DataConfig, bool]:
    """The data set given by ``--data``, ``--root`` and ``--split``, and whether the run was trained on it.

    By default it is the test split of the recipe's or run's data. A name that is not a data set but an existing folder
    means that folder.

    Raises:
        ConfigError: no images are given, or ``data`` may be a data set or a folder.
        DataError: there is no such file or folder.
    """
    data = None if data is None else str(data)
    try:
        own = None if run is None else run.read_config().data
    except (ConfigError, DataError):
        if data is None and recipe is None:
            raise
        own = None
    if data is not None and root is None:
        check_ambiguous_name(data)
    is_path = data is not None and not is_source(data) and Path(data).exists()
    if data is not None and not is_source(data) and not is_path and (Path(data).suffix or Path(data).name != data):
        raise DataError(f"--data {data}: no such file or folder.")
    name = data or (recipe.data.name if recipe is not None else None) or (own.name if own is not None else None)
    if name is None:
        raise ConfigError("no images are given: use --data NAME or --data FOLDER (only an .npz of vectors needs none).")
    if is_path and root is None and own is not None and own.name == "folder" and own.root is not None:
        same = Path(name).resolve() == Path(own.root).expanduser().resolve()  # the folder or list it was trained on
        name = own.name if same else name
    is_own = own is not None and own.name == name and (data is None or root is None)
    if own is not None and is_own:
        if root is None:
            refuse_moved(own)
        settings = replace(own, root=relocated_root(own.root, root))
    elif is_path and root is None:
        settings = DataConfig("folder", name)
    else:
        theirs = recipe.data if recipe is not None and recipe.data.name == name else DataConfig(name)
        place = theirs.root if root is None else str(root)
        settings = DataConfig(name, place, theirs.options, test_split=theirs.test_split)
    if settings.name in REVISITED and settings.root is None:
        raise ConfigError(f"--root says where the folder {settings.name} lies.")
    return replace(settings, test_split=first_list(settings.name, split or settings.test_split)), is_own


def first_list(data: str, split: str) -> str:
    """The split that ``"test"`` means: the first of a data set with several test lists, such as VehicleID's small one."""
    lists = _test_lists(data)
    return lists[0] if split == "test" and lists and "test" not in lists else split


def _test_lists(data: str) -> Sequence[str]:
    return available()[data].test_splits if data in available() else ()


def load_test(
    folder: Path | None = None,
    *,
    split: str | None = None,
    distractors: Path | None = None,
    trained_classes: str = "auto",
    on_bad_image: str = "error",
    **choice: Any,
) -> TestSet:
    """Load a test set and compare it with the training images of a run.

    Args:
        folder: the run or saved embedder to test, if it has one.
        split: as in ``choose_test``. Of a folder without splits that the model was not trained on, all classes new to the
            model are tested instead of the half that a training would hold out, if it is known what it was trained on.
        distractors: for instance search, the folder that holds ``revisitop1m``, or a ``.npy``; else a ``.npy``.
        trained_classes: ``"auto"``, ``"exclude"`` or ``"keep"``, see ``exclude_trained_classes``.
        on_bad_image: ``"skip"`` leaves out listed images that are missing, with a warning, as the run's own settings may.
        choice: ``data``, ``root`` and ``recipe`` of ``choose_test``.
    """
    run = None if folder is None or not RunFiles(folder).is_run else RunFiles(folder)
    settings, is_own = choose_test(run, split=split, **choice)
    if settings.name in REVISITED:
        return _load_benchmark(settings, distractors)
    if on_bad_image == "skip":
        settings = replace(settings, on_bad_image="skip")
    options = {**settings.options, "on_bad_image": settings.on_bad_image}
    record = None if folder is None else read_trained_on(folder)
    by_record = record if is_own and trained_classes != "keep" else None
    images = load_by_record(settings.name, settings.root, settings.test_split, by_record, options)
    notes = []
    lists = _test_lists(settings.name)
    if len(lists) > 1 and settings.test_split in lists:
        others = ", ".join(f"--split {name}" for name in lists if name != settings.test_split)
        which = f"{settings.test_split} is one of the {len(lists)} test lists of {settings.name}"
        notes.append(Remark(f"{which}; for the others use {others}"))
    elif settings.name == "folder" and not is_own and split is None and (facts := images.facts.get("split")):
        if record is not None:
            settings, images = replace(settings, test_split="all"), load_whole(settings.name, settings.root, options)
        elif settings.test_split == "test":
            count = number_of(facts["held_out_classes"], "class is/classes are")
            notes.append(Remark(f"{count} tested, as many as a training would hold out; --split all tests all of them"))
    added = "" if distractors is None else f"+{distractors.stem}"
    test = as_test_set(images, settings, folder, trained_classes=trained_classes, added=added)
    return replace(test, notes=(*test.notes, *notes))


def as_test_set(
    images: ImageSet, data: DataConfig, folder: Path | None = None, *, trained_classes: str = "auto", added: str = ""
) -> TestSet:
    """Loaded images as a test set, compared with what the run in ``folder`` was trained on; ``added``: part of its name."""
    record = None if folder is None else read_trained_on(folder)
    screened = exclude_trained_classes(images, content_keys(images), record, trained_classes)
    name = images.name if is_reference(data.name) else data.name
    name = name if name != "folder" else Path(str(data.root)).resolve().name or "folder"
    digest = set_digest(screened.images, screened.keys)
    notes = tuple(screened.remarks())
    return TestSet(**vars(screened), data=data, name=_result_name(name + added, data.test_split, digest), notes=notes)


def _load_benchmark(data: DataConfig, distractors: Path | None) -> TestSet:
    benchmark = load_revisited(data.name, str(data.root))
    keys, query_keys = content_keys(benchmark.database), content_keys(benchmark.queries)
    both = set_digest(benchmark.database, keys) + set_digest(benchmark.queries, query_keys)
    images, added = None, ""
    if distractors is not None and distractors.is_dir():
        images, added = load_distractors(distractors), "+revisitop1m"
    elif distractors is not None:
        if not distractors.is_file():
            raise ConfigError(f"--distractors {distractors}: no such file (.npy), or folder that contains revisitop1m.")
        added = f"+{distractors.stem}"
    name = _result_name(data.name + added, None, hashlib.sha256(both.encode()).hexdigest())
    return TestSet(
        benchmark.database, keys, data=data, name=name, benchmark=benchmark, query_keys=query_keys, distractors=images
    )


def _result_name(name: str, split: str | None, digest: str) -> str:
    plain = re.sub(r"[^\w.+-]+", "_", name)[:80]
    return "-".join(part for part in (plain, split, digest[:8]) if part)


def name_of_test(data: str, split: str, distractors: bool = False) -> str:
    """The name of the test among published numbers: ``sop/test``, ``roxford5k+revisitop1m``."""
    if data in REVISITED:
        return f"{data}+revisitop1m" if distractors else data
    return f"{data}/{first_list(data, split)}"


def published_row(published: Any, test: str) -> dict[str, float]:
    """Published numbers of one test, metric to percent; numbers that a recipe gives without a test apply to any."""
    tests = published_tests(published)
    return {**tests.get("", {}), **tests.get(test, {})}


def published_ks(row: Mapping[str, float]) -> tuple[int, ...]:
    """The k of the published r@k, in order."""
    return tuple(sorted(int(name[2:]) for name in row if name.startswith("r@") and name[2:].isdigit()))


def evaluation_ks(data: str, published: Mapping[str, float], count: int) -> tuple[int, ...]:
    """The default k: the published ones and the data set's own; without either those of ``evaluate``.

    A row of an ablation publishes r@1 only; its run is measured as any other on its data set. ``count``: of the images.
    """
    ks = sorted({*published_ks(published), *_BENCHMARK_KS.get(data, ())})
    return tuple(ks or default_ks(count - 1))
