"""Instance search: Revisited Oxford and Paris, the million distractors, and the validation queries of SfM-120k.

These have ground truth per query instead of classes: which images of the database are easy, hard or junk. ``load_revisited``
returns all of it as a ``RevisitedBenchmark``, whose lists of indices the evaluation of rankings takes. With
``load``, database, queries and distractors are plain image sets of one unnamed class, to be embedded or verified.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from recollect.common.errors import ConfigError, DataError
from recollect.data.image_set import ImageSet
from recollect.data.listing import make_set, need, read_lines
from recollect.data.registry import Counts, Source, refuse_if_sealed
from recollect.data.safe_pickle import read_plain_pickle

UNLABELLED = "unlabelled"
SFM = "retrieval-SfM-120k"


SFM_NAME: Final = "sfm120k"
"""The data set whose queries validate instance search."""


@dataclass(frozen=True, eq=False)
class RevisitedBenchmark:
    """A database, queries, and which images of the database each query should find.

    Args:
        name: ``"roxford5k"``, ``"rparis6k"`` or ``"sfm120k"``.
        database: the images searched; indices below count in its order, and distractors are appended after it.
        queries: the images searched with, cropped to their boxes.
        easy: one array of indices per query: images that show its object clearly.
        hard: the same for images in which it is hard to recognize.
        junk: the same for images to ignore.
        query_rows: the rows of the database that are the queries; None if queries are separate images.
    """

    name: str
    database: ImageSet
    queries: ImageSet
    easy: Sequence[NDArray[np.int64]]
    hard: Sequence[NDArray[np.int64]]
    junk: Sequence[NDArray[np.int64]]
    query_rows: NDArray[np.int64] | None = None

    @property
    def ground_truth(self) -> list[dict[str, list[int]]]:
        """One dict per query with ``easy``, ``hard`` and ``junk``, as the evaluation takes it."""
        lists = zip(self.easy, self.hard, self.junk, strict=True)
        return [{"easy": easy.tolist(), "hard": hard.tolist(), "junk": junk.tolist()} for easy, hard, junk in lists]


def load_revisited(name: str, root: Path | str, *, missing: str = "error") -> RevisitedBenchmark:
    """Load a benchmark of instance search.

    Args:
        name: ``"roxford5k"``, ``"rparis6k"``, or ``"sfm120k"``: validation, where positives count as easy, none is
            hard, queries are whole images of the database, and the query itself is junk.
        root: the folder that holds the benchmarks' folders.
        missing: what to do with missing images: ``"error"`` or ``"keep"``; dropping them would shift indices.
    """
    refuse_if_sealed(name)
    if name not in _BENCHMARKS:
        raise ConfigError(f"there is no benchmark {name!r}: choose one of {', '.join(_BENCHMARKS)}.")
    if missing == "drop":
        raise ConfigError("missing='drop' would shift the indices of the ground truth: use 'error' or 'keep'.")
    source, benchmark = _BENCHMARKS[name], _parse_sfm if name == SFM_NAME else _parse_revisited
    if not Path(root).is_dir():
        raise source.trouble(f"there is no folder {root}.")
    parsed = benchmark(source, Path(root))

    def images(split: str, names: Sequence[str], boxes: NDArray[np.float64] | None) -> ImageSet:
        return make_set(
            source,
            Path(root),
            split,
            names,
            [UNLABELLED] * len(names),
            missing=missing,
            boxes=boxes,
        )

    return RevisitedBenchmark(
        name,
        images("database", parsed.database, None),
        images("queries", parsed.queries, parsed.boxes),
        *parsed.lists,
        query_rows=parsed.query_rows,
    )


def load_distractors(root: Path | str, *, missing: str = "error") -> ImageSet:
    """The million images of R1M, to be appended to a database."""
    refuse_if_sealed("the distractors")
    folder = "revisitop1m"
    path = need(R1M, Path(root) / folder / f"{folder}.txt")
    names = [f"{folder}/jpg/{name}" for _, name in read_lines(path)]
    return make_set(R1M, Path(root), "distractors", names, [UNLABELLED] * len(names), missing=missing)


Lists = tuple[list[NDArray[np.int64]], list[NDArray[np.int64]], list[NDArray[np.int64]]]  # easy, hard, junk


@dataclass(frozen=True)
class _Parsed:
    database: list[str]
    queries: list[str]
    boxes: NDArray[np.float64] | None
    lists: Lists
    query_rows: NDArray[np.int64] | None = None


def _parse_revisited(source: Source, root: Path) -> _Parsed:
    name = source.name
    path = need(source, root / name / f"gnd_{name}.pkl")
    content = _dictionary(read_plain_pickle(path), ("imlist", "qimlist", "gnd"), path)
    database, queries = (_texts(content[key], key, path) for key in ("imlist", "qimlist"))
    truth = _truth(content["gnd"], len(queries), path)
    try:
        boxes = np.array([entry["bbx"] for entry in truth], dtype=np.float64).reshape(len(queries), 4)
    except (KeyError, ValueError, TypeError) as error:
        raise DataError(f"{path}: every query needs a box 'bbx' of four numbers ({error}).") from error
    lists = tuple(_indices(truth, key, len(database), path) for key in ("easy", "hard", "junk"))
    files = [[f"{name}/jpg/{image}.jpg" for image in images] for images in (database, queries)]
    return _Parsed(files[0], files[1], boxes, lists)  # type: ignore[arg-type]


def _parse_sfm(source: Source, root: Path) -> _Parsed:
    folder = sfm_folder(root, f"{SFM}-val-eccv2020.pkl")
    path = need(source, root / folder / f"{SFM}-val-eccv2020.pkl")
    content = _dictionary(read_plain_pickle(path), ("cids", "qidx", "gnd"), path)
    identities = _texts(content["cids"], "cids", path)
    database = [sfm_file_name(folder, identity) for identity in identities]
    queries = _checked(content["qidx"], "qidx", len(database), path)
    truth = _truth(content["gnd"], len(queries), path)
    easy = _indices(truth, "ok" if "ok" in truth[0] else "easy", len(database), path)
    junk = [
        np.union1d(_checked(entry.get("junk", []), "junk", len(database), path), [query])
        for entry, query in zip(truth, queries.tolist(), strict=True)
    ]
    easy = [np.setdiff1d(found, ignored) for found, ignored in zip(easy, junk, strict=True)]
    hard = [np.empty(0, np.int64) for _ in truth]
    return _Parsed(database, [database[q] for q in queries.tolist()], None, (easy, hard, junk), queries)


def sfm_folder(root: Path, file: str) -> str:
    """The folder of ``file``: as unpacked from the publishers' archive, next to the benchmarks, or ``root`` itself."""
    return next((f for f in (f"train/{SFM}/", f"{SFM}/", "") if (root / f / file).exists()), f"{SFM}/")


def sfm_file_name(folder: str, identity: str) -> str:
    """Images are spread over folders named by the last six characters of their identity, two by two."""
    return f"{folder}ims/{identity[-2:]}/{identity[-4:-2]}/{identity[-6:-4]}/{identity}"


def _dictionary(value: Any, keys: Sequence[str], path: Path) -> dict[str, Any]:
    if not isinstance(value, dict) or not set(keys) <= value.keys():
        raise DataError(f"{path}: expected a dict with {', '.join(keys)}.")
    return value


def _texts(value: Any, key: str, path: Path) -> list[str]:
    if not isinstance(value, list | tuple) or not value or not all(isinstance(item, str) for item in value):
        raise DataError(f"{path}: {key} must be a list of names.")
    return list(value)


def _truth(value: Any, count: int, path: Path) -> list[dict[str, Any]]:
    if not isinstance(value, list | tuple) or len(value) != count or not all(isinstance(item, dict) for item in value):
        raise DataError(f"{path}: gnd must be a list of {count} dicts, one per query.")
    return list(value)


def _indices(truth: list[dict[str, Any]], key: str, count: int, path: Path) -> list[NDArray[np.int64]]:
    if not all(key in entry for entry in truth):
        raise DataError(f"{path}: gnd has no list {key!r} for some query.")
    return [_checked(entry[key], key, count, path) for entry in truth]


def _checked(value: Any, key: str, count: int, path: Path) -> NDArray[np.int64]:
    if not isinstance(value, list | tuple) or not all(isinstance(i, int) and 0 <= i < count for i in value):
        raise DataError(f"{path}: {key} must be a list of indices from 0 to {count - 1}.")
    return np.array(value, dtype=np.int64)


def _reader(name: str) -> Any:
    def read(root: Path, split: str, *, missing: str = "error") -> ImageSet:
        benchmark = load_revisited(name, root, missing=missing)
        return benchmark.queries if split == "queries" else benchmark.database

    return read


def _read_distractors(root: Path, split: str, *, missing: str = "error") -> ImageSet:
    return load_distractors(root, missing=missing)


_PAGE = "http://cmp.felk.cvut.cz/revisitop/"
_TERMS = "research use; photos from Flickr under their owners' licences"

ROXFORD, RPARIS = (
    Source(
        name=name,
        title=f"Revisited {city}: {city}'s buildings, instance search with 70 queries",
        read=_reader(name),
        splits=("database", "queries"),
        layout=f"root/{name}/gnd_{name}.pkl and root/{name}/jpg/<name>.jpg",
        homepage=_PAGE,
        licence=_TERMS,
        published={"database": Counts(count), "queries": Counts(70)},
        test_splits=("database", "queries"),
    )
    for name, city, count in (("roxford5k", "Oxford", 4_993), ("rparis6k", "Paris", 6_322))
)
R1M = Source(
    name="revisitop1m",
    title="R1M: a million distractors for Revisited Oxford and Paris",
    read=_read_distractors,
    splits=("distractors",),
    layout="root/revisitop1m/revisitop1m.txt (one path per line) and root/revisitop1m/jpg/<path>",
    homepage=_PAGE,
    licence=_TERMS,
    published={"distractors": Counts(1_001_001)},
    test_splits=(),
)
SFM120K = Source(
    name=SFM_NAME,
    title="SfM-120k, validation: landmarks, to choose settings for instance search",
    read=_reader(SFM_NAME),
    splits=("database", "queries"),
    layout=f"root/{SFM}/{SFM}-val-eccv2020.pkl and root/{SFM}/ims/ (or root/train/{SFM}/, or root itself)",
    homepage="http://cmp.felk.cvut.cz/cnnimageretrieval/ (images); the pickle comes with https://github.com/gtolias/how",
    licence=_TERMS,
    test_splits=(),
)
_BENCHMARKS = {source.name: source for source in (ROXFORD, RPARIS, SFM120K)}
SOURCES = (ROXFORD, RPARIS, R1M, SFM120K)
