"""Devices that are there, and a sentence for those that are not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from recollect.common import devices
from recollect.common.devices import usable_device
from recollect.common.errors import ConfigError


def test_what_is_here() -> None:
    assert usable_device("cpu", training=True).type == "cpu"
    assert usable_device("auto").type in ("cpu", "cuda")


@pytest.mark.parametrize("wanted", ["gpu", "cuda:99", "meta", ""])
def test_what_is_not_is_a_sentence(wanted: str) -> None:
    with pytest.raises(ConfigError, match="--device"):
        usable_device(wanted, "--device")


def test_a_device_without_float64_embeds_and_does_not_train(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Apple's: tensors of float32 only."""
    ones = torch.ones

    def without_float64(*size: int, dtype: torch.dtype = torch.float32, device: Any = None) -> torch.Tensor:
        if dtype == torch.float64:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype")
        return ones(*size, dtype=dtype)

    monkeypatch.setattr(torch, "ones", without_float64)
    assert usable_device("mps").type == "mps"
    with pytest.raises(ConfigError, match=r"mps.*float64"):
        usable_device("mps", "run.device", training=True)


def _clock_that_takes(monkeypatch: pytest.MonkeyPatch, *durations: float) -> None:
    """Each piece of work takes the next of these."""
    now, left = [0.0, 0.0], iter(durations)

    def tell() -> float:
        now[1] += 1
        if now[1] % 2 == 0:  # at the end of a piece of work
            now[0] += next(left)
        return now[0]

    monkeypatch.setattr(devices, "clock", tell)
    monkeypatch.setattr(devices, "SECONDS", 1.0)  # not as the tests set it


def test_the_median_without_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    _clock_that_takes(monkeypatch, 0.9, 0.1, 0.3, 0.2)
    assert devices.seconds_of(int) == pytest.approx(0.2)


def test_short_work_is_repeated_eight_times_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    _clock_that_takes(monkeypatch, *[0.001] * 20)
    devices.seconds_of(lambda: calls.append(1))
    assert len(calls) == 9


def test_long_work_is_done_once(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []
    _clock_that_takes(monkeypatch, 5.0)
    assert devices.seconds_of(int, lambda: waited.append(1)) == 5.0
    assert waited == [1]
