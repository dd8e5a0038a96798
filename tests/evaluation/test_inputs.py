"""Input that cannot be is refused with a sentence; input on disk is read within bounds; results are saved."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from oracles import metrics as reference
from recollect.common.errors import DataError, InputError
from recollect.evaluation import Evaluation, evaluate

GOOD = np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32)


LABELS = [0, 0, 1, 1, 2, 2]


def _spoiled(value):
    bad = GOOD.copy()
    bad[4, 1] = value
    return bad


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"embeddings": _spoiled(np.nan)}, "embeddings: row 4 holds a value that is not finite"),
        ({"embeddings": GOOD[0]}, r"shape is \(3,\)"),
        ({"embeddings": GOOD[:, :0]}, r"shape is \(6, 0\)"),
        ({"embeddings": GOOD.astype(complex)}, "of real numbers"),
        ({"labels": LABELS[:-1]}, "6 vectors but 5 labels"),
        ({"labels": np.linspace(0, 1, 6)}, "whole numbers or strings"),
        ({"labels": [0, 1, 2, 3, 4, 5]}, "none of the 6 queries has a positive"),
        ({"gallery": GOOD}, "both gallery and gallery_labels"),
        ({"gallery_labels": LABELS}, "both gallery and gallery_labels"),
        ({"gallery": GOOD[:, :2], "gallery_labels": LABELS}, "3 dimensions and the gallery 2"),
        ({"gallery": GOOD, "gallery_labels": list("aabbcc")}, "use the same type for both"),
        ({"distractors": GOOD[:, :1]}, "cannot be compared"),
        ({"ks": [0, 1]}, "whole numbers, 1 or more"),
        ({"ks": 5}, "ks="),
        ({"ks": [1.5]}, "ks="),
        ({"metrics": ["accuracy"]}, "unknown"),
        ({"junk": [[0]]}, "1 lists for 6 queries"),
        ({"similarity": "euclid"}, "choose 'dot' or 'cosine'"),
        ({"memory": 10}, "too little"),
        ({"gallery": _spoiled(np.nan), "gallery_labels": LABELS}, "gallery: row 4"),
        ({"distractors": _spoiled(np.nan)}, "gallery: row 10"),
        ({"embeddings": torch.from_numpy(GOOD).to_sparse()}, "a dense array"),
        ({"embeddings": torch.from_numpy(GOOD) > 0}, "of real numbers"),
        ({"embeddings": GOOD.astype(float) * 1e200}, "overflow"),
        ({"ids": ["a", "b"]}, "give 6 strings"),
        ({"ids": LABELS}, "give 6 strings"),
        ({"ids": list("abcdea")}, "the same id"),
    ],
)
def test_bad_input_is_a_sentence(arguments, message):
    with pytest.raises(InputError, match=message):
        evaluate(**{"embeddings": GOOD, "labels": LABELS, **arguments})


def test_files(tmp_path):
    np.save(tmp_path / "v.npy", GOOD)
    assert evaluate(tmp_path / "v.npy", LABELS).metrics == evaluate(GOOD, LABELS).metrics
    (tmp_path / "bad.npy").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"bad\.npy: not a readable array"):
        evaluate(tmp_path / "bad.npy", LABELS)
    np.save(tmp_path / "object.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"object\.npy: not a readable array"):
        evaluate(tmp_path / "object.npy", LABELS)


_MEMORY_SCRIPT = """
import sys
import numpy as np
from recollect.evaluation import evaluate_revisited
gallery = np.load(sys.argv[1], mmap_mode="r")
rng = np.random.default_rng(0)
queries = rng.standard_normal((20, gallery.shape[1])).astype(np.float32)
gnd = [{"easy": [i, i + 20], "hard": [i + 40], "junk": [i + 60]} for i in range(20)]

def anonymous():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon"))

evaluate_revisited(queries, gallery[:500], gnd)  # libraries loaded, thread pools up
import threading, time
peak, stop = [0], threading.Event()
def watch():
    while not stop.is_set():
        peak[0] = max(peak[0], anonymous())
        time.sleep(0.002)
before = anonymous()
thread = threading.Thread(target=watch); thread.start()
result = evaluate_revisited(queries, gallery[:500], gnd, gallery, memory=24 << 20)
stop.set(); thread.join()
print((peak[0] - before) // 1024, result.metrics["medium/map"])
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.slow
def test_a_gallery_on_disk_is_read_in_bounded_memory(tmp_path):
    """128 MiB of vectors on disk, a budget of 24 MiB: private memory may grow by the budget, not by the file."""
    path = tmp_path / "gallery.npy"
    rows, dim = 65_536, 512
    mapped = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(rows, dim))
    rng = np.random.default_rng(1)
    for start in range(0, rows, 16_384):
        mapped[start : start + 16_384] = rng.standard_normal((16_384, dim), dtype=np.float32)
    mapped.flush()
    del mapped
    out = subprocess.run(
        [sys.executable, "-c", _MEMORY_SCRIPT, str(path)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ).stdout.split()
    assert float(out[1]) > 0
    assert int(out[0]) <= 40


@pytest.fixture
def result():
    vectors = np.random.default_rng(0).standard_normal((30, 4)).astype(np.float32)
    labels = ["a"] * 12 + ["b"] * 12 + ["c"] * 5 + ["d"]
    return evaluate(vectors, labels, ks=[1, 5], ids=[f"{number}ä.jpg" for number in range(30)])


def test_means_leave_out_queries_without_positive(result):
    assert np.isnan(result.per_query["map"][-1])
    assert result.counted == 29
    assert result.metrics["map"] == pytest.approx(result.per_query["map"][:-1].mean())
    assert list(result.metrics)[:4] == ["r@1", "r@5", "recall@1", "recall@5"]


def test_macro_averages_equal_the_reference():
    rng = np.random.default_rng(1)
    vectors, labels = rng.standard_normal((40, 3)), [0] * 20 + [1] * 12 + [2] * 7 + [3]
    result = evaluate(vectors, labels, ks=[1, 5])
    assert result.macro == pytest.approx(reference.macro(reference.evaluate(vectors, labels, ks=[1, 5]), labels))
    assert result.summary()["macro"] == result.macro


def test_round_trip(result, tmp_path):
    path = result.save(tmp_path / "deep" / "run.npz")
    with pytest.raises(InputError, match="already exists"):
        result.save(path)
    again = Evaluation.load(result.save(path, overwrite=True))
    assert again.metrics == result.metrics
    assert dict(again.settings) == dict(result.settings)
    np.testing.assert_array_equal(again.labels, result.labels)
    np.testing.assert_array_equal(again.ids, result.ids)
    np.testing.assert_array_equal(np.load(path)["r@1"], result.per_query["r@1"])


def test_wrong_names_and_files(result, tmp_path):
    with pytest.raises(InputError, match=r"\.npz"):
        result.save(tmp_path / "run.csv")
    with pytest.raises(InputError, match="available: r@1"):
        result.values("r@7")
    (tmp_path / "x.npz").write_bytes(b"PK")
    np.savez(tmp_path / "y.npz", labels=np.arange(3))
    wrong = {"x": "not an .npz", "y": "not a file of per-query results", "missing": "no such file"}
    for name, message in wrong.items():
        with pytest.raises(DataError, match=rf"{name}\.npz: {message}"):
            Evaluation.load(tmp_path / f"{name}.npz")
