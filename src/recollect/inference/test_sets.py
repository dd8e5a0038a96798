"""Test sets: their images, the name of the result, the values of k, and published numbers.

A test set is a split of a data set, a folder of images, or a benchmark of instance search. The name of its result
consists of the set's name and a digest of its images, so that results of two sets are never mixed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from recollect.common.errors import ConfigError, DataError
from recollect.common.plugins import is_reference
from recollect.config.recipes import published_tests
from recollect.config.resolve import relocated_root
from recollect.config.schema import Config, DataConfig
from recollect.data import ImageSet, RevisitedBenchmark, load_distractors, load_revisited
from recollect.data.registry import available, is_source, refuse_two_meanings, without_missing
from recollect.data.sources.revisited import SFM_NAME
from recollect.inference.content_keys import Keys, content_keys, set_digest
from recollect.inference.run_files import RunFiles, refuse_moved
from recollect.inference.trained_on import Screened, load_by_record, load_whole, read_trained_on, screen

REVISITED = ("roxford5k", "rparis6k", SFM_NAME)
"""Data sets of queries with ground truth instead of classes."""

EVERY_K = (1, 2, 4, 8, 10, 16, 32, 100, 1000)
"""Every k that the paper's benchmarks report, and powers of two in between; used during training and in reports."""

_KS = {
    "cars196": (1, 2, 4, 8),
    "cub": (1, 2, 4, 8),
    "inaturalist": (1, 4, 16, 32),
    "sop": (1, 10, 100, 1000),
    "vehicleid": (1, 5),
}
_OTHERWISE = (1, 10, 100, 1000)


@dataclass(frozen=True)
class TestChoice:
    """A data set and its split.

    Attributes:
        skip_bad: images that cannot be read are skipped, as when the run was trained.
        own: whether it is the data set that the run was trained on, perhaps in another place.
        unseen: of a folder that does not say what is for testing, all classes that the model was not trained on instead of
            the half that would be held out, if it is known what that was.
    """

    __test__ = False  # not a test of pytest's

    data: str
    root: str | Path | None = None
    split: str = "test"
    options: Mapping[str, Any] = field(default_factory=dict)
    skip_bad: bool = False
    own: bool = False
    unseen: bool = False


@dataclass(frozen=True)
class TestSet:
    """A loaded test set.

    Attributes:
        choice: the data set and split. name: name of its result.
        screened: labelled images, compared with the run's training images; None for instance search.
        benchmark: of instance search. distractors: images that are wrong for every query.
    """

    __test__ = False

    choice: TestChoice
    name: str
    screened: Screened | None = None
    benchmark: RevisitedBenchmark | None = None
    benchmark_keys: tuple[Keys, Keys] | None = None
    distractors: ImageSet | None = None

    @property
    def images(self) -> ImageSet:
        """The labelled images, or the database."""
        if self.benchmark is not None:
            return self.benchmark.database
        if self.screened is None:
            raise TypeError("a test set has images")
        return self.screened.images


def choose_test(
    run: RunFiles | None = None,
    *,
    data: str | None = None,
    root: Path | None = None,
    split: str | None = None,
    recipe: Config | None = None,
) -> TestChoice:
    """The test set given by ``--data``, ``--root`` and ``--split``: by default the test split of the recipe's or run's data.

    A name that is not a data set but an existing folder means that folder.

    Raises:
        ConfigError: no images are given, or ``data`` may be a data set or a folder.
        DataError: there is no such file or folder.
    """
    own = None if run is None else _own_data(run, needed=data is None and recipe is None)
    if data is not None and root is None:
        refuse_two_meanings(data)
    if data is not None and not is_source(data) and _is_path(data) and not Path(data).exists():
        raise DataError(f"--data {data}: no such file or folder.")
    name = data or (recipe.data.name if recipe is not None else None) or (own.name if own is not None else None)
    if name is None:
        raise ConfigError("no images are given: use --data NAME or --data FOLDER (only an .npz of vectors needs none).")
    if own is not None and root is None and _is_root(own, name):
        name = own.name
    if own is not None and own.name == name and (data is None or root is None):
        if root is None:
            refuse_moved(own)
        skips = own.on_bad_image == "skip"
        place = relocated_root(own.root, root)
        chosen = TestChoice(name, place, split or own.test_split, own.options, skips, own=True)
    elif not is_source(name) and root is None and Path(name).exists():
        chosen = TestChoice("folder", Path(name), split or "test", unseen=split is None)
    else:
        theirs = recipe.data if recipe is not None and recipe.data.name == name else None
        chosen = TestChoice(
            name,
            root or (theirs.root if theirs else None),
            split or (theirs.test_split if theirs else "test"),
            theirs.options if theirs else {},
        )
    if chosen.data in REVISITED and chosen.root is None:
        raise ConfigError(f"--root says where the folder {chosen.data} lies.")
    return replace(chosen, split=first_list(chosen.data, chosen.split))


def first_list(data: str, split: str) -> str:
    """The split that ``"test"`` means: the first of a data set with several test lists, such as VehicleID's small one."""
    lists = available()[data].test_splits if data in available() else ()
    return lists[0] if split == "test" and lists and "test" not in lists else split


def _is_root(own: DataConfig, name: str) -> bool:
    """Whether ``--data`` names the folder or the list that the run was trained on."""
    if own.name != "folder" or own.root is None or is_source(name) or not Path(name).exists():
        return False
    return Path(name).resolve() == Path(own.root).expanduser().resolve()


def _is_path(text: str) -> bool:
    """Whether ``--data`` can only be a path: no data set has a folder or an extension in its name."""
    return bool(Path(text).suffix) or Path(text).name != text


def _own_data(run: RunFiles, needed: bool) -> DataConfig | None:
    try:
        return run.read_config().data
    except (ConfigError, DataError):
        if needed:
            raise
        return None


def load_test(
    choice: TestChoice,
    run: Path | None = None,
    *,
    distractors: Path | None = None,
    trained_classes: str = "auto",
    skip_bad: bool = False,
) -> TestSet:
    """Load a test set and compare it with the training images of ``run``, see ``trained_on.screen``.

    Args:
        choice: the data set and split.
        run: the folder of the run to test, if it is a run.
        distractors: for instance search, the folder that holds ``revisitop1m``, or a ``.npy``; else a ``.npy``.
        trained_classes: ``"auto"``, ``"exclude"`` or ``"keep"``.
        skip_bad: leave out listed images that are missing, with a warning; also if ``choice`` says so.
    """
    if choice.data in REVISITED:
        benchmark = load_revisited(choice.data, str(choice.root))
        keys = content_keys(benchmark.database), content_keys(benchmark.queries)
        both = set_digest(benchmark.database, keys[0]) + set_digest(benchmark.queries, keys[1])
        more = _distractors(distractors)
        added = "" if distractors is None else "+revisitop1m" if more is not None else f"+{distractors.stem}"
        digest = hashlib.sha256(both.encode()).hexdigest()
        return TestSet(choice, _named(choice.data + added, None, digest), None, benchmark, keys, more)
    options = without_missing(choice.data, choice.options) if skip_bad or choice.skip_bad else choice.options
    known = None if run is None else read_trained_on(run)
    by_record = known if choice.own and trained_classes != "keep" else None
    images = load_by_record(choice.data, choice.root, choice.split, by_record, options)
    if choice.unseen and known is not None and "split" in images.facts:
        choice, images = replace(choice, split="all"), load_whole(choice.data, choice.root, options)
    added = "" if distractors is None else f"+{distractors.stem}"
    return as_test_set(choice, images, run, trained_classes=trained_classes, added=added)


def as_test_set(
    choice: TestChoice, images: ImageSet, run: Path | None = None, *, trained_classes: str = "auto", added: str = ""
) -> TestSet:
    """Loaded images as a test set, compared with what ``run`` was trained on; ``added`` becomes part of its name."""
    known = None if run is None else read_trained_on(run)
    screened = screen(images, content_keys(images), known, trained_classes)
    name = images.name if is_reference(choice.data) else choice.data
    name = name if name != "folder" else Path(str(choice.root)).resolve().name or "folder"
    return TestSet(choice, _named(name + added, choice.split, set_digest(screened.images, screened.keys)), screened)


def _named(name: str, split: str | None, digest: str) -> str:
    plain = re.sub(r"[^\w.+-]+", "_", name)[:80]
    return "-".join(part for part in (plain, split, digest[:8]) if part)


def _distractors(path: Path | None) -> ImageSet | None:
    if path is None or path.is_file():
        return None
    if not path.is_dir():
        raise ConfigError(
            f"--distractors {path}: no such file or folder; give a .npy of vectors or the folder that contains "
            "revisitop1m."
        )
    return load_distractors(path)


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
    return tuple(
        sorted(int(name[2:]) for name in row if name.startswith("r@") and name[2:].isdigit() and int(name[2:]))
    )


def default_ks(data: str, published: Mapping[str, float], count: int) -> tuple[int, ...]:
    """The default k: the published ones and the data set's own; without either 1, 10, 100, 1000.

    A row of an ablation publishes r@1 only; its run is measured as any other on its data set. Of the last, those that
    cannot fail are left out: among ``count`` images a query finds at most ``count - 1`` others.
    """
    known = sorted({*published_ks(published), *_KS.get(data, ())})
    return tuple(known) or tuple(k for k in _OTHERWISE if k < count - 1) or (1,)
