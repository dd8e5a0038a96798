"""Instance search: ground truth, matching pairs, and pickles that are read without running anything."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.image_files import touch
from recollect.common.errors import ConfigError, DataError, DataWarning, SplitNotAllowedError
from recollect.data import load, load_distractors, load_revisited, load_sfm_pairs, only_splits
from recollect.data.sources.revisited import read_plain_pickle

LAUGHS: list[Any] = [0]
for _ in range(60):
    LAUGHS = [LAUGHS, LAUGHS]
LAUGHS.append(LAUGHS)
"""A small value that would take forever to print; and it holds itself."""
TRUTH = [
    {"bbx": [1.0, 2.0, 5.0, 7.0], "easy": [0, 2], "hard": [], "junk": [1]},
    {"bbx": [0.0, 0.0, 4.0, 4.0], "easy": [], "hard": [1], "junk": []},
]


def dump(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(value))


def make_oxford(root: Path, truth: Any = TRUTH) -> None:
    content = {"imlist": ["all_souls_1", "b", "c"], "qimlist": ["q1", "q2"], "gnd": truth}
    dump(root / "roxford5k" / "gnd_roxford5k.pkl", content)
    touch(root, *(f"roxford5k/jpg/{name}.jpg" for name in ("all_souls_1", "b", "c", "q1", "q2")), size=(8, 9))


def test_benchmark(tmp_path: Path) -> None:
    make_oxford(tmp_path)
    benchmark = load_revisited("roxford5k", tmp_path)
    assert list(benchmark.database.names) == [f"roxford5k/jpg/{name}.jpg" for name in ("all_souls_1", "b", "c")]
    assert [indices.tolist() for indices in benchmark.easy] == [[0, 2], []]
    assert [indices.tolist() for indices in benchmark.hard] == [[], [1]]
    assert [indices.tolist() for indices in benchmark.junk] == [[1], []]
    assert benchmark.queries.read(0).size == (4, 5)
    assert benchmark.database.read(0).size == (8, 9)
    with pytest.warns(DataWarning, match=r"2 images.*70 images"):
        assert load("roxford5k", tmp_path, "queries").fingerprint == benchmark.queries.fingerprint
    with pytest.warns(DataWarning, match="published split has 4,993 images"):
        assert len(load("roxford5k", tmp_path, "database")) == 3


def test_missing_images(tmp_path: Path) -> None:
    make_oxford(tmp_path)
    (tmp_path / "roxford5k" / "jpg" / "b.jpg").unlink()
    with pytest.raises(DataError, match=r"1 of 3 .*roxford5k/jpg/b\.jpg"):
        load_revisited("roxford5k", tmp_path)
    with pytest.raises(DataError, match=r"gnd_rparis6k\.pkl is missing.*\n.*\n.*revisitop"):
        load_revisited("rparis6k", tmp_path)
    with pytest.raises(DataError, match="there is no folder"):
        load_revisited("rparis6k", tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="benchmark 'oxford5k' is unknown"):
        load_revisited("oxford5k", tmp_path)


@pytest.mark.parametrize(
    ("truth", "message"),
    [
        (TRUTH[:1], r"shape \(2,4\)"),
        ([{**TRUTH[0], "easy": [3]}, TRUTH[1]], r"from 0 to 2, not \[3\]"),
        ([{**TRUTH[0], "junk": [-1]}, TRUTH[1]], r"from 0 to 2, not \[-1\]"),
        ([{**TRUTH[0], "bbx": [1, 2]}, TRUTH[1]], "inhomogeneous"),
        ([{**TRUTH[0], "bbx": [LAUGHS]}, TRUTH[1]], "TypeError"),
        ([{"bbx": [1, 2, 3, 4], "easy": [], "hard": []}, TRUTH[1]], "KeyError: 'junk'"),
        ("gnd", "TypeError"),
    ],
)
def test_wrong_ground_truth_is_refused(tmp_path: Path, truth: Any, message: str) -> None:
    make_oxford(tmp_path, truth)
    with pytest.raises(DataError, match=rf"gnd_roxford5k\.pkl: .*{message}"):
        load_revisited("roxford5k", tmp_path)


def test_lists_of_lists_instead_of_names_are_refused_at_once(tmp_path: Path) -> None:
    dump(tmp_path / "rparis6k" / "gnd_rparis6k.pkl", {"imlist": [LAUGHS], "qimlist": [], "gnd": []})
    dump(tmp_path / "retrieval-SfM-120k" / "retrieval-SfM-120k-whiten.pkl", {**PART, "cids": [LAUGHS]})
    for load_part in (lambda: load_revisited("rparis6k", tmp_path), lambda: load_sfm_pairs(tmp_path)):
        with pytest.raises(DataError, match="not the lists that are expected"):
            load_part()


def test_distractors(tmp_path: Path) -> None:
    touch(tmp_path, "revisitop1m/jpg/0/a.jpg", "revisitop1m/jpg/1/b.jpg")
    (tmp_path / "revisitop1m" / "revisitop1m.txt").write_text("0/a.jpg\n1/b.jpg\n")
    distractors = load_distractors(tmp_path)
    assert list(distractors.names) == ["revisitop1m/jpg/0/a.jpg", "revisitop1m/jpg/1/b.jpg"]
    with pytest.warns(DataWarning, match="published split has 1,001,001 images"):
        assert load("revisitop1m", tmp_path, "distractors").fingerprint == distractors.fingerprint


@pytest.mark.parametrize("folder", ["retrieval-SfM-120k/", "train/retrieval-SfM-120k/", ""])
def test_sfm_validation(tmp_path: Path, folder: str) -> None:
    identities = ["00aabbcc", "11ddeeff", "22aa0011"]
    content = {"cids": identities, "qidx": [1], "gnd": [{"ok": [0, 1], "junk": [2]}]}
    dump(tmp_path / folder / "retrieval-SfM-120k-val-eccv2020.pkl", content if folder else NUMPY)
    touch(
        tmp_path, *(f"{folder}ims/{name}" for name in ("cc/bb/aa/00aabbcc", "ff/ee/dd/11ddeeff", "11/00/aa/22aa0011"))
    )
    benchmark = load_revisited("sfm120k", tmp_path)
    assert benchmark.database.names[0] == f"{folder}ims/cc/bb/aa/00aabbcc"
    assert list(benchmark.queries.names) == [benchmark.database.names[1]]
    assert benchmark.queries.boxes is None
    assert [benchmark.easy[0].tolist(), benchmark.hard[0].tolist()] == [[0], []]
    assert benchmark.junk[0].tolist() == [1, 2]  # the query itself among them
    assert benchmark.query_rows.tolist() == [1]


class Evil:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("run-by-the-pickle"),))


def test_a_pickle_that_runs_something_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for value in (Evil(), {"imlist": [Evil()]}, np.datetime64, len):
        dump(tmp_path / "evil.pkl", value)
        with pytest.raises(DataError, match=r"evil\.pkl: .*would be run"):
            read_plain_pickle(tmp_path / "evil.pkl")
    assert not (tmp_path / "run-by-the-pickle").exists()
    pickle.loads((tmp_path / "evil.pkl").read_bytes())  # what is refused here is a working pickle


NUMPY = {
    "cids": np.array(["00aabbcc", "11ddeeff", "22aa0011"]),
    "qidx": np.arange(1, 2),
    "gnd": [{"ok": np.array([0, 1], ">i4"), "junk": np.array([2], np.uint8)}],
    "more": [np.int64(3), np.float32(0.5), np.bool_(True), np.str_("x"), np.zeros((2, 0)), np.eye(2, order="F")],
    "bytes": np.array([b"ab"]),
    "fortran": np.asfortranarray(np.arange(6).reshape(2, 3)),
}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_arrays_of_numbers_and_text_become_lists(tmp_path: Path, protocol: int) -> None:
    (tmp_path / "x.pkl").write_bytes(pickle.dumps(NUMPY, protocol))
    found = read_plain_pickle(tmp_path / "x.pkl")
    assert found["cids"] == ["00aabbcc", "11ddeeff", "22aa0011"]
    assert (found["qidx"], found["gnd"]) == ([1], [{"ok": [0, 1], "junk": [2]}])
    assert found["more"] == [3, 0.5, True, "x", [[], []], [[1.0, 0.0], [0.0, 1.0]]]
    assert (found["bytes"], found["fortran"]) == ([b"ab"], [[0, 1, 2], [3, 4, 5]])
    assert {type(value) for value in (*found["more"][:4], found["qidx"][0])} == {int, float, bool, str}


def test_the_older_name_of_numpys_core_is_known(tmp_path: Path) -> None:
    old = pickle.dumps(np.arange(3), 2).replace(b"numpy._core", b"numpy.core")
    (tmp_path / "x.pkl").write_bytes(old)
    assert read_plain_pickle(tmp_path / "x.pkl") == [0, 1, 2]


def _call(module: str, name: str, *arguments: Any) -> bytes:
    """A pickle that calls ``module.name(*arguments)``."""
    body = pickle.dumps(arguments, 2)[2:-1]
    return b"\x80\x02c" + f"{module}\n{name}\n".encode() + body + b"R."


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps(np.array([Evil()], dtype=object)), "where numbers or text are expected"),
        (pickle.dumps(np.array([None], dtype=object)), "where numbers or text are expected"),
        (pickle.dumps(np.zeros(2, [("a", "i4")])), "where numbers or text are expected"),
        (pickle.dumps(np.zeros(2, "datetime64[s]")), "where numbers or text are expected"),
        (_call("numpy", "load", "x.npy"), "names numpy.load"),
        (_call("numpy._core.multiarray", "fromfile", "x"), "names numpy._core.multiarray.fromfile"),
        (_call("numpy._core.multiarray", "scalar", "i8", b"12345678"), "where numbers or text are expected"),
        (_call("numpy", "dtype", "O8"), "of kind 'O8'"),
        (_call("_codecs", "encode", "x", "rot13"), "unexpected way"),
        (_call("builtins", "eval", "1"), "names builtins.eval"),
        # A shape far beyond the bytes there are, and text of a length nobody writes.
        (pickle.dumps(np.arange(3), 2).replace(b"K\x03\x85", b"J\xff\xff\xff\x7f\x85"), "cannot reshape"),
        (_call("numpy", "dtype", "U999999999"), "of kind"),
    ],
)
def test_hostile_pickles_of_arrays_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x.pkl").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_plain_pickle(tmp_path / "x.pkl")


def test_a_hostile_pickle_leaves_nothing_behind(tmp_path: Path) -> None:
    """Attributes of what it is handed cannot be set; and a value may hold itself."""
    for name in (b"__kwdefaults__", b"__defaults__", b"x"):
        defaults = (
            b"c_codecs\nencode\nN}X" + len(name).to_bytes(4, "little") + name + b"}s\x86b0"
        )  # set on the function
        call = b"c_codecs\nencode\nX\x01\x00\x00\x00a\x85R."
        (tmp_path / "x.pkl").write_bytes(b"\x80\x02" + defaults + call)
        with pytest.raises(DataError, match="not a readable pickle"):
            read_plain_pickle(tmp_path / "x.pkl")
        (tmp_path / "x.pkl").write_bytes(b"\x80\x02" + call)
        assert read_plain_pickle(tmp_path / "x.pkl") == b"a"
    (tmp_path / "x.pkl").write_bytes(pickle.dumps(LAUGHS))
    found = read_plain_pickle(tmp_path / "x.pkl")
    assert found[2] is found
    assert found[0] is found[1]


def test_persistent_references_and_damage_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.pkl"
    path.write_bytes(b"\x80\x04\x8c\x01aQ.")
    with pytest.raises(DataError, match="not a readable pickle"):
        read_plain_pickle(path)
    whole = pickle.dumps({"a": [1, 2.5, "x", None, True, (1,), b"y"]})
    for damaged in (b"", b"nonsense", whole[:-4]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match="not a readable pickle"):
            read_plain_pickle(path)
    path.write_bytes(whole)
    assert read_plain_pickle(path) == {"a": [1, 2.5, "x", None, True, (1,), b"y"]}
    with pytest.raises(DataError, match="no such file"):
        read_plain_pickle(tmp_path / "absent.pkl")


IDENTITIES = [f"{number:032x}" for number in (0xABCDEF, 0x123456, 0x777777, 0xFEDCBA)]


PART = {"cids": IDENTITIES, "cluster": [5, 5, 9, 9], "qidxs": [0, 2], "pidxs": [1, 3], "bbxs": [None] * 4}


def write_pairs(root: Path, content: Any, name: str = "retrieval-SfM-120k.pkl") -> Path:
    folder = root / "retrieval-SfM-120k"
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(pickle.dumps(content))
    touch(folder, *(f"ims/{name[-2:]}/{name[-4:-2]}/{name[-6:-4]}/{name}" for name in IDENTITIES), size=(4, 3))
    return folder / name


@pytest.mark.parametrize("numbers", [list, np.array])
def test_pairs_of_a_part(tmp_path: Path, numbers: Any) -> None:
    part = {**PART, **{key: numbers(PART[key]) for key in ("cluster", "qidxs", "pidxs")}}
    write_pairs(tmp_path, {"train": part, "val": {**part, "qidxs": [1], "pidxs": [0]}})
    for root in (tmp_path, tmp_path / "retrieval-SfM-120k"):
        found = load_sfm_pairs(root, "train")
        assert (found.queries.tolist(), found.positives.tolist()) == ([0, 2], [1, 3])
        assert found.images.labels.tolist() == [0, 0, 1, 1]
        assert found.images.read(0).size == (4, 3)
    assert load_sfm_pairs(tmp_path, "val").queries.tolist() == [1]


def test_the_publishers_pairs_for_whitening(tmp_path: Path) -> None:
    content = {key: PART[key] for key in ("cids", "qidxs", "pidxs")}
    write_pairs(tmp_path, content, "retrieval-SfM-120k-whiten.pkl")
    found = load_sfm_pairs(tmp_path)
    assert (len(found.images), found.positives.tolist()) == (4, [1, 3])


@pytest.mark.parametrize(
    "part",
    [
        [1],
        {"cids": IDENTITIES},
        {**PART, "qidxs": [0, 4]},
        {**PART, "pidxs": [0]},
        {**PART, "pidxs": [0.5, 1]},
        {**PART, "cluster": [1]},
    ],
)
def test_lists_that_are_not_such(tmp_path: Path, part: Any) -> None:
    path = write_pairs(tmp_path, {"train": part})
    with pytest.raises(DataError, match=path.name):
        load_sfm_pairs(tmp_path, "train")


def test_pairs_that_are_missing_or_not_allowed(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="whiten"):
        load_sfm_pairs(tmp_path)
    with pytest.raises(ConfigError, match="whiten, train, val"):
        load_sfm_pairs(tmp_path, "test")
    with only_splits("train"), pytest.raises(SplitNotAllowedError):
        load_sfm_pairs(tmp_path, "val")
