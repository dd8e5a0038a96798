"""The folder loader, Cars196 and verify over real photos, when they are beside the project."""

from __future__ import annotations

import tarfile
import warnings
from pathlib import Path

import pytest

from recollect.common.errors import DataWarning
from recollect.data import load
from recollect.data.verify import verify

pytestmark = [pytest.mark.shared_data, pytest.mark.release]


def unpack(archive: Path, target: Path) -> Path:
    if not archive.is_file():
        pytest.skip(f"no {archive.name}")
    with tarfile.open(archive) as tar:
        tar.extractall(target, filter="data")
    return target / archive.name.split(".")[0]


def test_cars196_in_class_folders(shared_data: Path, tmp_path: Path) -> None:
    root = unpack(shared_data / "cars196_96px.tar", tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        train, test = load("cars196", root), load("cars196", root, "test")
    # The copy has lost its exact duplicates, which is what the warning and the report are for.
    assert (len(train), train.num_classes) == (8018, 98)
    assert (len(test), test.num_classes) == (8113, 98)
    assert all(name.startswith("train/") for name in train.names)
    assert all(name.startswith("test/") for name in test.names)
    report = verify("cars196", root)
    assert len(report.count_differences) == len(report.problems) == 2
    assert report.duplicates == []
