"""Instance search: Revisited Oxford and Paris, the million distractors, and the validation queries of SfM-120k.

These have ground truth per query instead of classes: which images of the database are easy, hard or junk. ``load_revisited``
returns all of it as a ``RevisitedBenchmark``, whose lists of indices the evaluation of rankings takes. With
``load``, database, queries and distractors are plain image sets of one unnamed class, to be embedded or verified.
"""

from __future__ import annotations

import io
import pickle
import re
import reprlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from recollect.common.errors import DataError
from recollect.common.reading import TEXT_LIMIT, read_bytes
from recollect.common.text import check_choice
from recollect.data.image_set import ImageSet
from recollect.data.registry import Counts, Source, check_split_allowed, make_set, without_missing
from recollect.data.tables import need, read_lines

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


def load_revisited(name: str, root: Path | str) -> RevisitedBenchmark:
    """Load a benchmark of instance search.

    Args:
        name: ``"roxford5k"``, ``"rparis6k"``, or ``"sfm120k"``: validation, where positives count as easy, none is
            hard, queries are whole images of the database, and the query itself is junk.
        root: the folder that holds the benchmarks' folders.

    Raises:
        DataError: files are missing: leaving images out would shift the indices.
    """
    check_split_allowed(name)
    check_choice("benchmark", name, tuple(_BENCHMARKS))
    benchmark = _read_benchmark(_BENCHMARKS[name], Path(root))
    for images in (benchmark.database, benchmark.queries):
        without_missing(_BENCHMARKS[name], images, "error")
    return benchmark


def _read_benchmark(source: Source, root: Path) -> RevisitedBenchmark:
    if not root.is_dir():
        raise source.layout_error(f"there is no folder {root}.")
    return _read_sfm(source, root) if source.name == SFM_NAME else _read_revisited(source, root)


def _unlabelled(
    source: Source, root: Path, split: str, names: Sequence[str], boxes: NDArray[np.float64] | None = None
) -> ImageSet:
    return make_set(source, root, split, names, [UNLABELLED] * len(names), boxes=boxes)


def load_distractors(root: Path | str) -> ImageSet:
    """The million images of R1M, to be appended to a database."""
    check_split_allowed("the distractors")
    return without_missing(R1M, _read_distractors(Path(root), "distractors"), "error")


def _read_distractors(root: Path, split: str) -> ImageSet:
    folder = "revisitop1m"
    path = need(R1M, root / folder / f"{folder}.txt")
    names = [f"{folder}/jpg/{name}" for _, name in read_lines(path)]
    return _unlabelled(R1M, root, split, names)


def _read_revisited(source: Source, root: Path) -> RevisitedBenchmark:
    name = source.name
    path = need(source, root / name / f"gnd_{name}.pkl")
    content = read_plain_pickle(path)
    with _lists_expected(path):
        truth = content["gnd"]
        database, queries = (
            [f"{name}/jpg/" + image + ".jpg" for image in content[key]] for key in ("imlist", "qimlist")
        )
        boxes = np.array([[float(side) for side in entry["bbx"]] for entry in truth]).reshape(len(queries), 4)
        easy, hard, junk = (
            [_indices(entry[key], len(database)) for entry in truth] for key in ("easy", "hard", "junk")
        )
    sets = _unlabelled(source, root, "database", database), _unlabelled(source, root, "queries", queries, boxes)
    return RevisitedBenchmark(name, *sets, easy, hard, junk)


def _read_sfm(source: Source, root: Path) -> RevisitedBenchmark:
    folder = _sfm_folder(root, f"{SFM}-val-eccv2020.pkl")
    path = need(source, root / folder / f"{SFM}-val-eccv2020.pkl")
    content = read_plain_pickle(path)
    easy, junk = [], []
    with _lists_expected(path):
        database = [_sfm_file_name(folder, identity) for identity in content["cids"]]
        queries = _indices(content["qidx"], len(database))
        for entry, query in zip(content["gnd"], queries.tolist(), strict=True):
            junk.append(np.union1d(_indices(entry.get("junk", []), len(database)), [query]))
            positives = _indices(entry["ok"] if "ok" in entry else entry["easy"], len(database))
            easy.append(np.setdiff1d(positives, junk[-1]))
    hard = [np.empty(0, np.int64) for _ in easy]
    images = _unlabelled(source, root, "database", database)
    query_images = _unlabelled(source, root, "queries", [database[query] for query in queries.tolist()])
    return RevisitedBenchmark(source.name, images, query_images, easy, hard, junk, query_rows=queries)


def _sfm_folder(root: Path, file: str) -> str:
    """The folder of ``file``: as unpacked from the publishers' archive, next to the benchmarks, or ``root`` itself."""
    return next((f for f in (f"train/{SFM}/", f"{SFM}/", "") if (root / f / file).exists()), f"{SFM}/")


def _sfm_file_name(folder: str, identity: str) -> str:
    """Images are spread over folders named by the last six characters of their identity, two by two."""
    return "/".join([f"{folder}ims", identity[-2:], identity[-4:-2], identity[-6:-4], identity])


@contextmanager
def _lists_expected(path: Path) -> Iterator[None]:
    """Turn errors from reading the lists of another kind of file into one that names the file.

    Values are used as numbers or text only: a pickle may hold lists that would take forever to print.
    """
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{path}: not the lists that are expected ({type(error).__name__}: {error}).") from error


def _indices(values: Sequence[Any], count: int) -> NDArray[np.int64]:
    if not all(isinstance(index, int) and 0 <= index < count for index in values):
        raise ValueError(f"indices must be whole numbers from 0 to {count - 1}, not {reprlib.repr(values)}")
    return np.array(values, dtype=np.int64)


def _read_part(name: str, root: Path, split: str) -> ImageSet:
    benchmark = _read_benchmark(_BENCHMARKS[name], root)
    return benchmark.queries if split == "queries" else benchmark.database


PAIRS = ("whiten", "train", "val")


@dataclass(frozen=True, eq=False)
class MatchingPairs:
    """Images, and the pairs of them that show the same object.

    Attributes:
        images: the images; their classes are 3D models if the file has them.
        queries, positives: numbers of the images of each pair, of equal length, for ``whitening_from_pairs``.
    """

    images: ImageSet
    queries: NDArray[np.int64]
    positives: NDArray[np.int64]


def load_sfm_pairs(root: Path | str, part: str = "whiten") -> MatchingPairs:
    """Load the matching pairs of SfM-120k, from which whitening for instance search is learned.

    ``retrieval-SfM-120k.pkl`` has the parts ``train`` and ``val``, each a dict with ``cids`` (identities of images),
    ``cluster`` (the 3D model of each), ``qidxs`` and ``pidxs`` (numbers of the two images of a pair);
    ``retrieval-SfM-120k-whiten.pkl`` has ``cids``, ``qidxs`` and ``pidxs`` of the pairs that the publishers use for whitening.

    Args:
        root: the folder that holds ``retrieval-SfM-120k``, or that folder itself.
        part: ``"whiten"``: the pairs the publishers learn whitening from; or ``"train"`` or ``"val"``.

    Raises:
        DataError: files are missing, or the file is damaged or not a list of pairs.
    """
    check_split_allowed(f"sfm120k/{part}", "train" if part == "whiten" else part)
    check_choice("pairs of SfM-120k", part, PAIRS)
    root, file = Path(root), f"{SFM}-whiten.pkl" if part == "whiten" else f"{SFM}.pkl"
    folder = _sfm_folder(root, file)
    path = need(SFM120K, root / folder / file)
    content = read_plain_pickle(path)
    with _lists_expected(path):
        content = content if part == "whiten" else content[part]
        names = [_sfm_file_name(folder, identity) for identity in content["cids"]]
        queries, positives = (_indices(content[key], len(names)) for key in ("qidxs", "pidxs"))
        clusters = _indices(content["cluster"], 2**31).tolist() if "cluster" in content else [UNLABELLED] * len(names)
        if len(queries) != len(positives) or len(clusters) != len(names):
            raise ValueError("qidxs and pidxs, and cids and cluster, must have one entry for each other")
    images = make_set(SFM120K, root, part, names, clusters)
    return MatchingPairs(without_missing(SFM120K, images, "error"), queries, positives)


# Pickles of plain values, read without running anything: a pickle can name any function and have it called, so a pickle
# from the web is code. The files read here hold lists, dicts, numbers and text, and some hold numpy arrays of those.
# ``_Allowed`` is the complete list of accepted names, replaced by our own functions, which accept only numbers and text:
# numpy's own would take a dtype that reads objects from raw bytes. Every other name is refused before it is looked up.

_SIMPLE = re.compile(r"[biufUS]\d{1,4}")  # kinds of numpy numbers and text; no objects, records or dates


def read_plain_pickle(path: Path) -> Any:
    """The value in a pickle file of plain Python types; numpy's arrays and numbers become lists and numbers.

    Raises:
        DataError: the file is missing, damaged, or would run code.
    """
    content = read_bytes(path, limit=4 * TEXT_LIMIT)
    try:
        return _Unpickler(io.BytesIO(content)).load()
    except DataError as error:
        raise DataError(f"{path}: {error}, so it is not read. Only pickles of plain values are supported.") from error
    # A damaged pickle can raise almost any exception while it is interpreted.
    except Exception as error:
        raise DataError(f"{path}: not a readable pickle ({type(error).__name__}: {error}).") from error


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """The allow-list's replacement for the name; anything else is refused."""
        replacement = _ALLOWED.get((module.replace("numpy.core.", "numpy._core."), name))
        if replacement is None:
            raise DataError(f"names {module}.{name}, which would be run when reading it")
        return replacement


class _Kind:
    """Stands for ``numpy.dtype``."""

    def __init__(self, text: Any) -> None:
        if not isinstance(text, str) or not _SIMPLE.fullmatch(text):
            raise DataError(f"holds an array of kind {str(text)[:40]!r}, where numbers or text are expected")
        self.dtype = np.dtype(text)

    def __setstate__(self, state: Any) -> None:
        # (version, byte order, subtype, names, fields, …): only the byte order may be given.
        if not isinstance(state, tuple) or len(state) < 5 or any(part is not None for part in state[2:5]):
            raise DataError("holds an array of records, where numbers or text are expected")
        self.dtype = self.dtype.newbyteorder(state[1])


class _Array(list[Any]):
    """Stands for ``numpy.ndarray``: an empty list that its state fills."""

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, content = state
        self[:] = _Allowed().from_buffer(content, kind, shape, "F" if fortran is True else "C")


class _Allowed:
    """Functions for the names in numpy's pickles. Bound methods, because a pickle cannot set their attributes."""

    def kind(self, text: Any, *flags: Any) -> _Kind:
        return _Kind(text)

    def empty(self, *ignored: Any) -> _Array:
        return _Array()

    def from_buffer(self, content: Any, kind: Any, shape: Any, order: Any = "C") -> list[Any]:
        if not isinstance(kind, _Kind) or not isinstance(content, bytes | bytearray):
            raise DataError("holds an array of objects, where numbers or text are expected")
        values = np.frombuffer(content, kind.dtype).reshape(shape, order=order).tolist()
        return values if isinstance(values, list) else [values]

    def scalar(self, kind: Any, content: Any) -> Any:
        return self.from_buffer(content, kind, (1,))[0]

    def encode(self, text: Any, encoding: Any = "latin1") -> bytes:
        if encoding not in ("latin1", "latin-1") or not isinstance(text, str):
            raise DataError("encodes text in an unexpected way")
        return text.encode("latin1")

    def no_bytes(self) -> bytes:
        return b""


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy._core.multiarray", "_reconstruct"): _Allowed().empty,
    ("numpy._core.multiarray", "scalar"): _Allowed().scalar,
    ("numpy._core.numeric", "_frombuffer"): _Allowed().from_buffer,
    ("numpy", "ndarray"): "numpy.ndarray",  # only passed to _reconstruct
    ("numpy", "dtype"): _Allowed().kind,
    ("_codecs", "encode"): _Allowed().encode,  # how protocols before 3 write bytes,
    ("__builtin__", "bytes"): _Allowed().no_bytes,  # and how they write none
}


_PAGE = "http://cmp.felk.cvut.cz/revisitop/"
_TERMS = "research use; photos from Flickr under their owners' licences"

ROXFORD, RPARIS = (
    Source(
        name=name,
        title=f"Revisited {city}: {city}'s buildings, instance search with 70 queries",
        read=partial(_read_part, name),
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
    read=partial(_read_part, SFM_NAME),
    splits=("database", "queries"),
    layout=f"root/{SFM}/{SFM}-val-eccv2020.pkl and root/{SFM}/ims/ (or root/train/{SFM}/, or root itself)",
    homepage="http://cmp.felk.cvut.cz/cnnimageretrieval/ (images); the pickle comes with https://github.com/gtolias/how",
    licence=_TERMS,
    test_splits=(),
)
_BENCHMARKS = {source.name: source for source in (ROXFORD, RPARIS, SFM120K)}
SOURCES = (ROXFORD, RPARIS, R1M, SFM120K)
