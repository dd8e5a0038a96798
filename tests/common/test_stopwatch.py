from __future__ import annotations

import pytest

from recollect.common import stopwatch


def _clock_that_takes(monkeypatch: pytest.MonkeyPatch, *durations: float) -> None:
    """Each piece of work takes the next of these."""
    now, left = [0.0, 0.0], iter(durations)

    def tell() -> float:
        now[1] += 1
        if now[1] % 2 == 0:  # at the end of a piece of work
            now[0] += next(left)
        return now[0]

    monkeypatch.setattr(stopwatch, "clock", tell)


def test_the_median_without_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    _clock_that_takes(monkeypatch, 0.9, 0.1, 0.3, 0.2)
    assert stopwatch.seconds_of(int) == pytest.approx(0.2)


def test_short_work_is_repeated_eight_times_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    _clock_that_takes(monkeypatch, *[0.001] * 20)
    stopwatch.seconds_of(lambda: calls.append(1))
    assert len(calls) == 9


def test_long_work_is_done_once(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []
    _clock_that_takes(monkeypatch, 5.0)
    assert stopwatch.seconds_of(int, lambda: waited.append(1)) == 5.0
    assert waited == [1]
