"""``reproduce`` in Python: what it would run, and a page of what was run so far."""

from __future__ import annotations

from pathlib import Path

import recollect
from recollect.studies.reproducing import plan_reproduction


def test_a_page_of_what_was_run_so_far(tmp_path: Path) -> None:
    page = recollect.reproduce("tau1", benches=["glyphs"], out=tmp_path / "study", minutes=0, seeds=2)
    assert "recollect reproduce tau1 --budget small --bench glyphs --seeds 2" in page.read_text()


def test_what_would_be_run() -> None:
    lines = plan_reproduction("tau1", budget="small", data=None, benches=["glyphs"], out=Path("x"), seeds=2)
    assert any("glyphs" in line for line in lines)
    assert not Path("x").exists()
