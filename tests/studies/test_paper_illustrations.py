"""The explanatory figures on the page of ``recollect paper``: every number is the losses' own."""

from __future__ import annotations

import re

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
