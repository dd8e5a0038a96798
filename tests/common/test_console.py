from __future__ import annotations

from collections.abc import Iterator

import pytest
from rich.console import Console

from recollect.common import console as progress
from recollect.common.console import ProgressLine, set_quiet, track


@pytest.fixture(autouse=True)
def _loud_again() -> Iterator[None]:
    yield
    set_quiet(False)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Console:
    """Standard error that says it is a terminal, and remembers."""
    console = Console(force_terminal=True, width=120, record=True, stderr=True)
    monkeypatch.setattr(progress, "Console", lambda stderr: console)
    return console


def test_nothing_is_written_into_pipes(capfd: pytest.CaptureFixture[str]) -> None:
    assert list(track(range(5), "counting")) == list(range(5))
    assert capfd.readouterr() == ("", "")


def test_a_terminal_sees_count_and_note(terminal: Console) -> None:
    with ProgressLine("embedding", total=4, unit="images") as line:
        line.advance(3, note="loss 0.31")
        line._progress.refresh()
    text = terminal.export_text()
    assert "embedding" in text
    assert "3/4" in text
    assert "loss 0.31" in text


def test_quiet_silences_a_terminal_too(terminal: Console) -> None:
    set_quiet(True)
    assert list(track("abc", "counting")) == ["a", "b", "c"]
    assert terminal.export_text().strip() == ""


def test_track_counts_items_and_works_on_iterators(terminal: Console) -> None:
    seen = []
    for item in track(iter(range(3)), "stream", total=3, quiet=False):
        seen.append(item)
    assert seen == [0, 1, 2]
    assert "3/3" in terminal.export_text()


def test_the_line_ends_when_the_work_fails(terminal: Console) -> None:
    line = ProgressLine("failing", total=2, quiet=False)
    with pytest.raises(RuntimeError), line:
        raise RuntimeError
    assert not line._progress.live.is_started
