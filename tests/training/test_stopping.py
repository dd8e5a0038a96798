"""A wish to stop is kept, and the handlers from before come back."""

from __future__ import annotations

import signal
import threading

import pytest
import torch

from recollect.step.distributed import Processes
from recollect.training.optimizer import stop_on_signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_a_wish(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with stop_on_signals() as stop:
        assert stop.agreed(True, Processes(), torch.device("cpu")) == (True, None)
        signal.raise_signal(number)
        assert stop.agreed(False, Processes(), torch.device("cpu")) == (False, number)
    assert signal.getsignal(number) is before


def test_the_second_is_not_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[int] = []
    with stop_on_signals() as stop:
        stop.ask(signal.SIGTERM)
        monkeypatch.setattr(signal, "raise_signal", raised.append)
        stop.ask(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert raised == [signal.SIGTERM]


def test_in_another_thread_nothing_is_caught() -> None:
    before, seen = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with stop_on_signals() as stop:
            seen.append((signal.getsignal(signal.SIGINT), stop.signal))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(before, None)]
