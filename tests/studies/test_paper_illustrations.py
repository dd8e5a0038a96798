"""The explanatory figures on the page of ``recollect paper``: every number is the losses' own."""

from __future__ import annotations

import math
import re

import pytest

from recollect.report import paper_figures
from recollect.studies.paper_illustrations import idea


def test_the_illustrations_show_what_the_losses_give() -> None:
    page = str(idea())
    shown = re.sub(r"<[^>]+>", " ", page)
    for listed, pulls in zip(paper_figures.MOTIVATION, paper_figures.pulls(), strict=True):
        assert listed.title.capitalize() in shown
        wanted = [value for pull in pulls for value in (pull.pairs, pull.recall) if abs(value) >= 0.005]
        assert all(f"{value:+.2f}".replace("-", "−") in shown for value in wanted)
    for listed in paper_figures.COMPARED:
        row = shown[shown.index(listed.title) :].split()
        wanted = [f"{100 * value:.0f}" for found in paper_figures.compared(listed) for value in found[1:]]
        assert any(row[place : place + 6] == wanted for place in range(40))
    count = len(paper_figures.mixed_similarities().labels)
    assert page.count("<rect") == count**2
    assert "both virtual" in page


def test_the_two_sigmoids_and_the_gradient_against_the_rank_are_drawn() -> None:
    page = str(idea())
    rows = {
        re.sub("<[^>]+>", "", cells[0]): [float(re.sub("<[^>]+>", "", cell)) for cell in cells[1:]]
        for row in re.findall(r"<tr>.*?</tr>", page)
        if len(cells := re.findall(r"<t[hd].*?</t[hd]>", row)) == 5 and re.match(r"<th[^>]*>(τ|k )", cells[0])
    }

    def sigmoid(x: float) -> float:
        return 1 / (1 + math.exp(-x))

    assert rows["τ2 = 0.01 (used)"][:2] == pytest.approx([sigmoid(-10), sigmoid(10)], rel=1e-3)
    assert rows["τ1 = 1 (used)"][:2] == pytest.approx([sigmoid(4), sigmoid(-6)], rel=1e-3)
    assert [rows[f"k = {k}"][3] for k in (1, 2, 4)] == [0.25] * 3  # the gradient of a hit is largest at rank k
    assert rows["k ∈ {1, 2, 4}, sum"][3] > 0.5
    assert page.count('class="chart"') == 3
