"""Input that cannot be is refused with a sentence; input on disk is read within bounds."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from recollect.common.errors import ConfigError, DataError, InputError
from recollect.evaluation import evaluate, evaluate_revisited
from recollect.evaluation.inputs import Vectors

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
        ({"embeddings": _spoiled(np.inf)}, "row 4"),
        ({"embeddings": GOOD[0]}, r"shape is \(3,\)"),
        ({"embeddings": GOOD[:, :0]}, "no dimensions"),
        ({"embeddings": GOOD[:0], "labels": []}, "no vectors"),
        ({"embeddings": GOOD.astype(complex)}, "of real numbers"),
        ({"embeddings": [["a", "b"]]}, "not an array of vectors"),
        ({"labels": LABELS[:-1]}, "6 vectors but 5 labels"),
        ({"labels": [LABELS]}, "one label per vector"),
        ({"labels": np.linspace(0, 1, 6)}, "whole numbers or strings"),
        ({"labels": [0, 1, 2, 3, 4, 5]}, "none of the 6 queries has a positive"),
        ({"gallery": GOOD}, "without gallery_labels"),
        ({"gallery_labels": LABELS}, "no gallery"),
        ({"gallery": GOOD[:, :2], "gallery_labels": LABELS}, "3 dimensions and the gallery 2"),
        ({"gallery": GOOD, "gallery_labels": LABELS[:2]}, "6 vectors but 2 labels"),
        ({"gallery": GOOD, "gallery_labels": [7] * 6}, "in both the queries and the gallery"),
        ({"gallery": GOOD, "gallery_labels": list("aabbcc")}, "use the same type for both"),
        ({"gallery": GOOD[:0], "gallery_labels": []}, "no vectors"),
        ({"distractors": GOOD[:, :1]}, "cannot be compared"),
        ({"ks": [0, 1]}, "whole numbers, 1 or more"),
        ({"metrics": ["accuracy"]}, "unknown"),
        ({"junk": [[0]]}, "1 lists for 6 queries"),
        ({"junk": [[9]] + [[]] * 5}, "numbered 0 to 5"),
        ({"similarity": "euclid"}, "choose 'dot' or 'cosine'"),
        ({"memory": 10}, "too little"),
    ],
)
def test_bad_input_is_a_sentence(arguments, message):
    with pytest.raises(InputError, match=message):
        evaluate(**{"embeddings": GOOD, "labels": LABELS, **arguments})


def test_a_bad_row_of_the_gallery_is_named():
    with pytest.raises(InputError, match="gallery: row 4"):
        evaluate(GOOD, LABELS, _spoiled(np.nan), [0, 0, 1, 1, 9, 9])
    with pytest.raises(InputError, match="gallery: row 10"):
        evaluate(GOOD, LABELS, distractors=_spoiled(np.nan))


def test_distributed_without_processes():
    with pytest.raises(ValueError, match="torchrun"):
        evaluate(GOOD, LABELS, distributed=True)


def test_files(tmp_path):
    np.save(tmp_path / "v.npy", GOOD)
    assert evaluate(tmp_path / "v.npy", LABELS).metrics == evaluate(GOOD, LABELS).metrics
    (tmp_path / "bad.npy").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"bad\.npy: not a readable array"):
        evaluate(tmp_path / "bad.npy", LABELS)
    np.save(tmp_path / "object.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"object\.npy: not a readable array"):
        evaluate(tmp_path / "object.npy", LABELS)


def test_parts_are_one_array():
    parts = [GOOD[:2], torch.from_numpy(GOOD[2:3].copy()), GOOD[3:].astype(np.float16).astype(np.float32)]
    whole = np.concatenate([np.asarray(part) for part in parts])
    vectors = Vectors(parts, "v", torch.device("cpu"))
    assert len(vectors) == 6
    for start in range(6):
        for stop in range(start + 1, 7):
            np.testing.assert_array_equal(vectors.rows(start, stop, torch.float32).numpy(), whole[start:stop])
    index = np.array([5, 0, 2, 2, 3])
    np.testing.assert_array_equal(vectors.take(index, torch.float64).numpy(), whole[index].astype(float))
    assert not vectors.is_double
    assert Vectors([GOOD, GOOD.astype(float)], "v", torch.device("cpu")).is_double


@pytest.mark.parametrize("ks", [5, (10**30,), (), (0,), (1.5,), ("x",), "10", (True,), (None,)])
def test_ks_that_are_no_list_of_places_are_refused(ks):
    with pytest.raises(InputError, match="ks="):
        evaluate(torch.randn(8, 4), torch.arange(8) // 2, ks=ks)


@pytest.mark.parametrize("make", [torch.Tensor.to_sparse, lambda t: t.to("meta"), lambda t: t.double() * 1e200])
def test_tensors_without_usable_values_are_refused(make):
    with pytest.raises(InputError):
        evaluate(make(torch.randn(8, 4)), torch.arange(8) // 2)


@pytest.mark.parametrize("labels", [torch.zeros(8, dtype=torch.int64).to("meta"), [[1], [1, 2]], object()])
def test_labels_that_are_no_array_are_refused(labels):
    with pytest.raises(InputError, match="labels"):
        evaluate(torch.randn(8, 4), labels)


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
    """256 MiB of vectors on disk, a budget of 24 MiB: private memory may grow by the budget, not by the file."""
    path = tmp_path / "gallery.npy"
    rows, dim = 131_072, 512
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


@pytest.mark.parametrize("device", ["cuda", "cuda:99", "tpu", "meta"])
def test_a_device_that_is_not_there_is_named(device: str) -> None:
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(ConfigError, match=device):
        evaluate(GOOD, LABELS, device=device)
    with pytest.raises(ConfigError, match=device):
        evaluate_revisited(GOOD, GOOD, [{"easy": [0], "hard": [], "junk": []}] * len(GOOD), device=device)
