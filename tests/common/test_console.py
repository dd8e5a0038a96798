from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from recollect.common import console as progress
from recollect.common.console import ProgressLine


@pytest.fixture(autouse=True)
def _loud_again() -> Iterator[None]:
    yield
    progress.silent = False


def ticking(*seconds: float) -> Callable[[], float]:
    return iter(seconds).__next__


def test_without_a_terminal_a_plain_line_comes_every_30_seconds(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "recollect")
    with ProgressLine("embedding", 1000, done=100, clock=ticking(0.0, 29.9, 30.0, 45.0, 60.0)) as line:
        output = [line.advance(100) for _ in range(3)] + [line.advance(200, note="loss 0.31")]
    assert caplog.messages == [text for text in output if text is not None]
    assert output == [
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


def test_quiet_work_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "recollect")
    with ProgressLine("embedding", quiet=True, clock=ticking(0.0, 40.0)) as line:
        assert line.advance() is not None
    progress.silent = True
    with ProgressLine("embedding", clock=ticking(0.0, 40.0)) as line:
        line.advance()
    assert caplog.messages == []
