"""The page of a study: its tables, and what it says of runs of an earlier version."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from matrix_bench import BENCH

from recollect._version import __version__
from recollect.common.errors import ConfigError
from recollect.studies.claims import Cell, Claim, asymmetric, k_sets
from recollect.studies.claims_page import write_page
from recollect.studies.matrix import RECORD, Matrix
from recollect.studies.summary import Judged, collect, judge

RATES = (3e-4, 1e-3, 3e-3)


@pytest.fixture
def study(tmp_path: Path) -> Matrix:
    made = Matrix(tmp_path / "out", "small")
    made.open()
    return made


def _record(folder: Path, split: str, metrics: Mapping[str, float]) -> None:
    folder.mkdir(parents=True)
    settings = {"batch": {"size": BENCH.batch, "batches_per_epoch": 3}, "run": {"steps": 3}}
    found = {"settings": settings, "chosen_step": 3, "metrics": {split: metrics}, "seconds": 1.0, "machine": "another"}
    found["versions"] = {"recollect": "0.0.1"}
    (folder / RECORD).write_text(json.dumps(found))


def _measured(study: Matrix, cell: Cell, metrics: Mapping[str, float]) -> None:
    """A cell whose search and seeds came out as given; each seed is 0.1 points above the one before."""
    for rate in RATES:
        _record(study.folder(BENCH, cell) / "search" / f"lr-{rate:g}", "val", {"r@1": 0.5 if rate == 1e-3 else 0.4})
    choice = study.choice(BENCH, cell)
    assert choice is not None
    for seed in study.seeds:
        given = {name: value + 0.001 * seed for name, value in metrics.items()}
        _record(study.final(BENCH, cell, choice, seed), "test", given)


def _table(text: str, first: str) -> list[list[str]]:
    """The cells of the first table whose header begins with that column."""
    lines = text[text.index(f"| {first} |") :].splitlines()
    rows = [line.strip("|").split("|") for line in lines[: next(i for i, line in enumerate(lines) if not line)]]
    return [[cell.strip() for cell in row] for row in rows if row[0].strip() != "---"]


def test_sets_of_k_have_every_k_and_their_mean(study: Matrix, tmp_path: Path) -> None:
    claim = k_sets(BENCH)
    first, second = claim.cells()[:2]
    _measured(study, first, {"r@1": 0.40, "r@2": 0.50, "r@4": 0.60, "r@8": 0.70, "r@16": 0.80})
    _measured(study, second, {"r@1": 0.41, "r@2": 0.51, "r@4": 0.61, "r@8": 0.71})  # not measured up to 16
    for cell in claim.cells()[2:]:
        _measured(study, cell, {"r@1": 0.30, "r@2": 0.31, "r@4": 0.32, "r@8": 0.33, "r@16": 0.90})
    text = write_page(study, [claim], tmp_path / "page", "recollect reproduce k-sets").read_text()
    ours = _table(text, "set of k")
    assert ours[0][:7] == ["set of k", "r@1", "r@2", "r@4", "r@8", "r@16", "mean"]
    assert ours[1][:7] == ["1", "40.2 ± 0.1", "50.2", "60.2", "70.2", "80.2", "60.2"]
    assert ours[2][:7] == ["1,2", "41.2 ± 0.1", "51.2", "61.2", "71.2", "–", "–"]
    paper = _table(text[text.index("The paper (sets of k") :], "set of k")
    assert paper[0] == ["set of k", "r@1", "r@2", "r@4", "r@8", "r@16", "mean"]
    assert paper[1] == ["1", "81.1", "87.7", "92.0", "95.0", "96.9", "90.5"]
    with (tmp_path / "page" / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [rows[0][f"mean_r{k}"] for k in (1, 2, 4, 8, 16)] == ["40.20", "50.20", "60.20", "70.20", "80.20"]
    assert rows[1]["mean_r16"] == ""


def test_a_comparison_may_be_of_another_metric(study: Matrix) -> None:
    claim = k_sets(BENCH)
    for cell in claim.cells():
        _measured(study, cell, {"r@1": 0.40, "r@16": 0.90 if cell.name == f"rsk-b{BENCH.batch}" else 0.80})
    results = collect(study, claim)
    by_sentence = {contrast.sentence: judge(contrast, results) for contrast in claim.contrasts}
    assert by_sentence["{1,2,4,8,16} beats {1} at r@16"].differences == pytest.approx((10.0, 10.0, 10.0))
    assert by_sentence["{1,2,4,8,16} beats {16}"].differences == pytest.approx((0.0, 0.0, 0.0))


def test_a_difference_of_nothing_has_no_sign() -> None:
    assert Judged(asymmetric(BENCH).contrasts[0], (-0.01,), "undecided").shown == "0.0"


def _claim_with_runs(study: Matrix) -> Claim:
    claim = asymmetric(BENCH)
    for cell in claim.cells():
        _measured(study, cell, {"r@1": 0.5})
    return claim


def test_comparisons_of_two_versions_are_marked(study: Matrix, tmp_path: Path) -> None:
    """Runs of an earlier version may have drawn other augmentations, so a difference to new ones is less certain."""
    claim = _claim_with_runs(study)
    results = collect(study, claim)
    assert not judge(claim.contrasts[0], results).two_versions
    new = claim.cells()[1].name
    judged = judge(claim.contrasts[0], {**results, new: replace(results[new], versions=frozenset({__version__}))})
    assert judged.words == "undecided (runs of two versions)"
    page = write_page(study, [claim], tmp_path / "page", "x").read_text()
    assert "two versions" not in page  # both cells are of the earlier one
    assert "Runs of recollect 0.0.1: " in page
    assert "from 12 finished runs (12 of them taken over from an earlier page)" in page


def test_a_single_curve_is_not_named_in_the_table(study: Matrix, tmp_path: Path) -> None:
    page = write_page(study, [_claim_with_runs(study)], tmp_path / "page", "x").read_text()
    assert _table(page, "step")[0][:2] == ["step", "r@1"]
    assert "A loss's name alone means the form of its own paper" in page


def test_a_page_of_something_else_is_left_alone(study: Matrix, tmp_path: Path) -> None:
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "README.md").write_text("# Mine")
    with pytest.raises(ConfigError, match="--page"):
        write_page(study, [], tmp_path / "page", "x")
