"""The examples run as they are, and learn."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from recollect import evaluate
from recollect.common.machine import fix_torchvision

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.mark.parametrize(
    ("name", "package"),
    [("plain_pytorch", "torch"), ("with_lightning", "pytorch_lightning"), ("with_accelerate", "accelerate")],
)
def test_an_example_learns(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fix_torchvision()  # Lightning imports torchvision
    pytest.importorskip(package)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    before, after = importlib.import_module(name).main()
    assert after > before + 0.05
    sys.modules.pop(name)


@pytest.mark.release
def test_the_example_of_an_index_shows_what_it_loses_and_saves(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("faiss")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    example = importlib.import_module("approximate_index")
    vectors, labels = example.toy_vectors()
    rows = example.main(vectors, labels)
    found, r1, milliseconds, size = zip(*rows.values(), strict=True)
    assert (found[0], r1[0]) == (1.0, pytest.approx(evaluate(vectors, labels, ks=[1]).metrics["r@1"]))
    clusters = [row[0] for name, row in rows.items() if "nprobe" in name]
    assert clusters[0] < clusters[-1] <= 1.0, "looking into more clusters finds more"
    assert rows["PQ8x4"][3] < size[0]
    assert min(milliseconds) > 0
    sys.modules.pop("approximate_index")
