"""Figures of claims: curves over numbers, names one below the other, the paper's numbers beside ours."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from matrix_bench import BENCH

from recollect.studies.claims import Claim, batch, k_sets, losses
from recollect.studies.claims_figure import draw_claim
from recollect.studies.summary import CellResult


def _results(claim: Claim) -> dict[str, CellResult]:
    return {
        cell.name: CellResult(cell, {seed: {"r@1": 40.0 + number + 0.1 * seed} for seed in (1, 2, 3)}, None)
        for number, cell in enumerate(claim.cells())
    }


def _texts(path: Path) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]+)</text>", path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("make", [losses, k_sets])
def test_every_name_is_written_once_per_panel(make, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    claim = make(BENCH)
    assert draw_claim(claim, _results(claim), tmp_path / "names.svg")
    texts = _texts(tmp_path / "names.svg")
    panels = 1 + bool(claim.published.curves)
    assert all(texts.count(str(x)) == panels for x, _ in claim.curves[0].points if not str(x).isdigit())
    assert sum(text.startswith("the paper:") for text in texts) == panels - 1
    assert not re.search(r"rotate\(-?35", (tmp_path / "names.svg").read_text())


def test_curves_have_the_papers_beside_them(tmp_path: Path) -> None:
    claim = batch(BENCH)
    assert draw_claim(claim, _results(claim), tmp_path / "curves.svg")
    texts = _texts(tmp_path / "curves.svg")
    assert {"measured: small", "the paper: batch-size figure, Cars196, ResNet-50"} <= set(texts)
    assert {"Smooth-AP", "RS@k", "RS@k+SiMix"} <= set(texts)


def test_nothing_measured_is_not_drawn(tmp_path: Path) -> None:
    claim = losses(BENCH)
    assert not draw_claim(claim, {cell.name: CellResult(cell, {}, None) for cell in claim.cells()}, tmp_path / "x.svg")
    assert not (tmp_path / "x.svg").exists()
