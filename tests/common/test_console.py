from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from rich.console import Console

from recollect.common import console as progress
from recollect.common.console import ProgressLine, lines_every, only_warnings


def track(items: Iterable[Any], description: str, total: int | None = None, quiet: bool | None = None) -> Iterator[Any]:
    """Yield ``items`` while a progress line counts them."""
    with ProgressLine(description, total or len(items), "images", quiet) as line:  # type: ignore[arg-type]
        for item in items:
            yield item
            line.advance()


@pytest.fixture(autouse=True)
def _loud_again() -> Iterator[None]:
    yield
    progress.silent = False


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Console:
    """Standard error that says it is a terminal, and remembers."""
    console = Console(force_terminal=True, width=120, record=True, stderr=True)
    monkeypatch.setattr(progress, "Console", lambda stderr: console)
    return console


def test_nothing_is_written_into_pipes(capfd: pytest.CaptureFixture[str]) -> None:
    assert list(track(range(5), "counting")) == list(range(5))
    assert capfd.readouterr() == ("", "")


def ticking(*seconds: float) -> Callable[[], float]:
    return iter(seconds).__next__


def test_without_a_terminal_a_plain_line_comes_every_30_seconds(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "recollect")
    with ProgressLine("embedding", 1000, done=100, clock=ticking(0.0, 29.9, 30.0, 45.0, 60.0)) as line:
        told = [line.advance(100) for _ in range(3)] + [line.advance(200, note="loss 0.31")]
    assert caplog.messages == [text for text in told if text is not None]
    assert told == [
        None,
        "embedding  300/1,000 images, 6.7 images/s, 2 min left",
        None,
        "embedding  600/1,000 images, loss 0.31, 48 s left",
    ]


def test_slow_work_and_a_number_that_grows(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "recollect")
    with ProgressLine("runs", 5, "runs", done=3, clock=ticking(0.0, 60.0, 240.0)) as line:
        assert line.advance() == "runs       4/5 runs, 60.0 runs/h, 60 s left"
        line.expect(8)
        assert line.advance() == "runs       5/8 runs, 30.0 runs/h, 6 min left"


def test_the_interval_can_be_shorter_for_a_while(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "recollect")
    with lines_every(10.0), ProgressLine("embedding", clock=ticking(0.0, 9.0, 10.0)) as line:
        assert line.advance(4) is None
        assert line.advance(1) == "embedding  5 images, 0.5 images/s"
    with ProgressLine("embedding", clock=ticking(0.0, 10.0)) as line:
        assert line.advance(4) is None


def test_work_inside_other_work_has_plain_lines_only(terminal: Console, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "recollect")
    with ProgressLine("evaluating", 4, live=False, clock=ticking(0.0, 40.0)) as line:
        line.advance(2)
    assert caplog.messages == ["evaluating 2/4 images, 0.1 images/s, 40 s left"]
    assert terminal.export_text().strip() == ""


def test_quiet_work_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "recollect")
    with ProgressLine("embedding", quiet=True, clock=ticking(0.0, 40.0)) as line:
        assert line.advance() is not None
    progress.silent = True
    with ProgressLine("embedding", clock=ticking(0.0, 40.0)) as line:
        line.advance()
    assert caplog.messages == []


def test_part_of_a_larger_whole_keeps_to_warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "recollect")
    inner = logging.getLogger("recollect.training.trainer")
    with only_warnings("recollect.training"):
        inner.info("a remark")
        inner.warning("a warning")
    inner.info("another")
    assert caplog.messages == ["a warning", "another"]


def test_counters_are_whole_in_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80, record=True)
    monkeypatch.setattr(progress, "Console", lambda stderr: console)
    line = ProgressLine("training", total=12_500, unit="steps", done=11_000)
    line.advance(499, note="loss 0.2512 1,270 images/s val r@1 84.2 epoch 91.5 12,345 MB")
    console.print(line._progress.get_renderable())
    row = console.export_text().splitlines()[-1]
    assert row.startswith("training")
    assert "11499/12500" in row
    assert "loss 0.2512 1,270 images/s" in row
    assert len(row.rstrip()) <= 80
    assert "MB" not in row  # the end of the note is what is cut


def test_a_terminal_sees_count_and_note(terminal: Console) -> None:
    with ProgressLine("embedding", total=4, unit="images") as line:
        line.advance(3, note="loss 0.31")
        line._progress.refresh()
    text = terminal.export_text()
    assert "embedding" in text
    assert "3/4" in text
    assert "loss 0.31" in text


def test_quiet_silences_a_terminal_too(terminal: Console) -> None:
    progress.silent = True
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


def test_a_line_inside_another_is_not_live() -> None:
    for _ in range(2):
        with ProgressLine("outside", 1, quiet=False) as outside, ProgressLine("inside", 1, quiet=False) as inside:
            inside.advance()
            outside.advance()
            assert [line._progress.live.is_started for line in (outside, inside)] == [True, False]
